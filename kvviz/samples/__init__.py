"""Recorded runs at real scale, shipped with the lessons.

Each was recorded on PyTorch's own CUDA allocator, in a process without a GPU (`make samples`): shapes, sizes, addresses
and errors are the real allocator's; only the numbers inside the tensors were never computed.
"""

from __future__ import annotations

from pathlib import Path

from kvviz.errors import InvalidRequest, brief
from kvviz.memory.file import load
from kvviz.memory.trace import Trace

SAMPLES = {
    "7b_24gb": "Llama-2-7B's shapes in fp16 on 24 GB, every second cache kept: out of memory in generation 23",
    "7b_80gb": "the same on 80 GB, where all 40 generations fit: for replays on smaller devices",
    "3b_12gb": "a 3B model (26 layers, 32 heads of 100) in fp16 on 12 GB, a batch of 8 that grows until it runs out",
    "3b_24gb": "the same on 24 GB",
    "window_shift": "100 generations through a window of 512 tokens: fixed buffers, the tail copied to the front",
    "window_slice": "the same window, cut from a growing tensor by slicing: each cut is a view",
    "window_clone": "the same window, each cut copied into a tensor of its own",
}


def sample(name: str) -> Trace:
    """A shipped trace by name; SAMPLES says what each is. Raises InvalidRequest for an unknown one."""
    if not isinstance(name, str) or name not in SAMPLES:
        raise InvalidRequest(f"no sample {brief(name)}; there are {', '.join(SAMPLES)}")
    return load(Path(__file__).parent / f"{name}.kvviz")
