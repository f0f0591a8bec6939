"""Scene: one device of a trace made ready to draw. Player, stills and plotly all draw from this."""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from kvviz.errors import InconsistentTrace, ViewError
from kvviz.memory.check import traced
from kvviz.memory.trace import Action
from kvviz.view import fold as folding
from kvviz.view.base import Base, base_of
from kvviz.view.inspecting import inspecting
from kvviz.view.layout import Axis, Flow, axis_of, flow
from kvviz.view.pack import Column, pack
from kvviz.view.sheet import Series
from kvviz.view.theme import DARK, LIGHT, Owner, owners

if TYPE_CHECKING:
    from kvviz.memory.trace import Trace

RENDERERS = ("auto", "player", "plotly")
THEMES = ("auto", "light", "dark")
OOM = int(Action.OOM)
MANY = 2000  # blocks at the peak, beyond which some are likely to be drawn together
UNIT = 512  # bytes; PyTorch's allocator hands out nothing finer


class Scene:
    """trace, device, and `start`, the number of events after which the picture opens (None: the peak).

    fold: show what never changes as one bar; None: where that is more than a third of what was ever reserved at a time.

    Raises ViewError where the device or the start is not in the trace, InconsistentTrace where its blocks contradict
    one another or the segments.
    """

    def __init__(self, trace: Trace, device: int = 0, start: int | None = None, fold: bool | None = None):
        traced(trace)
        if device not in trace.devices:
            known = ", ".join(str(d) for d in trace.devices)
            raise ViewError(f"no device {device!r} in this trace; it has {known}")
        self.trace, self.device, self.events = trace, device, len(trace)
        self.curves = trace.curves(device)
        self.peak = int(np.argmax(self.curves.allocated))
        self.start = self.peak if start is None else start
        if isinstance(start, bool) or not isinstance(self.start, (int, np.integer)):
            raise ViewError(f"start must be a number of events, not {start!r}")
        if not 0 <= self.start <= self.events:
            raise ViewError(f"start {start:,} is outside this trace's events, 0 … {self.events:,}")
        self.start = int(self.start)
        self.origin, self.warned = trace.origin, len(trace.warnings)
        lives = trace.lifetimes(device)
        self.blocks, self.segments = lives.blocks, lives.segments
        self._wish = fold
        self.part = ""  # says which part of a longer run this is
        self.most = math.inf  # px per unit of the map, where two maps have one scale

    @cached_property
    def series(self) -> list[Series]:
        """The three totals over all events."""
        return [Series(name, getattr(self.curves, name), format_bytes) for name in SERIES]

    def figures(self, i: int) -> list[tuple[str, str]]:
        """(label, text) of what stands above the picture after i events."""
        shown = [(series.name, format_bytes(int(series.values[i]), fixed=True)) for series in self.series]
        reserved = int(self.curves.reserved[i])
        idle = f"{(1 - int(self.curves.active[i]) / reserved) * 100:.1f} %" if reserved else "-"
        return [*shown, ("inactive", idle)]

    @cached_property
    def unit(self) -> int:
        """Bytes in a place of the axis: 512, or 1 where a foreign file has odd addresses."""
        columns = (self.blocks.address, self.blocks.size, self.segments.address, self.segments.size)
        return 1 if any((c.astype("u8") % UNIT).any() for c in columns) else UNIT

    @cached_property
    def axis(self) -> Axis:
        return axis_of(self.segments, self.unit)

    @cached_property
    def places(self) -> np.ndarray:
        """Place of each block on the axis."""
        self._refuse_overlaps()
        return self.axis.places(self.blocks.address, self.blocks.size)

    @cached_property
    def fold(self) -> folding.Fold | None:
        """What never changes, folded or not."""
        return folding.find(self.axis, self.segments, self.blocks, self.places, self.events)

    @cached_property
    def folded(self) -> bool:
        """Does the map open with that as one bar?"""
        if self.fold is None or self._wish is not None:
            return self.fold is not None and bool(self._wish)
        return not self.fold.everything and self.fold.size * 3 > int(self.curves.reserved.max())

    def flow(self, width: float) -> Flow:
        """The map as it opens, laid out over `width` px."""
        folded = self.fold.pieces if self.fold and self.folded else None
        return flow(self.axis.cuts, self.unit, width, folded, self.most)

    def share(self, owner: int, size: int) -> str:
        """A share of the bar in words."""
        return f"{self.owners[owner].name if owner >= 0 else 'inactive'} {format_bytes(size)}"

    @cached_property
    def fold_labels(self) -> list[str]:
        """What may stand on the bar, the longest first."""
        assert self.fold is not None
        names = [self.owners[owner].name for owner, _ in self.fold.shares if owner >= 0] or ["inactive"]
        who = ", ".join(names) if len(names) < 3 else f"{names[0]} and {len(names) - 1} more owners"
        size = format_bytes(self.fold.size)
        still = f"{int(self.fold.pieces.sum()):,} never change"
        return [f"{who} · {self.fold.head} · {size}", f"{self.fold.head} · {size}", f"{still} · {size}", size]

    @cached_property
    def fold_words(self) -> str:
        """The bar in words, for those who do not see it."""
        assert self.fold is not None
        shares = ", ".join(self.share(*share) for share in self.fold.shares)
        return f"{self.fold.head} ({shares}) folded into one bar, on another scale than the rest"

    @cached_property
    def extent(self) -> tuple[int, int, int]:
        """Bytes: the least that was allocated, and the least and the most that the timeline draws."""
        drawn = [getattr(self.curves, name) for name in SERIES]
        return int(self.curves.allocated.min()), min(int(c.min()) for c in drawn), max(int(c.max()) for c in drawn)

    @cached_property
    def base(self) -> Base:
        """Where the timeline's scale starts."""
        return base_of(*self.extent)

    def _refuse_overlaps(self) -> None:
        b = self.blocks
        order = np.lexsort((b.born, b.address))
        address, born, died = b.address[order], b.born[order], b.died[order]
        twice = (address[1:] == address[:-1]) & (born[1:] < died[:-1])
        if twice.any():
            raise InconsistentTrace(
                f"{int(twice.sum()):,} addresses are given out again before they were free: the trace is inconsistent, "
                "so no true picture of it exists"
            )
        for i in {0, self.start, self.events}:
            self.trace.at(i, self.device)  # raises where this state's blocks overlap or leave their segments

    @cached_property
    def owners(self) -> list[Owner]:
        """Looks of all owners of the trace."""
        return owners(list(self.trace.owners))

    @cached_property
    def shown_owners(self) -> np.ndarray:
        """Indices of the owners that ever own a block here."""
        return np.unique(self.blocks.owner)

    @property
    def marks(self) -> list[tuple[int, str]]:
        """(events before it, name), in order; each out-of-memory error is one, too."""
        named = [(min(max(0, int(m.event)), self.events), str(m.name)) for m in self.trace.marks]
        return sorted(named + [(event + 1, "out of memory") for event, _ in self.failures])

    @cached_property
    def failures(self) -> list[tuple[int, int]]:
        """(event, bytes asked for) of each request that found no room on this device."""
        e = getattr(self.trace, "events", None)
        if e is None:
            return []
        rows = np.flatnonzero((e.action == OOM) & (e.device == self.device))
        return list(zip(rows.tolist(), e.requested[rows].tolist(), strict=True))

    @cached_property
    def keys(self) -> list[tuple[str, str]]:
        """(style, meaning) of what the map draws beyond the owners' colours, as far as it happens here."""
        b = self.blocks
        keys = [("hatch", "cached, inactive"), ("dash", "not reserved")]
        if ((b.size - b.requested) >= UNIT).any():
            keys.insert(0, ("tint", "over-reserved part"))
        living = np.count_nonzero((b.born < self.peak) & (self.peak <= b.died))
        if living > MANY:
            keys.insert(0, ("rest", "many small blocks"))
        if (b.died - b.freed > 1).any() or ((b.freed < self.events) & (b.died == self.events)).any():
            keys.insert(0, ("wait", "awaiting free"))
        return keys

    def words(self, mapped: bool = False) -> str:
        """The opening state in words, for those who do not see the picture. mapped: it has a block map."""
        c, i = self.curves, self.start
        figures = ", ".join(f"{name} {format_bytes(int(getattr(c, name)[i]))}" for name in SERIES)
        state = f"State after event {i:,} of {self.events:,}: {figures}"
        bar = f"; {self.fold_words}" if mapped and self.folded else ""
        late = f". The timeline's scale starts at {self.base.text}" if self.base.size else ""
        part = f". {self.part}" if self.part else ""
        return f"{state}{bar}{late}{part}. Numbers from: {self.trace.origin}"

    def meta(self, kind: str, title: str, subtitle: str) -> dict[str, Any]:
        """What the player needs beside the columns."""
        shown = self.shown_owners
        stacks = np.unique(self.blocks.stack[self.blocks.stack >= 0])
        return {
            "kind": kind, "title": title, "subtitle": subtitle, "origin": self.trace.origin,
            "warnings": list(self.trace.warnings), "events": self.events, "start": self.start, "unit": self.unit,
            "marks": [[event, name] for event, name in self.marks],
            "failures": [list(failure) for failure in self.failures],
            "owners": [vars(self.owners[k]) for k in shown],
            "stacks": [self.trace.stacks[k] for k in stacks] if kind == "blocks" else [],
            "streams": len(np.unique(np.concatenate([self.blocks.stream, self.segments.stream]))),
            "keys": self.keys,
            "base": list(self.base), "theme": {"light": LIGHT, "dark": DARK},
        }  # fmt: skip

    def _fold_meta(self, subtitle: str) -> dict[str, Any]:
        assert self.fold is not None
        shown = {int(owner): k for k, owner in enumerate(self.shown_owners)}
        return {
            "folded": self.folded, "head": self.fold.head, "labels": self.fold_labels, "words": self.fold_words,
            "subtitle": subtitle, "shares": [[shown.get(owner, -1), size] for owner, size in self.fold.shares],
        }  # fmt: skip

    def pack(self, kind: str, title: str, subtitle: str, folded_subtitle: str = "") -> bytes:
        """The player's buffer. Lifetimes go out, not events: a block is one row, whatever happens to it."""
        b, s, unit = self.blocks, self.segments, self.unit
        freed, died = b.freed < self.events, b.died < self.events
        columns = {
            "born": Column(b.born, alike=True),
            "life": Column(np.where(freed, b.freed - b.born + 1, 0)),  # 1: freed already when the recording began
            "wait": Column(np.where(died, b.died - b.freed + 1, 0)),
            "size": Column(b.size // unit),
            "slack": Column(b.size - b.requested),
            "owner": Column(np.searchsorted(self.shown_owners, b.owner)),
            "segment_size": Column(s.size // unit),
            "segment_born": Column(s.born, alike=True),
            "segment_died": Column(s.died),
        }
        if kind == "blocks":
            known = b.stack >= 0
            stack = np.zeros(len(b.stack), "i8")
            stack[known] = np.searchsorted(np.unique(b.stack[known]), b.stack[known]) + 1
            columns |= {
                "address": Column(self.places),
                "stack": Column(stack),
                "stream": Column(b.stream),
                "cuts": Column(self.axis.cuts, alike=True),
            }
            segment_place = self.axis.places(s.address, s.size)
        else:  # curves know no places
            nothing = np.zeros(len(b.born), "i8")
            columns |= {name: Column(nothing) for name in ("address", "stack", "stream")}
            columns["cuts"] = Column(nothing[:0])
            segment_place = np.zeros(len(s.born), "i8")
        columns |= {
            "segment_address": Column(segment_place),
            "segment_stream": Column(s.stream),
            "segment_kind": Column(s.small.astype("i8") + 2 * s.expandable.astype("i8")),
        }
        meta = self.meta(kind, title, subtitle)
        if kind == "blocks":
            # real addresses pass 2**53, beyond which JavaScript's numbers are not exact
            islands = zip(self.axis.offsets.tolist(), self.axis.starts.tolist(), strict=True)
            meta["islands"] = [[place, str(address)] for place, address in islands]
            meta |= inspecting(self)
            if self.fold is not None:
                meta["fold"] = self._fold_meta(folded_subtitle)
                columns["still"] = Column(self.fold.pieces.astype("i8"))
        return pack(meta, columns)


SERIES = ("reserved", "allocated", "requested")


def refuse_options(renderer: str, theme: str, title: str | None = None, fold: bool | None = None) -> None:
    """Raises ViewError unless renderer and theme are known, the title can be written, and fold is one of its three values."""
    if not (title is None or isinstance(title, str)):
        raise ViewError(f"title must be a string or None, not {title!r}")
    if renderer not in RENDERERS:
        raise ViewError(f"unknown renderer {renderer!r}; known: {', '.join(RENDERERS)}")
    if theme not in THEMES:
        raise ViewError(f"unknown theme {theme!r}; known: {', '.join(THEMES)}")
    if fold not in (None, True, False):
        raise ViewError(f"fold must be True, False or None, not {fold!r}")


def format_bytes(size: float, fixed: bool = False) -> str:
    """1181116 -> "1.13 MiB"; fixed: decimals of whole numbers too. The twin of formatBytes in player/format.js."""
    power = 0
    while power < 4 and abs(size) >= 1024 ** (power + 1):
        power += 1
    value = size / 1024**power
    digits = 0 if power == 0 or (value == int(value) and not fixed) else 1 if power == 1 else 2
    value = math.floor(value * 10**digits + 0.5) / 10**digits  # halves up, as JavaScript rounds
    return f"{value:.{digits}f} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"
