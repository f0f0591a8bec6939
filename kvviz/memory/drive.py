"""Driver: requests in, a Trace out. It feeds the allocator model and remembers whose each block is and where it came from.

A program's own addresses are only names here (`key`); the model gives each block a place of its own.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import numpy as np

from kvviz.memory.allocator import CachingAllocator
from kvviz.memory.trace import Action, Events, Mark, Trace

HOLD = 1 << 30  # stream numbers from here on stand for "someone still uses it", one for each held block


class Driver:
    """Drives `model`. enter() what lived before, then begin(), then alloc(), free(), own(), mark() in order of time."""

    def __init__(self, model: CachingAllocator):
        self.model = model
        self._places: dict[Hashable, tuple[int, int]] = {}  # key -> (the model's address, number of the block)
        self._owner, self._stack, self._time = array("q"), array("q"), array("q")  # of each block, by number
        self._ended = array("q")  # of each block the time of its end, 0 while it lives
        self._held: dict[Hashable, tuple[int, int]] = {}  # key -> (the stream that stands for it, block number)
        self._holds = 0
        self._entered = 0
        self._marks: list[tuple[int, str]] = []

    def enter(self, key: Hashable, size: int, owner: int = 0, stack: int = -1, stream: int = 0) -> None:
        """A block that lived before the first event."""
        self.alloc(key, size, owner=owner, stack=stack, stream=stream)

    def begin(self) -> None:
        """The first event comes next."""
        self.model.forget_history()
        self._entered = len(self._owner)

    def alloc(self, key: Hashable, size: int, time: int = 0, owner: int = 0, stack: int = -1, stream: int = 0) -> None:
        """A request of `size` bytes. Raises OutOfMemory as the model does, and then nothing is remembered of it."""
        if key in self._places:  # its free was not seen (another thread's, say), yet the key is in use again
            self.free(key, time)
        self._places[key] = self.model.malloc(size, stream), len(self._owner)
        self._owner.append(owner)
        self._stack.append(stack)
        self._time.append(time)
        self._ended.append(0)

    def free(self, key: Hashable, time: int = 0) -> None:
        """The end of a block; of an unknown key, nothing."""
        place = self._places.pop(key, None)
        if place is not None:
            self._ended[place[1]] = time
            self.model.free(place[0])

    def hold(self, key: Hashable) -> None:
        """Free a block that another stream still uses: it stays active until let_go(), or until the model waits."""
        place = self._places.pop(key, None)
        if place is not None:
            self._holds += 1
            self.model.record_stream(place[0], HOLD + self._holds)
            self.model.free(place[0])
            self._held[key] = HOLD + self._holds, place[1]

    def let_go(self, key: Hashable, time: int = 0) -> bool:
        """The other stream is done with a held block. False where no such block is held."""
        if key not in self._held:
            return False
        stream, number = self._held.pop(key)
        self._ended[number] = time
        self.model.pass_events(stream)
        return True

    def own(self, key: Hashable, owner: int) -> None:
        """From its birth on, the block belongs to `owner`."""
        place = self._places.get(key)
        if place is not None:
            self._owner[place[1]] = owner

    def mark(self, name: str) -> None:
        """Name this moment."""
        self._marks.append((self.model.events_so_far, name))

    def set_stacks(self, stacks: np.ndarray) -> None:
        """Call sites of the blocks made after begin(), where they are known only in the end."""
        self._stack = self._stack[: self._entered] + array("q", stacks.tolist())

    @property
    def places(self) -> dict[Hashable, int]:
        """The model's address of each block that lives now."""
        return {key: address for key, (address, _) in self._places.items()}

    @property
    def owners(self) -> dict[int, int]:
        """The owner of each block that lives now, by the model's address."""
        return {address: self._owner[number] for address, number in self._places.values()}

    @property
    def alloc_times(self) -> np.ndarray:
        """Times of the blocks made after begin()."""
        return np.array(self._time[self._entered :], "i8")

    def trace(self, one_event_a_free: bool = False, **about: Any) -> Trace:
        """What the model did, dressed with owners, call sites, times (given in ns) and marks.

        one_event_a_free: without streams a free is complete when it is requested, so its two events can be one.
        `about` are fields of Trace (owners, stacks, origin …).
        """
        bare = self.model.trace
        action, blocks = bare.events.action, bare.lifetimes().blocks  # rows in order of birth: their block numbers
        number, time = np.full(len(bare), -1, "i8"), np.zeros(len(bare), "i8")
        for events, times in ((blocks.freed, self._ended), (blocks.died, self._ended), (blocks.born, self._time)):
            rows = np.flatnonzero((events >= 0) & (events < len(bare)))
            number[events[rows]], time[events[rows]] = rows, np.array(times, "i8")[rows]
        time = np.maximum.accumulate(time)  # a segment's event takes the time of what came before it
        keep = action != Action.FREE_REQUESTED if one_event_a_free else np.ones(len(bare), "?")
        number, known = number[keep], number[keep] >= 0
        columns = {name: bare.events[name][keep] for name in ("action", "address", "size", "requested", "stream")}
        columns |= {
            "time_us": time[keep] // 1000,
            "owner": np.zeros(len(number), "i8"),
            "stack": np.full(len(number), -1),
        }
        columns["owner"][known] = np.array(self._owner, "i8")[number[known]]
        columns["stack"][known] = np.array(self._stack, "i8")[number[known]]
        kept_before = np.concatenate([[0], np.cumsum(keep)])
        lived = bare.entry[0]
        n = self._entered
        lived = replace(
            lived, blocks=replace(lived.blocks, owner=np.array(self._owner[:n]), stack=np.array(self._stack[:n]))
        )
        marks = [Mark(int(kept_before[event]), name) for event, name in self._marks]
        settings = bare.about | about.pop("about", {})
        return Trace(Events.of(len(number), **columns), {0: lived}, marks, about=settings, **about)
