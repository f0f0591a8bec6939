"""Terms: the bytes of weights, cache and workspace on one device, each with the equation that gives them."""

from __future__ import annotations

import functools
import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from kvviz.cache.capacity import most_pages, pages_for
from kvviz.errors import InvalidRequest
from kvviz.memory.report import count_text
from kvviz.sizing.precision import KVScheme, WeightScheme
from kvviz.sizing.shape import (
    KVLayer,
    count_of,
    count_or_none,
    counted,
    layer_kinds,
    read_config,
    value_of,
    whole_config,
)


class Term(NamedTuple):
    """name: what takes memory; equation: how many bytes, with its numbers; bytes: of the largest rank, rounded up."""

    name: str
    equation: str
    bytes: int


class Parameters(NamedTuple):
    """matrices: numbers in the layers' matrices, which quantization makes small; rest: embeddings, output layer, vectors."""

    matrices: int
    rest: int


class Sizes(NamedTuple):
    """What the workspace depends on. inner: of the feed-forward part, for the experts that a token meets together."""

    name: str
    layers: int
    hidden: int
    inner: int
    vocabulary: int
    context: int | None


@dataclass(frozen=True)
class Overhead:
    """What is needed beside weights and cache: assumptions, each to be set as one knows better.

    context: bytes of CUDA's context and the libraries' workspaces (0.5 GiB: some 0.3 to 0.6 on cards of today).
    prefill_chunk: tokens that go through the model at once, of all sequences together (2,048, as in vLLM).
    logits_tokens: of those, the ones that get logits, None: all; generate() asks for 1. logits_bytes: of one logit (fp32).
    hidden_copies, inner_copies: vectors of hidden and feed-forward size alive at once for each token of the chunk
    (residual, normed, queries, output; gate and up).
    No matrix of attention scores: FlashAttention and SDPA compute it in blocks, "eager" does not. No fragmentation: what
    the allocator reserves beyond these bytes is measured by kvviz.record.
    """

    context: int = 512 << 20
    prefill_chunk: int = 2048
    logits_tokens: int | None = None
    logits_bytes: int = 4
    hidden_copies: int = 4
    inner_copies: int = 2

    def __post_init__(self) -> None:
        for name in ("context", "hidden_copies", "inner_copies", "logits_bytes", "logits_tokens"):
            if getattr(self, name) is not None:
                counted(name, getattr(self, name), least=0)
        counted("prefill_chunk", self.prefill_chunk)


def count_parameters(config_or_model: Any) -> Parameters:
    """Of a model as it is; of a config by building the model without memory (on the meta device). Raises InvalidRequest."""
    if isinstance(config_or_model, torch.nn.Module):
        return _parameters_of(config_or_model)
    config = whole_config(config_or_model)
    if isinstance(config, SimpleNamespace):
        raise InvalidRequest(
            f"transformers knows no model of type {value_of(config, 'model_type')!r}, so its parameters cannot be counted: "
            "give parameters="
        )
    kind: Any = type(config)
    return _count(kind, json.dumps(config.to_dict(), sort_keys=True, default=str))


@functools.lru_cache(maxsize=64)
def _count(kind: Any, values: str) -> Parameters:
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    config = kind.from_dict(json.loads(values))
    reason = ""
    for family in (AutoModelForCausalLM, AutoModelForImageTextToText):
        try:
            with torch.device("meta"):
                return _parameters_of(family.from_config(config))
        except Exception as error:  # of many kinds, one for each model
            reason = reason or " ".join(str(error).split())[:160]
    raise InvalidRequest(
        f"no {config.model_type} model can be built to count its parameters ({reason}): give parameters="
    )


def _parameters_of(model: torch.nn.Module) -> Parameters:
    embeddings = [module.weight for module in model.modules() if isinstance(module, torch.nn.Embedding)]
    output = getattr(model, "get_output_embeddings", lambda: None)()
    if output is not None:
        embeddings.append(output.weight)
    apart = {id(weight) for weight in embeddings}
    matrices = rest = 0
    for parameter in model.parameters():  # tied ones come once
        if parameter.dim() < 2 or id(parameter) in apart:
            rest += parameter.numel()
        else:
            matrices += parameter.numel()
    return Parameters(matrices, rest)


def sizes_of(config_or_model: Any) -> Sizes:
    """Raises InvalidRequest."""
    config = read_config(config_or_model)
    hidden = count_of(config, "hidden_size", "n_embd", "d_model")
    inner = value_of(config, "intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size") or 4 * hidden
    each = inner if isinstance(inner, list | tuple) else [inner]  # of a layer, or of all
    inner = max(counted("intermediate_size", size) for size in each)
    experts = count_or_none(config, "num_experts_per_tok", "top_k_experts") or 0
    of_experts = experts * (count_or_none(config, "moe_intermediate_size") or (inner if experts else 0))
    return Sizes(
        str(value_of(config, "model_type") or "model"),
        len(layer_kinds(config)),
        hidden,
        max(inner, of_experts),
        count_of(config, "vocab_size"),
        count_or_none(config, "max_position_embeddings", "n_positions", "max_seq_len"),
    )


