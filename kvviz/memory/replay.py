"""replay(): the requests of a recorded run, served by the allocator model under other settings or on another device.

What is replayed are the program's own acts: requests, frees, waits for other streams, and calls of empty_cache(). What
the allocator did by itself (segments, retries) is not: that is what may change.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from kvviz.errors import InvalidRequest, OutOfMemory, brief
from kvviz.memory.allocator import CachingAllocator
from kvviz.memory.check import traced, whole
from kvviz.memory.drive import Driver
from kvviz.memory.trace import Action, Trace

UNBOUNDED = 1 << 40  # where a trace does not know its device's capacity
MIB = 1 << 20
SETTINGS_TO_TRY = (
    "",
    "expandable_segments:True",
    "max_split_size_mb:64",
    "max_split_size_mb:256",
    "roundup_power2_divisions:4",
    "garbage_collection_threshold:0.8,per_process_memory_fraction:0.99",
)


def replay(trace: Trace, conf: str = "", capacity: int | None = None, device: int = 0) -> Trace:
    """The same requests under the settings `conf`, on a device of `capacity` bytes (None: the recorded one's).

    If a request does not fit, the replay ends there: its last event is the OOM, `about["stopped_at"]` is the index of
    that request in `trace`, and a warning says so; what the program would have done then is not known. A request that
    failed in the recording is tried again: where it fits now, `about["served"]` has the index of the recorded OOM event,
    and the block is given back at once, since the recorded program went on without it; otherwise `about["refused"]` has.

    Raises InvalidRequest for bad settings, or where what lived before the recording does not fit by itself.
    """
    traced(trace)
    size = whole(capacity if capacity is not None else trace.about.get("capacity") or UNBOUNDED, "a capacity")
    model = CachingAllocator(size, conf, trace.about.get("placement") or "first-fit", events="manual")
    driver = Driver(model)
    _enter(driver, trace, device)
    driver.begin()
    calls = _empty_cache_calls(trace, device)
    marks = sorted(trace.marks, key=lambda mark: mark.event)
    served: list[int] = []
    refused: list[int] = []
    stopped: int | None = None
    e, held = trace.events, _frees_that_wait(trace, device)
    rows = np.flatnonzero(e.device == device)
    columns = (
        e[name][rows].tolist() for name in ("action", "address", "requested", "stream", "time_us", "owner", "stack")
    )
    next_mark = 0
    for i, action, address, asked, stream, time, owner, stack in zip(rows.tolist(), *columns, strict=True):
        while next_mark < len(marks) and marks[next_mark].event <= i:
            driver.mark(marks[next_mark].name)
            next_mark += 1
        if i in calls:
            model.empty_cache()
        if action == Action.ALLOC:
            try:
                driver.alloc(address, asked, time * 1000, owner, stack, stream)
            except OutOfMemory:
                stopped = i
                break
        elif action == Action.FREE_REQUESTED:
            if i in held:
                driver.hold(address)
            else:
                driver.free(address, time * 1000)
        elif action == Action.FREE_COMPLETED:
            if not driver.let_go(address, time * 1000):
                driver.free(address, time * 1000)
        elif action == Action.OOM:
            try:
                driver.alloc(("oom", i), asked, time * 1000, owner, stack, stream)
                driver.free(("oom", i), time * 1000)
                served.append(i)
            except OutOfMemory:
                refused.append(i)  # as recorded
    if stopped is None:
        for mark in marks[next_mark:]:
            driver.mark(mark.name)
    warnings = list(trace.warnings)
    if stopped is not None:
        warnings.append(
            f"out of memory at event {stopped:,} of the {len(trace):,} recorded ones, a request of "
            f"{int(e.requested[stopped]):,} B: the replay ends there"
        )
    return driver.trace(
        owners=trace.owners,
        stacks=trace.stacks,
        origin=f"allocator model, replay of: {trace.origin}",
        warnings=warnings,
        about={
            "served": served, "refused": refused, "stopped_at": stopped, "retries": model.retries, "ooms": model.ooms,
        },
    )


def _enter(driver: Driver, trace: Trace, device: int) -> None:
    if device not in trace.devices:
        raise InvalidRequest(f"no device {device} in this trace; it has {trace.devices}")
    if device not in trace.entry:
        return
    blocks = trace.entry[device].blocks
    names = ("address", "requested", "owner", "stack", "stream")
    try:
        for address, asked, owner, stack, stream in zip(*(getattr(blocks, n).tolist() for n in names), strict=True):
            driver.enter(address, asked, owner, stack, stream)
    except OutOfMemory as problem:
        raise InvalidRequest(f"what lived before the recording does not fit: {problem}") from None


def _frees_that_wait(trace: Trace, device: int) -> set[int]:
    """Indices of free_requested events that were not completed at once: another stream was still using the block."""
    blocks = trace.lifetimes(device).blocks
    n = len(trace)
    waits = (blocks.freed >= 0) & (blocks.freed < n) & ((blocks.died > blocks.freed + 1) | (blocks.died == n))
    return set(blocks.freed[waits].tolist())


def _empty_cache_calls(trace: Trace, device: int) -> set[int]:
    """Indices of the events at which the program called empty_cache().

    Segments are also given back inside a request that found no room. Then a new segment, or an OOM, follows, and the
    device had no room for it before; otherwise somebody asked for it.
    """
    e = trace.events
    gone = {int(Action.SEGMENT_FREE), int(Action.SEGMENT_UNMAP)}
    taken = {int(Action.SEGMENT_ALLOC), int(Action.SEGMENT_MAP)}
    rows = np.flatnonzero((e.device == device) & (e.action >= Action.SEGMENT_ALLOC) | (e.action == Action.ALLOC))
    capacity = trace.about.get("capacity") or UNBOUNDED
    reserved = trace.curves(device).reserved
    calls, k = set(), 0
    actions = e.action[rows].tolist()
    while k < len(rows):
        if actions[k] not in gone:
            k += 1
            continue
        first = k
        while k < len(rows) and actions[k] in gone and rows[k] - rows[first] == k - first:
            k += 1
        beyond = int(rows[k]) if k < len(rows) and rows[k] == rows[k - 1] + 1 else None
        in_need = beyond is not None and (
            e.action[beyond] == Action.OOM
            or (int(e.action[beyond]) in taken and reserved[rows[first]] + int(e.size[beyond]) > capacity)
        )
        if not in_need:
            calls.add(int(rows[first]))
    return calls


class Trial(NamedTuple):
    """One setting tried on a recorded run. Bytes; `stopped_at` is the event at which it ran out, None if it did not.

    A request that failed in the recording, and fails again, counts as the end: the program may have gone on without it.
    """

    conf: str
    peak_reserved: int
    peak_allocated: int
    stopped_at: int | None
    retries: int
    why: str


def sweep(
    trace: Trace, confs: Sequence[str] = SETTINGS_TO_TRY, capacity: int | None = None, device: int = 0
) -> list[Trial]:
    """Replay under each setting and rank: first those that run on the longest, then those that reserve the least.

    `why` says in a sentence what the setting changed, from the replay itself.
    """
    confs = [confs] if isinstance(confs, str) else list(confs) if isinstance(confs, Iterable) else [confs]
    if not all(isinstance(conf, str) for conf in confs):
        raise InvalidRequest(f"confs are settings, each a string, not {brief(confs)}")
    replays = {conf: replay(trace, conf, capacity, device) for conf in dict.fromkeys(["", *confs])}
    base = replays[""]
    trials = [
        Trial(
            conf, again.peak_reserved, again.peak_allocated, ended(again), again.about["retries"],
            _why(conf, again, base, len(trace)),
        )
        for conf, again in replays.items()
        if conf in confs
    ]  # fmt: skip

    def rank(trial: Trial) -> tuple[float, int, int]:
        return -(len(trace) if trial.stopped_at is None else trial.stopped_at), trial.peak_reserved, trial.retries

    return sorted(trials, key=rank)


def ended(again: Trace) -> int | None:
    """The event of the recorded run at which a replay of it ran out of memory, None if it did not."""
    stopped: int | None = again.about["stopped_at"]
    refused: list[int] = again.about["refused"]
    return refused[0] if refused else stopped


def _why(conf: str, again: Trace, base: Trace, events: int) -> str:
    stopped, before = ended(again), ended(base)
    state = again.at(-1)
    left = (
        f"{(state.reserved - state.active) / MIB:,.0f} MiB cached then, "
        f"the largest free block {state.largest_free / MIB:,.0f} MiB"
    )
    if not conf:
        return "the defaults: " + ("the run fits" if stopped is None else f"out of memory at event {stopped:,}, {left}")
    if stopped is not None:
        later = (
            "as"
            if stopped == before
            else "later than"
            if stopped > (-1 if before is None else before)
            else "earlier than"
        )
        return f"out of memory at event {stopped:,}, {later} with the defaults; {left}"
    if before is not None:
        return f"the run fits: all {events:,} events, where the defaults end at {before:,}"
    change = again.peak_reserved - base.peak_reserved
    if not change:
        return "no difference in peak reserved"
    allocated = (again.peak_allocated - base.peak_allocated) / MIB
    verb = "falls" if change < 0 else "rises"
    return f"peak reserved {verb} by {abs(change) / MIB:,.1f} MiB, peak allocated changes by {allocated:+,.1f} MiB"
