"""What a trace is, as a report: for `kvviz show`."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from kvviz.errors import InconsistentTrace, InvalidRequest
from kvviz.memory.report import Report, Section, bytes_text, count_text
from kvviz.memory.state import MemoryState, State
from kvviz.memory.trace import Action, Trace

MOST = 20  # marks that are listed


def busiest(trace: Trace) -> int:
    """The device with the highest reserved peak."""
    return max(trace.devices, key=lambda device: int(trace.curves(device).reserved.max()))


def failures(trace: Trace, device: int) -> list[int]:
    """Indices of the events at which memory ran out."""
    e = trace.events
    return np.flatnonzero((e.action == Action.OOM) & (e.device == device)).tolist()


def first_failure(trace: Trace, device: int) -> int | None:
    return next(iter(failures(trace, device)), None)


def summary(trace: Trace, device: int, at: int | None = None) -> Report:
    """Origin, peaks, marks, warnings, and the state of `device` after `at` events, None: after all.

    Raises InvalidRequest for an unknown device or event, InconsistentTrace for `at` where no state is a true one.
    """
    if device not in trace.devices:
        raise InvalidRequest(f"no device {device} in this trace; it has {trace.devices}")
    try:
        state = trace.at(-1 if at is None else at, device)
    except InconsistentTrace:
        if at is not None:
            raise
        state = None
    peaks = [_peaks(trace, number) for number in trace.devices]
    sections = [
        Section("Peaks", [_peak_text(peak) for peak in peaks]),
        Section("Marks", _marks(trace)),
        _state_section(trace, state, device),
        Section("What to know before trusting it", list(trace.warnings)),
    ]
    figures: dict[str, Any] = {
        "origin": trace.origin, "events": len(trace), "devices": peaks, "marks": [list(mark) for mark in trace.marks],
        "warnings": list(trace.warnings), "owners": list(trace.owners),
        **{name: trace.about.get(name) for name in ("torch", "conf", "capacity")},
        "state": None if state is None else _state_figures(trace, state, device),
    }  # fmt: skip
    return Report(
        f"Trace: {trace.origin}", nothing=_in_short(trace), sections=[s for s in sections if s.lines], figures=figures
    )


def _in_short(trace: Trace) -> str:
    told = [count_text(len(trace), "event"), f"device {', '.join(map(str, trace.devices))}"]
    if trace.about.get("torch"):
        told.append(f"torch {trace.about['torch']}")
    if trace.about.get("conf") is not None:
        told.append(f"settings: {trace.about['conf'] or 'the defaults'}")
    if trace.about.get("capacity"):
        told.append(f"on {bytes_text(int(trace.about['capacity']))}")
    return ", ".join(told)


def _peaks(trace: Trace, device: int) -> dict[str, Any]:
    curves = trace.curves(device)
    return {
        "device": device,
        **{f"peak_{name}": int(getattr(curves, name).max()) for name in ("allocated", "reserved")},
        **{f"peak_{name}_after": int(np.argmax(getattr(curves, name))) for name in ("allocated", "reserved")},
        "out_of_memory_at": failures(trace, device),
    }


def _peak_text(peak: dict[str, Any]) -> str:
    ooms = peak["out_of_memory_at"]
    return (
        f"device {peak['device']}: {bytes_text(peak['peak_allocated'])} allocated after event "
        f"{peak['peak_allocated_after']:,}, {bytes_text(peak['peak_reserved'])} reserved after event "
        f"{peak['peak_reserved_after']:,}"
        + (f"; out of memory {count_text(len(ooms), 'time')}, first at event {ooms[0]:,}" if ooms else "")
    )


def _marks(trace: Trace) -> list[str]:
    lines = [f"after event {mark.event:,}: {mark.name}" for mark in trace.marks[:MOST]]
    return lines + ([f"{len(trace.marks) - MOST} more"] if len(trace.marks) > MOST else [])


def _state_section(trace: Trace, state: MemoryState | None, device: int) -> Section:
    if state is None:
        return Section("The state in the end", ["there is no true one: the trace is inconsistent"])
    s, live = state, int((state.blocks["state"] != State.INACTIVE).sum())
    heading = f"The state after {s.event:,} of {count_text(len(trace), 'event')}, device {device}"
    lines = [
        f"reserved {bytes_text(s.reserved)}, active {bytes_text(s.active)}, allocated {bytes_text(s.allocated)}, "
        f"requested {bytes_text(s.requested)}",
        f"free within what is reserved: {bytes_text(s.reserved - s.active)}, the largest free block "
        f"{bytes_text(s.largest_free)}; empty_cache() would give back {bytes_text(s.releasable)}",
        f"{count_text(live, 'block')} in {count_text(len(s.segments), 'segment')}",
    ]
    owned = _by_owner(trace, s)
    if len(owned) > 1:
        lines += ["by owner:", *(f"  {name}: {bytes_text(size)}" for name, size in owned.items())]
    return Section(heading, lines)


def _by_owner(trace: Trace, state: MemoryState) -> dict[str, int]:
    live = state.blocks[state.blocks["state"] != State.INACTIVE]
    sizes = Counter[str]()
    for owner, size in zip(live["owner"].tolist(), live["size"].tolist(), strict=True):
        sizes[trace.owners[owner]] += size
    return dict(sizes.most_common())


def _state_figures(trace: Trace, state: MemoryState, device: int) -> dict[str, Any]:
    names = ("event", "allocated", "reserved", "active", "requested", "largest_free", "releasable")
    return {
        "device": device, **{name: int(getattr(state, name)) for name in names},
        "segments": len(state.segments), "by_owner": _by_owner(trace, state),
    }  # fmt: skip
