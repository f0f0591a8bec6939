"""Expandable segments: one long range of addresses for each stream and pool, filled with memory page by page.

With expandable_segments:True the allocator reserves addresses for more than the whole device and maps memory at the end
of what it uses. A block that does not fit can then grow into its neighbourhood, and free pages anywhere can be
unmapped: holes hardly matter any more. Unmapped parts are blocks too (state UNMAPPED), in lists of their own.
"""

from __future__ import annotations

from bisect import insort
from typing import TYPE_CHECKING

from kvviz.memory.blocks import Block, Pool
from kvviz.memory.device import PAGE
from kvviz.memory.state import State
from kvviz.memory.trace import Action

if TYPE_CHECKING:
    from kvviz.memory.allocator import CachingAllocator

RANGES_FROM = 0x700000000000


class Range:
    """Reserved addresses. `page` bytes are mapped at a time; `first` is its first block."""

    def __init__(self, address: int, size: int, page: int):
        self.address, self.size, self.page = address, size, page
        self.first: Block | None = None


class Expander:
    """Maps and unmaps for an allocator. Invariant: unmapped blocks begin and end at page boundaries of their range."""

    def __init__(self, allocator: CachingAllocator):
        self._allocator = allocator
        self.ranges: list[Range] = []  # in address order

    def take(self, pool: Pool, size: int, stream: int, page: int) -> Block | None:
        """A free block of at least `size` bytes, out of its pool; None where the device has no more pages.

        What was mapped before it failed stays mapped, as free memory.
        """
        block = self._room(pool, size, stream) or self._new_range(pool, stream, page)
        if block.state == State.UNMAPPED:
            mapped = self._map(block, min(block.size, size))
            if mapped is None:
                return None
            block = mapped
        while block.size < size:
            beyond = block.next
            assert beyond is not None  # _room() found enough free and unmapped bytes in a row
            mapped = self._map(beyond, min(size - block.size, beyond.size))
            if mapped is None:
                return None
            block = mapped
        pool.remove(block)
        return block

    def give_back(self, block: Block) -> None:
        """Unmap the whole pages inside a free block; what is left of it stays free."""
        span = range_of(block)
        page = span.page
        first = -(-(block.address - span.address) // page)
        last = (block.address + block.size - span.address) // page
        if first >= last:
            return
        start, stop = span.address + first * page, span.address + last * page
        pool = block.pool
        pool.remove(block)
        if start > block.address:
            self._link(self._part(block, block.address, start - block.address), block.prev, block)
        if stop < block.address + block.size:
            self._link(self._part(block, stop, block.address + block.size - stop), block, block.next)
        block.address, block.size, block.state = start, stop - start, State.UNMAPPED
        self._merge_neighbours(block, State.UNMAPPED)
        insort(pool.unmapped.setdefault(block.stream, []), (block.address, block))
        self._allocator._device.give_back_pages(stop - start)
        self._count(Action.SEGMENT_UNMAP, start, stop - start, block.stream)
        if block.prev is None and block.next is None:
            pool.unmapped[block.stream].remove((block.address, block))
            self.ranges.remove(span)

    def _room(self, pool: Pool, size: int, stream: int) -> Block | None:
        """The first run of free and unmapped blocks, `size` bytes long, that begins with or just before unmapped space."""
        for _, block in pool.unmapped.get(stream, []):
            start = block.prev if block.prev is not None and block.prev.state == State.INACTIVE else block
            length, place = 0, start
            while length < size and place is not None and place.state in (State.INACTIVE, State.UNMAPPED):
                length += place.size
                place = place.next
            if length >= size:
                return start
        return None

    def _new_range(self, pool: Pool, stream: int, page: int) -> Block:
        """Addresses for 1.125 times the device, in the lowest gap."""
        size = -(-(self._allocator.capacity * 9 // 8) // page) * page
        address = RANGES_FROM
        for span in self.ranges:
            if span.address - address >= size:
                break
            address = span.address + span.size
        span = Range(address, size, page)
        self.ranges.append(span)
        self.ranges.sort(key=lambda r: r.address)
        self._allocator._segments_made += 1
        block = Block(address, size, stream, pool, self._allocator._segments_made)
        block.range, block.state, span.first = span, State.UNMAPPED, block
        insort(pool.unmapped.setdefault(stream, []), (address, block))
        return block

    def _map(self, block: Block, size: int) -> Block | None:
        """Give the front of an unmapped block memory, at least `size` bytes; return the free block that it is part of."""
        page, pool = range_of(block).page, block.pool
        size = -(-size // page) * page
        if not self._allocator._device.take_pages(size, page):
            return None
        pool.unmapped[block.stream].remove((block.address, block))
        if size < block.size:
            rest = self._part(block, block.address + size, block.size - size, State.UNMAPPED)
            self._link(rest, block, block.next)
            block.size = size
        block.state = State.INACTIVE
        self._count(Action.SEGMENT_MAP, block.address, size, block.stream)
        self._merge_neighbours(block, State.INACTIVE)
        pool.insert(block)
        return block

    def _part(self, of: Block, address: int, size: int, state: State = State.INACTIVE) -> Block:
        """A new block cut out of another; it enters the list that its state belongs to."""
        part = Block(address, size, of.stream, of.pool, of.order)
        part.range, part.state = of.range, state
        if state == State.UNMAPPED:
            insort(of.pool.unmapped.setdefault(of.stream, []), (address, part))
        else:
            of.pool.insert(part)
        return part

    def _link(self, block: Block, before: Block | None, after: Block | None) -> None:
        block.prev, block.next = before, after
        if before is not None:
            before.next = block
        else:
            range_of(block).first = block
        if after is not None:
            after.prev = block

    def _merge_neighbours(self, block: Block, state: State) -> None:
        """Swallow the neighbours of the same state; the block itself is in no list yet."""
        for other in (block.prev, block.next):
            if other is None or other.state != state:
                continue
            if state == State.UNMAPPED:
                block.pool.unmapped[block.stream].remove((other.address, other))
            else:
                block.pool.remove(other)
            if other is block.prev:
                block.address = other.address
                self._link(block, other.prev, block.next)
            else:
                self._link(block, block.prev, other.next)
            block.size += other.size

    def _count(self, action: Action, address: int, size: int, stream: int) -> None:
        self._allocator.reserved += size if action == Action.SEGMENT_MAP else -size
        self._allocator._log.extend((action, address, size, size, stream))


def range_of(block: Block) -> Range:
    """The range that a block of an expandable segment lies in."""
    assert block.range is not None
    return block.range


def page_of(pool: Pool, large_segment: int) -> int:
    """The bytes that are mapped at a time."""
    return PAGE if pool.small else large_segment
