"""Trace: what memory did, as columns of events; and the state of the device after any of them.

A trace is a value: nothing changes it once it is made. Whatever it came from (a live CUDA run, a CPU run that drove
the allocator model, a snapshot file, a replay), the views, the diagnosis and the lessons see only this.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kvviz.errors import InconsistentTrace, InvalidRequest
from kvviz.memory.check import whole
from kvviz.memory.legible import legible
from kvviz.memory.lifetimes import BlockSpans, Lifetimes, LiveIndex, SegmentSpans, next_at_same_address, rows
from kvviz.memory.settings import Settings, parse
from kvviz.memory.state import MemoryState, state_of

if TYPE_CHECKING:
    import os

    import pandas


class Action(IntEnum):
    """What an event did; PyTorch's own words."""

    ALLOC = 0
    FREE_REQUESTED = 1
    FREE_COMPLETED = 2
    SEGMENT_ALLOC = 3
    SEGMENT_FREE = 4
    SEGMENT_MAP = 5
    SEGMENT_UNMAP = 6
    SNAPSHOT = 7
    OOM = 8


COLUMNS = {
    "action": "u1", "address": "u8", "size": "i8", "requested": "i8", "stream": "i4",
    "device": "i2", "time_us": "i8", "owner": "i4", "stack": "i4",
}  # fmt: skip


@dataclass(frozen=True)
class Events:
    """Equal-length numpy columns, one row an event; `events.size` and `events["size"]` are the same.

    action: an Action. address, size, requested: bytes; size is rounded as the allocator rounds, requested is what was
    asked for. Of an OOM event `address` is the number of bytes that the device had left. stream, device: small integers.
    time_us: microseconds since the epoch. owner: index into trace.owners.
    stack: index into trace.stacks, -1 where nothing is known.
    """

    action: np.ndarray
    address: np.ndarray
    size: np.ndarray
    requested: np.ndarray
    stream: np.ndarray
    device: np.ndarray
    time_us: np.ndarray
    owner: np.ndarray
    stack: np.ndarray

    @classmethod
    def of(cls, count: int, **columns: Any) -> Events:
        """Columns by name, each cast to its type; those not given are zero (stack: -1)."""
        filled = {name: np.zeros(count, dtype) for name, dtype in COLUMNS.items()}
        filled["stack"][:] = -1
        for name, values in columns.items():
            filled[name] = np.ascontiguousarray(values, dtype=COLUMNS[name])
            if filled[name].shape != (count,):
                raise InvalidRequest(f"column {name} has shape {filled[name].shape}, not ({count},)")
        return cls(**filled)

    def __getitem__(self, name: str) -> np.ndarray:
        return getattr(self, name)

    def __len__(self) -> int:
        return len(self.action)


class Mark(NamedTuple):
    """A name for a moment: after `event` events."""

    event: int
    name: str


class Curves(NamedTuple):
    """Totals after 0 … n events, bytes, each of length n + 1."""

    allocated: np.ndarray
    reserved: np.ndarray
    active: np.ndarray
    requested: np.ndarray


def no_blocks() -> BlockSpans:
    return BlockSpans(*(np.zeros(0, "u8" if f.name == "address" else "i8") for f in fields(BlockSpans)))


def no_segments() -> SegmentSpans:
    types = {"address": "u8", "small": "?", "expandable": "?"}
    return SegmentSpans(*(np.zeros(0, types.get(f.name, "i8")) for f in fields(SegmentSpans)))


