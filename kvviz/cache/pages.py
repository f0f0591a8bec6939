"""PagePool: which pages are free, who refers to the others, and which of them begin with tokens seen before.

Numbers only. Tensors lie in store.py, the pages of one sequence in table.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from kvviz.cache.freelist import FreeList
from kvviz.cache.pagelog import NULL, PageAction, PageLog, PoolInfo
from kvviz.cache.table import PageTable
from kvviz.counts import natural, positive
from kvviz.errors import CorruptCache, InvalidRequest, PoolExhausted, UnknownPage

MOST_PAGES = 1 << 24  # that a pool keeps account of: some 0.6 GB of lists


class Prefix(NamedTuple):
    """A full page's tokens, and the number that stands for all that comes before them (0 at the start)."""

    before: int
    tokens: tuple[int, ...]


class Known(NamedTuple):
    """Where a prefix lies, and the number that stands for it and all before it."""

    page: int
    number: int


class PagePool:
    """`pages` pages of `page_size` tokens each.

        pool = kvviz.PagePool(pages=64, page_size=16)
        table = pool.table()              # a sequence
        table.append(40)                  # takes 3 pages; pool.free_count == 61
        child = table.fork()              # shares them
        child.append(1)                   # writes into the last one, so gets its own copy of it

    A page is free, or has as many references as there are entries for it in tables. Freed pages remember their tokens
    until they are used anew, so that a later prompt with the same beginning finds them.
    """

    def __init__(self, pages: int, page_size: int, *, log: PageLog | None = None, info: PoolInfo | None = None):
        self.pages, self.page_size = positive("pages", pages), positive("page_size", page_size)
        if self.pages > MOST_PAGES:
            raise InvalidRequest(f"a pool has at most {MOST_PAGES:,} pages, not {self.pages:,}: take larger pages")
        self.log = PageLog.of(log)
        self.info = info or PoolInfo("pool", self.pages, self.page_size)
        self.number = self.log.add_pool(self.info)
        self.tables: dict[int, PageTable] = {}  # by sequence
        self._free = FreeList(self.pages)
        self._references = [0] * self.pages
        self._prefixes: list[Prefix | None] = [None] * self.pages
        self._found: dict[Prefix, Known] = {}
        self._learned = 0  # prefixes so far

    def __repr__(self) -> str:
        return f"<PagePool: {self.pages:,} pages of {self.page_size}, {self.free_count:,} free>"

    @property
    def free_count(self) -> int:
        return self._free.count

    @property
    def used_count(self) -> int:
        """Pages that have references."""
        return self.pages - self._free.count

    def references(self, page: int) -> int:
        """In how many table entries the page is."""
        return self._references[self._known(page)]

    def is_free(self, page: int) -> bool:
        return self._references[self._known(page)] == 0

    # pages

    def can_allocate(self, pages: int = 1) -> bool:
        return natural("pages", pages) <= self._free.count

    def allocate(self, prefer: int = NULL) -> int:
        """Take a free page: `prefer` if that is free, so that a sequence lies in a row; else the next.

        A page that remembers tokens is not taken out of turn. Raises PoolExhausted.
        """
        if not self._free.count:
            raise PoolExhausted(f"no free page: all {self.pages:,} pages of {self.page_size} tokens are in use")
        page = prefer if prefer in self._free and self._prefixes[prefer] is None else self._free.first()
        self._free.remove(page)
        self.forget(page)
        self._references[page] = 1
        return page

    def retain(self, page: int) -> None:
        """One more reference. A free page that still has its tokens comes back into use."""
        if self._known(page) in self._free:
            if self._prefixes[page] is None:
                raise UnknownPage(f"page {page} is free: it cannot be shared")
            self._free.remove(page)
        self._references[page] += 1

    def free(self, page: int) -> None:
        """One reference less; the last one frees the page. Raises UnknownPage where there is none."""
        if not self._references[self._known(page)]:
            raise UnknownPage(f"page {page} is already free")
        self._references[page] -= 1
        if not self._references[page]:
            self._free.append(page)

    def extend(self, pages: int) -> None:
        """Add that many pages."""
        self._free.extend(positive("pages", pages))
        self._references += [0] * pages
        self._prefixes += [None] * pages
        self.pages += pages
        self.info.pages = self.pages

    def _known(self, page: int) -> int:
        if isinstance(page, bool) or not hasattr(page, "__index__") or not 0 <= page < self.pages:
            raise UnknownPage(f"no page {page!r} in this pool; it has 0 … {self.pages - 1}")
        return page

    # sequences

    def table(self, parent: int = -1) -> PageTable:
        """A new, empty sequence."""
        sequence = self.log.begin(self.number, parent)
        self.tables[sequence] = PageTable(self, sequence)
        return self.tables[sequence]

    def missing(self, tables: Sequence[PageTable], tokens: int, keep: int | None = None) -> int:
        """Pages that are missing for an append of so many tokens to each of these tables; 0: it fits.

        keep: number of the first token that stays stored, see PageTable.append.
        """
        leaving = Counter(page for table in tables for page in table.leaving(tokens, keep))
        room = self.free_count + sum(self._references[page] == count for page, count in leaving.items())
        return max(0, self.needed(tables, tokens, keep) - room)

    def needed(self, tables: Sequence[PageTable], tokens: int, keep: int | None = None) -> int:
        """Pages that such an append takes, those included that it frees itself before."""
        need = sum(table.growth(tokens, keep) for table in tables)
        written = Counter(last for table in tables if (last := table.writes_into(keep)) != NULL and tokens)
        # of those who share a page and write it, the last one needs no copy, unless others hold it, too
        return need + sum(writers - (self._references[page] == writers) for page, writers in written.items())

    def refuse(self, missing: int, why: str, advice: str = "") -> PoolExhausted:
        """The error to raise, after it is in the log."""
        self.log.add(PageAction.REFUSE, self.number, tokens=missing)
        return PoolExhausted(
            f"{why}: {missing:,} page{'s' * (missing > 1)} of {self.page_size} tokens missing, "
            f"{self.free_count:,} of {self.pages:,} free" + (f": {advice}" if advice else "")
        )

    # prefixes

    def remember(self, page: int, before: int, tokens: Sequence[int]) -> int:
        """A page is full of these tokens, after all that `before` stands for. Returns the number of both together."""
        prefix = Prefix(before, tuple(tokens))
        if len(prefix.tokens) != self.page_size:
            raise InvalidRequest(f"only full pages are remembered: {len(prefix.tokens)} of {self.page_size} tokens")
        if prefix not in self._found:  # the first page with this content stays the one to be found
            self.forget(page)
            self._learned += 1
            self._found[prefix], self._prefixes[page] = Known(page, self._learned), prefix
        return self._found[prefix].number

    def find(self, tokens: Sequence[int]) -> list[Known]:
        """The pages that hold the beginning of these tokens, whole pages only.

        A dict looks up by hash and then compares, so the tokens are equal; and `before` makes all earlier ones equal.
        """
        tokens = [int(t) for t in tokens]
        found: list[Known] = []
        for start in range(0, len(tokens) - self.page_size + 1, self.page_size):
            before = found[-1].number if found else 0
            known = self._found.get(Prefix(before, tuple(tokens[start : start + self.page_size])))
            if known is None:
                break
            found.append(known)
        return found

    def forget(self, page: int) -> None:
        """Its content is about to change."""
        if (prefix := self._prefixes[page]) is not None:
            del self._found[prefix]
            self._prefixes[page] = None

    # invariants

    def check(self) -> None:
        """Walk all pages and tables. Raises CorruptCache, saying the difference.

        Free pages and pages with references are together all pages; a page's references are its table entries; the
        entries of a table cover its stored tokens, and nothing else; what is remembered can be found.
        """
        entries: Counter[int] = Counter()
        for table in self.tables.values():
            table.check()
            entries.update(page for page in table.pages if page != NULL)
        free = list(self._free)
        marked = sum(page in self._free for page in range(self.pages))
        if not len(free) == len(set(free)) == self._free.count == marked:
            raise CorruptCache(
                f"the free list holds {len(free)} entries, {len(set(free))} pages, counts {self._free.count}, "
                f"and {marked} pages are marked as free"
            )
        for page in range(self.pages):
            if self._references[page] != entries[page]:
                raise CorruptCache(
                    f"page {page} has {self._references[page]} references and {entries[page]} table entries"
                )
            if (page in self._free) != (entries[page] == 0):
                raise CorruptCache(
                    f"page {page} is {'free' if page in self._free else 'lost'} with {entries[page]} table entries"
                )
        if len(free) + len(entries) != self.pages:
            raise CorruptCache(f"{len(free)} free and {len(entries)} used pages are not {self.pages}")
        for prefix, known in self._found.items():
            if self._prefixes[known.page] != prefix:
                raise CorruptCache(f"page {known.page} is found under tokens that it does not hold")
        if (held := sum(prefix is not None for prefix in self._prefixes)) != len(self._found):
            raise CorruptCache(f"{held} pages are remembered, {len(self._found)} of them can be found")
