"""PagedKVCache: keys and values in pages, read and written layer by layer, for one or many sequences in step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from kvviz.cache.attention import Pages
from kvviz.cache.capacity import Capacity
from kvviz.cache.lockstep import Lockstep
from kvviz.cache.pagelog import PageLog
from kvviz.cache.spec import CacheSpec
from kvviz.cache.step import Memory, Step
from kvviz.cache.table import PageTable
from kvviz.cache.watched import Watched
from kvviz.counts import natural, positive
from kvviz.errors import CorruptCache, InvalidRequest, brief


class PagedKVCache(Watched, Lockstep):
    """Keys and values of `batch` sequences in pages of `page_size` tokens.

        cache = kvviz.PagedKVCache(layers=2, kv_heads=2, head_dim=16, tokens=1024)
        keys, values = cache.append(0, keys, values)      # [batch, kv_heads, new tokens, head_dim] in, all visible out
        cache.append(1, …)                                # each layer gets the same number of tokens

    A page id stands for the same slots in all layers, so one table serves them all. The pool of pages is taken at the
    first append. Its size is one of: tokens (of each sequence), pages or max_bytes (of all of them together); with none
    of them, 8,192 tokens a sequence. grow=True takes each page from torch's allocator when it is needed, and gives it
    back: for lessons.

    window: a query sees the last `window` tokens, itself included. Pages that no query will read again are released
    before the next append takes new ones.

    For inference: no gradient flows through pages.
    """

    in_place = True  # may attention read the pages where they lie?

    def __init__(
        self,
        layers: int,
        kv_heads: int,
        head_dim: int,
        page_size: int = 16,
        pages: int | None = None,
        tokens: int | None = None,
        max_bytes: int | None = None,
        window: int | None = None,
        batch: int = 1,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        grow: bool = False,
        *,
        log: PageLog | None = None,
        name: str | None = None,
    ):
        self.spec = CacheSpec(layers, kv_heads, head_dim, batch, dtype, device)
        self.page_size = positive("page_size", page_size)
        self.window = None if window is None else positive("window", window)
        self.capacity = Capacity(tokens, pages, max_bytes)
        self.grow = bool(grow)
        self.cut = 0  # number of the first token that truncate() left
        self.past = 0  # tokens kept beyond the window, for a rollback to find again
        self.log = PageLog.of(log)
        self.name = name or ("pages" if window is None else f"window {window}")
        self.tables: list[PageTable] = []
        self._memory: Memory | None = None
        self._step: Step | None = None
        self._freed = False

    def __repr__(self) -> str:
        if self._freed:
            return "<PagedKVCache: freed>"
        pool = f"{self.pool.used_count:,} of {self.pool.pages:,} pages in use" if self.pool else "no pages yet"
        return f"<PagedKVCache: {self.spec.batch} × {self.length:,} tokens, {pool} of {self.page_size} tokens>"

    # what it holds

    def seen_by(self, layer: int) -> int:
        """Tokens that have come to this layer: fewer than `seen` while a step is on its way to it."""
        self.spec.accept_layer(layer)
        step = self._open_step()
        return self.seen - (step.tokens if step and layer in step.missing else 0)

    @property
    def length(self) -> int:
        """Stored and visible tokens of each sequence."""
        return self.seen - self.visible_from

    @property
    def logical_bytes(self) -> int:
        """What the visible tokens of all sequences need."""
        return self.length * self.spec.batch * self.spec.token_bytes

    @property
    def held_bytes(self) -> int:
        """What its storages keep alive: the whole pool, and memory to gather pages in where that was needed."""
        return self._memory.store.held_bytes if self._memory else 0

    def kept_tensors(self) -> list[torch.Tensor]:
        """Tensors whose storages are all that it holds; the recorder asks for them."""
        return self._memory.store.kept_tensors() if self._memory else []

    # appending and reading

    def append(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Store new tokens of one layer; return all that their queries may see, old and new, in order.

        All four tensors are [batch, kv_heads, tokens, head_dim]. What is returned may be a view of the pages: read it
        before the next append. The first layer of a step takes the pages for all layers.

        Raises PoolExhausted or OutOfMemory where there is no room, InvalidRequest for tensors that do not fit or a
        layer whose turn it is not, SequenceFreed; and nothing has changed.
        """
        step = self.write(layer, keys, values)
        if step is None:
            return self.get_all(layer)
        return self.read(layer, step, keys, values)

    def can_append(self, tokens: int) -> bool:
        """Is there room for that many more tokens of each sequence? Before the first append: would a pool have it?"""
        self._living()
        if natural("tokens", tokens) == 0:
            return True
        short = self._short_of(tokens)
        return not short or self._may_grow(short)

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> Step | None:
        """The first half of `append`; None where there is nothing to write."""
        self._living()
        tokens = self.spec.accept(layer, keys, values)
        if not tokens:
            return None
        step = self._step
        if step is None or not step.missing:
            if self.log.watch:
                self.log.watch()
            step = self._begin(tokens, keys)
        elif layer not in step.missing:
            raise InvalidRequest(
                f"layer {layer} already has this step's tokens; layer {min(step.missing)} still lacks them"
            )
        elif tokens != step.tokens:
            raise InvalidRequest(f"this step brings {step.tokens:,} tokens a layer, layer {layer} got {tokens:,}")
        return step

    def read(
        self, layer: int, step: Step, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The second half: put the tokens into pages and return what their queries see."""
        assert self._memory is not None
        store = self._memory.store
        keys, values = store.apart(layer, keys), store.apart(layer, values)
        if step.read:
            self.put(layer, step, keys, values)
            return store.read(layer, step.read, lasting=False)
        seen = keys, values
        if step.old:  # copied before its pages are written again
            old = store.read(layer, step.old)
            seen = torch.cat([old[0], keys], dim=2), torch.cat([old[1], values], dim=2)
        self.put(layer, step, keys, values)
        return seen

    def put(self, layer: int, step: Step, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Put the tokens into pages, and no more."""
        assert self._memory is not None
        self._prepare(layer, step)
        if step.written < step.tokens:
            keys, values = keys[:, :, -step.written :], values[:, :, -step.written :]
        self._memory.store.write(layer, step.write, keys, values)
        step.missing.discard(layer)
        if not step.missing:
            self._memory.stepping = None
            self._memory.drop_free()

    def pages_of(self, layer: int, step: Step) -> Pages:
        """Where the queries of this step find what they may see."""
        assert self._memory is not None and step.read is not None
        return Pages(self._memory.store, layer, step.read)

    def get_all(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The visible tokens of a layer, oldest first: views where their pages lie in a row, else copies."""
        self._living()
        self.spec.accept_layer(layer)
        if self._memory is None or not self.length:
            shape = self.spec.batch, self.spec.kv_heads, 0, self.spec.head_dim
            empty = torch.empty(shape, dtype=self.spec.dtype or torch.float32, device=self.spec.device)
            return empty, empty.clone()
        if self._step and layer in self._step.missing:
            raise InvalidRequest(f"layer {layer} lacks the tokens of the open step: append them first, or roll back")
        return self._memory.store.read(layer, self._place(self.visible_from, self.seen))

    # fewer tokens

    def truncate(self, keep: int) -> None:
        """Keep the most recent tokens and let go of the pages before them. Nothing happens where there are fewer."""
        self._between_steps("truncate")
        if natural("keep", keep) < self.length:
            self.cut = self.seen - keep
            for table in self.tables:
                table.slide(self.cut)
            if self._memory:
                self._memory.drop_free()

    def rollback(self, tokens: int) -> None:
        """Drop the newest tokens. Also mends a step that an error left unfinished, if it takes back all of that.

        Raises InvalidRequest where fewer are stored.
        """
        self._living()
        step = self._open_step()
        whole = step.tokens if step else 0  # may go also where it is longer than the window
        if natural("tokens", tokens) > max(self._stored, whole):
            raise InvalidRequest(f"cannot roll back {tokens:,} tokens: {self._stored:,} are stored")
        if tokens < whole:
            raise InvalidRequest(f"layers lack tokens of the open step: roll back all {whole:,} of it")
        if step:  # pages that were shared before the step are copies now
            for layer in step.missing:
                self._prepare(layer, step)
        for table in self.tables:
            table.rollback(tokens, whole)
        self._close_step()
        if self._memory:
            self._memory.drop_free()

    def can_rollback(self, tokens: int) -> bool:
        """Would the next query, after that, still find all that its window holds?"""
        if natural("tokens", tokens) > self._stored or ((step := self._open_step()) and tokens < step.tokens):
            return False
        needed = 0 if self.window is None else self.seen - tokens - self.window + 1
        return not self.tables or self.tables[0].first <= max(0, self.cut, needed)

    def reset(self) -> None:
        """Forget all tokens. The pool stays."""
        self._living()
        self._close_step()
        self.cut = 0
        if self._memory:
            self._let_go(self.tables)
            self.tables = self._new_tables(self._memory.pool, self.spec.batch)

    def free(self) -> None:
        """Give the pages back; the pool's memory goes when no fork uses it any more. Then only a new cache helps."""
        self._living()
        self._close_step()
        if self._memory:
            self._let_go(self.tables)
        self._freed, self._memory, self._step, self.tables = True, None, None, []

    # more sequences, fewer, or others

    def fork(self) -> PagedKVCache:
        """Another cache with the same past on the same pool: pages are shared until one of the two writes into them."""
        self._between_steps("fork")
        other = type(self).__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.spec, other._step = replace(self.spec), None
        other.tables = [table.fork() for table in self.tables]
        return other

    def reorder(self, order: Sequence[int]) -> None:
        """Sequence b takes the past of sequence order[b], as beams do. Nothing is copied until somebody writes."""
        self._between_steps("reorder")
        order = _listed(order)
        if len(order) != self.spec.batch:
            raise InvalidRequest(f"order has {len(order)} entries for {self.spec.batch} sequences")
        self.select(order)

    def select(self, order: Sequence[int]) -> None:
        """As many sequences as `order` has entries, each with the past of that one."""
        self._between_steps("select")
        order, known = _listed(order), range(self.spec.batch)
        if not order or any(not hasattr(s, "__index__") or s.__index__() not in known for s in order):
            raise InvalidRequest(f"sequences are 0 … {self.spec.batch - 1}, got {order}")
        if self._memory is None:
            self.spec.batch = len(order)
            return
        self._widen(len(order), self.past)
        pool = self._memory.pool
        pasts = [self.tables[int(source)].past() for source in order]
        held = [page for past in pasts for page in past.held]  # or a page could be free for a moment between two owners
        for page in held:
            pool.retain(page)
        tables = self.tables[: len(order)]
        self._let_go(self.tables[len(order) :])
        tables += self._new_tables(pool, len(order) - len(tables))
        for table, past in zip(tables, pasts, strict=True):
            table.become(past)
        for page in held:
            pool.free(page)
        self.tables, self.spec.batch = tables, len(order)
        self._memory.drop_free()

    def keep_past(self, tokens: int) -> None:
        """Keep so many tokens beyond the window, so that as many can be rolled back and the window is still whole."""
        self._living()
        if natural("tokens", tokens) <= self.past or self.window is None:
            return
        if self._memory:
            self._widen(self.spec.batch, tokens)
        self.past = tokens

    # invariants

    def check(self) -> None:
        """Walk pages, references and tables. Raises CorruptCache, saying the difference."""
        self._living()
        if not self._memory:
            return
        self._memory.pool.check()
        if len(self.tables) != self.spec.batch:
            raise CorruptCache(f"{len(self.tables)} tables for a batch of {self.spec.batch}")
        for table in self.tables:
            if (table.seen, table.first) != (self.seen, self.tables[0].first):
                raise CorruptCache(f"sequences out of step: {table.seen} tokens from {table.first}, not {self.seen}")
        self._memory.store.check(self._memory.pool, settled=self._memory.stepping is None)


def _listed(order: Any) -> list[Any]:
    """Numbers of sequences, as a list. Raises InvalidRequest."""
    try:
        return list(order)
    except TypeError:
        raise InvalidRequest(f"an order is a list of sequences, got {brief(order)}") from None