def weight_terms(parameters: Parameters, scheme: WeightScheme, shards: int) -> Iterator[Term]:
    """Matrices, and what keeps its 16 bits; of ranks each has its share."""
    ranks, share = (f" ÷ {shards} ranks", shards) if shards > 1 else ("", 1)
    for name, count, bits in (
        ("weights: matrices of the layers", parameters.matrices, scheme.bits),
        ("weights: embeddings, output layer, vectors", parameters.rest, Fraction(scheme.rest_bits)),
    ):
        if count:
            yield Term(name, f"{count:,} numbers × {number(bits)} bits ÷ 8{ranks}", math.ceil(count * bits / 8 / share))


def cache_terms(
    layers: tuple[KVLayer, ...], scheme: KVScheme, tokens: int, batch: int, page_size: int, shards: int
) -> Iterator[Term]:
    """A term for each kind of layer: pages that are full or not, times layers, heads and bits."""
    for layer, count in Counter(layers).items():
        pages = pages_for(0, tokens, page_size)
        kind = layer.attention
        if layer.window is not None:
            # as kvviz's pools: wherever in its page the window begins, and room for the next token
            pages, kind = min(pages, most_pages(layer.window, page_size)), f"{kind}, window {layer.window:,}"
        slots = batch * pages * page_size
        heads, heads_text = rank_heads(layer, shards)
        bits = replace(layer, heads=1).token_bits(scheme, page_size)
        sequences = f"{batch:,} sequences of " if batch > 1 else ""
        equation = (
            f"{slots:,} slots ({sequences}{count_text(pages, 'page')} of {page_size:,}) × {count:,} layers × {heads_text} × "
            f"{number(bits)} bits ({_bits_text(layer, scheme, page_size)}) ÷ 8"
        )
        yield Term(f"cache: {kind}, {scheme.name}", equation, math.ceil(slots * count * heads * bits / 8))


def rank_heads(layer: KVLayer, shards: int) -> tuple[int, str]:
    """KV heads on the rank that has most, and in words. Fewer heads than ranks: each is on several; a latent on all."""
    if layer.latent:
        return 1, "1 latent (on every rank)" if shards > 1 else "1 latent"
    most = -(-layer.heads // shards)
    if shards == 1:
        return most, f"{most:,} heads"
    if layer.heads < shards:
        return 1, f"1 head (of {layer.heads:,}, which {shards:,} ranks hold more than once)"
    full, more = divmod(layer.heads, shards)
    each = " + ".join(str(full + 1 if rank < more else full) for rank in range(shards))
    return most, f"{most:,} heads (of {layer.heads:,} over ranks: {each})"


def _bits_text(layer: KVLayer, scheme: KVScheme, page_size: int) -> str:
    keys, values = ("latent", "shared key") if layer.latent else ("keys", "values")
    if not scheme.quantized:
        return f"{layer.key_dim:,} {keys} + {layer.value_dim:,} {values}, {scheme.bits} each"
    per_key = float(scheme.key_bits(layer.key_dim, page_size) / layer.key_dim)
    per_value = float(scheme.value_bits(layer.value_dim) / layer.value_dim)
    return f"{layer.key_dim:,} {keys}, {per_key:.4g} each, + {layer.value_dim:,} {values}, {per_value:.4g} each, with scales"


def workspace_terms(sizes: Sizes, overhead: Overhead, tokens: int, number_bytes: int, shards: int) -> Iterator[Term]:
    """tokens: of all sequences together."""
    if overhead.context:
        yield Term("CUDA context", f"{overhead.context:,} bytes (assumed)", overhead.context)
    chunk = min(tokens, overhead.prefill_chunk)
    logits = chunk if overhead.logits_tokens is None else min(chunk, overhead.logits_tokens)
    yield Term(
        "logits of the prefill chunk",
        f"{count_text(logits, 'token')} × {sizes.vocabulary:,} words × {overhead.logits_bytes} bytes",
        logits * sizes.vocabulary * overhead.logits_bytes,
    )
    inner = -(-sizes.inner // shards)
    width = overhead.hidden_copies * sizes.hidden + overhead.inner_copies * inner
    yield Term(
        "activations of the prefill chunk",
        f"{count_text(chunk, 'token')} × {width:,} numbers ({overhead.hidden_copies} × {sizes.hidden:,} hidden + "
        f"{overhead.inner_copies} × {inner:,} feed-forward) × {number_bytes} bytes",
        chunk * width * number_bytes,
    )


def number(value: Fraction) -> str:
    """1,408 or 4.25; four places where it does not come out even."""
    return f"{value.numerator:,}" if value.denominator == 1 else f"{float(value):,.4f}".rstrip("0")
