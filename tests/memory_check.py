"""The slow, obvious versions that the memory tests compare with, and random programs for them."""

from __future__ import annotations

import random
from collections.abc import Iterator

from kvviz import CachingAllocator, OutOfMemory, Trace
from kvviz.memory.trace import Action

MIB = 1 << 20
SURVIVORS = [  # settings, MiB that stay of each cycle, MiB reserved in the end: as torch 2.14 itself does
    ("max_split_size_mb:128,expandable_segments:True", 2, 13_860),
    ("max_split_size_mb:128", 2, 338),
    ("expandable_segments:True", 2, 340),
    ("max_split_size_mb:128,expandable_segments:True", 0, 140),
]


def random_sizes(seed: int) -> Iterator[int]:
    """Request sizes that meet every rule: tiny, small, both sides of each boundary, middle, large."""
    r = random.Random(seed)
    edges = [1, 511, 512, 513, MIB - 1, MIB, MIB + 1, 2 * MIB, 10 * MIB - 1, 10 * MIB, 10 * MIB + 1, 20 * MIB]
    while True:
        yield r.choice([
            r.randint(1, 4096), r.randint(1, MIB), r.choice(edges), r.randint(MIB, 12 * MIB), r.randint(10 * MIB, 120 * MIB),
        ])  # fmt: skip


def run_random_program(
    allocator: CachingAllocator, operations: int, seed: int, streams: int = 1, empties: bool = True
) -> None:
    """Allocate, free, share between streams, synchronize and empty the cache, in a random order."""
    r, sizes, live = random.Random(seed), random_sizes(seed), []
    for _ in range(operations):
        x = r.random()
        if x < 0.01:
            if empties:
                allocator.empty_cache()
        elif x < 0.03:
            allocator.synchronize()
        elif x < 0.5 and live:
            allocator.free(live.pop(r.randrange(len(live))))
        elif x < 0.55 and live and streams > 1:
            allocator.record_stream(r.choice(live), r.randrange(streams))
        else:
            try:
                live.append(allocator.malloc(next(sizes), r.randrange(streams)))
            except OutOfMemory:
                while len(live) > 3:
                    allocator.free(live.pop())


class Replayed:
    """A trace replayed event by event with dictionaries; totals and layout after each."""

    def __init__(self, trace: Trace, device: int = 0):
        self.allocated: dict[int, tuple[int, int]] = {}
        self.awaiting: dict[int, tuple[int, int]] = {}
        self.segments: dict[int, int] = {}
        if device in trace.entry:
            blocks, segments = trace.entry[device].blocks, trace.entry[device].segments
            self.allocated = {
                int(a): (int(s), int(r)) for a, s, r in zip(blocks.address, blocks.size, blocks.requested, strict=True)
            }
            self.segments = {int(a): int(s) for a, s in zip(segments.address, segments.size, strict=True)}

    def apply(self, action: int, address: int, size: int, requested: int) -> None:
        if action == Action.ALLOC:
            self.allocated[address] = (size, requested)
        elif action == Action.FREE_REQUESTED:
            self.awaiting[address] = self.allocated.pop(address)
        elif action == Action.FREE_COMPLETED:
            self.awaiting.pop(address, None) or self.allocated.pop(address)
        elif action == Action.SEGMENT_ALLOC:
            self.segments[address] = size
        elif action == Action.SEGMENT_FREE:
            del self.segments[address]

    def totals(self) -> dict[str, int]:
        held = {**self.allocated, **self.awaiting}
        free = self._free_blocks(held)
        return {
            "allocated": sum(s for s, _ in self.allocated.values()),
            "active": sum(s for s, _ in held.values()),
            "requested": sum(r for _, r in held.values()),
            "reserved": sum(self.segments.values()),
            "largest_free": max((size for size, _ in free), default=0),
            "releasable": sum(size for size, whole in free if whole),
        }

    def _free_blocks(self, held: dict[int, tuple[int, int]]) -> list[tuple[int, bool]]:
        out = []
        for start, length in self.segments.items():
            place, end = start, start + length
            for address in sorted(a for a in held if start <= a < end):
                out.append((address - place, False))
                place = address + held[address][0]
            out.append((end - place, place == start))
        return [(size, whole) for size, whole in out if size]
