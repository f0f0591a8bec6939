"""PageScene: a page log made ready to draw. Player, stills and plotly all draw from this."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any

import numpy as np

from kvviz.cache.pagelog import PageAction, PageLog, PoolInfo, PoolState
from kvviz.errors import ViewError
from kvviz.view.base import Base
from kvviz.view.pack import alike_or_not, pack
from kvviz.view.pagecurves import counted, in_use, steps, visible
from kvviz.view.pagelayout import Layout, Most, layout
from kvviz.view.pagetext import texts
from kvviz.view.scene import format_bytes
from kvviz.view.sheet import Series
from kvviz.view.theme import COLORS, DARK, LIGHT, ink_on, sequence

_INDEXED = (PageAction.ALLOCATE, PageAction.SHARE, PageAction.COPY, PageAction.RELEASE, PageAction.SLIDE)
_BORN = (PageAction.ALLOCATE, PageAction.SHARE, PageAction.COPY)
_OTHER = (PageAction.BEGIN, PageAction.LENGTH, PageAction.FIRST, PageAction.REFUSE)
_MARKS = 60  # refusals that get a mark of their own; beyond, only the first of those close together


class PageScene:
    """log: a PageLog, or what has one at `.log`. start: the number of events after which the picture opens.

    None opens where most pages are in use, and among those states where most tokens are visible.
    pools: numbers or names of those to show, None for all. tokens, tokenizer: see pagetext.py.

    Raises ViewError for anything else, and where the log contradicts itself.
    """

    def __init__(
        self, log: Any, start: int | None = None, pools: Any = None, tokens: Any = None, tokenizer: Any = None
    ):
        log = log if isinstance(log, PageLog) else getattr(log, "log", log)
        if not isinstance(log, PageLog):
            raise ViewError(f"page_map draws a PageLog, or what has one at .log, not {type(log).__name__}")
        self.log, self.events = log, len(log)
        self.shown = _chosen(pools, log.pools)
        self.texts = texts(tokens, tokenizer)
        try:
            self._entries = [log.entries(k) for k in range(len(log.pools))]
            self._lengths = [log.lengths(k) for k in range(len(log.pools))]
        except KeyError as wrong:
            raise ViewError(
                f"this log contradicts itself: no page at (sequence, index) {wrong} to give back"
            ) from wrong
        self._refuse_unborn()
        self._states: dict[int, list[PoolState]] = {}
        self.start = self.peak if start is None else start
        if isinstance(start, bool) or not isinstance(self.start, (int, np.integer)):
            raise ViewError(f"start must be a number of events, not {start!r}")
        if not 0 <= self.start <= self.events:
            raise ViewError(f"start {start:,} is outside this log's events, 0 … {self.events:,}")
        self.start = int(self.start)
        self.origin, self.warned, self.base = log.origin, 0, Base(0, "")

    def _refuse_unborn(self) -> None:
        """Raises ViewError where something happens to a sequence that has not begun."""
        e = self.log.events
        named = np.flatnonzero(e.sequence >= 0)
        _, first = np.unique(e.sequence[named].astype("i8") * len(self.log.pools) + e.pool[named], return_index=True)
        for event in named[first].tolist():
            if e.action[event] != PageAction.BEGIN:
                number = int(e.sequence[event])
                raise ViewError(f"this log contradicts itself: sequence {number} has not begun at event {event}")

    @property
    def pools(self) -> list[PoolInfo]:
        """Those that are shown."""
        return [self.log.pools[k] for k in self.shown]

    @cached_property
    def in_bytes(self) -> bool:
        """False where no tensors are behind the pages: then slots and tokens are counted."""
        return any(pool.token_bytes for pool in self.pools)

    def pages(self, pool: int) -> int:
        """How many a pool ever has."""
        return max(self.log.pools[pool].pages, int(self._entries[pool].page.max(initial=-1)) + 1)

    def weights(self, pool: int) -> tuple[int, int]:
        """What a page and a token count: bytes, or slots and tokens."""
        info = self.log.pools[pool]
        return (info.page_bytes, info.token_bytes) if self.in_bytes else (info.page_size, 1)

    @cached_property
    def series(self) -> list[Series]:
        """Held, in use and logical after 0 … len(log) events."""
        held, used, logical = (np.zeros(self.events + 1, "i8") for _ in range(3))
        for k in self.shown:
            page, token = self.weights(k)
            pages = in_use(self._entries[k], self.events)
            held += page * (pages if self.log.pools[k].grows else self.pages(k))
            used += page * pages
            logical += token * visible(self._lengths[k], self.log.pools[k].window, self.events)
        names = {"held": held, "in use": used, "logical": logical}
        return [Series(name, values, self.format(name)) for name, values in names.items()]

    def format(self, name: str) -> Any:
        """How a number of that series reads."""
        if self.in_bytes:
            return format_bytes
        one = "token" if name == "logical" else "slot"
        return lambda count: f"{int(count):,} {one}{'' if count == 1 else 's'}"

    @cached_property
    def peak(self) -> int:
        """Of the states with the most in use the first with the most visible tokens."""
        _, used, logical = (s.values for s in self.series)
        most = np.flatnonzero(used == used.max())
        return int(most[np.argmax(logical[most])])

    def states(self, i: int) -> list[PoolState]:
        """Of the shown pools, after i events."""
        if i not in self._states:
            self._states[i] = [self.log.at(i, k) for k in self.shown]
        return self._states[i]

    def figures(self, i: int) -> list[tuple[str, str]]:
        """(label, text) of what stands above the picture."""
        shown = [(s.name, format_bytes(int(s.values[i]), True) if self.in_bytes else s.format(s.values[i]))
                 for s in self.series]  # fmt: skip
        states = self.states(i)
        slots = sum(state.used * state.pool.page_size for state in states)
        unused = slots - sum(state.stored for state in states)
        tenths = (unused * 2000 + slots) // (2 * slots) if slots else 0  # halves up, as in the player
        return [*shown, ("page waste", f"{tenths / 10:.1f} %" if slots else "–")]

    def state_words(self, i: int) -> str:
        """A state in words. The twin of `words` in player/pagemodel.js."""
        if not self.log.pools:
            return f"state after event {i} of {self.events}: no pool yet"
        figures = ", ".join(f"{label} {text}" for label, text in self.figures(i))
        states = self.states(i)
        used, shared = sum(s.used for s in states), sum(s.shared for s in states)
        pages = sum(self.pages(k) for k in self.shown)
        living = len({number for state in states for number in state.lengths})
        counts = f"{used:,} of {pages:,} pages in use by {living:,} sequence{'' if living == 1 else 's'}"
        return f"state after event {i} of {self.events}: {figures}; {counts}, {shared:,} shared"

    def words(self) -> str:
        """The opening state in words, for those who do not see the picture."""
        words = self.state_words(self.start)
        return f"{words[0].upper()}{words[1:]}. Numbers from: {self.origin}"

    @cached_property
    def marks(self) -> list[tuple[int, str]]:
        """(events before it, name), in order; running out of pages is one, too."""
        named = [(min(max(0, int(event)), self.events), str(name)) for event, name in self.log.marks]
        e = self.log.events
        refused = (np.flatnonzero((e.action == PageAction.REFUSE) & np.isin(e.pool, self.shown)) + 1).tolist()
        if len(refused) > _MARKS:
            near, kept = self.events / 200, [refused[0]]
            for one, other in zip(refused, refused[1:], strict=False):
                if other - one > near:
                    kept.append(other)
            refused = kept
        return sorted(named + [(event, "pool exhausted") for event in refused])

    def heading(self, pool: int) -> str:
        info = self.log.pools[pool]
        window = "" if info.window is None else f" · window {info.window:,}"
        return f"{info.name} · {self.sizes(pool)}{window}"

    def sizes(self, pool: int) -> str:
        pages = self.pages(pool)
        size = self.log.pools[pool].page_size
        return f"{pages:,} page{'' if pages == 1 else 's'} × {size:,} token{'' if size == 1 else 's'}"

    def most(self, pool: int) -> Most:
        """What the tables of a pool need at most."""
        e, entries, lengths, info = self.log.events, self._entries[pool], self._lengths[pool], self.log.pools[pool]
        mine = e.pool == pool
        living = np.cumsum((mine & (e.action == PageAction.BEGIN)).astype("i8") - (mine & (e.action == PageAction.END)))
        born = np.bincount(entries.born, minlength=self.events + 1)
        there = np.cumsum(born - np.bincount(entries.died, minlength=self.events + 1))
        longest = int(counted(entries.sequence, entries, self.events)[0].max(initial=0))
        slid = bool((mine & (e.action == PageAction.SLIDE)).any())
        seen = int(lengths.length.max(initial=0))
        hides = bool(lengths.first.any()) or (info.window is not None and seen > info.window)
        label = max(len(f"{seen:,} tok"), len(f"seen {seen:,}") if hides else 0)
        letters = len(sequence(int(e.sequence.max(initial=0))).letter)
        digits = len(str(max(0, self.pages(pool) - 1)))
        return Most(int(living.max(initial=0)), int(there.max(initial=0)), longest + 2 * slid, letters, digits, label)

    def layout(self, width: int) -> Layout:
        return layout([self.pages(k) for k in self.shown], [self.most(k) for k in self.shown], width)

    @cached_property
    def keys(self) -> list[tuple[str, str]]:
        """(style, meaning) of what the map draws beyond the sequences' colours, as far as it happens here."""
        if not self.shown:
            return []
        actions = set(self.log.events.action[np.isin(self.log.events.pool, self.shown)].tolist())
        keys = [] if all(p.grows for p in self.pools) else [("free", "free page")]
        keys += [("dash", "not taken")] * any(p.grows for p in self.pools)
        keys.append(("fill", "slots in use"))
        if PageAction.SHARE in actions:
            keys.append(("shared", "shared page"))
        if PageAction.FIRST in actions or any(p.window is not None for p in self.pools):
            keys.append(("hatch", "slots that slid out"))
        if PageAction.SLIDE in actions:
            keys.append(("null", "null page"))
        return [*keys, ("now", "just changed")]

    def pack(self, title: str, subtitle: str) -> bytes:
        """The player's buffer: the events, each with only what does not follow from those before it."""
        e = self.log.events
        grown = np.zeros(self.events, "i8")
        for lengths in self._lengths:
            grown[lengths.event] = steps(lengths.sequence, lengths.length)
        told = np.where(e.action == PageAction.BEGIN, e.source + 1, e.tokens)  # of a fork: its parent, counted from 1
        vocabulary = sorted({text for row in self.texts.values() for text in row})
        number = {text: k for k, text in enumerate(vocabulary)}
        columns = {
            "action": e.action, "pool": e.pool, "sequence": e.sequence + 1,
            "index": e.index[np.isin(e.action, _INDEXED)], "page": e.page[np.isin(e.action, _BORN)],
            "grown": grown[e.action == PageAction.WRITE], "told": told[np.isin(e.action, _OTHER)],
            "text": np.array([number[text] for row in self.texts.values() for text in row], "i8"),
        }  # fmt: skip
        return pack(
            {
                "kind": "pages", "title": title, "subtitle": subtitle, "origin": self.origin, "warnings": [],
                "events": self.events, "start": self.start, "marks": [list(mark) for mark in self.marks],
                "pools": [self._pool(k) for k in range(len(self.log.pools))], "keys": self.keys,
                "palette": [[color, ink_on(color)] for color in COLORS],
                "vocabulary": vocabulary, "texts": [[s, len(row)] for s, row in self.texts.items()],
                "base": list(self.base), "theme": {"light": LIGHT, "dark": DARK},
            },
            {name: alike_or_not(values) for name, values in columns.items()},
        )  # fmt: skip

    def _pool(self, k: int) -> dict[str, Any]:
        info = self.log.pools[k]
        return {
            "name": info.name, "heading": self.heading(k), "pages": self.pages(k), "size": info.page_size,
            "tokenBytes": info.token_bytes, "window": info.window, "grows": info.grows, "shown": k in self.shown,
            "most": self.most(k)._asdict(),
        }  # fmt: skip


def _chosen(wish: Any, pools: list[PoolInfo]) -> list[int]:
    names = [pool.name for pool in pools]
    if wish is None:
        return list(range(len(pools)))
    found = []
    for one in [wish] if isinstance(wish, (int, str)) or not isinstance(wish, Iterable) else wish:
        if isinstance(one, str) and one in names:
            found.append(names.index(one))
        elif isinstance(one, int) and not isinstance(one, bool) and 0 <= one < len(pools):
            found.append(one)
        else:
            known = ", ".join(f"{k} ({name})" for k, name in enumerate(names)) or "none"
            raise ViewError(f"no pool {one!r} in this log; it has {known}")
    if not found:
        raise ViewError("pools names no pool to show; None shows all")
    return sorted(set(found))
