"""Addresses on paper: a compressed axis of only what was ever reserved, flowing over rows on one byte scale.

`flow` and `bar` are the twins of those in player/layout.js, number for number: the still picture and the player show
the same map.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kvviz.errors import InconsistentTrace

if TYPE_CHECKING:
    from kvviz.memory.lifetimes import SegmentSpans

ROW_GAP = 8
FOLD_HEIGHT, FOLD_GAP = 18, 12  # px: the bar of what is folded, and the room below it
_SMALLEST_START = 14


@dataclass(frozen=True)
class Axis:
    """Real addresses to places: `starts` of the ranges that were ever reserved, laid end to end, in units of bytes."""

    unit: int
    starts: np.ndarray  # real address of each island, u8
    ends: np.ndarray
    offsets: np.ndarray  # its place, in units
    cuts: np.ndarray  # places where a segment ever began, and the end of the axis

    def places(self, address: np.ndarray, size: np.ndarray) -> np.ndarray:
        """Places of ranges. Raises InconsistentTrace where one lies outside what was ever reserved."""
        if not len(address):
            return np.zeros(0, "i8")
        island = np.searchsorted(self.starts, address, side="right") - 1
        outside = (island < 0) | (address + size.astype("u8") > self.ends[island]) if len(self.starts) else island < 0
        if outside.any():
            raise InconsistentTrace(
                f"{int(outside.sum()):,} of {len(address):,} blocks lie outside every segment: "
                "the trace is inconsistent, so no true picture of it exists"
            )
        return self.offsets[island] + ((address - self.starts[island]) // self.unit).astype("i8")


def axis_of(segments: SegmentSpans, unit: int) -> Axis:
    """The axis of all segments that ever were. unit: bytes, a divisor of every address and size."""
    order = np.argsort(segments.address, kind="stable")
    start = segments.address[order]
    end = start + segments.size[order].astype("u8")
    if not len(start):
        empty = np.zeros(0, "u8")
        return Axis(unit, empty, empty, np.zeros(0, "i8"), np.zeros(0, "i8"))
    reach = np.maximum.accumulate(end)
    opens = np.concatenate([[True], start[1:] > reach[:-1]])
    first = np.flatnonzero(opens)
    starts, ends = start[first], reach[np.append(first[1:], len(start)) - 1]
    lengths = ((ends - starts) // unit).astype("i8")
    offsets = np.cumsum(lengths) - lengths
    axis = Axis(unit, starts, ends, offsets, np.zeros(0, "i8"))
    begins = axis.places(start[~_continues(segments, order)], np.zeros(1, "i8"))
    cuts = np.unique(np.concatenate([begins, offsets, [offsets[-1] + lengths[-1]]]))
    return Axis(unit, starts, ends, offsets, cuts)


def _continues(segments: SegmentSpans, order: np.ndarray) -> np.ndarray:
    """Which ranges go on where another mapped range of the same stream ended: one expandable segment, so no cut."""
    expandable = segments.expandable[order]
    start, stream = segments.address[order], segments.stream[order]
    end = start + segments.size[order].astype("u8")
    ended = set(zip(end[expandable].tolist(), stream[expandable].tolist(), strict=True))
    pairs = zip(start.tolist(), stream.tolist(), expandable.tolist(), strict=True)
    return np.array([mapped and (at, s) in ended for at, s, mapped in pairs], "?")


class Part(NamedTuple):
    """A run of addresses on one row. start, units: places; x, y, w: px."""

    start: int
    units: int
    x: float
    y: float
    w: float


class Span(NamedTuple):
    """A rectangle of something that may reach over rows; first, last: whether it begins or ends here."""

    x: float
    y: float
    w: float
    first: bool
    last: bool


@dataclass(frozen=True)
class Flow:
    """The laid-out axis. scale: px per unit; heights in px; top: where the rows begin, below the bar if there is one."""

    parts: list[Part]
    scale: float
    row_height: int
    height: int
    top: int = 0

    def spans(self, start: float, units: float, apart: bool = False) -> list[Span]:
        """The rectangles that [start, start + units) covers: one a row, or one a piece where `apart`."""
        end, out = start + units, list[Span]()
        low = int(np.searchsorted(self._starts, start, side="right")) - 1
        for part in self.parts[max(0, low) :]:
            if part.start >= end:
                break
            begin, stop = max(start, part.start), min(end, part.start + part.units)
            if stop <= begin:
                continue
            x, right = (part.x + (place - part.start) * self.scale for place in (begin, stop))
            if out and out[-1].y == part.y and not apart:
                out[-1] = out[-1]._replace(w=right - out[-1].x, last=stop == end)
            else:
                out.append(Span(x, part.y, right - x, begin == start, stop == end))
        return out

    @cached_property
    def _starts(self) -> np.ndarray:
        return np.array([part.start for part in self.parts])


def rows_for(size: int, width: float, rest: bool = False) -> int:
    """Rows for so many bytes: enough to read labels, few enough to see at once. rest: others are folded away."""
    most, each = (20, 12) if width < 520 else (12, 24)
    if rest:
        each //= 4  # what is left is what the reader came for: it gets the rows that the folding saved
    return max(1, min(most, math.ceil(size / (each << 20))))


def flow(
    cuts: np.ndarray, unit: int, width: float, folded: np.ndarray | None = None, most: float = math.inf
) -> Flow:
    """Lay the pieces between `cuts` out over `width` px.

    folded: which of them go into the bar at the top instead. most: px per unit, beyond which nothing is enlarged.
    """
    edges = [int(c) for c in cuts]
    shown = [(a, b) for k, (a, b) in enumerate(zip(edges, edges[1:], strict=False)) if folded is None or not folded[k]]
    total, pieces = sum(b - a for a, b in shown), len(shown)
    top = FOLD_HEIGHT + FOLD_GAP if pieces < len(edges) - 1 else 0
    rows = rows_for(total * unit, width, top > 0)
    row_height = 32 if rows <= 4 else 24
    gap = min(4, 0.2 * width * rows / pieces) if pieces else 0
    scale = min(most, (width * rows - gap * pieces) / total if total else 1.0)
    parts: list[Part] = []
    for _ in range(24):
        parts = _place(shown, scale, width, gap)
        if not parts or parts[-1].y < rows:
            break
        scale *= 0.985
    used = int(parts[-1].y) + 1 if parts else 1
    step = row_height + ROW_GAP
    height = top + used * step - ROW_GAP if parts or not top else FOLD_HEIGHT
    return Flow([p._replace(y=top + p.y * step) for p in parts], scale, row_height, height, top)


def bar(sizes: list[int], width: float) -> list[float]:
    """Widths of shares of the bar: at least two px each, at the cost of the first, the largest."""
    total, rest = sum(sizes), width
    others = [max(2.0, size * width / total) for size in sizes[1:]]
    for taken in others:
        rest -= taken
    return [rest, *others]


def _place(pieces: list[tuple[int, int]], scale: float, width: float, gap: float) -> list[Part]:
    parts, x, y = list[Part](), 0.0, 0
    for start, stop in pieces:
        left = stop - start
        while left > 0:
            room = width - x
            if x > 0 and room < min(_SMALLEST_START, left * scale):
                x, y, room = 0.0, y + 1, width
            taken = min(left, left if left * scale <= room else max(1, math.floor(room / scale)))
            parts.append(Part(start, taken, x, y, taken * scale))
            x, start, left = x + taken * scale, start + taken, left - taken
            if left > 0:
                x, y = 0.0, y + 1
        x += gap
    return parts
