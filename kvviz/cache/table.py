"""PageTable: the pages of one sequence in logical order, and how they change when it grows, shrinks, forks, slides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized
from typing import TYPE_CHECKING, NamedTuple

from kvviz.cache.pagelog import NULL, PageAction
from kvviz.counts import natural
from kvviz.errors import CorruptCache, InvalidRequest, SequenceFreed, UnknownPage

if TYPE_CHECKING:
    from kvviz.cache.pages import PagePool


class Copy(NamedTuple):
    """What has to be copied before the append is written: slots low … high - 1 of a page to the same of another."""

    source: int
    target: int
    low: int
    high: int


class Past(NamedTuple):
    """All that a sequence is made of, at one moment."""

    pages: list[int]
    seen: int
    first: int
    row: int
    keys: list[int]
    tail: list[int]

    @property
    def held(self) -> list[int]:
        """The pages that are not null."""
        return [page for page in self.pages if page != NULL]


class PageTable:
    """One sequence. Token number t lies in page pages[t // page_size], slot t % page_size.

    seen: tokens that came, rolled back ones not counted. first: number of the first that is stored; what came before
    has slid out or was cut off. Entries before it are the null page, so that indices stay as they are.
    """

    def __init__(self, pool: PagePool, sequence: int):
        self.pool, self.sequence = pool, sequence
        self.pages: list[int] = []
        self.seen = self.first = 0
        self.home = NULL  # the page to begin with, if it is free
        self.row = 0  # from this entry on, each page is the one before plus one: they lie in a row
        self.freed = False
        self._keys: list[int] = []  # for each full page whose tokens are known its number: see PagePool.remember
        self._tail: list[int] = []  # the known tokens after them

    def __repr__(self) -> str:
        state = "freed" if self.freed else f"{self.length} tokens, pages {self.pages}"
        return f"<PageTable {self.sequence}: {state}>"

    @property
    def length(self) -> int:
        """Stored tokens."""
        return self.seen - self.first

    @property
    def entries(self) -> Iterator[tuple[int, int]]:
        """(index, page) of all that is not null."""
        return ((index, page) for index, page in enumerate(self.pages) if page != NULL)

    # what an append needs

    def growth(self, tokens: int, keep: int | None = None) -> int:
        """New pages for that many tokens, copies not counted."""
        size, start = self.pool.page_size, self._keep(keep)
        begin, end = max(self.seen, start) // size, -(-(self.seen + tokens) // size)
        return end - begin - (self.writes_into(keep) != NULL) if tokens else 0

    def leaving(self, tokens: int, keep: int | None = None) -> list[int]:
        """Pages that the table lets go of before it takes new ones."""
        begin, end = self.first // self.pool.page_size, self._leave(self._keep(keep))
        return [page for page in self.pages[begin:end] if page != NULL] if tokens else []

    def writes_into(self, keep: int | None = None) -> int:
        """The last page if it has room and stays, else NULL."""
        stays = self.seen % self.pool.page_size and self._leave(self._keep(keep)) < len(self.pages)
        return self.pages[-1] if stays else NULL

    def can_append(self, tokens: int, keep: int | None = None) -> bool:
        """Would `append` succeed?"""
        self._living()
        self._sound(natural("tokens", tokens), keep)
        return not self.pool.missing([self], tokens, keep)

    # verbs

    def append(self, tokens: int | Sequence[int], keep: int | None = None) -> list[Copy]:
        """Make room for tokens behind the newest: a number of them, or their ids, which prefixes are found by.

        keep: number of the first token that stays stored. Older pages are let go of first; new tokens before it get no
        slot. None keeps all. Returns what must be copied first. Raises PoolExhausted, and nothing has changed.
        """
        self._living()
        ids = [int(t) for t in tokens] if isinstance(tokens, Sized) else None  # one id is no number of tokens
        count = natural("tokens", tokens) if ids is None else len(ids)
        self._sound(count, keep)
        if missing := self.pool.missing([self], count, keep):
            raise self.pool.refuse(missing, f"no room for {count:,} more token{'s' if count > 1 else ''}")
        return self.extend(count, keep, ids)

    def extend(self, count: int, keep: int | None = None, ids: list[int] | None = None) -> list[Copy]:
        """`append` for those who have asked PagePool.missing before."""
        pool, size, log = self.pool, self.pool.page_size, self.pool.log
        if not count:
            return []
        copies = []
        start, end, last = self._keep(keep), self.seen + count, self.writes_into(keep)
        self.let_go(start)
        if last != NULL and pool.references(last) > 1:
            index = len(self.pages) - 1
            own = pool.allocate(prefer=self._following(index))
            copies.append(Copy(last, own, max(0, start - index * size), self.seen - index * size))
            pool.free(last)
            self._place(index, own)
            log.add(PageAction.COPY, pool.number, own, self.sequence, index, source=last)
        elif last != NULL:
            pool.forget(last)  # it was full, and was rolled back
        for index in range(self.seen // size, -(-end // size)):
            if index == len(self.pages):
                self.pages.append(NULL)
            if index < start // size:
                continue
            if self.pages[index] == NULL:
                self._place(index, pool.allocate(prefer=self._following(index)))
                log.add(PageAction.ALLOCATE, pool.number, self.pages[index], self.sequence, index)
            reached = min(end, (index + 1) * size)
            log.add(PageAction.WRITE, pool.number, self.pages[index], self.sequence, index, reached)
        if start > self.first and (pool.info.window is None or start > end - pool.info.window):
            log.add(PageAction.FIRST, pool.number, sequence=self.sequence, tokens=start)
        known = len(self._keys) * size + len(self._tail) == self.seen
        self.seen, self.first = end, start
        if ids is not None and known and not start:
            self._learn(ids)
        return copies

    def let_go(self, start: int) -> None:
        """Turn entries into the null page that hold nothing from token number `start` on."""
        for index in range(self.first // self.pool.page_size, self._leave(start)):
            self._drop(index, PageAction.SLIDE)

    def slide(self, first: int) -> None:
        """Tokens before number `first` will not be read again: let go of the pages that hold nothing else."""
        self._living()
        if natural("first", first) <= self.first:
            return
        first = min(first, self.seen)
        self.let_go(first)
        self.first = first
        self.pool.log.add(PageAction.FIRST, self.pool.number, sequence=self.sequence, tokens=first)

    def rollback(self, tokens: int, step: int = 0) -> None:
        """Drop the newest. Raises InvalidRequest where there are not so many.

        step: tokens of the last append; it may go whole, also where its first ones got no slot.
        """
        self._living()
        if natural("tokens", tokens) > max(self.length, step):
            raise InvalidRequest(f"cannot roll back {tokens:,} tokens: {self.length:,} are stored")
        if not tokens:
            return
        seen = self.seen - tokens
        before, self.first = self.first, min(self.first, seen)
        entries = -(-seen // self.pool.page_size)
        for index in reversed(range(len(self.pages))):
            if index >= entries or seen == self.first:  # a page that nobody reads is not kept
                self._drop(index, PageAction.RELEASE)
        del self.pages[entries:]
        self.seen, self.row = seen, min(self.row, max(0, entries - 1))
        del self._keys[seen // self.pool.page_size :]
        self._tail = []
        log, number = self.pool.log, self.pool.number
        log.add(PageAction.LENGTH, number, sequence=self.sequence, tokens=seen)
        if before:  # a window that could not move back
            log.add(PageAction.FIRST, number, sequence=self.sequence, tokens=self.first)

    def fork(self) -> PageTable:
        """Another sequence with the same past. Pages are shared; the first who writes into one copies it."""
        self._living()
        child = self.pool.table(self.sequence)
        child.become(self.past())
        return child

    def past(self) -> Past:
        """A copy of what the sequence is made of now."""
        return Past(list(self.pages), self.seen, self.first, self.row, list(self._keys), list(self._tail))

    def become(self, past: Past) -> None:
        """Take another sequence's past instead of one's own; pages that are in both stay as they are."""
        self._living()
        number, log = self.pool.number, self.pool.log
        new = [(k, page) for k, page in enumerate(past.pages) if page != NULL and self.pages[k : k + 1] != [page]]
        if gone := [page for _, page in new if self.pool.is_free(page)]:
            raise UnknownPage(f"pages {gone} of that past are free: nobody held them")
        for _, page in new:
            self.pool.retain(page)
        for index in reversed(range(len(self.pages))):
            if past.pages[index : index + 1] != [self.pages[index]]:
                self._drop(index, PageAction.RELEASE)
        for index, page in new:
            log.add(PageAction.SHARE, number, page, self.sequence, index)
        if self.seen != past.seen:
            log.add(PageAction.LENGTH, number, sequence=self.sequence, tokens=past.seen)
        if self.first != past.first or (past.first and self.seen != past.seen):
            log.add(PageAction.FIRST, number, sequence=self.sequence, tokens=past.first)
        self.pages, self.seen, self.first, self.row = list(past.pages), past.seen, past.first, past.row
        self._keys, self._tail = list(past.keys), list(past.tail)

    def adopt(self, tokens: Sequence[int]) -> int:
        """Begin with the pages that already hold the beginning of these tokens; returns how many tokens that saves."""
        self._living()
        if self.seen:
            raise InvalidRequest(f"only an empty sequence can adopt a prefix; this one has {self.seen:,} tokens")
        number, log = self.pool.number, self.pool.log
        for index, known in enumerate(self.pool.find(tokens)):
            self.pool.retain(known.page)
            self.pages.append(NULL)
            self._place(index, known.page)
            self._keys.append(known.number)
            self.seen += self.pool.page_size
            log.add(PageAction.SHARE, number, known.page, self.sequence, index)
            log.add(PageAction.LENGTH, number, sequence=self.sequence, tokens=self.seen)
        return self.seen

    def free(self) -> None:
        """Give all pages back; the sequence ends. Freeing it again is an error."""
        self._living()
        for index in reversed(range(len(self.pages))):
            self._drop(index, PageAction.RELEASE)
        self.pages = []
        self.freed = True
        del self.pool.tables[self.sequence]
        self.pool.log.add(PageAction.END, self.pool.number, sequence=self.sequence)

    def check(self) -> None:
        """Raises CorruptCache unless exactly the stored tokens have pages."""
        size = self.pool.page_size
        needed = -(-self.seen // size)
        if len(self.pages) != needed:
            raise CorruptCache(
                f"sequence {self.sequence} has {len(self.pages)} entries for {self.seen} tokens, not {needed}"
            )
        for index in range(self.row + 1, needed):
            if NULL not in (pair := self.pages[index - 1 : index + 1]) and pair[0] + 1 != pair[1]:
                raise CorruptCache(f"sequence {self.sequence}: pages {pair[0]} and {pair[1]} do not lie in a row")
        for index, page in enumerate(self.pages):
            wanted = self.first < self.seen and (index + 1) * size > self.first
            if (page != NULL) != wanted:
                what = "no page" if page == NULL else f"page {page}"
                raise CorruptCache(
                    f"sequence {self.sequence} has {what} for tokens {index * size} … {index * size + size - 1}"
                )

    def _sound(self, tokens: int, keep: int | None) -> None:
        if tokens and keep is not None and natural("keep", keep) >= self.seen + tokens:
            raise InvalidRequest(f"keep={keep:,} leaves none of {self.seen + tokens:,} tokens")

    def _keep(self, keep: int | None) -> int:
        return self.first if keep is None else max(self.first, keep)

    def _leave(self, start: int) -> int:
        """How many entries hold nothing from token number `start` on."""
        return len(self.pages) if start >= self.seen else start // self.pool.page_size

    def _following(self, index: int) -> int:
        """The page that would continue the row."""
        before = self.pages[index - 1] if index else NULL
        return self.home if before == NULL else before + 1

    def _place(self, index: int, page: int) -> None:
        """Put a page at the end of the table."""
        self.pages[index] = page
        if index and self.pages[index - 1] != page - 1:
            self.row = index

    def _drop(self, index: int, action: PageAction) -> None:
        if (page := self.pages[index]) != NULL:
            self.pool.free(page)
            self.pages[index] = NULL
            self.pool.log.add(action, self.pool.number, page, self.sequence, index)

    def _learn(self, ids: list[int]) -> None:
        size = self.pool.page_size
        self._tail += ids
        while len(self._tail) >= size:
            page = self.pages[len(self._keys)]
            before = self._keys[-1] if self._keys else 0
            self._keys.append(self.pool.remember(page, before, self._tail[:size]))
            del self._tail[:size]

    def _living(self) -> None:
        if self.freed:
            raise SequenceFreed(f"sequence {self.sequence} was freed")
