"""Looks: moments of a device as a Trace. What came and went between two looks was not seen, and is in no event.

This is what a run shows while it goes on: a look costs no more than what lives at that moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from kvviz.memory.lifetimes import BlockSpans, Lifetimes, SegmentSpans
from kvviz.memory.state import State
from kvviz.memory.trace import Action, Events, Trace

MOST = 100_000  # changes; beyond, the looks begin anew
TOLD = "looks at a run that goes on: what came and went between two of them is not shown"

Key = tuple[int, int, int, int]  # of a block: address, size, requested, stream


class SeenSegment(NamedTuple):
    """A segment, or a mapped range of an expandable one. Bytes."""

    address: int
    size: int
    stream: int
    small: bool
    expandable: bool


class SeenBlock(NamedTuple):
    """A block that is not free. Bytes; owner: index into the owners' names."""

    address: int
    size: int
    requested: int
    stream: int
    waits: bool
    owner: int


class Look(NamedTuple):
    segments: list[SeenSegment]
    blocks: list[SeenBlock]
    time_us: int


class Looks:
    """add() looks in order of time; `trace` is what they say. The first look is what lived at the start."""

    def __init__(self, origin: str):
        self.origin = origin
        self.looks = 0
        self._begin(Look([], [], 0))

    def add(self, look: Look) -> None:
        """What lives now; the changes since the last look become events: what went first, then what came."""
        self.looks += 1
        if self.looks == 1 or len(self._rows) > MOST:
            self._begin(look)
            return
        here = {block[:4]: block for block in look.blocks}
        for key in [key for key in self._alive if key not in here]:
            self._event(Action.FREE_COMPLETED, key, look.time_us, self._alive.pop(key))
            self._waiting.discard(key)
        self._change_segments(look)
        for key, block in here.items():
            if key not in self._alive:
                self._alive[key] = len(self._owner)
                self._owner.append(block.owner)
                self._event(Action.ALLOC, key, look.time_us, self._alive[key])
            self._owner[self._alive[key]] = block.owner  # it may be claimed late; it was so from birth
            if block.waits and key not in self._waiting:
                self._waiting.add(key)
                self._event(Action.FREE_REQUESTED, key, look.time_us, self._alive[key])

    def trace(self, owners: Sequence[str]) -> Trace:
        """All looks so far as a trace; after its last event stands the newest."""
        rows = np.array(self._rows, "i8").reshape(-1, 7)
        action, address, size, requested, stream, time, block = rows.T
        owner = np.array([*self._owner, 0], "i8")[block]  # block -1: a segment's event, of nobody
        events = Events.of(
            len(rows), action=action, address=address, size=size, requested=requested, stream=stream, time_us=time,
            owner=owner,
        )  # fmt: skip
        first = self._entry
        entry = replace(first, blocks=replace(first.blocks, owner=np.array(self._owner[: len(first.blocks)], "i8")))
        return Trace(events, {0: entry}, owners=list(owners), origin=self.origin, warnings=[TOLD])

    def _begin(self, look: Look) -> None:
        self._rows: list[tuple[int, ...]] = []
        self._alive: dict[Key, int] = {block[:4]: k for k, block in enumerate(look.blocks)}  # its place in _owner
        self._owner = [block.owner for block in look.blocks]
        self._waiting: set[Key] = {block[:4] for block in look.blocks if block.waits}
        self._segments = set(look.segments)
        self._entry = _entry(look)

    def _change_segments(self, look: Look) -> None:
        now = set(look.segments)
        for gone, expandable in _apart(self._segments - now, now - self._segments):
            self._event(Action.SEGMENT_UNMAP if expandable else Action.SEGMENT_FREE, gone, look.time_us)
        for come, expandable in _apart(now - self._segments, self._segments - now):
            self._event(Action.SEGMENT_MAP if expandable else Action.SEGMENT_ALLOC, come, look.time_us)
        self._segments = now

    def _event(self, action: int, key: Key, time: int, block: int = -1) -> None:
        self._rows.append((int(action), *key, time, block))


def _apart(some: Iterable[SeenSegment], others: Iterable[SeenSegment]) -> list[tuple[Key, bool]]:
    """`some`, of mapped ranges only what no other covers: a range that grew is not another. And: is it a range?"""
    out = []
    ranges = sorted((o.address, o.address + o.size) for o in others if o.expandable)
    for segment in sorted(some):
        at, end = segment.address, segment.address + segment.size
        for low, high in ranges if segment.expandable else []:
            if low < end and high > at:
                if low > at:
                    out.append(((at, low - at, low - at, segment.stream), True))
                at = max(at, high)
        if at < end:
            out.append(((at, end - at, end - at, segment.stream), segment.expandable))
    return out


def _entry(look: Look) -> Lifetimes:
    n, m = len(look.blocks), len(look.segments)

    def of(rows: Sequence[NamedTuple], name: str, dtype: str = "i8") -> np.ndarray:
        return np.array([getattr(row, name) for row in rows], dtype)

    blocks = BlockSpans(
        address=of(look.blocks, "address", "u8"), size=of(look.blocks, "size"), requested=of(look.blocks, "requested"),
        stream=of(look.blocks, "stream"), owner=of(look.blocks, "owner"), stack=np.full(n, -1), born=np.full(n, -1),
        freed=np.where(of(look.blocks, "waits", "?"), -1, 0), died=np.zeros(n, "i8"),
    )  # fmt: skip
    segments = SegmentSpans(
        address=of(look.segments, "address", "u8"), size=of(look.segments, "size"), stream=of(look.segments, "stream"),
        small=of(look.segments, "small", "?"), expandable=of(look.segments, "expandable", "?"), born=np.full(m, -1),
        died=np.zeros(m, "i8"),
    )  # fmt: skip
    return Lifetimes(blocks, segments)


def of_segments(found: Iterable, owners: dict[int, int], time_us: int) -> Look:
    """The allocator model's segments as a look. owners: of blocks, by address."""
    segments, blocks = [], []
    for s in found:
        segments.append(SeenSegment(s.address, s.size, s.stream, s.small, s.expandable))
        for b in s.blocks:
            if b.state != State.INACTIVE:
                waits = b.state == State.AWAITING_FREE
                blocks.append(SeenBlock(b.address, b.size, b.requested, s.stream, waits, owners.get(b.address, 0)))
    return Look(segments, blocks, time_us)


def of_snapshot(found: Iterable[dict], device: int, owners: dict[int, int], streams: list[int], time_us: int) -> Look:
    """PyTorch's own list of segments as a look at one device. streams: handles in order of appearance, added to."""
    segments, blocks = [], []
    for s in found:
        if s["device"] != device:
            continue
        if s["stream"] not in streams:
            streams.append(s["stream"])
        stream, address = streams.index(s["stream"]), s["address"]
        segments.append(
            SeenSegment(address, s["total_size"], stream, s["segment_type"] == "small", bool(s.get("is_expandable")))
        )
        for b in s["blocks"]:
            if b["state"] != "inactive":
                waits, asked = b["state"] != "active_allocated", b.get("requested_size", b["size"])
                blocks.append(SeenBlock(address, b["size"], asked, stream, waits, owners.get(address, 0)))
            address += b["size"]
    return Look(segments, blocks, time_us)
