"""Codes: how keys and values become small integers with scales, and numbers again.

    int8    one fp16 scale for each token and head, the codes -127 … 127
    int4    keys by channel: the tokens of a group share a scale and a zero point, channel by channel
            values by token: groups of 32 channels share a scale and a zero point; the codes 0 … 15, two in a byte

int4 is the scheme of KIVI (Liu and others, 2024, arXiv 2402.02750, section 3): a few channels of keys are large for all
tokens, and by channel they have scales of their own; values have no such channels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from kvviz.errors import InvalidRequest

GROUP = 32  # tokens of keys, channels of values
Coded = tuple[torch.Tensor, torch.Tensor]  # codes and scales
Shapes = tuple[tuple[int, ...], tuple[int, ...]]  # of the codes and scales of one group of tokens


class Int8:
    """Symmetric: a number is code · scale."""

    def __init__(self, dim: int):
        self.dim, self.code_dtype = dim, torch.int8

    def shapes(self, group: int) -> Shapes:
        return (group, self.dim), (group, 1)

    def encode(self, states: torch.Tensor) -> Coded:
        """states: fp32 [groups …, tokens, head_dim]."""
        scale = _half(states.abs().amax(-1, keepdim=True) / 127)
        return (states / _divisor(scale)).round_().clamp_(-127, 127).to(torch.int8), scale

    def decode(self, codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        """fp32, as `encode` got it."""
        return codes.float().mul_(scale.float())


class Int4:
    """Asymmetric: a number is code · scale + zero, and two codes share a byte: channel c with channel c + head_dim / 2."""

    def __init__(self, dim: int):
        if dim % 2:
            raise InvalidRequest(f"int4 puts two channels in a byte, and head_dim is {dim}, an odd number")
        self.dim, self.code_dtype = dim, torch.uint8

    def _encode(self, states: torch.Tensor, along: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Codes 0 … 15, not packed yet, and scale and zero, which all numbers along that dimension share."""
        low, high = states.amin(along, keepdim=True), states.amax(along, keepdim=True)
        zero, scale = _half(low), _half((high - low) / 15)
        codes = ((states - zero.float()) / _divisor(scale)).round_().clamp_(0, 15).to(torch.uint8)
        return codes, scale, zero

    def _pack(self, codes: torch.Tensor) -> torch.Tensor:
        return codes[..., : self.dim // 2] | codes[..., self.dim // 2 :] << 4

    def _unpack(self, packed: torch.Tensor) -> torch.Tensor:
        codes = torch.empty(*packed.shape[:-1], self.dim, dtype=torch.float32, device=packed.device)
        codes[..., : self.dim // 2] = packed & 15
        codes[..., self.dim // 2 :] = packed >> 4
        return codes


class Int4Keys(Int4):
    """By channel: what is encoded together shares its scales."""

    def shapes(self, group: int) -> Shapes:
        return (group, self.dim // 2), (2, self.dim)

    def encode(self, states: torch.Tensor) -> Coded:
        codes, scale, zero = self._encode(states, along=-2)
        return self._pack(codes), torch.cat([scale, zero], -2)

    def decode(self, packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        scales = scales.float()
        return self._unpack(packed).mul_(scales[..., :1, :]).add_(scales[..., 1:, :])


class Int4Values(Int4):
    """By token, in groups of channels; the last one may have fewer than 32."""

    def __init__(self, dim: int):
        super().__init__(dim)
        self.groups = -(-dim // GROUP)

    def shapes(self, group: int) -> Shapes:
        return (group, self.dim // 2), (group, 2, self.groups)

    def encode(self, states: torch.Tensor) -> Coded:
        codes, scale, zero = self._encode(self._grouped(states), along=-1)
        return self._pack(codes.flatten(-2)[..., : self.dim]), torch.stack([scale[..., 0], zero[..., 0]], -2)

    def decode(self, packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        scale, zero = scales.float().unsqueeze(-1).unbind(-3)  # each [… tokens, groups, 1]
        return self._grouped(self._unpack(packed)).mul_(scale).add_(zero).flatten(-2)[..., : self.dim]

    def _grouped(self, states: torch.Tensor) -> torch.Tensor:
        """[… tokens, groups, channels]; a last group that is not full repeats its last channel."""
        width = min(GROUP, self.dim)
        if missing := self.groups * width - self.dim:
            states = torch.cat([states, states[..., -1:].expand(*states.shape[:-1], missing)], -1)
        return states.unflatten(-1, (self.groups, width))


def _half(numbers: torch.Tensor) -> torch.Tensor:
    """fp16; what is too large for it becomes the largest it has, so that no scale is infinite."""
    most = torch.finfo(torch.float16).max
    return numbers.clamp(-most, most).half()


def _divisor(scale: torch.Tensor) -> torch.Tensor:
    """Where all numbers are alike the scale is 0, and so is every code."""
    return torch.where(scale > 0, scale, 1).float()


@dataclass(frozen=True)
class Scheme:
    """keys, values: what codes them. group: tokens that are coded together at most; 1 where each stands for itself."""

    name: str
    keys: type[Int8] | type[Int4Keys]
    values: type[Int8] | type[Int4Values]
    group: int
    page_size: int  # where none is asked for

    def group_of(self, page_size: int) -> int:
        """Groups do not cross pages, so that each page can be shared or released by itself.

        Raises InvalidRequest where pages do not hold whole groups.
        """
        if page_size % self.group and self.group % page_size:
            raise InvalidRequest(
                f"keys in {self.name} are coded in groups of {self.group} tokens: page_size must be a multiple of "
                f"{self.group} or divide it, got {page_size}"
            )
        return min(self.group, page_size)

    def page_bytes(self, kv_heads: int, dim: int, page_size: int) -> int:
        """Bytes of a page in one layer: codes and scales of keys and values."""
        group, total = self.group_of(page_size), 0
        for codec in (self.keys(dim), self.values(dim)):
            codes, scales = codec.shapes(group)
            total += math.prod(codes) + math.prod(scales) * torch.float16.itemsize
        return total * kv_heads * (page_size // group)


SCHEMES = {
    "int8": Scheme("int8", Int8, Int8, 1, 16),
    "int4": Scheme("int4", Int4Keys, Int4Values, GROUP, GROUP),
}


def scheme_of(dtype: object) -> Scheme | None:
    """The scheme of that name; None for what is no string. Raises InvalidRequest for another name, or an integer dtype."""
    if dtype in (torch.int8, torch.uint8) or (isinstance(dtype, str) and dtype not in SCHEMES):
        raise InvalidRequest(f"dtype must be a floating-point torch.dtype, 'int8', 'int4' or None, got {dtype!r}")
    return SCHEMES[dtype] if isinstance(dtype, str) else None
