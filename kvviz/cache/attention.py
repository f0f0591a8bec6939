"""Reading pages: a view of pages in a row, one gather, or FlexAttention over the pool where it lies.

    pages in a row                        a view: nothing is copied
    scattered, small pages, or prefill    one gather into memory that all layers share, then ordinary attention
    scattered, decode, large pages        FlexAttention, which reads the pool in place by a page-translated mask

`running_softmax`, page by page in fifteen lines, is what all of them are tested against.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from kvviz.cache.step import Store
from kvviz.cache.store import Place, Slab


@dataclass
class Pages:
    """What the new queries of one layer may read, all of it in pages."""

    store: Store
    layer: int
    place: Place

    @property
    def in_a_row(self) -> bool:
        return self.place.start >= 0 and isinstance(self.store, Slab)

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values, [batch, kv_heads, tokens, head_dim]; used up before the next layer asks."""
        return self.store.read(self.layer, self.place, lasting=False)

    def each(self, sequence: int) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
        """Keys and values of one page after the other, [kv_heads, tokens of that page, head_dim]."""
        keys, values = self.store.read(self.layer, self.place)
        size, start = self.place.page_size, -self.place.skip
        while start < self.place.tokens:
            span = slice(max(0, start), start + size)
            yield keys[sequence, :, span], values[sequence, :, span]
            start += size


def running_softmax(
    query: torch.Tensor, pages: Iterable[tuple[torch.Tensor, torch.Tensor]], scale: float
) -> torch.Tensor:
    """Attention of one query over pages, each read once: [heads, head_dim] from [heads, head_dim].

    Only three things are carried from page to page: the largest score so far, the sum of exponents, the weighted sum.
    """
    heads = query.shape[0]
    high = torch.full((heads, 1), float("-inf"), dtype=query.dtype)
    total, out = torch.zeros(heads, 1, dtype=query.dtype), torch.zeros_like(query)
    for keys, values in pages:
        keys, values = (x.repeat_interleave(heads // x.shape[0], dim=0) for x in (keys, values))
        scores = torch.einsum("hd,htd->ht", query, keys) * scale
        highest = torch.maximum(high, scores.amax(-1, keepdim=True))
        weights, fade = (scores - highest).exp(), (high - highest).exp()
        total = total * fade + weights.sum(-1, keepdim=True)
        out = out * fade + torch.einsum("ht,htd->hd", weights, values)
        high = highest
    return out / total


def window_mask(queries: int, keys: int, window: int, mask: torch.Tensor | None, device: torch.device) -> torch.Tensor:
    """Which keys each query sees: the newest query is also the newest key. [1 or batch, 1, queries, keys].

    mask: what is masked besides, bool (True: seen) or additive, and so is the result; None: causal, and bool.
    """
    query = torch.arange(keys - queries, keys, device=device)[:, None]
    key = torch.arange(keys, device=device)[None, :]
    seen = (key <= query) & (key > query - window)
    if mask is None:
        return seen[None, None]
    return mask & seen if mask.dtype == torch.bool else mask.masked_fill(~seen, torch.finfo(mask.dtype).min)


def plain_attention(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention written out, for what SDPA cannot do. query: [batch, heads, queries, head_dim], result alike.

    mask: bool (True: seen) or additive, None: causal. softcap: scores are bent to stay below it. sinks: [heads], one more
    score a head that takes its share of the weights and gives nothing.
    """
    groups = query.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(groups, 1), values.repeat_interleave(groups, 1)
    scores = query @ keys.transpose(2, 3) * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if mask is None:
        mask = window_mask(query.shape[2], keys.shape[2], keys.shape[2] + 1, None, query.device)
    if mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    else:
        scores = scores + mask
    if sinks is not None:
        column = sinks.reshape(1, -1, 1, 1).expand(query.shape[0], -1, query.shape[2], 1).to(scores.dtype)
        scores = torch.cat([scores, column], dim=-1)
    weights = torch.softmax(scores, -1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(query.dtype)
    return weights[..., : keys.shape[2]] @ values
