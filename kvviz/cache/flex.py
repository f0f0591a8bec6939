"""FlexAttention over a pool where it lies: the queries of a decode step read scattered pages without a copy.

The block mask lists, for each sequence, the physical pages in its table; inside them a page-translated mask tells which
slots are seen. All tensors that change from step to step are kept and written in place, so that nothing is compiled anew.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from typing import Any

import torch

from kvviz.cache.store import Place, Slab

SMALLEST = 64  # tokens a page: measured on CPUs, below this a gather is as fast


@functools.cache
def compiled() -> Any:
    """torch's FlexAttention, compiled; None where nothing can compile it, with one warning that says so."""
    try:
        from torch.nn.attention.flex_attention import flex_attention

        flex = torch.compile(flex_attention, dynamic=False)
        with torch.no_grad():
            probe = torch.zeros(1, 1, 16, 16)
            flex(probe, probe, probe)
    except Exception as error:  # what is missing shows itself in many ways: no compiler, no headers, no Triton
        reason = str(error).strip().split("\n")[0]
        warnings.warn(f"FlexAttention cannot be compiled here ({reason}): scattered pages are gathered", stacklevel=3)
        return None
    return flex


class PageMask:
    """The block mask of one slab's decode steps."""

    def __init__(self, slab: Slab, batch: int, rows: int):
        from torch.nn.attention.flex_attention import BlockMask

        self.size, self.pages = slab.page_size, slab.pages
        device = slab.keys[0].device
        shape = batch, 1, 1, self.pages
        self.logical = torch.zeros(batch, self.pages, dtype=torch.int32, device=device)
        self.bounds = torch.zeros(2, dtype=torch.int32, device=device)  # of slots, counted from the table's first page
        self.seen = torch.ones(batch, self.pages * self.size, dtype=torch.bool, device=device)
        self.padded = False
        self.parts, self.part_count = torch.zeros(shape, dtype=torch.int32, device=device), self._counts(batch, device)
        self.whole, self.whole_count = torch.zeros(shape, dtype=torch.int32, device=device), self._counts(batch, device)
        self.block = BlockMask.from_kv_blocks(
            self.part_count, self.parts, self.whole_count, self.whole, BLOCK_SIZE=(128, self.size),
            mask_mod=self._mask_mod(), seq_lengths=(rows, self.pages * self.size), compute_q_blocks=False,
        )  # fmt: skip
        self._last: tuple[Place | None, torch.Tensor | None] = None, None
        self.modes: set[tuple[bool, bool]] = set()  # of autograd, in which it was compiled

    def __deepcopy__(self, memo: Any) -> None:
        """The mask function holds on to these very tensors, so a copy of the slab makes a mask of its own."""

    @staticmethod
    def _counts(batch: int, device: torch.device) -> torch.Tensor:
        return torch.zeros(batch, 1, 1, dtype=torch.int32, device=device)

    def _mask_mod(self) -> Any:
        logical, bounds, seen, size = self.logical, self.bounds, self.seen, self.size

        def page_translated(b: Any, h: Any, q: Any, slot: Any) -> Any:
            at = logical[b, slot // size] * size + slot % size
            return (at >= bounds[0]) & (at < bounds[1]) & seen[b, at]

        return page_translated

    def set(self, place: Place, mask: torch.Tensor | None) -> None:
        """Take the pages of this step. mask: bool [batch or 1, 1, 1, tokens], True where seen; None: all are."""
        if self._last[0] is place and self._last[1] is mask:
            return  # another layer of the same step
        self._last = place, mask
        table = torch.tensor(place.pages, dtype=torch.int32, device=self.logical.device)
        count = table.shape[1]
        order = torch.arange(count, dtype=torch.int32, device=table.device).expand_as(table)
        self.logical.fill_(-1)
        self.logical.scatter_(1, table.long(), order)
        self.bounds.copy_(torch.tensor([place.skip, place.skip + place.tokens], dtype=torch.int32))
        if mask is not None or self.padded:
            self.seen.fill_(True)
            self.padded = mask is not None
        if mask is not None:
            self.seen[:, place.skip : place.skip + place.tokens] = mask[:, 0, 0]
        # pages that are seen whole need no mask; those at the ends, and all of them beside padding, do
        cut_low, cut_high = int(place.skip > 0), int((place.skip + place.tokens) % self.size > 0)
        if mask is not None or cut_low + cut_high >= count:
            cut_low, cut_high = count, 0
        ends = torch.cat([table[:, :cut_low], table[:, count - cut_high :]], 1)
        inner = table[:, cut_low : count - cut_high].sort(1).values  # in address order, for the memory's sake
        for pages, counts, chosen in ((self.parts, self.part_count, ends), (self.whole, self.whole_count, inner)):
            pages[:, 0, 0, : chosen.shape[1]] = chosen
            counts.fill_(chosen.shape[1])


def decode(query: torch.Tensor, slab: Slab, layer: int, mask: PageMask, scale: float) -> torch.Tensor:
    """Attention of one new token a sequence. query: [batch, heads, 1, head_dim], result alike.

    The heads that share keys stand where queries would: each page is then read once for all of them.
    """
    batch, heads, _, dim = query.shape
    folded = query.reshape(batch, slab.spec.kv_heads, heads // slab.spec.kv_heads, dim)
    keys, values = slab.keys[layer][None], slab.values[layer][None]
    mode = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    with contextlib.nullcontext() if mode in mask.modes else _room_to_compile():
        out = compiled()(folded, keys, values, block_mask=mask.block, scale=scale)
    mask.modes.add(mode)
    return out.reshape(batch, heads, 1, dim)


def _room_to_compile() -> Any:
    """torch gives up compiling a function after eight shapes; pools of more shapes than that are nothing strange here."""
    config: Any = torch._dynamo.config
    name = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"
    return config.patch({name: 256})
