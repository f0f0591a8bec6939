"""Where numbers come from, in the words that every picture carries."""

from __future__ import annotations

import torch

NO_GPU = "PyTorch's allocator, no GPU"
_STUB = "StubCUDA"  # how the device calls itself that lets the real allocator run without a GPU


def of_cuda(name: str) -> str:
    """name: as torch.cuda.get_device_name says it."""
    return NO_GPU if name.startswith(_STUB) else f"GPU: {name}"


def of_pages(device: torch.device) -> str:
    """Of pages whose tensors lie on that device."""
    if device.type == "cuda":
        return of_cuda(torch.cuda.get_device_name(device))
    return f"pages of a run on {device.type.upper()}"