@dataclass(frozen=True)
class Trace:
    """Events, and what lived before the first of them (`entry`: device -> Lifetimes, rows with born = -1, and freed = -1
    where a block awaits its free already).

    len(trace) is the number of events n; trace.at(i) is the state after i of them, i = 0 … n.
    origin: where the numbers come from. warnings: what a reader must know before trusting them.
    """

    events: Events
    entry: dict[int, Lifetimes] = field(default_factory=dict)
    marks: Sequence[Mark] = ()
    owners: Sequence[str] = ("other",)
    stacks: Sequence[str] = ()
    origin: str = "unknown"
    warnings: Sequence[str] = ()
    about: dict = field(default_factory=dict)  # torch release, settings, capacity: what a replay needs; see shown.py

    def __post_init__(self) -> None:
        # whoever draws or prints them can rely on it
        object.__setattr__(self, "owners", [legible(name) for name in self.owners])
        object.__setattr__(self, "marks", [mark._replace(name=legible(mark.name)) for mark in self.marks])

    def __len__(self) -> int:
        return len(self.events)

    def __repr__(self) -> str:
        return f"<Trace of {len(self):,} events, {self.origin}, peak allocated {self.peak_allocated:,} B>"

    @cached_property
    def devices(self) -> list[int]:
        """Devices that have an event or something alive before the first; [0] for an empty trace."""
        return sorted(set(np.unique(self.events.device).tolist()) | set(self.entry)) or [0]

    @cached_property
    def _by_device(self) -> dict[int, tuple[Lifetimes, Curves, LiveIndex, LiveIndex]]:
        return {}

    def _device(self, device: int) -> tuple[Lifetimes, Curves, LiveIndex, LiveIndex]:
        if device not in self.devices:
            raise InvalidRequest(f"no device {device} in this trace; it has {self.devices}")
        if device not in self._by_device:
            n = len(self)
            lives = Lifetimes(self._block_spans(device), self._segment_spans(device))
            blocks, segments = lives.blocks, lives.segments
            curves = Curves(
                allocated=_total(n, blocks.born, blocks.freed, blocks.size),
                reserved=_total(n, segments.born, segments.died, segments.size),
                active=_total(n, blocks.born, blocks.died, blocks.size),
                requested=_total(n, blocks.born, blocks.died, blocks.requested),
            )
            indexes = LiveIndex(blocks.born, blocks.died, n), LiveIndex(segments.born, segments.died, n)
            self._by_device[device] = (lives, curves, *indexes)
        return self._by_device[device]

    def lifetimes(self, device: int = 0) -> Lifetimes:
        """Every block and segment of a device with the events of its birth and death."""
        return self._device(device)[0]

    def curves(self, device: int = 0) -> Curves:
        """The four totals after 0 … n events."""
        return self._device(device)[1]

    def at(self, i: int, device: int = 0) -> MemoryState:
        """The state after i events, 0 … n (negative i counts from the end, as -1 for n).

        Raises InvalidRequest beyond that, InconsistentTrace where the blocks contradict the segments.
        """
        if self.about.get("inconsistent"):
            raise InconsistentTrace(f"{self.origin}: inconsistent: {self.about['inconsistent']}")
        n, asked = len(self), whole(i, "an event")
        i = asked + n + 1 if asked < 0 else asked
        if not 0 <= i <= n:
            raise InvalidRequest(f"event {asked} is outside 0 … {n}")
        lives, curves, block_index, segment_index = self._device(device)
        allocated, reserved, active, requested = (int(curve[i]) for curve in curves)
        return state_of(
            i, rows(lives.segments, segment_index.at(i)), rows(lives.blocks, block_index.at(i)),
            (allocated, reserved, active, requested), self.page,
        )  # fmt: skip

    @cached_property
    def page(self) -> int:
        """Bytes by which expandable segments of the large pool are mapped."""
        try:
            return parse(str(self.about.get("conf") or "")).large_segment
        except InvalidRequest:  # a file's settings that are not all known
            return Settings().large_segment

    def last(self, count: int) -> Trace:
        """The newest `count` events; what lived before them is kept as the entry, and the warnings say so."""
        if whole(count, "a number of events") < 0:
            raise InvalidRequest(f"cannot keep {count} events")
        cut = len(self) - int(count)
        if cut <= 0:
            return self
        told = f"history starts mid-run: the first {cut:,} of {len(self):,} events were dropped (max_events)"
        return self._part(cut, len(self), told)

    def range(self, first: int, last: int) -> Trace:
        """Events `first` to `last`, 0 ≤ first ≤ last ≤ n: the states after `first` … `last` events are its states 0 … n.
        What lived before is kept as the entry, and the warnings say that it is a part. Raises InvalidRequest."""
        i, j, n = whole(first, "an event"), whole(last, "an event"), len(self)
        if not 0 <= i <= j <= n:
            raise InvalidRequest(f"events {first} to {last} are not within 0 … {n}")
        return self if (i, j) == (0, n) else self._part(i, j, f"a part: {i:,} to {j:,} of {n:,} events")

    def _part(self, first: int, last: int, told: str) -> Trace:
        entry = {}
        for device in self.devices:
            lives, _, block_index, segment_index = self._device(device)
            blocks, segments = rows(lives.blocks, block_index.at(first)), rows(lives.segments, segment_index.at(first))
            freed = np.where(blocks.freed < first, -1, blocks.freed - first)  # -1: awaits its free from the start
            blocks = replace(blocks, born=np.full(len(blocks), -1), freed=freed, died=blocks.died - first)
            segments = replace(segments, born=np.full(len(segments), -1), died=segments.died - first)
            entry[device] = Lifetimes(blocks, segments)
        events = Events(*(getattr(self.events, f.name)[first:last] for f in fields(Events)))
        marks = [Mark(mark.event - first, mark.name) for mark in self.marks if first <= mark.event <= last]
        about = self.about | ({"cut": first} if first else {})
        return replace(self, events=events, entry=entry, marks=marks, warnings=[*self.warnings, told], about=about)

    @property
    def segments(self) -> np.ndarray:
        """The first device's segments at the end (see MemoryState.segments)."""
        return self.at(len(self), self.devices[0]).segments

    @cached_property
    def peak_event(self) -> int:
        """Index of the event that brought the first device's allocated bytes to their peak; the state is
        at(peak_event + 1). It is -1 where nothing ever rose above what lived at entry."""
        return int(np.argmax(self.curves(self.devices[0]).allocated)) - 1

    @property
    def peak_allocated(self) -> int:
        """Most bytes allocated at a time on the first device."""
        return int(self.curves(self.devices[0]).allocated.max())

    @property
    def peak_reserved(self) -> int:
        """Most bytes reserved at a time on the first device."""
        return int(self.curves(self.devices[0]).reserved.max())

    def to_dataframe(self) -> pandas.DataFrame:
        """One row an event, with names for actions, owners and stacks."""
        import pandas as pd

        columns = {f.name: getattr(self.events, f.name) for f in fields(self.events)}
        names = np.array([a.name.lower() for a in Action], dtype=object)
        columns["action"] = pd.Categorical.from_codes(columns["action"], names)
        columns["owner"] = pd.Categorical.from_codes(columns["owner"], list(self.owners))
        columns["stack"] = pd.Categorical.from_codes(columns["stack"], list(self.stacks))
        return pd.DataFrame(columns)

    def save(self, path: str | os.PathLike) -> None:
        """Write kvviz's own file: columns and names, nothing that can run."""
        from kvviz.memory.file import save

        save(self, path)

    def _block_spans(self, device: int) -> BlockSpans:
        e, n = self.events, len(self)
        entry = self.entry[device].blocks if device in self.entry else no_blocks()
        picked = np.flatnonzero((e.device == device) & (e.action <= Action.FREE_COMPLETED))
        address = np.concatenate([entry.address, e.address[picked]])
        action = np.concatenate([np.zeros(len(entry), "u1"), e.action[picked]])
        event = np.concatenate([np.full(len(entry), -1, "i8"), picked, [n]])  # the last: "never"
        is_alloc = action == Action.ALLOC
        freed, died = next_at_same_address(
            address, is_alloc, action == Action.FREE_REQUESTED, action == Action.FREE_COMPLETED
        )
        birth = np.flatnonzero(is_alloc)
        died_at = event[died[birth]]
        freed_at = np.minimum(event[freed[birth]], died_at)
        freed_at[: len(entry)][entry.freed < 0] = -1

        def column(name: str) -> np.ndarray:
            return np.concatenate([getattr(entry, name), getattr(e, name)[picked]])[birth]

        return BlockSpans(
            address=address[birth], size=column("size"), requested=column("requested"), stream=column("stream"),
            owner=column("owner"), stack=column("stack"), born=event[birth],
            freed=freed_at, died=died_at,
        )  # fmt: skip

    def _segment_spans(self, device: int) -> SegmentSpans:
        e, n = self.events, len(self)
        entry = self.entry[device].segments if device in self.entry else no_segments()
        picked = np.flatnonzero(
            (e.device == device) & (e.action >= Action.SEGMENT_ALLOC) & (e.action <= Action.SEGMENT_UNMAP)
        )
        pieces = list(zip(entry.address.tolist(), entry.size.tolist(), entry.stream.tolist(), entry.small.tolist(),
                          entry.expandable.tolist(), [-1] * len(entry), [n] * len(entry), strict=True))  # fmt: skip
        # segments are few: a plain walk keeps the splitting of mapped ranges readable
        alive = {piece[0]: k for k, piece in enumerate(pieces)}
        starts = sorted(alive)
        for i in picked.tolist():
            action, address, size = int(e.action[i]), int(e.address[i]), int(e.size[i])
            if action in (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP):
                if address not in alive:
                    insort(starts, address)
                alive[address] = len(pieces)
                expandable = action == Action.SEGMENT_MAP
                pieces.append((address, size, int(e.stream[i]), size <= SMALL_SEGMENT, expandable, i, n))
            else:
                _end_ranges(pieces, alive, starts, address, address + size, i)
        pieces.sort(key=lambda piece: piece[5])
        columns = zip(*pieces, strict=True) if pieces else ((),) * 7
        types = ("u8", "i8", "i4", "?", "?", "i8", "i8")
        return SegmentSpans(*(np.array(list(c), t) for c, t in zip(columns, types, strict=True)))


