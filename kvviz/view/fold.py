"""Folding: the segments that never change take one bar, so that the others, the thing to look at, get the room."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from kvviz.memory.lifetimes import BlockSpans, SegmentSpans
    from kvviz.view.layout import Axis

INACTIVE = -1  # in the place of an owner


@dataclass(frozen=True)
class Fold:
    """The pieces of an axis that never change: reserved throughout, and no block in them is born or dies."""

    pieces: np.ndarray  # for each piece between two cuts: is it one of them?
    size: int  # bytes of all of them
    shares: list[tuple[int, int]]  # (owner or INACTIVE, bytes), the largest first; INACTIVE last, if not that

    @property
    def head(self) -> str:
        count = int(self.pieces.sum())
        return "1 segment that never changes" if count == 1 else f"{count:,} segments that never change"

    @property
    def everything(self) -> bool:
        """Is there nothing else?"""
        return bool(self.pieces.all())


def find(axis: Axis, segments: SegmentSpans, blocks: BlockSpans, places: np.ndarray, events: int) -> Fold | None:
    """What never changes; None where there is no such thing. places: of the blocks."""
    cuts = axis.cuts
    count = max(0, len(cuts) - 1)
    if not count or not events:  # in a trace without events nothing moves, and a bar alone would be no map
        return None
    stays = (segments.born < 0) & (segments.died >= events)
    start = axis.places(segments.address, segments.size)
    first, last = _pieces(cuts, start, segments.size // axis.unit)
    stays &= first == last  # one that reaches over a cut shares its addresses with another
    reserved = np.zeros(count, "i8")
    np.add.at(reserved, first[stays], (segments.size // axis.unit)[stays])
    still = reserved == np.diff(cuts)
    still &= ~_touched(count, first[~stays], last[~stays])
    first, last = _pieces(cuts, places, blocks.size // axis.unit)
    moves = (blocks.born >= 0) | (blocks.freed < events) | (blocks.died < events)
    still &= ~_touched(count, first[moves], last[moves])
    if not still.any():
        return None
    inside = still[first]
    size = int(np.diff(cuts)[still].sum()) * axis.unit
    names, which = np.unique(blocks.owner[inside], return_inverse=True)
    held = np.bincount(which, blocks.size[inside], len(names)).astype("i8").tolist()
    shares = sorted(zip(names.tolist(), held, strict=True), key=lambda share: -share[1])
    if (idle := size - sum(held)) > 0:
        shares.insert(0 if not shares or idle > shares[0][1] else len(shares), (INACTIVE, idle))
    return Fold(still, size, shares)


def _pieces(cuts: np.ndarray, start: np.ndarray, units: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first and the last piece of each range."""
    return np.searchsorted(cuts, start, "right") - 1, np.searchsorted(cuts, start + units, "left") - 1


def _touched(count: int, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Which of `count` pieces any of the runs first … last has in it."""
    steps = np.bincount(first, minlength=count + 1) - np.bincount(last + 1, minlength=count + 1)
    return np.cumsum(steps)[:count] > 0
