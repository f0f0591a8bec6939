"""CachingAllocator: PyTorch's CUDA caching allocator, modelled to the byte.

Memory comes from the device in *segments* and is handed out in *blocks*. A freed block is not given back: it stays
cached, joined with free neighbours of its segment, for the next request that fits. That is what makes allocation fast,
and what makes `reserved` differ from `allocated`.

The rules were observed on torch 2.14's own allocator, and a differential test holds this model against it: address,
counters and events of each operation. Not modelled: private pools (CUDA graphs), and where a real driver puts segments.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left
from collections import deque
from numbers import Integral, Real
from typing import Any

import numpy as np

from kvviz.errors import InvalidRequest, OutOfMemory, UnknownAddress, brief
from kvviz.memory import settings as rules
from kvviz.memory import shortage
from kvviz.memory.blocks import Block, Pool, SegmentInfo, stretches
from kvviz.memory.check import LIMIT, whole
from kvviz.memory.device import DeviceMemory
from kvviz.memory.entry import entry_of
from kvviz.memory.expandable import Expander, page_of
from kvviz.memory.lifetimes import Lifetimes
from kvviz.memory.settings import SMALL_REQUEST, SMALLEST_BLOCK, UNLIMITED
from kvviz.memory.state import State
from kvviz.memory.trace import Action, Events, Trace

ALLOC, FREE_REQUESTED, FREE_COMPLETED = int(Action.ALLOC), int(Action.FREE_REQUESTED), int(Action.FREE_COMPLETED)


class CachingAllocator:
    """One device of `capacity` bytes.

    conf: settings as in PYTORCH_CUDA_ALLOC_CONF. placement: where segments go, "first-fit", "bump" or "down".
    events: when work on another stream counts as done, "immediate" (at the next malloc) or "manual" (at synchronize()).
    Counters, bytes: allocated, reserved, active, requested; counts: retries (the cache was emptied to serve a request),
    ooms. Raises InvalidRequest, UnknownAddress, OutOfMemory; the first two leave everything as it was.
    """

    def __init__(self, capacity: int, conf: str = "", placement: str = "first-fit", events: str = "immediate"):
        if events not in ("immediate", "manual"):
            raise InvalidRequest(f"events {events!r}; known: immediate, manual")
        if not isinstance(conf, str):
            raise InvalidRequest(f"settings are a string such as \"expandable_segments:True\", not {conf!r}")
        self.conf = conf
        self._device = DeviceMemory(whole(capacity, "a capacity"), placement)
        self._placement, self._manual = placement, events == "manual"
        self._pools = Pool(small=True), Pool(small=False)
        self._blocks: dict[int, Block] = {}  # handed out, by address
        self._heads: dict[int, Block] = {}  # first block of each segment, by address
        self._segments_made = 0
        self._expander = Expander(self)
        self._pending: dict[int, deque] = {}  # stream -> (event, block), in the order recorded
        self._entry: Lifetimes | None = None
        self._log = array("q")  # action, address, size, requested, stream of each event
        self.allocated = self.reserved = self.active = self.requested = self.retries = self.ooms = 0
        self._apply(rules.parse(conf))
        self.set_memory_fraction(self._settings.memory_fraction)

    # -- what a program does -------------------------------------------------------------------------------------

    def malloc(self, size: int, stream: int = 0) -> int:
        """Bytes in, address out (0 for a size of 0, as in PyTorch). Raises OutOfMemory."""
        if type(size) is not int or type(stream) is not int or not -LIMIT < stream < LIMIT:
            size, stream = whole(size, "a size"), whole(stream, "a stream")
        if not 0 < size < LIMIT:
            if size == 0:
                return 0
            raise InvalidRequest(f"cannot allocate {brief(size)} bytes")
        if self._pending:
            self._process_events()
        rounded = self._settings.round_size(size)
        pool = self._pools[0 if rounded <= SMALL_REQUEST else 1]
        block = self._best_fit(pool, rounded, stream)
        if block is None:
            block = self._without_a_fit(pool, rounded, size, stream)
        else:
            pool.remove(block)
        rest = block.size - rounded
        if pool.small or self._expandable:
            if rest >= SMALLEST_BLOCK:
                self._split(block, rounded)
        elif rest > SMALL_REQUEST and rounded < self._max_split:
            self._split(block, rounded)
        block.state, block.requested = State.ALLOCATED, size
        address, held = block.address, block.size
        self._blocks[address] = block
        self.allocated += held
        self.active += held
        self.requested += size
        self._log.extend((ALLOC, address, held, size, stream))
        return address

    def free(self, address: int) -> None:
        """Hand a block back. It stays reserved; it stays active while another stream may still use it."""
        try:
            block = self._blocks.pop(address, None)
        except TypeError:  # what has no hash is no address
            block = None
        if block is None:
            if isinstance(address, Integral) and address == 0:
                return
            raise _no_block(address)
        block.state = State.AWAITING_FREE
        self.allocated -= block.size
        self._log.extend((FREE_REQUESTED, address, block.size, block.requested, block.stream))
        if block.streams:
            for stream in sorted(block.streams):
                self._pending.setdefault(stream, deque()).append(([not self._manual], block))
            block.events, block.streams = len(block.streams), None
        else:
            self._complete_free(block)

    def record_stream(self, address: int, stream: int) -> None:
        """Say that work on `stream` uses the block at `address`: its free then waits for that stream."""
        block = self._blocks.get(address) if isinstance(address, Integral) else None
        if block is None:
            raise _no_block(address)
        stream = whole(stream, "a stream")
        if stream != block.stream:
            block.streams = (block.streams or set()) | {stream}

    def synchronize(self) -> None:
        """Let all work on all streams be done; its blocks are freed at the next malloc."""
        for queue in self._pending.values():
            for event, _ in queue:
                event[0] = True

    def pass_events(self, stream: int) -> None:
        """Let the work on one stream be done, and free at once what waited only for it."""
        for event, _ in self._pending.get(stream, ()):
            event[0] = True
        self._process_events()

    def empty_cache(self) -> None:
        """Give every segment without an active block back to the device."""
        self.synchronize()
        self._process_events()
        for pool in (self._pools[1], self._pools[0]):
            for block in pool.whole_segments():
                self._release(block)
            for block in pool.in_ranges():
                self._expander.give_back(block)

    def set_memory_fraction(self, fraction: float) -> None:
        """Let the allocator reserve at most this share of the capacity, 0 to 1."""
        if not isinstance(fraction, Real) or not 0.0 <= fraction <= 1.0:
            raise InvalidRequest(f"a fraction of {brief(fraction)}; it must lie between 0 and 1")
        self._limit: int | None = int(fraction * self._device.capacity) if fraction < 1.0 else None

    def set_conf(self, conf: str) -> None:
        """Change settings in mid-run, as PyTorch does.

        What is not named goes back to its default, except expandable_segments and large_segment_size_mb, which stay;
        per_process_memory_fraction is read at the start only.
        """
        if not isinstance(conf, str):
            raise InvalidRequest(f"settings are a string, not {conf!r}")
        new = rules.parse(conf, self._settings)
        oversize_may_be_split = new.max_split < self._max_split or (new.expandable and new.max_split != UNLIMITED)
        if oversize_may_be_split and self._heads:
            raise InvalidRequest(
                "max_split_size_mb cannot be set lower in mid-run, nor together with expandable_segments: PyTorch's own "
                "allocator may then give back a part of a segment, and fails"
            )
        self._apply(new)
        self.conf = conf

    # -- what a reader sees --------------------------------------------------------------------------------------

    @property
    def capacity(self) -> int:
        """Bytes of the device."""
        return self._device.capacity

    @property
    def segment_count(self) -> int:
        """Segments now reserved; PyTorch does not count expandable ones."""
        return len(self._heads)

    @property
    def segments(self) -> list[SegmentInfo]:
        """Segments in address order, each with its blocks; of an expandable one each mapped stretch."""
        return sorted(stretches([*self._heads.values(), *(span.first for span in self._expander.ranges)]))

    @property
    def events_so_far(self) -> int:
        """Length of the history."""
        return len(self._log) // 5

    def forget_history(self) -> None:
        """Start the history here: what lives now becomes what lived before it."""
        if self._pending:
            raise InvalidRequest("blocks still wait for other streams; call synchronize() and empty_cache() first")
        self._entry = entry_of(list(self._blocks.values()), self.segments)
        self._log = array("q")

    @property
    def trace(self) -> Trace:
        """Everything that happened since the start, or since forget_history()."""
        log = np.frombuffer(self._log, dtype="i8").reshape(-1, 5) if self._log else np.zeros((0, 5), "i8")
        events = Events.of(
            len(log), action=log[:, 0], address=log[:, 1], size=log[:, 2], requested=log[:, 3], stream=log[:, 4]
        )
        about = {"conf": self.conf, "capacity": self.capacity, "placement": self._placement}
        entry = {} if self._entry is None else {0: self._entry}
        return Trace(events, entry, origin="PyTorch's allocator, modelled", about=about)

    # -- how it is done ------------------------------------------------------------------------------------------

    def _apply(self, new: rules.Settings) -> None:
        self._settings = new
        self._max_split, self._expandable = new.max_split, new.expandable

    def _best_fit(self, pool: Pool, size: int, stream: int) -> Block | None:
        """The smallest free block that is large enough; of equal ones that of the oldest segment."""
        if self._limit is not None and self._settings.gc_threshold:
            pool.calls += 1
        blocks = pool.free.get(stream)
        if not blocks:
            return None
        k = bisect_left(blocks, (size,))
        if k == len(blocks):
            return None
        if blocks[k][3].range is not None:
            k = self._among_expandable(blocks, k)
            if k == len(blocks):
                return None
        found = blocks[k][0]
        if self._max_split != UNLIMITED:  # an oversize block serves only requests of nearly its own size
            if size < self._max_split <= found:
                return None
            if size >= self._max_split and found >= size + self._settings.max_non_split_rounding:
                return None
        return blocks[k][3]

    def _among_expandable(self, blocks: list[tuple], k: int) -> int:
        """An expandable block counts with what it can still grow by; with the option off it is passed over."""

        def room(entry: tuple) -> int:
            beyond = entry[3].next
            return entry[0] + (beyond.size if beyond is not None and beyond.state == State.UNMAPPED else 0)

        if not self._expandable:
            while k < len(blocks) and blocks[k][3].range is not None:
                k += 1
            return k
        while blocks[k][3].range is not None and k + 1 < len(blocks) and room(blocks[k + 1]) < room(blocks[k]):
            k += 1
        return k

    def _without_a_fit(self, pool: Pool, rounded: int, asked: int, stream: int) -> Block:
        """No cached block fits: collect garbage, take a segment, or release what is cached and take one then."""
        segment = self._settings.segment_size(rounded)
        if self._limit is not None and self._settings.gc_threshold:
            shortage.collect_garbage(self)
        block = self._take_segment(segment, rounded, pool, stream)
        if block is None and shortage.release_some(self, pool, rounded, stream):
            block = self._take_segment(segment, rounded, pool, stream)
        if block is None:
            self.retries += 1
            self.empty_cache()
            block = self._take_segment(segment, rounded, pool, stream)
        if block is None:
            self.ooms += 1
            # in place of an address PyTorch notes how much of the device was free
            self._log.extend((Action.OOM, self._device.capacity - self._device.used, rounded, asked, stream))
            raise OutOfMemory(shortage.complaint(self, asked, segment))
        return block

    def _take_segment(self, size: int, rounded: int, pool: Pool, stream: int) -> Block | None:
        """A free block on new memory, out of its pool; None where the limit or the device does not allow it."""
        if self._limit is not None and self.reserved + size > self._limit:
            return None
        if self._expandable:
            block = self._expander.take(pool, rounded, stream, page_of(pool, self._settings.large_segment))
        else:
            block = self._new_segment(size, pool, stream)
        if block is None and self._settings.throw_on_oom:
            raise OutOfMemory(shortage.complaint(self, rounded, size))
        return block

    def _new_segment(self, size: int, pool: Pool, stream: int) -> Block | None:
        address = self._device.take(size)
        if address is None:
            return None
        self._segments_made += 1
        block = Block(address, size, stream, pool, self._segments_made)
        self._heads[address] = block
        self.reserved += size
        self._log.extend((Action.SEGMENT_ALLOC, address, size, size, stream))
        return block

    def _split(self, block: Block, size: int) -> None:
        """Use the front of the block; the rest goes back to the pool."""
        rest = Block(block.address + size, block.size - size, block.stream, block.pool, block.order)
        rest.prev, rest.next, rest.range, rest.freed_at = block, block.next, block.range, block.freed_at
        if rest.next is not None:
            rest.next.prev = rest
        block.next, block.size = rest, size
        block.pool.insert(rest)

    def _complete_free(self, block: Block) -> None:
        """No stream uses it any more: join it with free neighbours and cache it."""
        address, size, asked, stream = block.address, block.size, block.requested, block.stream
        self._log.extend((FREE_COMPLETED, address, size, asked, stream))
        self.active -= size
        self.requested -= asked
        pool, before, after = block.pool, block.prev, block.next
        if before is not None and before.state == State.INACTIVE:
            pool.remove(before)
            before.size += size
            before.next = after
            if after is not None:
                after.prev = before
            block = before
        if after is not None and after.state == State.INACTIVE:
            pool.remove(after)
            block.size += after.size
            block.next = after.next
            if after.next is not None:
                after.next.prev = block
        block.state = State.INACTIVE
        block.freed_at = pool.calls
        pool.insert(block)

    def _process_events(self) -> None:
        """Free the blocks whose events have passed; on each stream an event waits for those before it.

        The order of the streams shows in the trace alone. PyTorch's is that of a hash table: for the default stream and
        the first four others it is the default, then the latest made first. More streams may come in another order.
        """
        for stream in sorted(self._pending, key=lambda s: s or sys.maxsize, reverse=True):
            queue = self._pending[stream]
            while queue and queue[0][0][0]:
                block = queue.popleft()[1]
                block.events -= 1
                if not block.events:
                    self._complete_free(block)
            if not queue:
                del self._pending[stream]

    def _release(self, block: Block) -> None:
        """Give a segment, one free block, back to the device."""
        block.pool.remove(block)
        del self._heads[block.address]
        self._device.give_back(block.address)
        self.reserved -= block.size
        self._log.extend((Action.SEGMENT_FREE, block.address, block.size, block.size, block.stream))


def _no_block(address: Any) -> UnknownAddress:
    told = hex(address) if isinstance(address, int) and abs(address) < LIMIT << 1 else brief(address)
    return UnknownAddress(f"no allocated block begins at {told}")
