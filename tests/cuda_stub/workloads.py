"""Random workloads for the differential test: what is run, what comes of it, and the first difference."""

from __future__ import annotations

import itertools
import json
import pathlib
import random
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from kvviz import CachingAllocator, OutOfMemory
from kvviz.memory.state import State
from kvviz.memory.trace import Action

MIB = 1 << 20
# what is compared after each operation; an address of -1 means that memory ran out
COLUMNS = ("address", "allocated", "reserved", "active", "requested", "retries", "ooms", "segments")
STATES = {State.ALLOCATED: "active_allocated", State.AWAITING_FREE: "active_pending_free", State.INACTIVE: "inactive"}


@dataclass(frozen=True)
class Workload:
    """Operations: ("alloc", number, size, stream), ("free", number), ("record_stream", number, stream), ("sync",),
    ("empty_cache",), ("memory_fraction", f), ("settings", conf). A free of what ran out of memory does nothing.
    """

    capacity: int
    conf: str = ""
    placement: str = "first-fit"
    events: str = "immediate"
    streams: int = 1
    operations: list[tuple[Any, ...]] = field(default_factory=list)
    seed: int = 0

    @property
    def shares_blocks(self) -> bool:
        return any(verb == "record_stream" for verb, *_ in self.operations)

    def save(self, path: pathlib.Path) -> None:
        head = {k: v for k, v in asdict(self).items() if k != "operations"}
        lines = [json.dumps(head), *(json.dumps(o) for o in self.operations)]
        path.write_text("\n".join(lines) + "\n")

    @classmethod
    def load(cls, path: pathlib.Path) -> Workload:
        head, *lines = path.read_text().splitlines()
        return cls(**json.loads(head), operations=[tuple(json.loads(line)) for line in lines])


class Outcome(NamedTuple):
    rows: np.ndarray  # COLUMNS, one row an operation
    segments: list[tuple]  # (address, size, stream, small, expandable, [(address, size, requested, state)])
    trace: list[tuple]  # (action, address, size, stream); see tidy_trace()


# -- making ----------------------------------------------------------------------------------------------------------


def random_workload(seed: int, length: int) -> Workload:
    """Anything: settings, device, streams and operations by chance."""
    r = random.Random(seed)
    conf, in_force = random_conf(r)
    workload = Workload(
        capacity=r.choice([256, 512, 1000, 2048, 3000, 4096, 8192, 24576]) * MIB,
        conf=conf,
        placement=r.choice(["first-fit", "first-fit", "bump", "down"]),
        events=r.choice(["immediate", "manual"]),
        streams=r.choice([1, 1, 2, 3, 4]),
        seed=seed,
    )
    shares, changes = r.random() < 0.6, r.random() < 0.25
    fill = r.uniform(0.5, 1.3)
    operations = random_operations(r, workload, length, fill, shares, in_force if changes else None)
    return replace(workload, operations=operations)


def random_operations(
    r: random.Random, workload: Workload, length: int, fill: float, shares: bool, in_force: InForce | None
) -> list[tuple]:
    """fill: how much of the device lives at most; over 1, memory runs out now and then. shares: blocks are used on
    other streams too. in_force: settings change in mid-run, and these come first.
    """
    room = workload.capacity * fill
    live: dict[int, int] = {}
    numbers, made = itertools.count(), []
    while len(made) < length:
        x = r.random()
        if x < 0.003:
            made.append(("empty_cache",))
        elif x < 0.01:
            made.append(("sync",))
        elif x < 0.012 and in_force:
            made.append(("memory_fraction", r.choice([1.0, 0.9, 0.5])))
        elif x < 0.014 and in_force:
            later, in_force = random_conf(r, in_force)
            made.append(("settings", later))
        elif live and (x < 0.48 or sum(live.values()) > room):
            number = r.choice(list(live))
            del live[number]
            made.append(("free", number))
        else:
            number = next(numbers)
            live[number] = random_size(r, workload.capacity)
            made.append(("alloc", number, live[number], r.randrange(workload.streams)))
            if shares and workload.streams > 1 and r.random() < 0.4:
                made += [("record_stream", number, r.randrange(workload.streams)) for _ in range(r.randint(1, 3))]
    return made


