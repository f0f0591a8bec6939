"""What a history leaves unsaid, worked out from the layout at its end: what lived before it, and how large blocks were.

The history tells the sizes that were *requested*; the final layout tells the sizes of blocks, of those that live then.
A block that ends up alive without an `alloc` in the history, or is freed in it without one, is older than the history.
The size of a block is its request, rounded as the allocator rounds, unless what remained of the free memory it was cut
from was too small to be kept apart: then it took all of that. How much was free there needs no replay. It reaches from
the block's address to the next address where at that time a block lived, or to the end of the segment.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from kvviz.memory.backward_segments import entry_segments, segment_lives
from kvviz.memory.lifetimes import BlockSpans, Lifetimes
from kvviz.memory.settings import SMALL_REQUEST, SMALLEST_BLOCK, Settings
from kvviz.memory.snapshot_columns import Dump, History
from kvviz.memory.state import State
from kvviz.memory.trace import Action, no_blocks

ROUNDS = 4096  # how many addresses beyond a block are looked at, at most; 2,049 can lie in the mebibyte that matters


@dataclass
class Findings:
    """One device's history, completed. `size` and `requested` are columns for its events."""

    size: np.ndarray
    requested: np.ndarray
    entry: Lifetimes
    living_ghosts: int = 0  # blocks older than the history that outlive it
    freed_ghosts: int = 0  # … that are freed in it; their size is a conclusion
    lone_frees: int = 0  # frees of what neither lived at the end nor was seen to be requested: ignored
    resized: int = 0  # living blocks whose size is not what the rules give
    problems: list[str] = field(default_factory=list)  # how events and final layout contradict each other


@dataclass
class _Lives:
    """The blocks that the events tell of, sorted by address, then by time. Events by their index; len(history): never."""

    address: np.ndarray
    born: np.ndarray  # -1: older than the history
    freed: np.ndarray
    died: np.ndarray
    requested: np.ndarray
    stream: np.ndarray
    life: np.ndarray  # for each block event, in the order of `events`, the index of its life
    events: np.ndarray
    lone: np.ndarray  # lives that are but the end of one: their frees mean nothing
    extra: int  # frees that mean nothing: those, and of what was free already


def complete(
    history: History, dump: Dump, device: int, stream: np.ndarray, dump_stream: np.ndarray, settings: Settings
) -> Findings:
    """Sizes for all events and the entry: what lived before the first of them. `stream`, `dump_stream`: small numbers."""
    lives = _lives(history, stream)
    mine = np.flatnonzero((dump.device == device)[dump.block_home] & (dump.block_state != State.INACTIVE))
    mine = mine[np.argsort(dump.block_address[mine], kind="stable")]
    segments, wrong = entry_segments(history, dump, device, stream, dump_stream)
    found = Findings(history.size.copy(), history.size.copy(), Lifetimes(no_blocks(), segments))
    if wrong:
        found.problems.append(f"{wrong:,} events about segments contradict the final segments")

    never = len(history)
    last = np.flatnonzero((lives.died == never) & ~lives.lone)
    place = np.searchsorted(lives.address[last], dump.block_address[mine])
    known = np.zeros(len(mine), "?")
    inside = place < len(last)
    known[inside] = lives.address[last[place[inside]]] == dump.block_address[mine[inside]]
    survivors, in_dump = last[place[known]], mine[known]
    gone = len(last) - len(np.unique(survivors))
    if gone:
        found.problems.append(f"{gone:,} blocks that the events leave alive are not in the final layout")
    waiting = lives.freed[survivors] < never
    if np.any(waiting != (dump.block_state[in_dump] == State.AWAITING_FREE)):
        found.problems.append("blocks await their free in the events or in the final layout only")
    if np.any(lives.requested[survivors] != dump.block_requested[in_dump]):
        found.problems.append("living blocks with another requested size in the events than in the final layout")

    ghosts = mine[~known]
    edges = _edges(lives, dump.block_address[ghosts], segment_lives(history, segments), never)
    size = _sizes(lives, edges, never, settings)
    found.resized = int(np.count_nonzero(size[survivors] != dump.block_size[in_dump]))
    size[survivors] = dump.block_size[in_dump]
    found.size[lives.events] = size[lives.life]
    found.requested[lives.events] = lives.requested[lives.life]

    if len(ghosts) and np.any(
        np.isin(dump.block_address[ghosts], history.address[history.action <= Action.FREE_COMPLETED])
    ):
        found.problems.append("living blocks that the events have freed")
    freed_ghosts = np.flatnonzero((lives.born < 0) & ~lives.lone)
    found.living_ghosts = len(ghosts) + int(np.count_nonzero(lives.born[survivors] < 0))
    found.freed_ghosts = int(np.count_nonzero(lives.died[freed_ghosts] < never))
    found.lone_frees = lives.extra
    found.entry = Lifetimes(_entry_blocks(dump, ghosts, dump_stream, lives, freed_ghosts, size, never), segments)
    return found


