"""PageLog: all that ever happened to the pages of a cache, and the state after any number of events.

    cache.log.at(i) -> PoolState        kvviz.page_map(cache.log)

A log knows nothing of tensors: it is the one thing that pictures of pages are drawn from.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kvviz.errors import InvalidRequest

if TYPE_CHECKING:
    import pandas

NULL = -1  # the null page: stands in a table for what slid out of the window, so that indices stay


class PageAction(IntEnum):
    """What an event says. A field that an action does not use is -1."""

    BEGIN = 0  # a sequence begins, empty; source: the sequence it was forked from
    ALLOCATE = 1  # a free page becomes entry `index` of the sequence's table
    SHARE = 2  # a page in use becomes entry `index`, too
    COPY = 3  # entry `index`, shared until now, moves from page `source` to a page of its own, to be written
    WRITE = 4  # the sequence now has `tokens` tokens, the newest in this page
    RELEASE = 5  # entry `index` is no longer in the table
    SLIDE = 6  # entry `index` becomes the null page
    LENGTH = 7  # the newest tokens are gone; `tokens` are left
    FIRST = 8  # what came before token number `tokens` is no longer visible
    END = 9  # the sequence is freed
    REFUSE = 10  # no room: `tokens` pages were missing, and nothing changed


@dataclass(frozen=True)
class PageEvents:
    """One row an event. Columns of integers, each as long as the log."""

    action: np.ndarray
    pool: np.ndarray
    page: np.ndarray
    sequence: np.ndarray
    index: np.ndarray
    tokens: np.ndarray
    source: np.ndarray


@dataclass(frozen=True)
class Entries:
    """One row for each page in a table for a while: there after i events if born < i <= died."""

    page: np.ndarray
    sequence: np.ndarray
    index: np.ndarray
    born: np.ndarray
    died: np.ndarray  # len(log) for what is still there


class Lengths(NamedTuple):
    """From the state after `event` + 1 events on, the sequence has `length` tokens, visible from number `first`.

    length -1: from then on there is no such sequence.
    """

    event: np.ndarray
    sequence: np.ndarray
    length: np.ndarray
    first: np.ndarray


@dataclass
class PoolInfo:
    """One pool: its name, pages, tokens a page, bytes of a token (0: no tensors behind it), layers, window if any.

    grows: pages are taken from the allocator one by one instead of all at once.
    """

    name: str
    pages: int
    page_size: int
    token_bytes: int = 0
    layers: int = 0
    window: int | None = None
    grows: bool = False

    @property
    def page_bytes(self) -> int:
        return self.page_size * self.token_bytes


@dataclass(frozen=True)
class PoolState:
    """A pool after some number of events. Counts of pages and tokens.

    tables: sequence -> its pages in logical order, NULL for what slid out. references, low, high: for each page how many
    tables it is in, and which of its slots hold visible tokens: low … high - 1. lengths, firsts: tokens that ever came,
    and the number of the first that may still be seen, the window not yet counted.
    """

    pool: PoolInfo
    tables: Mapping[int, tuple[int, ...]]
    lengths: Mapping[int, int]
    firsts: Mapping[int, int]
    references: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @property
    def used(self) -> int:
        """Pages in at least one table."""
        return int(np.count_nonzero(self.references))

    @property
    def shared(self) -> int:
        """Pages in more than one table."""
        return int(np.count_nonzero(self.references > 1))

    @property
    def free(self) -> int:
        return self.pool.pages - self.used

    @property
    def stored(self) -> int:
        """Tokens that lie in pages and can be seen, a shared one counted once."""
        return int((self.high - self.low).sum())

    @property
    def logical(self) -> int:
        """Visible tokens of all sequences, a shared one counted for each."""
        return sum(self.lengths[s] - self.visible_from(s) for s in self.lengths)

    @property
    def waste(self) -> float:
        """Share of the slots in used pages that hold no visible token; 0 where none is used."""
        slots = self.used * self.pool.page_size
        return 1 - self.stored / slots if slots else 0.0

    def visible_from(self, sequence: int) -> int:
        """Number of the first token of a sequence that can be seen."""
        first = self.firsts[sequence]
        return first if self.pool.window is None else max(first, self.lengths[sequence] - self.pool.window)


class PageLog:
    """Events of one or several pools, in the order they happened."""

    def __init__(self, origin: str = "page bookkeeping, no tensors"):
        self.origin = origin
        self.pools: list[PoolInfo] = []
        self.marks: list[tuple[int, str]] = []  # (events before it, name)
        self.watch: Callable[[], None] | None = None  # a live picture's: called before each step of a cache
        self._rows = array("i")
        self._sequences: list[int] = []  # of each pool: how many there have been
        # of each pool: how long the log was, and what was found then
        self._entries: dict[int, tuple[int, Entries]] = {}
        self._lengths: dict[int, tuple[int, Lengths]] = {}

    @classmethod
    def of(cls, log: Any) -> PageLog:
        """That log, or a new one for None. Raises InvalidRequest for what is no log."""
        if not (log is None or isinstance(log, PageLog)):
            raise InvalidRequest(f"log must be a PageLog or None, got {type(log).__name__}")
        return cls() if log is None else log

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"watch": None}  # a copy is not what the live picture shows

    def __len__(self) -> int:
        return len(self._rows) // 7

    def __repr__(self) -> str:
        pools = ", ".join(f"{p.name}: {p.pages:,} pages of {p.page_size}" for p in self.pools)
        return f"<PageLog: {len(self):,} events; {pools or 'no pool'}; {self.origin}>"

    def add_pool(self, pool: PoolInfo) -> int:
        """Its number in this log."""
        self.pools.append(pool)
        self._sequences.append(0)
        return len(self.pools) - 1

    def begin(self, pool: int, parent: int = -1) -> int:
        """A new sequence; returns its number in this pool."""
        sequence = self._sequences[pool]
        self._sequences[pool] += 1
        self.add(PageAction.BEGIN, pool, sequence=sequence, source=parent)
        return sequence

    def add(
        self,
        action: int,
        pool: int,
        page: int = -1,
        sequence: int = -1,
        index: int = -1,
        tokens: int = -1,
        source: int = -1,
    ) -> None:
        self._rows.extend((action, pool, page, sequence, index, tokens, source))

    def mark(self, name: str) -> None:
        """Name this moment."""
        self.marks.append((len(self), str(name)))

    @property
    def events(self) -> PageEvents:
        """A copy of all events so far."""
        return PageEvents(*np.array(self._rows, "i4").reshape(-1, 7).T)

    def entries(self, pool: int = 0) -> Entries:
        """The table entries that ever were in a pool, sorted by birth."""
        if self._entries.get(pool, (-1,))[0] == len(self):
            return self._entries[pool][1]
        e = self.events
        rows: list[list[int]] = []
        there: dict[tuple[int, int], int] = {}  # (sequence, index) -> its row
        born, gone = (PageAction.ALLOCATE, PageAction.SHARE, PageAction.COPY), (PageAction.RELEASE, PageAction.SLIDE)
        for i in np.flatnonzero((e.pool == pool) & np.isin(e.action, born + gone)).tolist():
            place = int(e.sequence[i]), int(e.index[i])
            if e.action[i] in gone or e.action[i] == PageAction.COPY:
                rows[there.pop(place)][4] = i
            if e.action[i] in born:
                there[place] = len(rows)
                rows.append([int(e.page[i]), *place, i, len(e.action)])
        found = Entries(*np.array(rows, "i8").reshape(-1, 5).T)
        self._entries[pool] = len(self), found
        return found

    def lengths(self, pool: int = 0) -> Lengths:
        """Each change of a sequence's length or of its first visible token, in order."""
        if self._lengths.get(pool, (-1,))[0] == len(self):
            return self._lengths[pool][1]
        e = self.events
        now: dict[int, tuple[int, int]] = {}
        rows = []
        kinds = (PageAction.BEGIN, PageAction.WRITE, PageAction.LENGTH, PageAction.FIRST, PageAction.END)
        for i in np.flatnonzero((e.pool == pool) & np.isin(e.action, kinds)).tolist():
            action, sequence, tokens = int(e.action[i]), int(e.sequence[i]), int(e.tokens[i])
            length, first = now.get(sequence, (0, 0))
            if action == PageAction.BEGIN:  # a fork is empty, too, until its pages are shared
                length, first = 0, 0
            elif action == PageAction.FIRST:
                first = tokens
            else:
                length = -1 if action == PageAction.END else tokens
            now[sequence] = length, first
            rows.append((i, sequence, length, first))
        found = Lengths(*np.array(rows, "i8").reshape(-1, 4).T)
        self._lengths[pool] = len(self), found
        return found

    def at(self, i: int, pool: int = 0) -> PoolState:
        """The state of a pool after i events, 0 … len(log). Raises InvalidRequest for another i or pool."""
        if isinstance(pool, bool) or not isinstance(pool, int) or not 0 <= pool < len(self.pools):
            raise InvalidRequest(f"no pool {pool!r} in this log; it has {len(self.pools)}")
        if isinstance(i, bool) or not hasattr(i, "__index__") or not 0 <= i <= len(self):
            raise InvalidRequest(f"i must be 0 … {len(self):,}, got {i!r}")
        info = self.pools[pool]
        lengths, firsts = {}, {}
        changes = self.lengths(pool)
        for event, sequence, length, first in zip(*(c.tolist() for c in changes), strict=True):
            if event < i:
                lengths[sequence], firsts[sequence] = length, first
        lengths = {s: n for s, n in lengths.items() if n >= 0}
        found = self.entries(pool)
        alive = np.flatnonzero((found.born < i) & (i <= found.died))
        tables: dict[int, dict[int, int]] = {s: {} for s in lengths}
        pages = max(info.pages, int(found.page.max(initial=-1)) + 1)
        references, high = np.zeros(pages, "i8"), np.zeros(pages, "i8")
        low = np.full(pages, info.page_size)
        for row in alive.tolist():
            page, sequence, index = int(found.page[row]), int(found.sequence[row]), int(found.index[row])
            tables[sequence][index] = page
            references[page] += 1
            start, first = index * info.page_size, firsts[sequence]
            if info.window is not None:
                first = max(first, lengths[sequence] - info.window)
            begin, end = max(0, first - start), min(info.page_size, lengths[sequence] - start)
            if begin < end:  # a page may be kept beyond the window
                low[page], high[page] = min(low[page], begin), max(high[page], end)
        empty = high <= low
        low[empty] = high[empty] = 0
        return PoolState(
            pool=info,
            tables={s: tuple(t.get(k, NULL) for k in range(max(t, default=-1) + 1)) for s, t in tables.items()},
            lengths=lengths,
            firsts={s: firsts[s] for s in lengths},
            references=references,
            low=low,
            high=high,
        )

    def to_dataframe(self) -> pandas.DataFrame:
        """One row an event, with the action's name. Needs pandas."""
        import pandas

        frame: Any = pandas.DataFrame(vars(self.events))
        frame["action"] = [PageAction(a).name.lower() for a in frame["action"]]
        return frame
