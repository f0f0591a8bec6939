"""Which event of one run stands beside which event of another.

A place in two runs is a pair of numbers of events. Pairs that belong together are found by the program's requests where
both runs made the same ones, as a replay does; else by marks of the same name. Between two pairs it goes evenly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from kvviz.memory.trace import Trace


class Alignment(NamedTuple):
    """first, second: numbers of events that belong together, each from 0 to the end and rising. words: how they were found."""

    first: np.ndarray
    second: np.ndarray
    words: str

    def beside(self, i: int) -> int:
        """The second run's place at the first's after i events. The twin of `partner` in player/beside.js."""
        k = int(np.searchsorted(self.first, i, side="right")) - 1
        if k == len(self.first) - 1:
            return int(self.second[k])
        (a, b), (c, d) = self.first[k : k + 2].tolist(), self.second[k : k + 2].tolist()
        return int(c + (i - a) * (d - c) // (b - a))


def align(a: Trace, b: Trace, device: int = 0) -> Alignment:
    """Pairs of places in two runs, by requests, by marks, or only by their ends."""
    ends = (0, 0), (len(a), len(b))
    own, other = requests(a, device), requests(b, device)
    mine, theirs = _same(own.size, other.size)
    if len(mine) and (mine[-1] == len(own.size) - 1 or theirs[-1] == len(other.size) - 1):
        pairs = _places(own.of(mine), other.of(theirs))
        words = f"the same requests side by side, {len(mine):,} allocations and frees"
        if more := max(len(own.size), len(other.size)) - len(mine):
            words += f"; {more:,} that only one run makes are passed over"
        return _of([ends[0], *pairs, ends[1]], words)
    shared = _marks(a, b)
    if shared:
        names = f"mark{'s' * (len(shared) > 1)} of the same name"
        return _of([ends[0], *shared, ends[1]], f"lined up at {len(shared):,} {names}, evenly between them")
    return _of(
        list(ends), "lined up at their two ends, evenly between them: no same requests, no marks of the same name"
    )


class Requests(NamedTuple):
    """event: in which the program asked for something or gave it back. size: bytes, negative for a free. done: the event
    in which that is done: a recording may have two for a free, that it was asked for and that it is complete, or one."""

    event: np.ndarray
    size: np.ndarray
    done: np.ndarray

    def of(self, rows: np.ndarray) -> Requests:
        return Requests(*(column[rows] for column in self))


def requests(trace: Trace, device: int = 0) -> Requests:
    blocks, n = trace.lifetimes(device).blocks, len(trace)
    born, freed = blocks.born >= 0, (blocks.freed >= 0) & (blocks.freed < n)
    begun, gone = blocks.freed[freed], blocks.died[freed]
    event = np.concatenate([blocks.born[born], begun])
    size = np.concatenate([blocks.requested[born], -blocks.requested[freed]])
    # of a free that waits for another stream nobody knows when the other run completes it
    done = np.concatenate([blocks.born[born], np.where((gone == begun + 1) & (gone < n), gone, begun)])
    return Requests(event, size, done).of(np.argsort(event, kind="stable"))


def _places(a: Requests, b: Requests) -> list[tuple[int, int]]:
    """After each request that both made, and inside of those that take two events in both.

    A segment's event stands before the request that needed it, and belongs to that.
    """
    alike = (a.done > a.event) == (b.done > b.event)
    asked = np.stack([a.event[alike], b.event[alike]], 1)
    done = np.stack([a.done, b.done], 1)
    return [(i + 1, j + 1) for i, j in np.unique(np.concatenate([asked, done]), axis=0).tolist()]


def _same(acts: np.ndarray, others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which requests of two runs are the same, from the first on, as far as that goes.

    A block that one run alone takes and gives back at once is passed over: a replay tries again what had failed.
    """
    kept: tuple[list, list] = ([], [])
    at = [0, 0]
    while True:
        left = acts[at[0] :], others[at[1] :]
        count = min(len(left[0]), len(left[1]))
        unlike = np.flatnonzero(left[0][:count] != left[1][:count])
        same = int(unlike[0]) if len(unlike) else count
        for k in (0, 1):
            kept[k].append(np.arange(at[k], at[k] + same))
            at[k] += same
        extra = [k for k, run in enumerate((acts, others)) if _given_back(run[at[k] : at[k] + 2].tolist())]
        if same == count or not extra:
            return np.concatenate(kept[0]), np.concatenate(kept[1])
        at[extra[0]] += 2


def _given_back(acts: list[int]) -> bool:
    return len(acts) == 2 and acts[0] > 0 and acts[0] == -acts[1]


def _marks(a: Trace, b: Trace) -> list[tuple[int, int]]:
    """The k-th mark of a name in one run beside the k-th of that name in the other, as far as both are in order."""
    places: dict[str, list[int]] = {}
    for mark in sorted(b.marks):
        places.setdefault(mark.name, []).append(mark.event)
    found = []
    for mark in sorted(a.marks):
        if places.get(mark.name):
            found.append((mark.event, places[mark.name].pop(0)))
    return [pair for k, pair in enumerate(found) if not any(other[1] > pair[1] for other in found[:k])]


def _of(pairs: list[tuple[int, int]], words: str) -> Alignment:
    first, second = np.array(pairs, "i8").T
    return Alignment(first, second, words)