def random_size(r: random.Random, capacity: int) -> int:
    """Every rule gets its share: tiny, small, both sides of each boundary, middle, large, and a fifth of the device."""
    edges = [0, 1, 511, 512, 513, MIB - 1, MIB, MIB + 1, 2 * MIB, 10 * MIB - 1, 10 * MIB, 10 * MIB + 1, 20 * MIB]
    kind = r.random()
    if kind < 0.2:
        return r.randint(1, 4096)
    if kind < 0.45:
        return r.randint(1, MIB)
    if kind < 0.55:
        return r.choice(edges)
    if kind < 0.8:
        return r.randint(MIB, 12 * MIB)
    if kind < 0.97:
        return r.randint(10 * MIB, 120 * MIB)
    return r.randint(capacity // 50, capacity // 5)


class InForce(NamedTuple):
    """What decides which settings may follow in mid-run."""

    large: int  # large_segment_size_mb
    split: float  # max_split_size_mb
    expandable: bool


def random_conf(r: random.Random, before: InForce | None = None) -> tuple[str, InForce]:
    """Some of the settings, each with a usable value. before: what is in force until now; None at the start.

    In mid-run PyTorch has faults of its own, which kvviz refuses, see CachingAllocator.set_conf().
    """
    chosen = {}
    large = before.large if before else 20
    if r.random() < 0.4:
        large = r.choice([20, 32, 50])
        chosen["large_segment_size_mb"] = str(large)
    expandable = before.expandable if before else False
    if r.random() < 0.4:
        expandable = r.random() < 0.7
        chosen["expandable_segments"] = str(expandable)
    split = large + r.choice([0, 1, 12, 44, 108, 236])
    if r.random() < 0.4 and (before is None or (split >= before.split and not expandable)):
        chosen["max_split_size_mb"] = str(split)
    if r.random() < 0.3:
        chosen["max_non_split_rounding_mb"] = str(large + r.choice([0, 12, 80]))
    if r.random() < 0.3:
        chosen["roundup_power2_divisions"] = r.choice(
            ["1", "2", "4", "8", "16", "[32:4,128:2,>:8]", "[256:1,512:2,>:4]"]
        )
    if r.random() < 0.35:
        chosen["per_process_memory_fraction"] = r.choice(["0.5", "0.8", "0.95"])
    if r.random() < 0.35:
        chosen["garbage_collection_threshold"] = r.choice(["0.3", "0.6", "0.9"])
    names = list(chosen)
    r.shuffle(names)
    conf = ",".join(f"{name}:{chosen[name]}" for name in names)
    return conf, InForce(large, float(chosen.get("max_split_size_mb", "inf")), expandable)


# -- running the model -------------------------------------------------------------------------------------------------


def model_outcome(workload: Workload) -> Outcome:
    """Run the workload on kvviz's allocator."""
    allocator = CachingAllocator(workload.capacity, workload.conf, workload.placement, workload.events)
    live: dict[int, int] = {}
    rows = []
    for operation in workload.operations:
        address = step(allocator, live, *operation)
        a = allocator
        rows.append((address, a.allocated, a.reserved, a.active, a.requested, a.retries, a.ooms, a.segment_count))
    segments = [
        (s.address, s.size, s.stream, s.small, s.expandable, [(*b[:3], STATES[b.state]) for b in s.blocks])
        for s in allocator.segments
    ]
    events = allocator.trace.events
    sizes = np.where(events.action <= Action.FREE_COMPLETED, events.requested, events.size)
    words = [Action(a).name.lower() for a in events.action]
    trace = list(zip(words, events.address.tolist(), sizes.tolist(), events.stream.tolist(), strict=True))
    return Outcome(np.array(rows, dtype="i8").reshape(-1, len(COLUMNS)), segments, tidy_trace(trace))


def step(allocator: CachingAllocator, live: dict[int, int], verb: str, *args: Any) -> int:
    """One operation on the model; of an alloc the address comes back, or -1 where memory ran out."""
    if verb == "alloc":
        number, size, stream = args
        try:
            live[number] = allocator.malloc(size, stream)
        except OutOfMemory:
            return -1
        return live[number]
    if verb == "free":
        allocator.free(live.pop(args[0], 0))
    elif verb == "record_stream":
        if live.get(args[0]):
            allocator.record_stream(live[args[0]], args[1])
    elif verb == "sync":
        allocator.synchronize()
    elif verb == "empty_cache":
        allocator.empty_cache()
    elif verb == "memory_fraction":
        allocator.set_memory_fraction(args[0])
    else:
        allocator.set_conf(args[0])
    return 0


# -- comparing ---------------------------------------------------------------------------------------------------------


def tidy_trace(trace: list[tuple]) -> list[tuple]:
    return [t for t in trace if t[0] != "snapshot"]


def first_difference(real: Outcome, model: Outcome) -> str | None:
    """Where the model departs from the real allocator, in words; None where it agrees."""
    if not np.array_equal(real.rows, model.rows):
        k = int(np.flatnonzero((real.rows != model.rows).any(axis=1))[0])
        names = [n for n, x, y in zip(COLUMNS, real.rows[k], model.rows[k], strict=True) if x != y]
        said = (f"{n} is {real.rows[k, COLUMNS.index(n)]}, modelled {model.rows[k, COLUMNS.index(n)]}" for n in names)
        return f"after operation {k}: " + "; ".join(said)
    for what, theirs, ours in (("segment", real.segments, model.segments), ("trace entry", real.trace, model.trace)):
        for k, (x, y) in enumerate(itertools.zip_longest(theirs, ours)):
            if x != y:
                return f"{what} {k} is {x}, modelled {y}"
    return None
