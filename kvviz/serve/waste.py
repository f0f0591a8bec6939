"""What the memory of a serving system holds, under three ways to give it out: tokens, and three kinds of waste.

    reserved    a slab of the longest length for each request, as systems before vLLM do
    doubling    a slab of a power of two, moved into one of twice the size when it is full
    paged       pages of some tokens, from kvviz's own pool

A simulation of lengths: every request in flight grows by a token a step, the next one waiting is let in as soon as it
fits, and whoever cannot grow makes the youngest give way, which comes back with all its tokens. The shares are means
over the steps in which somebody waits, so that memory is free only where it is of no use.

    tokens         slots that hold a token
    reservation    slots that their request will fill later
    internal       slots that their request has, and never fills
    external       slots that nobody has, and that are too few, or lie too scattered, for the next one

These are the four of figures 2 and 3 of Kwon et al. 2023 (arXiv 2309.06180), which finds 20.4 % to 38.2 % tokens in the
systems before, and 96.3 % in vLLM. A prompt is one step here, and nobody shares a prefix.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from kvviz.cache.pages import PagePool
from kvviz.counts import positive
from kvviz.errors import CorruptCache, InvalidRequest, PoolExhausted
from kvviz.serve.workload import Job

PAGE_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
LONGEST = 2048  # positions of OPT, and the paper's maximum
CAPACITY = 12 * 2**30 // 819_200  # tokens: the paper's 12 GB for OPT-13B, whose tokens take 800 KB each (its table 1)


class Shares(NamedTuple):
    """Of the whole memory, 0 … 1; in_flight: requests, mean; tokens + reservation + internal + external = 1."""

    way: str
    tokens: float
    reservation: float
    internal: float
    external: float
    in_flight: float
    steps: int
    preempted: int

    @property
    def waste(self) -> float:
        """Share of the slots given out that hold no token: what is left of waste where nobody waits for more memory."""
        return (self.reservation + self.internal) / (1 - self.external) if self.external < 1 else 0.0

    def __str__(self) -> str:
        return (
            f"{self.way:12} tokens {self.tokens:6.1%}   reservation {self.reservation:6.1%}   internal "
            f"{self.internal:6.1%}   external {self.external:6.1%}   in flight {self.in_flight:5.1f}   "
            f"preempted {self.preempted}"
        )


@dataclass(eq=False)
class Flight:
    """A request that has memory: `handle` is whatever its way of giving out memory knows it by."""

    job: Job
    length: int
    slots: int
    handle: Any


class Arena:
    """One range of `slots` slots, given out in contiguous slabs: the first hole that is large enough."""

    def __init__(self, slots: int):
        self.slots = slots
        self.holes = [(0, slots)]  # (start, size), in order, no two of them adjacent

    def can_take(self, size: int) -> bool:
        return any(hole >= size for _, hole in self.holes)

    def take(self, size: int) -> int:
        """Where the slab begins."""
        for k, (start, hole) in enumerate(self.holes):
            if hole >= size:
                self.holes[k : k + 1] = [(start + size, hole - size)] if hole > size else []
                return start
        raise PoolExhausted(f"no hole of {size:,} slots among {len(self.holes)}")

    def give(self, start: int, size: int) -> None:
        merged: list[tuple[int, int]] = []
        for at, hole in sorted([*self.holes, (start, size)]):
            if merged and sum(merged[-1]) > at:
                raise CorruptCache(f"slots {at:,} … are given back twice")
            if merged and sum(merged[-1]) == at:
                merged[-1] = merged[-1][0], merged[-1][1] + hole
            else:
                merged.append((at, hole))
        self.holes = merged


class Reserved:
    """The longest possible slab for each."""

    def __init__(self, capacity: int, longest: int):
        self.way, self.arena, self.longest = "reserved", Arena(capacity), longest

    def can_admit(self, tokens: int, flying: Sequence[Flight]) -> bool:
        return self.arena.can_take(self._first(tokens))

    def admit(self, job: Job, tokens: int) -> Flight:
        size = self._first(tokens)
        return Flight(job, tokens, size, self.arena.take(size))

    def can_grow(self, flight: Flight) -> bool:
        return flight.length < flight.slots

    def grow(self, flight: Flight) -> None:
        flight.length += 1

    def free(self, flight: Flight) -> None:
        self.arena.give(flight.handle, flight.slots)

    def _first(self, tokens: int) -> int:
        return self.longest


class Doubling(Reserved):
    """The next power of two, twice as much whenever that is full: the new slab is taken before the old one goes."""

    def __init__(self, capacity: int, longest: int):
        super().__init__(capacity, longest)
        self.way = "doubling"

    def can_grow(self, flight: Flight) -> bool:
        return flight.length < flight.slots or self.arena.can_take(2 * flight.slots)

    def grow(self, flight: Flight) -> None:
        if flight.length == flight.slots:
            start = self.arena.take(2 * flight.slots)
            self.free(flight)
            flight.handle, flight.slots = start, 2 * flight.slots
        flight.length += 1

    def _first(self, tokens: int) -> int:
        return 1 << tokens.bit_length()  # more than it has: or it would have to move at once


class Paged:
    """Pages of kvviz's own pool."""

    def __init__(self, capacity: int, page_size: int):
        self.way, self.pool = f"{page_size} a page", PagePool(capacity // page_size, page_size)

    def can_admit(self, tokens: int, flying: Sequence[Flight]) -> bool:
        full = sum(flight.length == flight.slots for flight in flying)  # they take a page in this very step
        return -(-tokens // self.pool.page_size) + full <= self.pool.free_count

    def admit(self, job: Job, tokens: int) -> Flight:
        table = self.pool.table()
        table.append(tokens)
        return Flight(job, tokens, len(table.pages) * self.pool.page_size, table)

    def can_grow(self, flight: Flight) -> bool:
        return bool(flight.handle.can_append(1))

    def grow(self, flight: Flight) -> None:
        flight.handle.append(1)
        flight.length, flight.slots = flight.handle.seen, len(flight.handle.pages) * self.pool.page_size

    def free(self, flight: Flight) -> None:
        flight.handle.free()


def simulate(jobs: Iterable[Job], memory: Reserved | Doubling | Paged, capacity: int) -> Shares:
    """Run all jobs through one kind of memory of `capacity` slots.

    Raises PoolExhausted for a job that does not fit even alone, InvalidRequest if nobody ever waits.
    """
    waiting, flying = deque((job, job.prompt) for job in jobs), list[Flight]()
    sums, steps, preempted = [0, 0, 0, 0, 0], 0, 0
    while waiting or flying:
        while waiting and memory.can_admit(waiting[0][1], flying):
            flying.append(memory.admit(*waiting.popleft()))
        if not flying:
            raise PoolExhausted(f"{waiting[0][1]:,} tokens do not fit into {capacity:,} slots ({memory.way})")
        if waiting:
            sums, steps = [total + more for total, more in zip(sums, _count(flying, capacity), strict=True)], steps + 1
        at = 0
        while at < len(flying):
            flight = flying[at]
            if flight.length == flight.job.prompt + flight.job.output - 1:  # the last token is not stored
                memory.free(flying.pop(at))
                continue
            while not memory.can_grow(flight):
                if len(flying) == 1:
                    raise PoolExhausted(
                        f"{flight.length + 1:,} tokens do not fit into {capacity:,} slots ({memory.way})"
                    )
                last = flying.pop()
                memory.free(last)
                waiting.appendleft((last.job, last.length))
                preempted += 1
                if last is flight:
                    break
            else:
                memory.grow(flight)
                at += 1
    if not steps:
        raise InvalidRequest(f"{capacity:,} slots hold all jobs at once ({memory.way}): take more jobs, or fewer slots")
    tokens, later, never, free = (total / (capacity * steps) for total in sums[:4])
    return Shares(memory.way, tokens, later, never, free, sums[4] / steps, steps, preempted)


def _count(flying: Sequence[Flight], capacity: int) -> tuple[int, int, int, int, int]:
    """Slots with tokens, reserved, never filled, of nobody; and how many are in flight."""
    tokens = sum(f.length for f in flying)
    later = sum(min(f.slots, f.job.prompt + f.job.output - 1) - f.length for f in flying)
    slots = sum(f.slots for f in flying)
    return tokens, later, slots - tokens - later, capacity - slots, len(flying)


def compare(
    jobs: Sequence[Job], capacity: int = CAPACITY, longest: int = LONGEST, page_sizes: Sequence[int] = PAGE_SIZES
) -> list[Shares]:
    """The same jobs in the same memory of `capacity` tokens, reserved, doubling, and paged by each of these sizes."""
    capacity, longest = positive("capacity", capacity), positive("longest", longest)
    ways: list[Reserved | Doubling | Paged] = [Reserved(capacity, longest), Doubling(capacity, longest)]
    ways += [Paged(capacity, size) for size in page_sizes]
    return [simulate(jobs, way, capacity) for way in ways]