def _lives(history: History, stream: np.ndarray) -> _Lives:
    """Pair each alloc with its free_requested and free_completed."""
    events = np.flatnonzero(history.action <= Action.FREE_COMPLETED)
    events = events[np.argsort(history.address[events], kind="stable")]
    address, action, never = history.address[events], history.action[events], len(history)
    opens = action == Action.ALLOC
    begins = opens.copy()
    begins[:1] = True
    begins[1:] |= address[1:] != address[:-1]
    start = np.flatnonzero(begins)
    life = np.cumsum(begins) - 1

    def first(kind: Action) -> np.ndarray:
        where = np.where(action == kind, events, never)
        return np.minimum.reduceat(where, start) if len(start) else where

    asked, done = first(Action.FREE_REQUESTED), first(Action.FREE_COMPLETED)
    asked = np.where(asked > done, done, asked)
    headless = ~opens[start]
    frees = np.bincount(life, ~opens, len(start)).astype("i8")
    paired = (asked < never).astype("i8") + (done < never) - ((asked == done) & (asked < never))
    lone = headless & (asked == done)
    return _Lives(
        address[start], np.where(headless, -1, events[start]), asked, done, history.size[events[start]],
        stream[events[start]], life, events, lone, int((frees - paired * ~lone).sum()),
    )  # fmt: skip


def _sizes(lives: _Lives, edges: tuple[_Edges, ...], never: int, settings: Settings) -> np.ndarray:
    """The size of each block: rounded, or with the small rest of the free memory that it was cut from."""
    rounded = round_sizes(lives.requested, settings)
    if settings.expandable:  # any rest of 512 bytes is kept apart then, and there is none that is smaller
        return rounded
    large = np.flatnonzero((rounded > SMALL_REQUEST) & ~lives.lone)
    end = lives.address[large] + rounded[large].astype("u8")
    far = np.uint64(2**64 - 1)
    near = np.minimum(end, far - np.uint64(SMALL_REQUEST)) + np.uint64(SMALL_REQUEST)
    reach = np.where(rounded[large] >= settings.max_split, far, near)
    # an older block could have got its size at any time: any edge that was there during its life bounds it
    old = lives.born[large] < 0
    moment = np.where(old, lives.died[large], lives.born[large])
    rests = [kind.next_alive(end, reach, moment, old) - end for kind in edges]
    rest = np.minimum.reduce(rests)
    out = rounded.copy()
    out[large] += np.where(rest <= reach - end, rest, np.uint64(0)).astype("i8")
    return out


