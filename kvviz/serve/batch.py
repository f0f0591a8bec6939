"""Batch: many sequences in one call of the model.

The new tokens of all sequences lie behind one another in one row, [1, tokens of the step]; positions say where in its
own sequence each of them is. Linear layers, norms and rotations treat tokens one by one, so they need not know. Only
attention does: the function below writes the new keys and values to their pages, and then reads, for each sequence, its
own pages and no others.

    row        a a a a a a | b | c | d d d       a: a prompt in prefill, b, c: decode, d: the second chunk of a prompt
    reads of   a           | b's whole past | c's | d's first chunk, and of d itself what is not newer
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from kvviz.cache.attach import text_config
from kvviz.cache.attention import window_mask
from kvviz.cache.generate import windows_of
from kvviz.cache.spec import CacheSpec
from kvviz.cache.store import Place, Slab, place
from kvviz.errors import InvalidRequest
from kvviz.serve.scheduler import Work

NAME = "kvviz_serve"


@dataclass
class Span:
    """Tokens low … high - 1 of the row belong to one sequence. place: all its tokens up to these, in its pages.

    mask: [1, 1, high - low, tokens of place], True where seen; None where a plain causal mask, or none, says the same.
    """

    low: int
    high: int
    place: Place
    mask: torch.Tensor | None


@dataclass
class Batch:
    """What a step's attention has to know, worked out once for all layers. slots: [tokens] where new ones are written."""

    store: Slab
    spans: list[Span]
    slots: torch.Tensor

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None
    ) -> torch.Tensor:
        """query [1, heads, tokens, head_dim] to [1, tokens, heads, head_dim].

        Each sequence is read by itself, so what it gets does not depend on who else is in the batch.
        """
        for slab, states in ((self.store.keys[layer], key), (self.store.values[layer], value)):
            slab.index_copy_(1, self.slots, states[0])
        _, heads, tokens, dim = query.shape
        out = query.new_empty(1, tokens, heads, dim)
        for span in self.spans:
            keys, values = self.store.read(layer, span.place, lasting=False)
            asked = query[:, :, span.low : span.high]
            if span.high - span.low == 1:  # heads that share keys stand where queries would: keys are read once for all
                asked = asked.reshape(1, keys.shape[1], -1, dim)
                out[:, span.low] = scaled_dot_product_attention(asked, keys, values, scale=scale).reshape(1, heads, dim)
            else:
                causal = span.mask is None
                found = scaled_dot_product_attention(
                    asked, keys, values, span.mask, is_causal=causal, scale=scale, enable_gqa=True
                )
                out[:, span.low : span.high] = found.transpose(1, 2)
        return out


class Probe:
    """Stands where a batch would be, and only looks: of each layer kv_heads, head_dim and dtype of its keys."""

    def __init__(self) -> None:
        self.layers: dict[int, tuple[int, int, torch.dtype]] = {}

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None
    ) -> torch.Tensor:
        if key.shape != value.shape:
            raise InvalidRequest(f"layer {layer} has keys {list(key.shape)} and values {list(value.shape)}")
        self.layers[layer] = key.shape[1], key.shape[3], key.dtype
        return torch.zeros_like(query).transpose(1, 2)


def pack(work: Sequence[Work], store: Slab) -> dict[str, Any]:
    """The keywords to call the model with, for logits [1, sequences, vocabulary] of each one's last token."""
    device, size = store.keys[0].device, store.page_size
    ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    spans: list[Span] = []
    for sample, first, end, *_ in work:
        assert sample.table is not None
        pages, low = sample.table.pages, len(ids)
        ids += sample.tokens[first:end]
        positions += range(first, end)
        slots += [pages[t // size] * size + t % size for t in range(first, end)]
        chunk = first > 0 and end - first > 1
        mask = window_mask(end - first, end, end, None, device) if chunk else None
        spans.append(Span(low, len(ids), place([sample.table], 0, end, device), mask))
    batch = Batch(store, spans, torch.tensor(slots, device=device))
    return {
        "input_ids": torch.tensor([ids], device=device),
        "position_ids": torch.tensor([positions], device=device),
        "logits_to_keep": torch.tensor([span.high - 1 for span in spans], device=device),
        "use_cache": False,
        "kv_batch": batch,
    }


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    kv_batch: Batch | Probe | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """The attention function that transformers calls: query [1, heads, tokens, head_dim] to [1, tokens, heads, head_dim]."""
    more = [name for name in ("softcap", "s_aux", "position_bias", "sliding_window") if kwargs.get(name) is not None]
    layer = getattr(module, "layer_idx", None)
    if kv_batch is None or layer is None or more:
        raise InvalidRequest(f"{type(module).__name__} {f'has {more[0]}' if more else 'does not pass its batch on'}")
    return kv_batch.attend(layer, query, key, value, scaling), None


@contextlib.contextmanager
def attending(config: Any) -> Iterator[None]:
    """Within it, the model attends by pages; after it, as before. No mask is made for an attention of that name."""
    before = config._attn_implementation
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = before


def spec_of(model: Any) -> CacheSpec:
    """Layers, heads, sizes, dtype and device of the keys to be stored.

    Raises InvalidRequest for a model that cannot be batched in one row: another kind of attention, or none to exchange.
    """
    from transformers import AttentionInterface

    config, name = text_config(model), type(model).__name__
    if getattr(model.config, "is_encoder_decoder", False) or any(w is not None for w in windows_of(config)):
        raise InvalidRequest(f"{name} has windows or an encoder: the engine serves decoders with full attention")
    before = config._attn_implementation
    AttentionInterface.register(NAME, packed_attention)
    try:
        model.set_attn_implementation(NAME)
        changed = config._attn_implementation == NAME
    except (ValueError, NotImplementedError, RuntimeError) as error:
        raise InvalidRequest(f"the attention of {name} cannot be changed: {error}") from error
    finally:
        model.set_attn_implementation(before)
    if not changed:
        raise InvalidRequest(f"transformers did not change the attention of {name}")
    probe = Probe()
    with torch.inference_mode(), attending(config):  # the model itself knows best what its keys look like
        model(input_ids=torch.zeros(1, 1, dtype=torch.long, device=model.device), use_cache=False, kv_batch=probe)
    kinds, layers = set(probe.layers.values()), len(probe.layers)
    if len(kinds) != 1 or layers != config.num_hidden_layers:
        raise InvalidRequest(f"{name} has {layers} of {config.num_hidden_layers} layers to page, of {len(kinds)} kinds")
    kv_heads, head_dim, dtype = kinds.pop()
    return CacheSpec(layers, kv_heads, head_dim, 1, dtype, model.device)
