"""Page logs for the pictures' tests: what a cache would write, and random lawful histories that no cache would."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from kvviz.cache.pagelog import PageAction, PageLog, PoolInfo


@dataclass
class Sequence:
    """pages: entry -> page, only what is there."""

    number: int
    length: int = 0
    first: int = 0
    pages: dict[int, int] = field(default_factory=dict)


class LogWriter:
    """One pool of a log. Does as it is told, and writes down each step; knows only what is free."""

    def __init__(self, log: PageLog, info: PoolInfo):
        self.log, self.info, self.number = log, info, log.add_pool(info)
        self.living: list[Sequence] = []
        self.references = [0] * info.pages

    def add(self, action: PageAction, **columns: int) -> None:
        self.log.add(action, self.number, **columns)

    def take(self, sequence: Sequence, index: int, page: int, action: PageAction, **more: int) -> None:
        self.references[page] += 1
        sequence.pages[index] = page
        self.add(action, page=page, sequence=sequence.number, index=index, **more)

    def drop(self, sequence: Sequence, index: int, action: PageAction | None) -> int:
        page = sequence.pages.pop(index)
        self.references[page] -= 1
        if action is not None:
            self.add(action, page=page, sequence=sequence.number, index=index)
        return page

    def free_page(self, chance: random.Random | None = None) -> int | None:
        free = [page for page, count in enumerate(self.references) if not count]
        return None if not free else chance.choice(free) if chance else free[0]

    def begin(self, parent: Sequence | None = None) -> Sequence:
        sequence = Sequence(self.log.begin(self.number, -1 if parent is None else parent.number))
        self.living.append(sequence)
        if parent is not None:
            for index in sorted(parent.pages):
                self.take(sequence, index, parent.pages[index], PageAction.SHARE)
            self.rollback(sequence, parent.length)
            if parent.first:
                self.slide(sequence, parent.first, said=True)
        return sequence

    def append(self, sequence: Sequence, tokens: int, chance: random.Random | None = None) -> bool:
        """False where the pool has no room; then one REFUSE is all that happened."""
        size = self.info.page_size
        while tokens:
            index = sequence.length // size
            page = sequence.pages.get(index)
            if page is None or self.references[page] > 1:
                fresh = self.free_page(chance)
                if fresh is None:
                    self.add(PageAction.REFUSE, tokens=1 + (tokens - 1) // size)
                    return False
                if page is None:
                    self.take(sequence, index, fresh, PageAction.ALLOCATE)
                else:
                    self.drop(sequence, index, None)
                    self.take(sequence, index, fresh, PageAction.COPY, source=page)
            count = min(tokens, size - sequence.length % size)
            sequence.length += count
            tokens -= count
            page = sequence.pages[index]
            self.add(PageAction.WRITE, page=page, sequence=sequence.number, index=index, tokens=sequence.length)
        if self.info.window is not None:
            self.slide(sequence, sequence.length - self.info.window)
        return True

    def slide(self, sequence: Sequence, first: int, said: bool = False) -> None:
        """Let go of the pages before token number `first`; said: it is no window that would say so, but a cut."""
        for index in sorted(k for k in sequence.pages if (k + 1) * self.info.page_size <= first):
            self.drop(sequence, index, PageAction.SLIDE)
        if said:
            sequence.first = max(sequence.first, first)
            self.add(PageAction.FIRST, sequence=sequence.number, tokens=sequence.first)

    def rollback(self, sequence: Sequence, length: int) -> None:
        """A fork says by the same event how long it is once it has its pages."""
        for index in sorted((k for k in sequence.pages if k * self.info.page_size >= length), reverse=True):
            self.drop(sequence, index, PageAction.RELEASE)
        sequence.length = length
        self.add(PageAction.LENGTH, sequence=sequence.number, tokens=length)

    def end(self, sequence: Sequence) -> None:
        for index in sorted(sequence.pages, reverse=True):
            self.drop(sequence, index, PageAction.RELEASE)
        self.living.remove(sequence)
        self.add(PageAction.END, sequence=sequence.number)


def random_log(seed: int, steps: int = 60) -> PageLog:
    """Two pools, one of them with a window; everything that can happen, in any order."""
    chance = random.Random(seed)
    log = PageLog(f"made up, seed {seed}")
    size = chance.choice([1, 4, 16])
    pools = [
        LogWriter(log, PoolInfo("full", chance.choice([1, 9, 40]), size, token_bytes=chance.choice([0, 1152]))),
        LogWriter(log, PoolInfo("sliding", 24, 4, 512 if seed % 2 else 0, window=chance.choice([4, 7, 16]), grows=seed % 3 == 0)),
    ]  # fmt: skip
    for step in range(steps):
        pool = chance.choice(pools)
        what = chance.random()
        if step == steps // 2:
            log.mark("halfway")
        if what < 0.15 or not pool.living:
            pool.begin()
            continue
        one = chance.choice(pool.living)
        visible_from = max(one.first, one.length - (pool.info.window or one.length))
        if what < 0.25:
            pool.begin(parent=one)
        elif what < 0.7:
            pool.append(one, chance.randrange(1, 3 * pool.info.page_size + 1), chance)
        elif what < 0.8:
            pool.rollback(one, chance.randint(min(visible_from, one.length), one.length))
        elif what < 0.88:
            pool.slide(one, chance.randint(visible_from, one.length), said=True)
        else:
            pool.end(one)
    return log


def showcase() -> PageLog:
    """64 pages of 16 tokens under a window of 96: three prompts, a fork that shares, one that slides, one rolled back."""
    log = PageLog("made up, to show everything the map can draw")
    pool = LogWriter(log, PoolInfo("pool", 64, 16, token_bytes=8192, layers=30, window=96))
    one, two = pool.begin(), pool.begin()
    log.mark("prefill")
    for sequence, count in ((one, 75), (two, 40)):
        for at in range(0, count, 16):
            pool.append(sequence, min(16, count - at))
    log.mark("decode")
    for _ in range(20):
        pool.append(one, 1)
        pool.append(two, 1)
    log.mark("fork")
    three = pool.begin(parent=one)
    four = pool.begin(parent=two)
    for _ in range(60):
        for sequence, count in ((one, 2), (two, 1), (three, 1)):
            pool.append(sequence, count)
    pool.append(four, 9)
    pool.rollback(two, 101)
    for sequence in (one, two, three):
        pool.append(sequence, 3)
    pool.end(two)
    pool.append(four, 24)
    for sequence in list(pool.living):
        pool.end(sequence)
    return log


def served(
    requests: int, pages: int, size: int = 16, seed: int = 0, limit: int | None = None, token_bytes: int = 4096
) -> PageLog:
    """Requests that come, grow token by token beside one another and end, as a server would have them."""
    chance = random.Random(seed)
    log = PageLog("made up, a server")
    pool = LogWriter(log, PoolInfo("pool", pages, size, token_bytes))
    left: dict[int, int] = {}
    free = list(range(pages))[::-1]
    pool.free_page = lambda chance=None: free.pop() if free else None  # the slow look would take minutes here
    while (limit is None or len(log) < limit) and (requests or pool.living):
        if requests and len(free) > pages // 8:
            requests -= 1
            sequence = pool.begin()
            left[sequence.number] = chance.randrange(8, 400)
            pool.append(sequence, chance.randrange(4, 300))
        for sequence in list(pool.living):
            done = left[sequence.number] == 0 or not pool.append(sequence, 1)
            left[sequence.number] -= 1
            if done:
                free.extend(sequence.pages.values())
                pool.end(sequence)
    return log
