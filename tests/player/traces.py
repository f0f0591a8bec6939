"""Small random traces for the pictures' tests, with the state after each event written down the slow way."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np

from kvviz.memory.lifetimes import BlockSpans, Lifetimes, SegmentSpans
from kvviz.memory.trace import Action, Events, Mark, Trace

KIB, MIB = 1 << 10, 1 << 20
BASE = 0x7F3A_0000_0000_0000  # beyond 2**53: not exact as a JavaScript number


@dataclass
class Block:
    address: int
    size: int
    requested: int
    stream: int
    owner: int
    stack: int
    waits: bool = False


@dataclass
class Moment:
    """One state: the totals, the live blocks as (address, size, requested, owner, waits), the mapped ranges."""

    reserved: int
    allocated: int
    active: int
    requested: int
    blocks: set[tuple[int, int, int, int, bool]]
    ranges: set[tuple[int, int]]


@dataclass
class SlowMemory:
    """Does what it is told, notes each event, and writes down the whole state after each."""

    rows: list[dict] = field(default_factory=list)
    blocks: dict[int, Block] = field(default_factory=dict)
    ranges: dict[int, tuple[int, int, bool, bool]] = field(default_factory=dict)  # size, stream, small, expandable
    history: list[Moment] = field(default_factory=list)
    entry: Lifetimes | None = None

    def note(self, action: Action, **columns: int) -> None:
        self.rows.append({"action": action, "stack": -1, **columns})
        self.history.append(self.moment())

    def moment(self) -> Moment:
        held = [b for b in self.blocks.values() if not b.waits]
        return Moment(
            reserved=sum(r[0] for r in self.ranges.values()),
            allocated=sum(b.size for b in held),
            active=sum(b.size for b in self.blocks.values()),
            requested=sum(b.requested for b in self.blocks.values()),
            blocks={(b.address, b.size, b.requested, b.owner, b.waits) for b in self.blocks.values()},
            ranges={(address, r[0]) for address, r in self.ranges.items()},
        )

    def begin(self) -> None:
        """What there is now, lived before the recording."""
        n = len(self.blocks)
        columns = list(zip(*[(b.address, b.size, b.requested, b.stream, b.owner, b.stack) for b in self.blocks.values()],
                           strict=True)) or [()] * 6  # fmt: skip
        never = np.full(n, 1 << 40)
        spans = BlockSpans(*(np.array(c, t) for c, t in zip(columns, ("u8", *["i8"] * 5), strict=True)),
                           np.full(n, -1), never, never)  # fmt: skip
        m = len(self.ranges)
        parts = list(zip(*[(a, *r) for a, r in self.ranges.items()], strict=True)) or [()] * 5
        segments = SegmentSpans(*(np.array(c, t) for c, t in zip(parts, ("u8", "i8", "i8", "?", "?"), strict=True)),
                                np.full(m, -1), np.full(m, 1 << 40))  # fmt: skip
        self.entry = Lifetimes(spans, segments)
        self.rows, self.history = [], [self.moment()]

    def reserve(self, address: int, size: int, stream: int = 0, expandable: bool = False) -> None:
        small = size <= 2 * MIB
        self.ranges[address] = (size, stream, small, expandable)
        self.note(Action.SEGMENT_MAP if expandable else Action.SEGMENT_ALLOC, address=address, size=size, stream=stream)

    def give_back(self, address: int) -> None:
        size, stream, _, expandable = self.ranges.pop(address)
        self.note(
            Action.SEGMENT_UNMAP if expandable else Action.SEGMENT_FREE, address=address, size=size, stream=stream
        )

    def alloc(self, address: int, size: int, requested: int, stream: int = 0, owner: int = 0, stack: int = -1) -> None:
        self.blocks[address] = Block(address, size, requested, stream, owner, stack)
        self.note(
            Action.ALLOC, address=address, size=size, requested=requested, stream=stream, owner=owner, stack=stack
        )

    def free(self, address: int, completes: bool = True) -> None:
        block = self.blocks[address]
        block.waits = True
        self.note(Action.FREE_REQUESTED, address=address, size=block.size, requested=block.requested)
        if completes:
            self.complete(address)

    def complete(self, address: int) -> None:
        block = self.blocks.pop(address)
        self.note(Action.FREE_COMPLETED, address=address, size=block.size, requested=block.requested)

    def trace(self, **more) -> Trace:
        """The trace of all that was noted."""
        names = {name for row in self.rows for name in row}
        columns = {name: [row.get(name, 0) for row in self.rows] for name in names}
        return Trace(Events.of(len(self.rows), **columns), entry={0: self.entry} if self.entry else {}, **more)


def random_trace(seed: int, steps: int = 120) -> tuple[Trace, list[Moment]]:
    """A trace, and the state after 0 … len(trace) events. Not an allocator: any lawful history will do."""
    chance, memory = random.Random(seed), SlowMemory()
    owners, stacks = ["other", "weights", "KV cache", "a <b> & 'c'"], ["torch.cat · a.py:1", "torch.mm · b.py:2"]
    before = chance.randrange(0, 30) if seed % 3 else 0
    for k in range(steps + before):
        if k == before:
            for address in [b.address for b in memory.blocks.values() if b.waits]:
                memory.complete(address)
            memory.begin()
        what = chance.random()
        if what < 0.12 or not memory.ranges:
            expandable = chance.random() < 0.4
            size = chance.choice([2, 2, 4, 20]) * MIB
            address = BASE + chance.randrange(0, 40) * 20 * MIB
            while any(a < address + size and address < a + r[0] for a, r in memory.ranges.items()):
                address += 2 * MIB
            memory.reserve(address, size, chance.randrange(2), expandable)
        elif what < 0.2:
            empty = [a for a, r in memory.ranges.items() if not any(a <= b < a + r[0] for b in memory.blocks)]
            if empty:
                memory.give_back(chance.choice(empty))
        elif what < 0.62:
            _alloc_somewhere(memory, chance, len(owners), len(stacks))
        elif memory.blocks:
            address = chance.choice(list(memory.blocks))
            if memory.blocks[address].waits:
                memory.complete(address)
            else:
                memory.free(address, completes=chance.random() < 0.7)
    n = len(memory.rows)
    marks = [Mark(n // 3, "prefill"), Mark(n // 2, "decode"), Mark(n, "end")]
    return memory.trace(owners=owners, stacks=stacks, marks=marks, origin=f"made up, seed {seed}"), memory.history


def _alloc_somewhere(memory: SlowMemory, chance: random.Random, owners: int, stacks: int) -> None:
    address = chance.choice(list(memory.ranges))
    size, stream, *_ = memory.ranges[address]
    inside = sorted(b.address for b in memory.blocks.values() if address <= b.address < address + size)
    ends = [address, *(a + memory.blocks[a].size for a in inside)]
    gaps = [(e, (inside + [address + size])[k] - e) for k, e in enumerate(ends)]
    at, room = max(gaps, key=lambda gap: gap[1])
    if room < 512:
        return
    size = min(room, chance.choice([512, 1024, 64 * KIB, MIB, 3 * MIB]))
    requested = max(1, size - chance.choice([0, 0, 12, 511, size // 2]))
    memory.alloc(at, size, requested, stream, chance.randrange(owners), chance.randrange(-1, stacks))


def showcase() -> Trace:
    """Everything that the block map can draw, in one trace: for looking at, and for the browser's tests."""
    memory = SlowMemory()
    for k in range(4):
        memory.reserve(BASE + k * 20 * MIB, 20 * MIB)
    for k in range(8):
        memory.alloc(BASE + k * 9 * MIB + k // 2 * 2 * MIB, 9 * MIB, 9 * MIB - 300, owner=1)
    start = BASE + 200 * MIB
    memory.reserve(start, 2 * MIB)
    for k in range(20):
        memory.alloc(start + k * 64 * KIB, 64 * KIB, 64 * KIB, owner=2, stack=0)
    for k in range(0, 20, 3):
        memory.free(start + k * 64 * KIB)
    pool = BASE + 4096 * MIB
    for k in range(6):
        memory.reserve(pool + k * 20 * MIB, 20 * MIB, stream=1, expandable=True)
        memory.alloc(pool + k * 20 * MIB, 14 * MIB, (2 + 2 * k) * MIB, stream=1, owner=3, stack=1)
    memory.free(pool + 20 * MIB, completes=False)
    memory.free(pool + 80 * MIB)
    for k in range(3):
        memory.reserve(BASE + 300 * MIB + k * 26 * MIB, 26 * MIB)
        memory.alloc(BASE + 300 * MIB + k * 26 * MIB, 11 * MIB, 11 * MIB, owner=0, stack=1)
        memory.alloc(BASE + 311 * MIB + k * 26 * MIB, 512, 4, owner=4)
        memory.free(BASE + 300 * MIB + k * 26 * MIB)
    memory.free(BASE + 311 * MIB)
    memory.give_back(BASE + 300 * MIB)
    memory.alloc(start, 64 * KIB, 60 * KIB, owner=2, stack=0)
    return memory.trace(
        owners=["other", "weights", "KV cache", "KV (preallocated)", "index"],
        stacks=["torch.cat · model.layers.3.self_attn · train.py:12", "torch.empty · cache.py:88"],
        marks=[Mark(12, "weights loaded"), Mark(34, "prefill"), Mark(60, "decode")],
        warnings=["The recording began in the middle of a run: 3 frees name blocks that nobody saw being made."],
        origin="made up, to show everything the map can draw",
    )


def settled(still: int = 5, cache: int = 8) -> Trace:
    """A model that was there before, `still` segments of it for good, and a cache that grows beside it.

    Of 20 MiB each: the still ones; one more with a block that comes and goes; one that is given back at the end; one in
    which an old block dies. The cache's blocks of 256 KiB lie in two segments of 2 MiB.
    """
    memory = SlowMemory()
    for k in range(still):
        memory.reserve(BASE + k * 20 * MIB, 20 * MIB)
        memory.alloc(BASE + k * 20 * MIB, 12 * MIB, 12 * MIB, owner=1)
        memory.alloc(BASE + k * 20 * MIB + 12 * MIB, 7 * MIB, 7 * MIB, owner=1 if k else 3)
    mixed = BASE + 400 * MIB
    for k in range(3):
        memory.reserve(mixed + k * 40 * MIB, 20 * MIB)
        memory.alloc(mixed + k * 40 * MIB, 15 * MIB, 15 * MIB, owner=1)
    memory.begin()
    pool = BASE + 800 * MIB
    for k in range(cache):
        if k % 8 == 0:
            memory.reserve(pool + k // 8 * 2 * MIB, 2 * MIB)
        memory.alloc(mixed + 15 * MIB, MIB, MIB, stack=1)
        memory.alloc(pool + k * 256 * KIB, 256 * KIB, 256 * KIB, owner=2, stack=0)
        memory.free(mixed + 15 * MIB)
    memory.free(mixed + 80 * MIB)
    memory.free(mixed + 40 * MIB)
    memory.give_back(mixed + 40 * MIB)
    return memory.trace(
        owners=["other", "weights", "KV cache", "index"], stacks=["torch.cat · cache.py:8", "torch.mm · model.py:3"],
        marks=[Mark(0, "prefill")], origin="made up, a model and its cache",
    )  # fmt: skip


def crowded() -> Trace:
    """Segments of 20, 20, 20 and 400 MiB. First: 9,000 blocks of 512 B, one in three of the cache; one block is alone in
    the second, 12 MiB lie in the third. Two requests found no room."""
    small = 9000
    size = [20 * MIB, 20 * MIB, 20 * MIB, 400 * MIB, *[512] * small, 512, 12 * MIB, 0, 0]
    where = [BASE, BASE + 20 * MIB, BASE + 40 * MIB, BASE + 60 * MIB, *(BASE + 512 * k for k in range(small))]
    where += [BASE + 30 * MIB, BASE + 40 * MIB, 0, 0]
    action = [*[Action.SEGMENT_ALLOC] * 4, *[Action.ALLOC] * (small + 2), Action.OOM, Action.OOM]
    owner = [*[0] * 4, *(2 if k % 3 == 0 else 1 for k in range(small)), 2, 1, 0, 0]
    requested = [*size[:-2], 7 * MIB, 9 * MIB]
    n = len(size)
    events = Events.of(n, action=action, address=np.array(where, "u8"), size=size, requested=requested, owner=owner)
    return Trace(events, owners=["other", "weights", "KV cache"], stacks=[], marks=[Mark(100, "early"), Mark(n - 50, "late")])
