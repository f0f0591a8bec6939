"""The segments that were there before a history began: the final ones, with every event about segments undone."""

from __future__ import annotations

from bisect import bisect_right, insort

import numpy as np

from kvviz.memory.lifetimes import SegmentSpans
from kvviz.memory.settings import SMALL_SEGMENT, Settings
from kvviz.memory.snapshot_columns import Dump, History
from kvviz.memory.trace import Action

LARGE_STEP = Settings().large_segment


def segment_lives(history: History, entry: SegmentSpans) -> np.ndarray:
    """End address, birth and death of every segment that is one cudaMalloc."""
    alive = {a: (a + s, -1) for a, s in zip(entry.address.tolist(), entry.size.tolist(), strict=True)}
    rows: list[tuple[int, int, int]] = []
    never = len(history)
    for k in np.flatnonzero(
        (history.action == Action.SEGMENT_ALLOC) | (history.action == Action.SEGMENT_FREE)
    ).tolist():
        address = int(history.address[k])
        if history.action[k] == Action.SEGMENT_ALLOC:
            alive[address] = (address + int(history.size[k]), k)
        elif address in alive:
            rows.append((*alive.pop(address), k))
    rows += [(end, born, never) for end, born in alive.values()]
    return np.array([[end, born, died] for end, born, died in rows], dtype=object).reshape(-1, 3)


def entry_segments(
    history: History, dump: Dump, device: int, stream: np.ndarray, dump_stream: np.ndarray
) -> tuple[SegmentSpans, int]:
    """The final segments, walked back to the first event; and how many events contradict them on the way."""
    whole: dict[int, tuple] = {}
    mapped = _Ranges()
    for k in np.flatnonzero(dump.device == device).tolist():
        row = (
            int(dump.address[k]),
            int(dump.size[k]),
            int(dump_stream[k]),
            bool(dump.small[k]),
            bool(dump.expandable[k]),
        )
        if row[4]:
            mapped.add(row)
        else:
            whole[row[0]] = row
    wrong = 0
    about_segments = (history.action >= Action.SEGMENT_ALLOC) & (history.action <= Action.SEGMENT_UNMAP)
    for k in np.flatnonzero(about_segments)[::-1].tolist():
        action, address, size = int(history.action[k]), int(history.address[k]), int(history.size[k])
        # what is unmapped tells its pool by its length: the large one maps and unmaps in steps of a large segment
        small = size % LARGE_STEP != 0 if action >= Action.SEGMENT_MAP else size <= SMALL_SEGMENT
        row = (address, size, int(stream[k]), small, action >= Action.SEGMENT_MAP)
        if action == Action.SEGMENT_ALLOC:
            there = whole.pop(address, None)
            wrong += there is None or there[1] != size
        elif action == Action.SEGMENT_FREE:
            wrong += address in whole
            whole[address] = row
        elif action == Action.SEGMENT_MAP:
            wrong += not mapped.remove(address, size)
        else:
            wrong += not mapped.add(row)
    return segments_of(sorted([*whole.values(), *mapped.rows()])), wrong


class _Ranges:
    """Mapped ranges of addresses, none of which overlap: rows of (address, size, stream, small, expandable)."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._rows: dict[int, tuple] = {}

    def rows(self) -> list[tuple]:
        return list(self._rows.values())

    def add(self, row: tuple) -> bool:
        """Add a range; False, and nothing added, where it meets another."""
        if not row[1] or self._meets(row[0], row[0] + row[1]):
            return False
        insort(self._starts, row[0])
        self._rows[row[0]] = row
        return True

    def _meets(self, start: int, stop: int) -> list[int]:
        """The starts of the ranges that [start, stop) meets."""
        low = max(bisect_right(self._starts, start) - 1, 0)
        near = self._starts[low : bisect_right(self._starts, stop - 1)]
        return [s for s in near if s + self._rows[s][1] > start]

    def remove(self, start: int, size: int) -> bool:
        """Take [start, start + size) out; False where not all of it was there."""
        stop, covered = start + size, 0
        for at in self._meets(start, stop):
            row = self._rows.pop(at)
            del self._starts[bisect_right(self._starts, at) - 1]
            end = at + row[1]
            covered += min(end, stop) - max(at, start)
            for low, high in ((at, start), (stop, end)):
                if low < high:
                    self.add((low, high - low, *row[2:]))
        return covered == size


def segments_of(rows: list[tuple]) -> SegmentSpans:
    count = len(rows)
    address, size, stream, small, expandable = zip(*rows, strict=True) if rows else ((),) * 5
    return SegmentSpans(
        np.array(address, "u8"), np.array(size, "i8"), np.array(stream, "i8"), np.array(small, "?"),
        np.array(expandable, "?"), np.full(count, -1), np.zeros(count, "i8"),
    )  # fmt: skip
