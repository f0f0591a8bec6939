"""What the allocator model is made of: blocks in their segments, and the free ones of a pool in order of fit."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from kvviz.memory.state import State

if TYPE_CHECKING:
    from kvviz.memory.expandable import Range


class BlockInfo(NamedTuple):
    """A block as a reader sees it. Bytes."""

    address: int
    size: int
    requested: int
    state: State


class SegmentInfo(NamedTuple):
    """A segment as a reader sees it, its blocks in address order. Bytes."""

    address: int
    size: int
    stream: int
    small: bool
    expandable: bool
    blocks: list[BlockInfo]


class Block:
    """A contiguous part of a segment. `prev` and `next` are its neighbours in the segment."""

    __slots__ = ("address", "events", "freed_at", "next", "order", "pool", "prev", "range", "requested", "size", "state",
                 "stream", "streams")  # fmt: skip

    def __init__(self, address: int, size: int, stream: int, pool: Pool, order: int):
        self.address, self.size, self.stream, self.pool = address, size, stream, pool
        self.order = order  # of its segment's making: among equal sizes the oldest segment serves first
        self.requested = 0
        self.state = State.INACTIVE
        self.range: Range | None = None  # the expandable range it lies in
        self.prev: Block | None = None
        self.next: Block | None = None
        self.streams: set[int] | None = None  # other streams that use it (record_stream), a set
        self.events = 0  # events that must pass before it is free
        self.freed_at = 0  # the pool's count of calls when it was freed: its age, for garbage collection


class Pool:
    """Free blocks, for each stream a list of (size, order, address, block): a best fit is one bisection."""

    def __init__(self, small: bool):
        self.small = small
        self.free: dict[int, list[tuple]] = {}
        self.unmapped: dict[int, list[tuple]] = {}  # for each stream (address, block) of expandable segments
        self.calls = 0

    def insert(self, block: Block) -> None:
        insort(self.free.setdefault(block.stream, []), (block.size, block.order, block.address, block))

    def remove(self, block: Block) -> None:
        blocks = self.free[block.stream]
        del blocks[bisect_left(blocks, (block.size, block.order, block.address))]

    def whole_segments(self) -> list[Block]:
        """Free blocks that are a segment each, in the allocator's order: by stream, size, age, address."""
        blocks = (entry[3] for stream in sorted(self.free) for entry in self.free[stream])
        return [b for b in blocks if b.prev is None and b.next is None and b.range is None]

    def in_ranges(self) -> list[Block]:
        """Free blocks of expandable segments, in the same order."""
        blocks = (entry[3] for stream in sorted(self.free) for entry in self.free[stream])
        return [b for b in blocks if b.range is not None]


def stretches(heads: Iterable[Block | None]) -> Iterator[SegmentInfo]:
    """What the chains of blocks that begin with these are to a reader: each stretch without an unmapped block."""
    for head in heads:
        block = head
        while block is not None:
            first, blocks = block, []
            while block is not None and block.state != State.UNMAPPED:
                asked = 0 if block.state == State.INACTIVE else block.requested
                blocks.append(BlockInfo(block.address, block.size, asked, State(block.state)))
                block = block.next
            if blocks:
                size = sum(b.size for b in blocks)
                expandable = first.range is not None
                yield SegmentInfo(first.address, size, first.stream, first.pool.small, expandable, blocks)
            if block is not None:
                block = block.next