SMALL_SEGMENT = 2 << 20  # the size of a segment of the small pool; a large one is never that small


def _end_ranges(
    pieces: list[tuple], alive: dict[int, int], starts: list[int], start: int, stop: int, event: int
) -> None:
    """End [start, stop) at `event`; a piece that reaches beyond it is cut, and its rest lives on.

    `alive`: the piece that lives at an address; `starts`: its keys in order."""
    for address in starts[max(bisect_right(starts, start) - 1, 0) : bisect_left(starts, stop)]:
        k = alive[address]
        low, size, stream, small, expandable, born, never = pieces[k]
        high = low + size
        if high <= start:
            continue
        del alive[address], starts[bisect_left(starts, address)]
        cut = max(low, start), min(high, stop)
        pieces[k] = (cut[0], cut[1] - cut[0], stream, small, expandable, born, event)
        for left, right in ((low, cut[0]), (cut[1], high)):
            if left < right:
                if left not in alive:
                    insort(starts, left)
                alive[left] = len(pieces)
                pieces.append((left, right - left, stream, small, expandable, born, never))


def _total(n: int, born: np.ndarray, gone: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Running sum after 0 … n events of `size`, counted from the event `born` until the event `gone`."""
    step = np.zeros(n + 2, "i8")
    np.add.at(step, born + 1, size)
    np.subtract.at(step, gone + 1, size)  # gone = n lands in the last cell, which is cut off
    return np.cumsum(step[: n + 1])
