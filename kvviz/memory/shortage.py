"""When memory runs short: what the allocator gives back of its cache, and what it says where that is not enough."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from kvviz.memory.blocks import Pool
from kvviz.memory.settings import UNLIMITED

if TYPE_CHECKING:
    from kvviz.memory.allocator import CachingAllocator


def release_some(a: CachingAllocator, pool: Pool, size: int, stream: int) -> bool:
    """With max_split_size_mb: give back just enough oversize blocks of this stream."""
    if a._max_split == UNLIMITED:
        return False
    need = max(size, a._max_split)
    blocks = pool.free.get(stream, [])
    k = bisect_left(blocks, (need,))
    if k < len(blocks):
        if blocks[k][3].range is not None:
            return False
        a._release(blocks[k][3])
        return True
    released = 0
    for size_free, _, _, block in reversed(blocks.copy()):
        if released >= need or size_free < a._max_split:
            break
        if block.range is None:
            released += size_free
            a._release(block)
    return released >= need


def collect_garbage(a: CachingAllocator) -> None:
    """Over the threshold: give back large segments that lay free longer than the average, in whole passes."""
    assert a._limit is not None
    target = int(a._settings.gc_threshold * a._limit)
    goal, freed, pool, found = a.reserved - target, 0, a._pools[1], True
    while freed < goal and found:
        whole = pool.whole_segments()
        if not whole:
            return
        average = sum(pool.calls - b.freed_at for b in whole) / len(whole)
        found = False
        for block in whole:
            if pool.calls - block.freed_at >= average:
                freed += block.size
                a._release(block)
                found = True


def complaint(a: CachingAllocator, asked: int, segment: int) -> str:
    """What an out of memory says: the request, the device, what is cached. Bytes."""
    free, cached = a._device.capacity - a._device.used, a.reserved - a.active
    largest = max((e[0] for p in a._pools for blocks in p.free.values() for e in blocks), default=0)
    limit = f" (limited to {a._limit:,} B)" if a._limit is not None else ""
    advice = ""
    if cached >= asked and not a._expandable:
        advice = "; much is cached in pieces, try expandable_segments:True"
    return (
        f"tried to allocate {asked:,} B (a segment of {segment:,} B): the device has {a.capacity:,} B{limit}, "
        f"{free:,} B of it free; reserved {a.reserved:,} B, of them allocated {a.allocated:,} B and "
        f"cached {cached:,} B, the largest free block {largest:,} B{advice}"
    )