class _Edges:
    """Addresses where something begins or ends, and when it is there."""

    def __init__(self, address: np.ndarray, born: np.ndarray, died: np.ndarray):
        self.address, group = np.unique(address, return_inverse=True)
        self._span = int(max(born.max(initial=0), 0)) + 3
        key = group * self._span + (born + 1)
        order = np.argsort(key, kind="stable")
        self._key, self._born, self._died = key[order], born[order], died[order]
        self._first = np.searchsorted(self._key, np.arange(len(self.address)) * self._span)

    def next_alive(self, start: np.ndarray, stop: np.ndarray, moment: np.ndarray, ever: np.ndarray) -> np.ndarray:
        """For each row the first address from `start` to `stop` where there is an edge at `moment`, or, where `ever`,
        was at any time before; the last address of all where there is none."""
        out = np.full(len(start), 2**64 - 1, "u8")
        place, left = np.searchsorted(self.address, start, "left"), np.arange(len(start))
        for _ in range(ROUNDS):
            left = left[place[left] < len(self.address)]
            left = left[self.address[place[left]] <= stop[left]]
            if not len(left):
                break
            alive = self._alive(place[left], moment[left], ever[left])
            out[left[alive]] = self.address[place[left[alive]]]
            left = left[~alive]
            place[left] += 1
        return out

    def _alive(self, place: np.ndarray, moment: np.ndarray, ever: np.ndarray) -> np.ndarray:
        """Whether there is an edge at the address of index `place` just before event `moment`; `ever`: or any time before."""
        latest = np.searchsorted(self._key, place * self._span + np.minimum(moment, self._span - 2) + 1, "left") - 1
        here = latest >= self._first[place]
        alive = here & (self._died[np.maximum(latest, 0)] >= moment)
        return alive | (ever & (self._born[self._first[place]] < moment))


def _edges(lives: _Lives, ghosts: np.ndarray, segments: np.ndarray, never: int) -> tuple[_Edges, _Edges]:
    """Where large blocks begin, `ghosts` (addresses) among them, which are there all the time; and where segments end,
    as of segment_lives(). A segment can end where a block of the next one begins: so the two are kept apart."""
    large = np.flatnonzero((lives.requested > SMALL_REQUEST - SMALLEST_BLOCK) & ~lives.lone)
    blocks = _Edges(
        np.concatenate([lives.address[large], ghosts]),
        np.concatenate([lives.born[large], np.full(len(ghosts), -1)]),
        np.concatenate([lives.died[large], np.full(len(ghosts), never)]),
    )
    return blocks, _Edges(*(segments[:, k].astype(kind) for k, kind in enumerate(("u8", "i8", "i8"))))


def _entry_blocks(
    dump: Dump,
    ghosts: np.ndarray,
    dump_stream: np.ndarray,
    lives: _Lives,
    freed: np.ndarray,
    size: np.ndarray,
    never: int,
) -> BlockSpans:
    """Older blocks that outlive the history, as the final layout has them, and older blocks that it frees."""
    waiting = dump.block_state[ghosts] == State.AWAITING_FREE
    count = len(ghosts) + len(freed)

    def both(old: np.ndarray, other: np.ndarray, dtype: str = "i8") -> np.ndarray:
        return np.concatenate([old, other]).astype(dtype)

    blocks = BlockSpans(
        both(dump.block_address[ghosts], lives.address[freed], "u8"), both(dump.block_size[ghosts], size[freed]),
        both(dump.block_requested[ghosts], lives.requested[freed]),
        both(dump_stream[dump.block_home[ghosts]], lives.stream[freed]), np.zeros(count, "i8"),
        both(dump.block_stack[ghosts], np.full(len(freed), -1)), np.full(count, -1),
        both(np.where(waiting, -1, never), lives.freed[freed]), both(np.full(len(ghosts), never), lives.died[freed]),
    )  # fmt: skip
    order = np.argsort(blocks.address, kind="stable")
    return BlockSpans(*(getattr(blocks, name)[order] for name in blocks.__dataclass_fields__))


def round_sizes(requested: np.ndarray, settings: Settings) -> np.ndarray:
    """Settings.round_size for a column."""
    if not any(settings.roundup_divisions):
        return np.maximum(-(-requested // 512) * 512, 512)
    distinct, which = np.unique(requested, return_inverse=True)
    return np.array([settings.round_size(int(size)) for size in distinct], "i8")[which]
