"""Workloads of the AllocatorExplorer, programs and recorded runs: one setting in, a Run with its figures out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from kvviz.errors import InvalidRequest, OutOfMemory
from kvviz.explore.programs import MIB, Noted
from kvviz.memory.replay import replay
from kvviz.memory.trace import Action, Trace

MOST_EVENTS = 500_000  # of a recorded run: a replay of them takes a few seconds, and each change is one
ROOMY = 24 << 10  # MiB of the device that a program runs on where nobody says otherwise


@dataclass
class Run:
    """What one workload did under one setting. moment: the number of events after which it is looked at, and `when` says
    which moment that is."""

    trace: Trace
    conf: str
    moment: int
    when: str

    @cached_property
    def refused(self) -> int | None:
        """Index of the event at which a request first found no room, None where all did."""
        e = self.trace.events
        rows = np.flatnonzero((e.action == Action.OOM) & (e.device == self.device))
        return int(rows[0]) if len(rows) else None

    @property
    def device(self) -> int:
        return self.trace.devices[0]

    @cached_property
    def figures(self) -> dict[str, int]:
        """Bytes at the moment, the peaks, and what came of the requests: served counts those before the first refused."""
        state = self.trace.at(self.moment, self.device)
        free, back = state.reserved - state.active, state.releasable
        return {
            "allocated": state.allocated, "reserved": state.reserved, "free": free,
            "releasable": back, "pinned": free - back, "largest_free": state.largest_free,
            "peak_allocated": self.trace.peak_allocated, "peak_reserved": self.trace.peak_reserved,
        } | self._requests()  # fmt: skip

    def _requests(self) -> dict[str, int]:
        e, k = self.trace.events, self.refused
        served = int(np.count_nonzero((e.action[:k] == Action.ALLOC) & (e.device[:k] == self.device)))
        if k is None:
            return {"served": served, "ran_out": 0, "refused_request": 0, "refused_largest_free": 0}
        largest = self.trace.at(k + 1, self.device).largest_free
        return {
            "served": served, "ran_out": 1, "refused_request": int(e.requested[k]), "refused_largest_free": largest
        }  # fmt: skip

    @cached_property
    def course(self) -> tuple[np.ndarray, np.ndarray]:
        """Reserved and requested bytes after each of the program's own acts, its requests and frees.

        Events would not do: how many segments come and go differs between two settings, what the program does does not.
        """
        e, curves = self.trace.events, self.trace.curves(self.device)
        after = np.flatnonzero(_acts(self.trace, self.device)) + 1
        after += np.append(e.action, Action.SNAPSHOT)[after] == Action.FREE_COMPLETED  # a free is complete with that
        after[-1:] = len(e)  # with what came behind the last act: its free, or an empty_cache()
        return curves.reserved[after], curves.requested[after]


def _acts(trace: Trace, device: int) -> np.ndarray:
    """Which events are what the program itself did: requests and frees."""
    e = trace.events
    return np.isin(e.action, (Action.ALLOC, Action.FREE_REQUESTED, Action.OOM)) & (e.device == device)


def _refuse_idle(trace: Trace, name: str) -> None:
    if not _acts(trace, trace.devices[0]).any():
        raise InvalidRequest(f"{name} makes no request and frees nothing: there is nothing to compare")


class Program:
    """A function of a CachingAllocator. It is looked at when it has ended."""

    recorded = False

    def __init__(self, function: Callable[[Any], Any], name: str):
        self.function, self.name = function, name

    def run(self, conf: str, capacity: int) -> Run:
        """capacity: MiB, 0 for 24 GiB."""
        allocator = Noted((capacity or ROOMY) * MIB, conf)
        when = "at the end"
        try:
            self.function(allocator)
        except OutOfMemory:
            when = "when it ran out"
        origin = f"PyTorch's allocator, modelled to the byte; driven by a program: {self.name}"
        trace = replace(allocator.trace, origin=origin)
        _refuse_idle(trace, self.name)
        return Run(trace, conf, len(trace), when)


class Recording:
    """A recorded run, replayed. It is looked at when most was allocated, or when it ran out."""

    recorded = True

    def __init__(self, trace: Trace, name: str):
        if len(trace) > MOST_EVENTS:
            raise InvalidRequest(
                f"a recorded run of {len(trace):,} events: every change replays them all, so {MOST_EVENTS:,} are the "
                f"most; take a part, as in trace.last({MOST_EVENTS:_})"
            )
        _refuse_idle(trace, name)
        self.trace, self.name = trace, name

    @property
    def conf(self) -> str:
        """The settings of the recorded run, where they are known."""
        return str(self.trace.about.get("conf") or "")

    def run(self, conf: str, capacity: int) -> Run:
        """capacity: MiB, 0 for the recorded device's."""
        device = self.trace.devices[0]
        trace = replay(self.trace, conf, capacity * MIB or None, device)
        allocated = trace.curves(trace.devices[0]).allocated
        last_peak = len(allocated) - 1 - int(np.argmax(allocated[::-1]))
        run = Run(trace, conf, last_peak, "when most is allocated")
        if run.refused is not None:
            run.moment, run.when = run.refused + 1, "when it ran out"
        return run


def workloads(given: Any) -> dict[str, Program | Recording]:
    """By name, from a trace, a function of an allocator, or a list or dict of such."""
    if isinstance(given, Mapping):
        named = {str(name): thing for name, thing in given.items()}
    else:
        listed = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else [given]
        many = len(listed) > 1
        named = {}
        for k, thing in enumerate(listed, 1):
            name = thing.__name__ if callable(thing) and hasattr(thing, "__name__") else "the recorded run"
            named[f"{name} {k}" if many else name] = thing
    if not named:
        raise InvalidRequest("no workload: give a Trace, a function of a CachingAllocator, or a list or dict of them")
    made: dict[str, Program | Recording] = {}
    for name, thing in named.items():
        if isinstance(thing, Trace):
            made[name] = Recording(thing, name)
        elif callable(thing):
            made[name] = Program(thing, name)
        else:
            hint = "; its .trace is one" if hasattr(thing, "trace") else ""
            raise InvalidRequest(
                f"a workload is a Trace or a function of a CachingAllocator, not a {type(thing).__name__}{hint}"
            )
    return made
