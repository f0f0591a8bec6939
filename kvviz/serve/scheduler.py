"""Scheduler: who computes how many tokens in the next step, and who gives up pages for it. Numbers only, no tensors.

First come, first served, and never otherwise: whoever runs is older than all who wait, the oldest is served first, the
youngest gives way. So the oldest always moves on, and nobody waits for more than those who came before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from kvviz.cache.pages import PagePool
from kvviz.cache.table import Copy
from kvviz.errors import CorruptCache
from kvviz.serve.request import Request, Sample


class Work(NamedTuple):
    """Tokens number first … end - 1 of a sample are to be computed; before that, pages are to be copied.

    admitted: it came in with this very step.
    """

    sample: Sample
    first: int
    end: int
    copies: list[Copy]
    admitted: bool


class Scheduler:
    """max_running: samples in flight. step_tokens: of all samples in one step; longer prompts are read in chunks."""

    def __init__(self, pool: PagePool, max_running: int, step_tokens: int, prefix_cache: bool):
        self.pool, self.prefix_cache = pool, prefix_cache
        self.max_running, self.step_tokens = max_running, step_tokens
        self.waiting: deque[Sample] = deque()
        self.running: list[Sample] = []
        self.preemptions = self.hit_tokens = self.recomputed_tokens = 0

    # does it fit?

    def pages_for(self, tokens: int) -> int:
        return -(-tokens // self.pool.page_size)

    def can_ever_run(self, request: Request) -> bool:
        """Is the pool large enough for one sample of it alone? The others can be preempted, and come later."""
        return self.pages_for(request.most_stored) <= self.pool.pages

    def can_admit(self, sample: Sample) -> bool:
        """Is there a place for it, and are there pages for all its tokens, beside those that others have a claim to?"""
        if sum(other.width for other in self.running) + sample.width > self.max_running:
            return False
        found = self.pool.find(sample.tokens[:-1]) if self.prefix_cache else []
        free = self.pool.free_count - sum(self.pool.is_free(known.page) for known in found)
        return self.pages_for(len(sample.tokens)) - len(found) <= free - self.claimed

    @property
    def claimed(self) -> int:
        """Free pages that those who run will need: for the rest of their prompts, and for the token after that.

        Without the latter, whoever was preempted would be let in again at once, and preempted again.
        """
        return sum(self.pages_for(len(s.tokens) + 1) - len(s.table.pages) for s in self.running if s.table)

    # do it

    def add(self, sample: Sample) -> None:
        self.waiting.append(sample)

    def schedule(self) -> list[Work]:
        """The work of one step, for which the pages are taken. Empty only if nobody runs and nobody waits."""
        work: list[Work] = []
        room = self.step_tokens
        while len(work) < len(self.running):
            sample = self.running[len(work)]
            count = min(sample.remaining, room)  # 1, but for the youngest, which gets what the others leave
            if self._make_room(sample, count):
                work.append(self._take(sample, count, False))
                room -= count
        while self.waiting and room and self.can_admit(self.waiting[0]):
            sample = self._admit()
            count = min(sample.remaining, room)
            work.append(self._take(sample, count, True))
            room -= count
        return work

    def fork(self, parent: Sample, tokens: list[int]) -> list[Sample]:
        """Further samples of the parent's request, one for each first token; they share all its pages."""
        assert parent.table is not None
        children = []
        for token in tokens:
            child = Sample(parent.request, len(parent.request.samples), [*parent.request.prompt, token])
            child.table, child.slot = parent.table.fork(), self._free_slot()
            parent.request.samples.append(child)
            children.append(child)
            self.running.insert(self.running.index(parent) + len(children), child)
        return children

    def finish(self, sample: Sample) -> None:
        """It has all its tokens. Its pages are free, but remembered until they are used anew."""
        self.running.remove(sample)
        self._release(sample)

    def drop(self, sample: Sample) -> None:
        """It is not wanted any more, whether it runs or waits; nothing happens to one that has ended."""
        if sample.table is not None:
            self.finish(sample)
        elif sample in self.waiting:
            self.waiting.remove(sample)

    def preempt(self) -> Sample:
        """The youngest gives its pages back and waits, in front of all others."""
        sample = self.running.pop()
        sample.lost = sample.computed
        self._release(sample)
        sample.preempted += 1
        self.preemptions += 1
        self.waiting.appendleft(sample)
        return sample

    def undo(self, work: Sequence[Work]) -> None:
        """A step did not happen: its tokens go, and with them what was remembered of pages that were not written.

        Who was let in for it waits again: it may have begun with pages that others were to write in the same step.
        """
        for item in reversed(work):
            assert item.sample.table is not None
            for page in item.sample.table.pages[item.first // self.pool.page_size :]:
                self.pool.forget(page)
            if item.admitted:
                self._count_found(item.sample, item.first, -1)
                self.finish(item.sample)
                self.waiting.appendleft(item.sample)
            else:
                item.sample.table.rollback(item.end - item.first)

    def _make_room(self, sample: Sample, tokens: int) -> bool:
        """Preempt until that many more tokens of the sample fit; False if in the end it was its own turn to go."""
        assert sample.table is not None
        while not sample.table.can_append(tokens):
            if self.preempt() is sample:
                return False
        return True

    def _admit(self) -> Sample:
        sample = self.waiting.popleft()
        sample.slot = self._free_slot()
        sample.table = self.pool.table()
        sample.table.home = sample.slot * (self.pool.pages // self.max_running)  # apart, so that each can grow in a row
        if self.prefix_cache:  # the last token is computed in any case: what comes next is read from it
            sample.table.adopt(sample.tokens[:-1])
        self._count_found(sample, sample.computed)
        self.running.append(sample)
        return sample

    def _take(self, sample: Sample, count: int, admitted: bool) -> Work:
        assert sample.table is not None
        first, end = sample.computed, sample.computed + count
        new = sample.tokens[first:end] if self.prefix_cache else count  # their ids are what prefixes are found by
        return Work(sample, first, end, sample.table.append(new), admitted)

    def _count_found(self, sample: Sample, tokens: int, sign: int = 1) -> None:
        """It began with so many tokens that were found in pages."""
        if sample.preempted:
            self.recomputed_tokens += sign * max(0, sample.lost - tokens)
        else:
            self.hit_tokens += sign * tokens

    def _release(self, sample: Sample) -> None:
        assert sample.table is not None
        sample.table.free()
        sample.table, sample.slot = None, -1

    def _free_slot(self) -> int:
        return min(set(range(self.max_running)) - {sample.slot for sample in self.running})

    def check(self) -> None:
        """Raises CorruptCache unless the queue is in order of age, and exactly those who run have pages.

        Only the youngest can be in the middle of its prompt: nobody is let in before that is read. So no prompt takes
        a token's place from those who decode.
        """
        order = [sample.order for sample in (*self.running, *self.waiting)]
        if order != sorted(set(order)):
            raise CorruptCache(f"out of order of age: {order}")
        tables = {sample.table.sequence for sample in self.running if sample.table}
        if len(tables) != len(self.running) or tables != self.pool.tables.keys():
            raise CorruptCache(f"{len(self.running)} samples run, with {len(tables)} of {len(self.pool.tables)} tables")
        if held := [sample for sample in self.waiting if sample.table]:
            raise CorruptCache(f"{held[0]} waits, and has pages")
        if busy := [sample for sample in self.running[:-1] if sample.remaining != 1]:
            raise CorruptCache(f"{busy[0]} reads {busy[0].remaining} tokens, and younger ones run")
        if (width := sum(sample.width for sample in self.running)) > self.max_running:
            raise CorruptCache(f"{width} samples run, {self.max_running} may")
