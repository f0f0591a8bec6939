"""Where the codes of quantized pages lie in memory, and the newest tokens in 16 bits until their group is complete."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from kvviz.cache.codes import SCHEMES, Scheme
from kvviz.cache.pagelog import NULL
from kvviz.cache.pages import PagePool
from kvviz.cache.spec import CacheSpec, storage_bytes
from kvviz.cache.store import Place, refuse_more_than_memory
from kvviz.cache.table import Copy
from kvviz.errors import CorruptCache, OutOfMemory


@dataclass
class QuantizedSpec(CacheSpec):
    """dtype is what comes in and what is read; pages hold the scheme's codes."""

    scheme: Scheme = SCHEMES["int8"]
    page_size: int = 16

    @property
    def group(self) -> int:
        """Tokens that are coded together."""
        return self.scheme.group_of(self.page_size)

    @property
    def token_bytes(self) -> int:
        """Bytes of one coded token of one sequence, all layers: the scales of a group spread over its tokens."""
        return self.layers * self.scheme.page_bytes(self.kv_heads, self.head_dim, self.page_size) // self.page_size

    @property
    def open_dtype(self) -> torch.dtype:
        """Of tokens that wait for their group: 16 bits, as the scales. fp32 is rounded to fp16."""
        return torch.bfloat16 if self.dtype == torch.bfloat16 else torch.float16

    @property
    def open_bytes(self) -> int:
        """Bytes of one token that waits, of one sequence."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.open_dtype.itemsize

    @property
    def waiting_bytes(self) -> int:
        """Bytes that are set aside for the tokens that wait: a group of each sequence."""
        return self.batch * self.group * self.open_bytes if self.group > 1 else 0


class CodeSlab:
    """All pages at once, as codes. Raises OutOfMemory, saying how much was asked for, and then holds nothing.

    A page whose newest group is not complete has a *row*: room for the tokens of that group in 16 bits. Rows are few, one
    for each sequence that ends in such a page, and pass from page to page.
    """

    def __init__(self, spec: QuantizedSpec, pages: int, page_size: int):
        assert spec.dtype is not None and spec.device is not None
        self.spec, self.page_size, self.pages, self.group = spec, page_size, pages, spec.group
        self.codecs = spec.scheme.keys(spec.head_dim), spec.scheme.values(spec.head_dim)
        # of keys and of values: codes [layers, kv_heads, groups, …], scales alike
        self.codes, self.scales = self._new(pages)
        self.rows: dict[int, int] = {}  # page -> its row
        self._spare: list[int] = []
        self._done: set[int] = set()  # pages whose group was completed: the layers of this step still read their rows
        self.waiting = self._new_rows(0)  # [keys and values, layers, rows, kv_heads, group, head_dim]
        self._add_rows(spec.batch if self.group > 1 else 0)

    def _new(self, pages: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        spec, codes, scales = self.spec, [], []
        wanted = pages * self.page_size * spec.token_bytes
        refuse_more_than_memory(wanted, spec.device)
        lead = spec.layers, spec.kv_heads, pages * self.page_size // self.group
        try:
            with torch.inference_mode(False):  # else no one outside that mode could write into it later
                for codec in self.codecs:
                    code_shape, scale_shape = codec.shapes(self.group)
                    codes.append(torch.zeros(*lead, *code_shape, dtype=codec.code_dtype, device=spec.device))
                    scales.append(torch.zeros(*lead, *scale_shape, dtype=torch.float16, device=spec.device))
        except RuntimeError as error:  # torch.OutOfMemoryError is one
            raise OutOfMemory(f"a pool of {wanted:,} bytes does not fit on {spec.device}: {error}") from error
        return codes, scales

    @property
    def held_bytes(self) -> int:
        """Codes, scales, and the rows of what waits."""
        return storage_bytes(self.kept_tensors())

    def kept_tensors(self) -> list[torch.Tensor]:
        """One tensor of each storage."""
        return [*self.codes, *self.scales, self.waiting]

    def reserve(self, pages: int) -> None:
        """They are here already."""

    def take(self, pages: Iterable[int]) -> None:
        """A step begins: the rows of groups that the last one completed are free."""
        self._give_back(self._done)

    def drop_free(self, pool: PagePool) -> None:
        """Rows of pages that no sequence has any more are free; the pages stay."""
        self._give_back(page for page in self.rows if pool.is_free(page))

    def extend(self, pages: int) -> None:
        """More pages: new tensors, and what the old ones hold is copied."""
        pages += self.pages
        codes, scales = self._new(pages)
        for old, new in zip([*self.codes, *self.scales], [*codes, *scales], strict=True):
            new[:, :, : old.shape[2]] = old
        self.codes, self.scales, self.pages = codes, scales, pages

    def check(self, pool: PagePool, settled: bool = True) -> None:
        """Raises CorruptCache unless the tensors have as many pages as the pool and each row belongs to a page in use."""
        groups = self.codes[0].shape[2]
        if pool.pages * self.page_size != groups * self.group:
            raise CorruptCache(f"{pool.pages} pages of {self.page_size} tokens, {groups} groups of {self.group}")
        if sorted([*set(self.rows.values()), *self._spare]) != list(range(self.waiting.shape[2])):
            raise CorruptCache(f"{len(self.rows)} + {len(self._spare)} rows of {self.waiting.shape[2]}")
        if settled and any(pool.is_free(page) for page in self.rows):
            raise CorruptCache("a page that is free has tokens waiting for their group")

    def blank(self, layer: int, pages: Iterable[int]) -> None:
        """What is not written is not read."""

    def apart(self, layer: int, states: torch.Tensor) -> torch.Tensor:
        """What `read` gives is never a view."""
        return states

    def copy(self, layer: int, copies: Iterable[Copy]) -> None:
        """Whole groups, and what waits for the rest of one."""
        each = self.page_size // self.group
        for source, target, low, high in copies:
            if low >= high:
                continue
            span = low // self.group, -(-high // self.group)
            old, new = (slice(page * each + span[0], page * each + span[1]) for page in (source, target))
            for tensor in (*self.codes, *self.scales):
                tensor[layer, :, new] = tensor[layer, :, old]
            if source in self.rows and high % self.group:
                row = self._row(target)
                self.waiting[:, layer, row] = self.waiting[:, layer, self.rows[source]]

    def write(self, layer: int, at: Place, keys: torch.Tensor, values: torch.Tensor) -> None:
        """keys, values: [sequences, kv_heads, tokens, head_dim]. Groups that are complete now are coded."""
        lead = at.skip % self.group
        whole, rest = divmod(lead + at.tokens, self.group)
        first = at.skip // self.group
        ids = at.groups(self.group)[:, first : first + whole].flatten()
        before = [self.rows.get(pages[0], 0) for pages in at.pages]
        after = [self._row(pages[-1], pages[0]) for pages in at.pages] if rest else []
        self._done |= {page for pages in at.pages for page in (pages[:-1] if rest else pages) if page in self.rows}
        for kind, states in enumerate((keys, values)):
            states = self._rounded(states.detach())
            if lead:
                states = torch.cat([self._earlier(kind, layer, before, at, lead, states), states], dim=2)
            if whole:
                groups = states[:, :, : whole * self.group].float().unflatten(2, (whole, self.group))
                coded = self.codecs[kind].encode(groups.transpose(0, 1).flatten(1, 2))  # [kv_heads, groups, …]
                for tensor, part in zip((self.codes[kind], self.scales[kind]), coded, strict=True):
                    tensor[layer].index_copy_(1, ids, part)
            if rest:
                self.waiting[kind, layer, after, :, :rest] = states[:, :, whole * self.group :]

    def read(self, layer: int, at: Place, lasting: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
        """Both [sequences, kv_heads, tokens, head_dim], as numbers again: never a view."""
        end, rest = divmod(at.skip + at.tokens, self.group)
        pages = at.groups(self.page_size).flatten()  # whole pages: faster than group by group
        rows = [self.rows[row[-1]] for row in at.pages] if rest else []
        both = []
        for kind, codec in enumerate(self.codecs):
            codes, scales = (self._pages(x[kind][layer], pages) for x in (self.codes, self.scales))
            states = codec.decode(codes, scales).to(self.spec.dtype)
            states = states.view(self.spec.kv_heads, len(at.pages), -1, self.spec.head_dim).transpose(0, 1)
            states = states[:, :, at.skip - at.skip % self.group : end * self.group]
            if rest:
                newest = self.waiting[kind, layer, rows, :, :rest].to(self.spec.dtype)
                states = torch.cat([states, newest], dim=2)
            both.append(states[:, :, at.skip % self.group :])
        return both[0], both[1]

    def _pages(self, stored: torch.Tensor, pages: torch.Tensor) -> torch.Tensor:
        """[kv_heads, groups of these pages, …] of [kv_heads, groups, …]: a page is one row, so that rows are long."""
        heads, _, *shape = stored.shape
        return stored.view(heads, self.pages, -1).index_select(1, pages).view(heads, -1, *shape)

    # tokens that wait

    def _rounded(self, states: torch.Tensor) -> torch.Tensor:
        """As they wait, so that the codes do not depend on how many tokens came at a time."""
        most = torch.finfo(self.spec.open_dtype).max
        return states.clamp(-most, most).to(self.spec.open_dtype) if self.group > 1 else states

    def _earlier(
        self, kind: int, layer: int, rows: list[int], at: Place, lead: int, states: torch.Tensor
    ) -> torch.Tensor:
        """The tokens of the group before those that come: [sequences, kv_heads, lead, head_dim].

        Those that are not stored will not be read: they get the first one that is, which leaves the scales alone.
        """
        earlier = self.waiting[kind, layer, rows, :, :lead]
        if missing := max(0, lead - at.before):
            known = torch.cat([earlier[:, :, missing:], states[:, :, :1]], dim=2)
            earlier[:, :, :missing] = known[:, :, :1]
        return earlier

    def _row(self, page: int, heir_of: int = NULL) -> int:
        """The page's row, given to it now if it has none: that of a page whose group is complete, or a spare one."""
        if page not in self.rows:
            if heir_of in self.rows:  # each layer reads what waits there before it writes
                self.rows[page] = self.rows[heir_of]
            else:
                if not self._spare:
                    self._add_rows(1)
                self.rows[page] = self._spare.pop()
        return self.rows[page]

    def _give_back(self, pages: Iterable[int]) -> None:
        rows = {self.rows.pop(page) for page in list(pages)}
        self._spare += rows.difference(self.rows.values())
        self._done.intersection_update(self.rows)

    def _new_rows(self, rows: int) -> torch.Tensor:
        spec, shape = self.spec, (rows, self.spec.kv_heads, self.group, self.spec.head_dim)
        with torch.inference_mode(False):
            return torch.zeros(2, spec.layers, *shape, dtype=spec.open_dtype, device=spec.device)

    def _add_rows(self, more: int) -> None:
        rows = self.waiting.shape[2]
        new = self._new_rows(rows + more)
        new[:, :, :rows] = self.waiting
        self.waiting, self._spare = new, self._spare + list(range(rows, rows + more))
