"""Lifetimes: when each block and each segment was there, worked out once from the events.

A row says: `size` bytes at `address`, from event `born` to event `died`. State *after i events* is then a filter,
`born < i <= died`, and no event has to be replayed to look at any moment of a run. `born` is -1 for what lived before
the recording, `died` is n (the number of events) for what outlived it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TypeVar

import numpy as np

KEYFRAME = 2048  # events between two stored lists of living rows: a look-up filters one list and at most this many rows
MOST = 1 << 23  # rows in all those lists; where more live at a time, the lists stand further apart


@dataclass(frozen=True)
class BlockSpans:
    """Blocks, one row each, sorted by `born`. Bytes; event indices; owner and stack index the trace's lists (-1: none).

    allocated at i: born < i <= freed. Awaiting free (other streams still use it): freed < i <= died.
    """

    address: np.ndarray
    size: np.ndarray
    requested: np.ndarray
    stream: np.ndarray
    owner: np.ndarray
    stack: np.ndarray
    born: np.ndarray
    freed: np.ndarray
    died: np.ndarray

    def __len__(self) -> int:
        return len(self.address)


@dataclass(frozen=True)
class SegmentSpans:
    """Segments (or mapped ranges of an expandable segment), one row each, sorted by `born`. Bytes; event indices."""

    address: np.ndarray
    size: np.ndarray
    stream: np.ndarray
    small: np.ndarray
    expandable: np.ndarray
    born: np.ndarray
    died: np.ndarray

    def __len__(self) -> int:
        return len(self.address)


Spans = TypeVar("Spans", BlockSpans, SegmentSpans)


@dataclass(frozen=True)
class Lifetimes:
    """All blocks and all segments of one device."""

    blocks: BlockSpans
    segments: SegmentSpans


def rows(spans: Spans, index: np.ndarray) -> Spans:
    """The rows of `spans` that `index` (numbers or a mask) picks, in that order."""
    return type(spans)(*(getattr(spans, f.name)[index] for f in fields(spans)))


def next_at_same_address(address: np.ndarray, *kinds: np.ndarray) -> list[np.ndarray]:
    """For each row of the *first* kind (a mask), and each other kind, the position of the next row at the same address
    that is of that kind; len(address) where none. What it says about other rows means nothing.

    What follows an `alloc` at an address is its own free: an address is never given twice at a time. The search ends at
    the next row of the first kind, so that a lost free never pairs with a later block.
    """
    n = len(address)
    order = np.argsort(address, kind="stable")
    sorted_address, opens = address[order], kinds[0][order]
    opens[0:1] = True
    opens[1:] |= sorted_address[1:] != sorted_address[:-1]
    first, found = np.flatnonzero(opens), []  # where a run of rows begins: one block's, or none's
    for kind in kinds[1:]:
        answer = np.full(n, n, dtype=np.int64)
        if n:
            answer[order[first]] = np.minimum.reduceat(np.where(kind[order], order, n), first)
        found.append(answer)
    return found


class LiveIndex:
    """Which rows live after i events, in time that does not grow with the length of the run."""

    def __init__(self, born: np.ndarray, died: np.ndarray, events: int):
        self._born, self._died = born, died
        steps = events // KEYFRAME + 1
        gone = np.cumsum(np.bincount(died // KEYFRAME, minlength=steps + 1)[:steps])
        most = int((np.searchsorted(born, np.arange(1, steps + 1) * KEYFRAME) - gone).max(initial=0))
        self._gap = KEYFRAME * max(1, -(-steps * most // MOST))
        self._edges = np.searchsorted(born, np.arange(0, events + self._gap, self._gap))  # rows born before the keyframe
        self._frames = [np.flatnonzero(born < 0).astype("i4")]
        for frame in range(1, events // self._gap + 1):
            self._frames.append(self._living(frame - 1, frame * self._gap))

    def _living(self, frame: int, i: int) -> np.ndarray:
        fresh = np.arange(self._edges[frame], np.searchsorted(self._born, i), dtype="i4")
        candidates = np.concatenate([self._frames[frame], fresh])
        return candidates[self._died[candidates] >= i]

    def at(self, i: int) -> np.ndarray:
        """Row numbers living after i events, in order of birth."""
        return self._living(min(i // self._gap, len(self._frames) - 1), i)
