"""A moment of a run: whose the bytes are, where they were asked for, what is free, and what pins it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kvviz.memory.settings import SMALL_REQUEST
from kvviz.memory.state import MemoryState, State, given_back
from kvviz.memory.trace import Action, Trace
from kvviz.memory.whose import site, whose


@dataclass(frozen=True)
class Pin:
    """Free bytes that cannot be given back, in `segments` segments, because blocks lie there: most of them of one owner."""

    free: int
    segments: int
    blocks: int  # all that lie there
    bytes: int  # of those blocks
    by: str  # the owner, and call site, with most of the bytes
    alone: bool  # all of the blocks are this owner's

    @property
    def whose(self) -> str:
        return self.by if self.alone else f"{self.by} and others"


class Moment:
    """The state of one device after `i` events, asked in the words of a report."""

    def __init__(self, trace: Trace, i: int, device: int):
        self.trace, self.i, self.device = trace, i, device
        self.state: MemoryState = trace.at(i, device)
        self._blocks = self.state.blocks
        self._used = self._blocks[self._blocks["state"] != State.INACTIVE]

    @property
    def free(self) -> int:
        """Reserved bytes that no block uses."""
        return self.state.reserved - self.state.active

    @property
    def pinned(self) -> int:
        """Free bytes that empty_cache() cannot give back, since a living block is in their segment, or page."""
        return self.free - self.state.releasable

    @property
    def where(self) -> str:
        """ "event 1,234, after the mark `generation 3`"."""
        before = [mark for mark in self.trace.marks if mark.event <= self.i]
        return f"event {self.i:,}" + (f", after the mark “{before[-1].name}”" if before else "")

    def largest_for(self, size: int) -> int:
        """The largest free block that a request of that size may use: small and large ones have pools of their own."""
        segments = self.state.segments
        free = self._blocks[self._blocks["state"] == State.INACTIVE]
        home = np.searchsorted(segments["address"], free["address"], side="right") - 1
        return int(free["size"][segments["small"][home] == (size <= SMALL_REQUEST)].max(initial=0))

    def by_owner(self) -> Counter[str]:
        """Bytes of active blocks."""
        owners = self.trace.owners
        return _sums(self._used, lambda block: owners[block["owner"]])

    def by_site(self) -> Counter[str]:
        """Bytes of active blocks by call site."""
        return _sums(self._used, lambda block: site(self.trace, int(block["stack"])))

    @cached_property
    def pins(self) -> list[Pin]:
        """What pins free memory, the most first; together they are `pinned`.

        A segment counts for the owner and site with most of its blocks' bytes.
        """
        starts = self.state.segments["address"]
        home = np.searchsorted(starts, self._blocks["address"], side="right") - 1
        used = self._blocks["state"] != State.INACTIVE
        free, within = self._blocks[~used], home[~used]
        stays = free["size"] - given_back(free, self.state.segments[within], self.trace.page)
        unused = np.bincount(within, stays, len(starts)).astype("i8")
        count = np.bincount(home[used], minlength=len(starts))
        found: dict[str, list[int]] = {}
        living, of = self._blocks[used], home[used]
        order = np.argsort(of, kind="stable")
        living, of = living[order], of[order]
        edges = np.searchsorted(of, np.arange(len(starts) + 1))
        for k in np.flatnonzero((unused > 0) & (count > 0)).tolist():
            inside = living[edges[k] : edges[k + 1]]
            names: Counter[str] = Counter()
            for block in inside:
                names[whose(self.trace, int(block["owner"]), int(block["stack"]))] += int(block["size"])
            row = found.setdefault(names.most_common(1)[0][0], [0, 0, 0, 0, 0])
            for column, more in enumerate((int(unused[k]), 1, len(inside), int(inside["size"].sum()), len(names) > 1)):
                row[column] += more
        pins = [
            Pin(free, segments, blocks, size, by, alone=not mixed)
            for by, (free, segments, blocks, size, mixed) in found.items()
        ]
        return sorted(pins, key=lambda pin: (-pin.free, pin.by))


def failed_requests(trace: Trace, device: int) -> np.ndarray:
    """Indices of the events at which this device ran out of memory."""
    return np.flatnonzero((trace.events.action == Action.OOM) & (trace.events.device == device))


def _sums(blocks: np.ndarray, name) -> Counter[str]:  # type: ignore[no-untyped-def]
    total: Counter[str] = Counter()
    keys, at = np.unique(blocks[["owner", "stack"]], return_inverse=True)
    for key, size in zip(keys, np.bincount(at, blocks["size"], len(keys)), strict=True):
        total[name(key)] += int(size)
    return total
