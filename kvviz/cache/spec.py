"""What every cache here has in common: how many layers and heads, of which size, dtype and device; and what may go in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from kvviz.counts import positive
from kvviz.errors import InvalidRequest


@dataclass
class CacheSpec:
    """layers, kv_heads, head_dim, batch: counts from 1 up. dtype, device: None until the first tensors fix them."""

    layers: int
    kv_heads: int
    head_dim: int
    batch: int = 1
    dtype: torch.dtype | None = None
    device: torch.device | None = None

    def __post_init__(self) -> None:
        for name in ("layers", "kv_heads", "head_dim", "batch"):
            setattr(self, name, positive(name, getattr(self, name)))
        if self.dtype is not None and not (isinstance(self.dtype, torch.dtype) and self.dtype.is_floating_point):
            hint = ": kvviz.QuantizedPagedKVCache takes it" if self.dtype in ("int8", "int4") else ""
            raise InvalidRequest(f"dtype must be a floating-point torch.dtype or None, got {self.dtype!r}{hint}")
        if self.device is not None:
            try:
                self.device = torch.empty(0, device=self.device).device  # "cuda" is also "cuda:0"
            except (RuntimeError, AssertionError, TypeError, ValueError) as error:
                reason = str(error).split("\n")[0]
                raise InvalidRequest(f"device {self.device!r} cannot be used here: {reason}") from error

    @property
    def itemsize(self) -> int:
        """Bytes of one number; 4 as long as the dtype is not known."""
        return self.dtype.itemsize if self.dtype else 4

    @property
    def token_bytes(self) -> int:
        """Bytes of one token of one sequence: keys and values in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.itemsize

    def accept(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> int:
        """The number of tokens in keys and values, both [batch, kv_heads, tokens, head_dim]; 0 is a number, too.

        Raises InvalidRequest, naming what was expected and what came. Changes nothing: `settle` fixes what is open.
        """
        self.accept_layer(layer)
        for name, states in (("keys", keys), ("values", values)):
            if not isinstance(states, torch.Tensor):
                raise InvalidRequest(f"{name} must be a tensor, got {type(states).__name__}")
            shape = list(states.shape)
            if len(shape) != 4 or shape[:2] + shape[3:] != [self.batch, self.kv_heads, self.head_dim]:
                wanted = f"[{self.batch}, {self.kv_heads}, tokens, {self.head_dim}]"
                raise InvalidRequest(f"{name} must be [batch, kv_heads, tokens, head_dim] = {wanted}, got {shape}")
        if keys.shape != values.shape:
            raise InvalidRequest(f"keys bring {keys.shape[2]} tokens, values {values.shape[2]}")
        if keys.dtype != values.dtype:
            raise InvalidRequest(f"keys are {keys.dtype}, values {values.dtype}: they must be alike")
        if not keys.dtype.is_floating_point:
            raise InvalidRequest(f"keys and values must be floating-point, got {keys.dtype}")
        if self.dtype is not None and keys.dtype != self.dtype:
            raise InvalidRequest(f"this cache holds {self.dtype}, got {keys.dtype}: convert first")
        if keys.device != values.device:
            raise InvalidRequest(f"keys are on {keys.device}, values on {values.device}")
        if self.device is not None and keys.device != self.device:
            raise InvalidRequest(f"this cache is on {self.device}, got tensors on {keys.device}")
        return int(keys.shape[2])

    def accept_layer(self, layer: int) -> None:
        if isinstance(layer, bool) or not isinstance(layer, int) or not 0 <= layer < self.layers:
            raise InvalidRequest(f"layer must be 0 … {self.layers - 1}, got {layer!r}")

    def settle(self, keys: torch.Tensor) -> None:
        """Take dtype and device from the first tensors, where they were left open."""
        self.dtype = self.dtype or keys.dtype
        self.device = self.device or keys.device


def storage_bytes(tensors: Iterable[torch.Tensor | None]) -> int:
    """Bytes that these tensors keep alive: each storage once, whole, however small the view of it."""
    found = {}
    for tensor in tensors:
        if tensor is not None:
            storage = tensor.untyped_storage()
            found[storage._cdata] = storage.nbytes()  # data_ptr() is 0 for all that are empty
    return sum(found.values())
