"""Where the tokens of pages lie in memory: one slab taken once (Slab), or a tensor a page, taken when needed (Loose).

A slab is one tensor per layer for keys, and one for values: [kv_heads, pages · page_size, head_dim]. A page is a range
of slots in it, the same range in all layers. Pages in a row are therefore read by a view, which copies nothing; other
ways to lay pages out were measured to be slower.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from kvviz.cache.pagelog import NULL
from kvviz.cache.spec import CacheSpec, storage_bytes
from kvviz.cache.table import Copy, PageTable
from kvviz.errors import CorruptCache, OutOfMemory

if TYPE_CHECKING:
    from kvviz.cache.flex import PageMask
    from kvviz.cache.pages import PagePool


@dataclass
class Place:
    """Where tokens low … high - 1 of each of some sequences lie.

    start, stride: sequence b begins at slot start + b · stride, and lies in a row; start is -1 where that is not so.
    pages: [sequences][pages], physical, in logical order. skip: slots of the first page before token `low`.
    """

    tokens: int
    start: int
    stride: int
    pages: list[list[int]]
    skip: int
    page_size: int
    device: torch.device
    before: int = 0  # tokens of each sequence that are stored in the first page before token `low`

    @cached_property
    def slots(self) -> torch.Tensor:
        """[sequences · tokens] slot of each token."""
        pages = torch.tensor(self.pages, dtype=torch.long)
        slots = (pages[:, :, None] * self.page_size + torch.arange(self.page_size)).flatten(1)
        return slots[:, self.skip : self.skip + self.tokens].reshape(-1).to(self.device)

    def rows(self, kv_heads: int, pages: int) -> torch.Tensor:
        """[sequences · kv_heads · pages] row of each page where slabs are seen as [kv_heads · pages, …]."""
        if pages not in self._rows:  # slabs may be extended within a step
            heads = torch.arange(kv_heads)[None, :, None] * pages
            rows = torch.tensor(self.pages, dtype=torch.long)[:, None, :] + heads
            self._rows[pages] = rows.reshape(-1).to(self.device)
        return self._rows[pages]

    def groups(self, size: int) -> torch.Tensor:
        """[sequences, groups] number of each group of `size` tokens of these pages, in the order of slots."""
        if size not in self._groups:
            pages, each = torch.tensor(self.pages, dtype=torch.long), self.page_size // size
            self._groups[size] = (pages[:, :, None] * each + torch.arange(each)).flatten(1).to(self.device)
        return self._groups[size]

    _rows: dict[int, torch.Tensor] = field(default_factory=dict)
    _groups: dict[int, torch.Tensor] = field(default_factory=dict)


def place(tables: Sequence[PageTable], low: int, high: int, device: torch.device) -> Place:
    """Where tokens low … high - 1 of these sequences lie. All of them must be stored."""
    size = tables[0].pool.page_size
    first, last = low // size, -(-high // size)
    pages = [table.pages[first:last] for table in tables]
    skip = low - first * size
    start = stride = -1
    if all(table.row <= first for table in tables) and high > low:
        starts = [row[0] * size + skip for row in pages]
        stride = starts[1] - starts[0] if len(starts) > 1 else 0
        if stride >= 0 and all(b - a == stride for a, b in zip(starts, starts[1:], strict=False)):
            start = starts[0]
    before = min(skip, low - tables[0].first)
    return Place(high - low, start, stride, pages, skip, size, device, before)


class Slab:
    """All pages at once. Raises OutOfMemory, saying how much was asked for, and then holds nothing."""

    def __init__(self, spec: CacheSpec, pages: int, page_size: int):
        assert spec.dtype is not None and spec.device is not None
        self.spec, self.page_size, self.pages = spec, page_size, pages
        self.keys, self.values = self._new(pages)
        self._scratch: list[torch.Tensor] = []
        self.page_mask: PageMask | None = None  # what FlexAttention reads these pages by, once it does

    def _new(self, pages: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Keys and values of all layers are views of one allocation: an allocator rounds up once, not for each slab."""
        spec = self.spec
        wanted = pages * self.page_size * spec.token_bytes  # keys and values
        refuse_more_than_memory(wanted, spec.device)
        shape = 2, spec.layers, spec.kv_heads, pages * self.page_size, spec.head_dim
        try:
            with torch.inference_mode(False):  # else no one outside that mode could write into it later
                # zeros for the same reason as `blank`
                whole = torch.zeros(shape, dtype=spec.dtype, device=spec.device)
                keys, values = ([kind[layer] for layer in range(spec.layers)] for kind in (whole[0], whole[1]))
        except RuntimeError as error:  # torch.OutOfMemoryError is one
            raise OutOfMemory(f"a pool of {wanted:,} bytes does not fit on {spec.device}: {error}") from error
        return keys, values

    @property
    def held_bytes(self) -> int:
        return storage_bytes(self.kept_tensors())

    def kept_tensors(self) -> list[torch.Tensor]:
        """One tensor of each storage."""
        return [self.keys[0], *self._scratch]  # all slabs are views of one allocation

    def reserve(self, pages: int) -> None:
        """They are here already."""

    def take(self, pages: Iterable[int]) -> None:
        """They are here already."""

    def drop_free(self, pool: PagePool) -> None:
        """They stay, for the next one who needs a page."""

    def extend(self, pages: int) -> None:
        """More pages: new slabs, and what the old ones hold is copied."""
        pages += self.pages
        keys, values = self._new(pages)
        for old, new in zip([*self.keys, *self.values], [*keys, *values], strict=True):
            new[:, : old.shape[1]] = old
        self.keys, self.values, self.pages = keys, values, pages

    def check(self, pool: PagePool, settled: bool = True) -> None:
        """Raises CorruptCache unless the slabs have as many pages as the pool."""
        if pool.pages * self.page_size != self.keys[0].shape[1]:
            raise CorruptCache(
                f"{pool.pages} pages of {self.page_size} tokens in slabs of {self.keys[0].shape[1]} slots"
            )

    def blank(self, layer: int, pages: Iterable[int]) -> None:
        """Clear values that another sequence left: where FlexAttention masks them it multiplies by 0, and NaN stays NaN."""
        for page in pages:
            self.values[layer][:, page * self.page_size : (page + 1) * self.page_size].zero_()

    def copy(self, layer: int, copies: Iterable[Copy]) -> None:
        size = self.page_size
        for source, target, low, high in copies:
            if low < high:
                for slab in (self.keys[layer], self.values[layer]):
                    slab[:, target * size + low : target * size + high] = slab[
                        :, source * size + low : source * size + high
                    ]

    def apart(self, layer: int, states: torch.Tensor) -> torch.Tensor:
        """`states`, copied if it is a view of the slabs about to be written, as `read` gives them."""
        own = (slab.untyped_storage()._cdata for slab in (self.keys[layer], self.values[layer]))
        return states.clone() if states.untyped_storage()._cdata in own else states

    def write(self, layer: int, at: Place, keys: torch.Tensor, values: torch.Tensor) -> None:
        """keys, values: [sequences, kv_heads, tokens, head_dim]."""
        for slab, states in ((self.keys[layer], keys), (self.values[layer], values)):
            if at.start >= 0:
                self._view(slab, at).copy_(states.detach())
            else:
                slab.index_copy_(1, at.slots, states.detach().transpose(0, 1).flatten(1, 2))

    def read(self, layer: int, at: Place, lasting: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
        """Both [sequences, kv_heads, tokens, head_dim]: views of the slabs where the pages lie in a row, else copies.

        lasting: False if the copy is used up before the next call, which then uses its memory again.
        """
        if at.start >= 0:
            return self._view(self.keys[layer], at), self._view(self.values[layer], at)
        if lasting:
            return self._gather(self.keys[layer], at, None), self._gather(self.values[layer], at, None)
        width = len(at.pages) * self.spec.kv_heads * len(at.pages[0])
        if not self._scratch or self._scratch[0].shape[0] < width:
            self._scratch = []  # the old ones go before the new ones come
            each = min(self.pages, len(at.pages[0]) + max(1, 256 // self.page_size))  # room to grow; no table is longer
            room = len(at.pages) * self.spec.kv_heads * each
            with torch.inference_mode(False):
                self._scratch = [self.keys[0].new_empty(room, self.page_size * self.spec.head_dim) for _ in range(2)]
        return (
            self._gather(self.keys[layer], at, self._scratch[0][:width]),
            self._gather(self.values[layer], at, self._scratch[1][:width]),
        )

    def _view(self, slab: torch.Tensor, at: Place) -> torch.Tensor:
        heads, slots, dim = slab.shape
        size = len(at.pages), heads, at.tokens, dim
        return slab.as_strided(size, (at.stride * dim, slots * dim, dim, 1), slab.storage_offset() + at.start * dim)

    def _gather(self, slab: torch.Tensor, at: Place, out: torch.Tensor | None) -> torch.Tensor:
        """One copy of whole pages in order, and of it the wanted tokens."""
        heads, slots, dim = slab.shape
        whole = slab.view(-1, self.page_size * dim)
        rows = at.rows(heads, slots // self.page_size)
        copied = torch.index_select(whole, 0, rows) if out is None else torch.index_select(whole, 0, rows, out=out)
        return copied.view(len(at.pages), heads, -1, dim)[:, :, at.skip : at.skip + at.tokens]


class Loose:
    """A page is taken from torch's allocator when it is first written, and given back when it is free: for lessons."""

    def __init__(self, spec: CacheSpec, page_size: int):
        self.spec, self.page_size = spec, page_size
        self.pages: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}  # page -> keys and values of each layer
        self._spare: list[list[tuple[torch.Tensor, torch.Tensor]]] = []

    @property
    def held_bytes(self) -> int:
        return storage_bytes(self.kept_tensors())

    def kept_tensors(self) -> list[torch.Tensor]:
        """One tensor of each storage."""
        return [tensor for layers in self.pages.values() for pair in layers for tensor in pair]

    def reserve(self, pages: int) -> None:
        """Take that many pages, before anything changes. Raises OutOfMemory, and then holds no more than before."""
        spec, shape = self.spec, (self.spec.kv_heads, self.page_size, self.spec.head_dim)
        try:
            for _ in range(pages):
                with torch.inference_mode(False):
                    new = [torch.empty(shape, dtype=spec.dtype, device=spec.device) for _ in range(2 * spec.layers)]
                self._spare.append(list(zip(new[::2], new[1::2], strict=True)))
        except RuntimeError as error:
            self._spare.clear()
            wanted = self.page_size * spec.token_bytes
            raise OutOfMemory(f"a page of {wanted:,} bytes does not fit on {spec.device}: {error}") from error

    def take(self, pages: Iterable[int]) -> None:
        """Give what was reserved to those of these pages that have no memory yet."""
        for page in pages:
            if page != NULL and page not in self.pages:
                self.pages[page] = self._spare.pop()
        self._spare.clear()  # a page that was freed and taken again in one step still has its own

    def extend(self, pages: int) -> None:
        """More may come, one by one."""

    def check(self, pool: PagePool, settled: bool = True) -> None:
        """Raises CorruptCache unless the used pages have memory and, where no step is open, no others."""
        used = {page for page in range(pool.pages) if not pool.is_free(page)}
        if not used <= self.pages.keys() or (settled and used != self.pages.keys()):
            raise CorruptCache(f"{len(used)} pages in use, {len(self.pages)} with memory")

    def drop_free(self, pool: PagePool) -> None:
        """Give back the pages that no sequence has any more."""
        if len(self.pages) > pool.used_count:
            self.pages = {page: layers for page, layers in self.pages.items() if not pool.is_free(page)}

    def blank(self, layer: int, pages: Iterable[int]) -> None:
        """What is not written is not read."""

    def apart(self, layer: int, states: torch.Tensor) -> torch.Tensor:
        """What `read` gives is never a view."""
        return states

    def copy(self, layer: int, copies: Iterable[Copy]) -> None:
        for source, target, low, high in copies:
            for old, new in zip(self.pages[source][layer], self.pages[target][layer], strict=True):
                new[:, low:high] = old[:, low:high]

    def write(self, layer: int, at: Place, keys: torch.Tensor, values: torch.Tensor) -> None:
        for b, row in enumerate(at.pages):
            for page, low, high, start in self._parts(row, at):
                for slot, states in zip(self.pages[page][layer], (keys, values), strict=True):
                    slot[:, low:high] = states[b, :, start : start + high - low].detach()

    def read(self, layer: int, at: Place, lasting: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
        """Pages lie anywhere, so they are put together, page by page."""
        both = []
        for kind in (0, 1):
            rows = [
                torch.cat(
                    [self.pages[page][layer][kind][:, low:high] for page, low, high, _ in self._parts(row, at)], 1
                )
                for row in at.pages
            ]
            both.append(torch.stack(rows))
        return both[0], both[1]

    def _parts(self, row: list[int], at: Place) -> Iterable[tuple[int, int, int, int]]:
        """(page, slots low, high, number of the first of these tokens) for each page."""
        for k, page in enumerate(row):
            low = at.skip if k == 0 else 0
            high = min(self.page_size, at.skip + at.tokens - k * self.page_size)
            yield page, low, high, k * self.page_size + low - at.skip


def refuse_more_than_memory(wanted: int, device: torch.device | None) -> None:
    """Raises OutOfMemory where a device has less memory than that, all of it counted.

    A CPU would hand out such a pool at first, and kill the process when it is written.
    """
    import os

    if device is not None and device.type == "cuda":
        total = torch.cuda.mem_get_info(device)[1]
    elif hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    else:
        return
    if wanted > total:
        raise OutOfMemory(f"a pool of {wanted:,} bytes is more than the {total:,} bytes of {device}")
