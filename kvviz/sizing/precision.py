"""Precision: how many bits a number of the cache or of the weights takes, the scales of quantized ones included."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch

from kvviz.errors import InvalidRequest

SCALE_BITS = 16  # scales and zero points are fp16


@dataclass(frozen=True)
class KVScheme:
    """How keys and values are stored: `bits` a number, and what quantized ones need beside it.

    scales_per_token: fp16 numbers for each token, head, and keys and values each (int8: one scale).
    group: 0, or the size of the groups that share an fp16 scale and an fp16 zero point: keys by channel over `group`
    tokens, values by token over `group` channels (int4, as in KIVI, arXiv 2402.02750, section 3: channels of keys have
    outliers that last, so they are not mixed with others).
    """

    name: str
    bits: int
    scales_per_token: int = 0
    group: int = 0

    def key_bits(self, dim: int, page_size: int | None = None) -> Fraction:
        """Bits of one token's keys of one head, scales spread over the tokens that share them.

        page_size: groups of tokens do not cross pages, so that a page can be shared or released by itself: pages of 16
        tokens hold a scale for 16, and those of 48 two. None: whole groups.
        """
        per_token = dim * self.bits + self.scales_per_token * SCALE_BITS
        if not self.group:
            return Fraction(per_token)
        tokens = page_size or self.group
        return per_token + Fraction(-(-tokens // self.group) * 2 * SCALE_BITS * dim, tokens)

    def value_bits(self, dim: int) -> Fraction:
        """Bits of one token's values of one head; a group that is not full has a scale and a zero point, too."""
        groups = -(-dim // self.group) if self.group else 0
        return Fraction(dim * self.bits + (self.scales_per_token + 2 * groups) * SCALE_BITS)

    @property
    def quantized(self) -> bool:
        return bool(self.scales_per_token or self.group)


KV_SCHEMES = {
    scheme.name: scheme
    for scheme in (
        KVScheme("fp32", 32),
        KVScheme("fp16", 16),
        KVScheme("bf16", 16),
        KVScheme("fp8", 8),  # one scale for a whole layer, as vLLM's kv_cache_dtype="fp8": nothing per token
        KVScheme("int8", 8, scales_per_token=1),
        KVScheme("int4", 4, group=32),
    )
}


@dataclass(frozen=True)
class WeightScheme:
    """How the matrices of the layers are stored. Embeddings, output layer and vectors (norms, biases) keep
    `rest_bits`, as GPTQ, AWQ and bitsandbytes leave them. bits: of a weight, scales included.
    """

    name: str
    bits: Fraction
    rest_bits: int
    how: str = ""


WEIGHT_SCHEMES = {
    scheme.name: scheme
    for scheme in (
        WeightScheme("fp32", Fraction(32), 32),
        WeightScheme("fp16", Fraction(16), 16),
        WeightScheme("bf16", Fraction(16), 16),
        WeightScheme("fp8", Fraction(8), 16, "a scale for each matrix"),
        WeightScheme("int8", Fraction(8) + Fraction(16, 128), 16, "8 bits and an fp16 scale for 128 weights"),
        # GPTQ and AWQ pack the zero point into 4 bits: 4.16; GGUF's Q4_0 and Q4_K take 4.5
        WeightScheme(
            "int4", Fraction(4) + Fraction(32, 128), 16, "4 bits, an fp16 scale and zero point for 128 weights"
        ),
    )
}
_TORCH = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
_FLOAT8 = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")


def dtype_name(dtype: Any, what: str = "dtype") -> str:
    """One of fp32, fp16, bf16, fp8, int8, int4, from such a name or a torch.dtype. Raises InvalidRequest."""
    name = dtype if isinstance(dtype, str) else _TORCH.get(dtype) if isinstance(dtype, torch.dtype) else None
    if name is None and str(dtype).removeprefix("torch.") in _FLOAT8 and isinstance(dtype, torch.dtype):
        name = "fp8"
    if name not in KV_SCHEMES:
        raise InvalidRequest(
            f"{what} must be one of {', '.join(map(repr, KV_SCHEMES))} or a torch.dtype of 32, 16 or 8 bits that is "
            f"floating-point, got {dtype!r:.40}"
        )
    return name


def kv_scheme(dtype: Any) -> KVScheme:
    """The scheme of that name or torch.dtype; a KVScheme of one's own goes through. Raises InvalidRequest."""
    return dtype if isinstance(dtype, KVScheme) else KV_SCHEMES[dtype_name(dtype, "kv_dtype")]


def weight_scheme(dtype: Any) -> WeightScheme:
    """The scheme of that name or torch.dtype; a WeightScheme of one's own goes through. Raises InvalidRequest."""
    return dtype if isinstance(dtype, WeightScheme) else WEIGHT_SCHEMES[dtype_name(dtype, "dtype")]
