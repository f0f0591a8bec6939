"""Lockstep: the sequences of a cache on their pool, and how a step of all of them finds room, or changes nothing."""

from __future__ import annotations

from dataclasses import replace

import torch

from kvviz.cache.capacity import Capacity, pages_for
from kvviz.cache.pagelog import PageLog, PoolInfo
from kvviz.cache.pages import PagePool
from kvviz.cache.spec import CacheSpec
from kvviz.cache.step import Memory, Step, Store
from kvviz.cache.store import Loose, Place, Slab, place
from kvviz.cache.table import PageTable
from kvviz.counts import natural
from kvviz.errors import InvalidRequest, PoolExhausted, SequenceFreed
from kvviz.origin import of_pages


class Lockstep:
    """What is below PagedKVCache: tables that grow together, in steps that go through all layers.

    cut: number of the first token that truncate() left. past: tokens kept beyond the window, for a rollback to find.
    """

    spec: CacheSpec
    page_size: int
    window: int | None
    capacity: Capacity
    grow: bool
    cut: int
    past: int
    log: PageLog
    name: str
    tables: list[PageTable]
    _memory: Memory | None
    _step: Step | None
    _freed: bool

    @property
    def pool(self) -> PagePool | None:
        """None before the first append."""
        return self._memory.pool if self._memory else None

    @property
    def seen(self) -> int:
        """Tokens that ever came, for each sequence; rolled back ones not counted."""
        return self.tables[0].seen if self.tables else 0

    @property
    def visible_from(self) -> int:
        """Number of the first token that is stored and that the newest query could see."""
        if not self.tables:
            return 0
        return max(self.tables[0].first, 0 if self.window is None else self.seen - self.window)

    @property
    def next_from(self) -> int:
        """Number of the first token that the next query will see."""
        if not self.tables:
            return 0
        return max(self.tables[0].first, 0 if self.window is None else self.seen - self.window + 1)

    def require(self, tokens: int, spec: CacheSpec | None = None) -> None:
        """Raises PoolExhausted unless there is room for that many more tokens of each sequence.

        spec: what the pool would be made of, where there is none yet.
        """
        short = self._short_of(natural("tokens", tokens), spec)
        if not short or self._may_grow(short):
            return
        batch = self.spec.batch
        why = f"no room for {tokens:,} more token{'s' * (tokens > 1)} of {batch:,} sequence{'s' * (batch > 1)}"
        if self._memory:
            raise self._memory.pool.refuse(short, why, self.capacity.advice())
        raise PoolExhausted(
            f"{why}: {short:,} page{'s' * (short > 1)} missing of a pool of {self._wanted_pages(spec):,}: "
            f"{self.capacity.advice()}"
        )

    def _begin(self, tokens: int, keys: torch.Tensor) -> Step:
        """Make room for a step in all layers, or raise and change nothing."""
        if self._memory and (other := self._memory.stepping):
            lacks = len(other._step.missing) if other._step else 0
            raise InvalidRequest(
                f"a fork is in the middle of a step, {lacks} layers lack its tokens: finish or roll back that"
            )
        spec = self.spec if self._memory else replace(self.spec, dtype=keys.dtype, device=keys.device)
        self.require(tokens, spec)
        memory = self._memory or self._take_pool(spec)
        memory.store.reserve(memory.pool.needed(self.tables, tokens, self._keep(tokens)))
        if short := self._short_of(tokens):
            memory.pool.extend(short)
        before, low, keep = self.seen, self.next_from, self._keep(tokens)
        # what the new tokens read of the past is in pages that stay, or it is read before those are written again
        old = self._place(low, before) if low < min(keep, before) else None
        for table in self.tables:  # all let go before any of them takes
            table.let_go(keep)
        copies = [copy for table in self.tables for copy in table.extend(tokens, keep)]
        memory.store.take(page for table in self.tables for page in table.pages)
        start = max(before, self.tables[0].first)
        self._step = Step(
            tokens=tokens,
            missing=set(range(self.spec.layers)),
            copies=copies,
            blank=[copy.target for copy in copies] + self._partly_new(before, start),
            write=self._place(start, self.seen),
            written=self.seen - start,
            read=self._place(low, self.seen) if old is None and low < before else None,
            old=old,
        )
        memory.stepping = self
        return self._step

    def _partly_new(self, before: int, start: int) -> list[int]:
        """Pages that this step took for tokens from number `before` on, and does not fill: it begins to write at `start`."""
        size, found = self.page_size, set()
        if self.seen % size and self.seen // size * size >= before:
            found.add(self.seen // size)
        if start % size and self.tables[0].first >= before:  # nothing old stayed, so this page is new, too
            found.add(start // size)
        return [table.pages[index] for table in self.tables for index in found]

    def _take_pool(self, spec: CacheSpec) -> Memory:
        assert spec.device is not None
        pages = 1 if self.grow else self._wanted_pages(spec)
        store = self._new_store(spec, pages)
        info = PoolInfo(self.name, pages, self.page_size, spec.token_bytes, spec.layers, self.window, self.grow)
        pool = PagePool(pages, self.page_size, log=self.log, info=info)
        if not self.log.pools[1:]:
            self.log.origin = of_pages(spec.device)
        self.spec, self._memory = spec, Memory(pool, store)
        self.tables = self._new_tables(pool, spec.batch)
        return self._memory

    def _new_store(self, spec: CacheSpec, pages: int) -> Store:
        return Loose(spec, self.page_size) if self.grow else Slab(spec, pages, self.page_size)

    def _new_tables(self, pool: PagePool, count: int) -> list[PageTable]:
        tables = [pool.table() for _ in range(count)]
        for row, table in enumerate(tables):
            table.home = row * (pool.pages // max(1, count))  # apart, so that each can grow in a row
        return tables

    def _keep(self, tokens: int) -> int:
        """Number of the first token that stays stored after so many more."""
        return 0 if self.window is None else max(0, self.seen + tokens - self.window - self.past)

    def _short_of(self, tokens: int, spec: CacheSpec | None = None) -> int:
        """Pages missing for so many more tokens of each sequence. spec: what the pool would be made of."""
        if self._memory:
            return self._memory.pool.missing(self.tables, tokens, self._keep(tokens))
        need = self.spec.batch * pages_for(self._keep(tokens), tokens, self.page_size)
        return max(0, need - self._wanted_pages(spec))

    def _may_grow(self, pages: int) -> bool:
        """So many more than there are; before the first append, than there may be."""
        if not self.grow:
            return False
        return self.capacity.unsaid or (self.pool is not None and self.pool.pages + pages <= self._wanted_pages())

    def _widen(self, batch: int, past: int) -> None:
        """More pages, where tokens= of each of so many sequences take more. Raises OutOfMemory, and nothing has changed."""
        assert self._memory is not None
        more = self._wanted_pages(replace(self.spec, batch=batch), past) - self._memory.pool.pages
        if more > 0 and not self.grow:
            self._memory.store.extend(more)
            self._memory.pool.extend(more)

    def _wanted_pages(self, spec: CacheSpec | None = None, past: int | None = None) -> int:
        spec = spec or self.spec
        stored = None if self.window is None else self.window + (self.past if past is None else past)
        return self.capacity.of_pool(self.page_size, self.page_size * spec.token_bytes, spec.batch, stored)

    def _prepare(self, layer: int, step: Step) -> None:
        """Pages that the step took are to be cleared, or copied from those that were shared, before they are written."""
        assert self._memory is not None
        if step.blank:
            self._memory.store.blank(layer, step.blank)
        if step.copies:
            self._memory.store.copy(layer, step.copies)

    def _place(self, low: int, high: int) -> Place:
        assert self.spec.device is not None
        return place(self.tables, low, high, self.spec.device)

    @property
    def _stored(self) -> int:
        """Tokens in pages: more than are visible after keep_past."""
        return self.tables[0].length if self.tables else 0

    def _open_step(self) -> Step | None:
        return self._step if self._step and self._step.missing else None

    def _close_step(self) -> None:
        if self._memory and self._memory.stepping is self:
            self._memory.stepping = None
        self._step = None

    def _let_go(self, tables: list[PageTable]) -> None:
        assert self._memory is not None
        for table in tables:
            table.free()
        self._memory.drop_free()

    def _between_steps(self, verb: str) -> None:
        self._living()
        if step := self._open_step():
            raise InvalidRequest(f"cannot {verb} now: layer {min(step.missing)} still lacks this step's tokens")

    def _living(self) -> None:
        if self._freed:
            raise SequenceFreed("this cache was freed")
