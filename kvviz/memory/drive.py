"""Drive the allocator model with what a CPU run asked for: recorded requests in, a Trace out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch

from kvviz.memory.allocator import CachingAllocator
from kvviz.memory.cpu import CpuRecorder, allocations
from kvviz.memory.trace import Action, Events, Mark, Trace

ORIGIN = "model of PyTorch's CUDA allocator, fed by a CPU run"
CAPACITY = 1 << 40  # the modelled device does not run out: the CPU run did not either
ALLOC, FREE, CLAIM, MARK = range(4)


def trace_of(seen: CpuRecorder) -> Trace:
    """The recorded run as the CUDA allocator would have served it, all on one stream."""
    table = allocations(seen.result)
    steps = _in_order(seen, table)
    model = CachingAllocator(CAPACITY)
    live: dict[int, tuple[int, int]] = {}  # the CPU's address -> (the model's address, number of the allocation)
    for number, (address, size, _) in enumerate(seen.entry):
        live[address] = (model.malloc(size), number)
    model.forget_history()
    entered = len(seen.entry)

    owner_of = [owner for _, _, owner in seen.entry]
    times, freed = [], []  # of each allocation the time; of each free (number of its allocation, time)
    marks: list[tuple[int, str]] = []
    malloc, free = model.malloc, model.free
    for time, kind, address, value in steps:
        if kind == ALLOC:
            if address in live:  # its free was not reported (another thread's, say); the address is in use again
                freed.append((live[address][1], time))
                free(live[address][0])
            live[address] = (malloc(value), len(owner_of))
            owner_of.append(0)
            times.append(time)
        elif kind == FREE:
            block = live.pop(address, None)
            if block is not None:
                freed.append((block[1], time))
                free(block[0])
        elif kind == CLAIM:
            block = live.get(address)
            if block is not None:
                owner_of[block[1]] = value
        else:
            marks.append((model.events_so_far, seen.marks[value][1]))

    sites = np.full(len(owner_of), -1, "i8")
    if seen.sites is not None:
        sites[entered:] = seen.sites.running_at(np.array(times, "i8"))
    return _dressed(model, seen, np.array(owner_of, "i8"), sites, times, freed, marks)


def _in_order(seen: CpuRecorder, table: np.ndarray) -> Iterator[tuple[int, int, int, int]]:
    """(time, kind, address, value) of everything that happened, in order. At one moment a free comes first."""
    ends = np.array(seen.entry_frees, "i8").reshape(-1, 2)
    claims = np.array(seen.claims, "i8").reshape(-1, 3)
    moments = np.array([time for time, _ in seen.marks], "i8")
    time = np.concatenate([table[:, 0], ends[:, 0], claims[:, 0], moments])
    kind = np.concatenate([
        np.where(table[:, 2] > 0, ALLOC, FREE), np.full(len(ends), FREE), np.full(len(claims), CLAIM),
        np.full(len(moments), MARK),
    ])  # fmt: skip
    address = np.concatenate([table[:, 1], ends[:, 1], claims[:, 1], np.zeros(len(moments), "i8")])
    value = np.concatenate([table[:, 2], np.zeros(len(ends), "i8"), claims[:, 2], np.arange(len(moments))])
    order = np.argsort(time, kind="stable")
    return zip(*(column[order].tolist() for column in (time, kind, address, value)), strict=True)


def _dressed(
    model: CachingAllocator, seen: CpuRecorder, owner_of: np.ndarray, sites: np.ndarray, times: list[int],
    freed: list[tuple[int, int]], marks: list[tuple[int, str]],
) -> Trace:  # fmt: skip
    """The model's own trace, with owners, call sites, times and marks; one event for each free.

    A CPU run has one thread of work and no streams, so a free is complete when it is requested: its two events are one.
    """
    bare, entered = model.trace, len(seen.entry)
    keep = bare.events.action != Action.FREE_REQUESTED
    events = {name: bare.events[name][keep] for name in ("action", "address", "size", "requested")}
    allocs, frees = events["action"] == Action.ALLOC, events["action"] == Action.FREE_COMPLETED
    of_free = np.array(freed, "i8").reshape(-1, 2)
    number = np.full(len(allocs), -1, "i8")
    number[allocs] = np.arange(entered, len(owner_of))
    number[frees] = of_free[:, 0]
    time = np.zeros(len(allocs), "i8")
    time[allocs], time[frees] = times, of_free[:, 1]
    # a segment is taken for the allocation that follows it
    known = np.where(number >= 0, np.arange(len(number)), len(number))
    following = np.minimum.accumulate(known[::-1])[::-1]
    fill = (number < 0) & (following < len(number))
    time[fill] = time[following[fill]]
    owned = number >= 0
    owner, stack = np.zeros(len(allocs), "i8"), np.full(len(allocs), -1, "i8")
    owner[owned], stack[owned] = owner_of[number[owned]], sites[number[owned]]

    lived = bare.entry[0]
    lived = replace(lived, blocks=replace(lived.blocks, owner=owner_of[:entered]))
    kept_before = np.concatenate([[0], np.cumsum(keep)])
    return Trace(
        Events.of(len(allocs), **events, time_us=time // 1000, owner=owner, stack=stack),
        entry={0: lived},
        marks=[Mark(int(kept_before[event]), name) for event, name in marks],
        owners=list(seen.owners.names),
        stacks=list(seen.sites.texts) if seen.sites else [],
        origin=ORIGIN,
        about=bare.about | {"torch": torch.__version__},
    )
