"""diagnose(): why a run takes the memory it takes, in plain words with figures, and what would help, tried by replay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from kvviz.errors import InconsistentTrace, InvalidRequest, OutOfMemory
from kvviz.memory.check import traced
from kvviz.memory.diagnosis.faults import Case, faults, pool_of
from kvviz.memory.diagnosis.moment import Moment, failed_requests
from kvviz.memory.diagnosis.remedies import Progress, Tried, tried
from kvviz.memory.report import Finding, Report, Section, bytes_text, count_text
from kvviz.memory.trace import Trace

MOST = 5  # lines of one table


def diagnose(
    trace: Trace, device: int | None = None, settings: Sequence[str] | None = None, progress: Progress | None = None
) -> Report:
    """Why this run takes the memory it takes.

    findings: what is wrong, the weightiest first, each with its bytes (see diagnosis/faults.py); none for a run that has
    nothing of the kind. sections: the peak by owner and call site, reserved against allocated and what pins the
    difference, growth, transient peaks, the moment of an out of memory, the remedies that were tried by replaying this
    trace, and what the trace cannot say. figures: the numbers, for programs.

    device: None is the one with the highest reserved peak. settings: what to try of the allocator's, None for those in
    replay.SETTINGS_TO_TRY; with findings only. progress: called with a line before each long part of the work.
    """
    traced(trace)
    if isinstance(settings, str):
        settings = [settings]
    if settings is not None and not all(isinstance(conf, str) for conf in _listed(settings)):
        raise InvalidRequest(f"settings are strings such as 'expandable_segments:True', not {settings!r}")
    if progress is not None and not callable(progress):
        raise InvalidRequest(f"progress is called with a line of text: {progress!r} cannot be called")
    at = _busiest(trace) if device is None else device
    if at not in trace.devices:
        raise InvalidRequest(f"no device {device} in this trace; it has {trace.devices}")
    title = f"Diagnosis: {trace.origin}, {count_text(len(trace), 'event')}" + (
        f", device {at} of {trace.devices}" if len(trace.devices) > 1 else ""
    )
    case = Case(trace, at)
    try:
        moment = case.moment
    except InconsistentTrace as problem:
        return _inconsistent(title, trace, problem)
    found = faults(case)
    remedies, why_not = _tried(case, found, settings, progress)
    sections = [
        _peak(case), _reserved(moment), _growth(case), _transients(case), _out_of_memory(case),
        _remedies(remedies, why_not, found), _unknown(case),
    ]  # fmt: skip
    figures = _figures(case, remedies)
    return Report(title, found, f"No fault found. {_in_short(case)}", [s for s in sections if s.lines], figures)


def _listed(settings: Any) -> list[Any]:
    return list(settings) if isinstance(settings, (list, tuple, set, frozenset)) else [settings]


def _in_short(case: Case) -> str:
    curves, s = case.trace.curves(case.device), case.trace.at(-1, case.device)
    return (
        f"At most {bytes_text(int(curves.allocated.max()))} were allocated and {bytes_text(int(curves.reserved.max()))} "
        f"reserved; in the end {bytes_text(s.reserved - s.active)} of {bytes_text(s.reserved)} reserved are free, of which "
        f"empty_cache() would give back {bytes_text(s.releasable)}."
    )


def _busiest(trace: Trace) -> int:
    return max(trace.devices, key=lambda device: int(trace.curves(device).reserved.max()))


def _inconsistent(title: str, trace: Trace, problem: Exception) -> Report:
    text = (
        f"{trace.about.get('inconsistent') or problem}. No state of this trace is a true one, so nothing more is said of "
        "it. Record the run again, or dump the snapshot again."
    )
    return Report(title, [Finding("inconsistent trace", text, 0, "inconsistent")], sections=[_told(trace)])


def _tried(
    case: Case, found: list[Finding], settings: Sequence[str] | None, progress: Progress | None
) -> tuple[list[Tried], str]:
    """What was tried, or why nothing was."""
    if not found:
        return [], ""
    if len(case.trace) <= 1:
        return [], "nothing could be tried: the trace has no history to replay"
    try:
        return tried(case, settings, progress), ""
    except (InvalidRequest, OutOfMemory) as problem:
        return [], f"nothing could be tried: {problem}"


def _table(sizes: Counter[str]) -> list[str]:
    total = sum(sizes.values())
    ranked = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))
    lines = [f"{name}: {bytes_text(size)} ({size / max(1, total):.0%})" for name, size in ranked[:MOST]]
    rest = sum(size for _, size in ranked[MOST:])
    return lines + ([f"{len(ranked) - MOST} more: {bytes_text(rest)}"] if rest else [])


def _peak(case: Case) -> Section:
    curve = case.trace.curves(case.device).allocated
    peak = Moment(case.trace, int(np.argmax(curve)), case.device)
    lines = [f"{bytes_text(peak.state.allocated)} allocated at {peak.where}"]
    if len(owners := peak.by_owner()) > 1:
        lines += ["by owner:", *(f"  {line}" for line in _table(owners))]
    if len(case.trace.stacks):
        lines += ["by call site:", *(f"  {line}" for line in _table(peak.by_site()))]
    return Section("The peak", lines)


def _reserved(moment: Moment) -> Section:
    s = moment.state
    lines = [
        f"at {moment.where}: reserved {bytes_text(s.reserved)}, active {bytes_text(s.active)}, allocated "
        f"{bytes_text(s.allocated)}",
        f"free within what is reserved: {bytes_text(moment.free)}, the largest free block {bytes_text(s.largest_free)}",
        f"of it empty_cache() would give back {bytes_text(s.releasable)}; {bytes_text(moment.pinned)} are pinned",
    ]
    lines += [
        f"  pinned: {bytes_text(pin.free)} in {count_text(pin.segments, 'segment')}, by {count_text(pin.blocks, 'block')} "
        f"({bytes_text(pin.bytes)}) of {pin.whose}"
        for pin in moment.pins[:MOST]
    ]
    return Section("Reserved against allocated", lines)


def _growth(case: Case) -> Section:
    floors = case.steps.floors()
    if len(case.trace) == 0 or len(floors) < 3:
        return Section("Growth", [])
    change = int(floors[-1] - floors[0])
    lines = [
        f"the least allocated within a {case.steps.name} goes from {bytes_text(int(floors[0]))} to "
        f"{bytes_text(int(floors[-1]))} over {len(floors)}: "
        f"{'+' if change >= 0 else '−'}{bytes_text(abs(change) // (len(floors) - 1))} each on average"
    ]
    growing = [k for k in case.steps.kept(case.unseen) if case.material(k.bytes)]
    lines += [
        f"  left by finished steps and still there: {bytes_text(k.bytes)} of {k.name}, by {len(k.leaving)} of "
        f"{case.steps.counted(len(k.steps))}"
        for k in growing[:MOST]
    ]
    reserved = case.trace.curves(case.device).reserved
    if reserved.max() > reserved.min():
        lines.append(
            f"reserved goes from {bytes_text(int(reserved[0]))} to {bytes_text(int(reserved[-1]))}, at most "
            f"{bytes_text(int(reserved.max()))}"
        )
    return Section("Growth", lines)


def _transients(case: Case) -> Section:
    peak = int(np.argmax(case.trace.curves(case.device).allocated))
    found = case.steps.transients(peak, MOST)
    lines = [f"{bytes_text(size)} in {count_text(count, 'block')} of {name}" for name, count, size in found]
    return Section("In the peak, and gone shortly after", lines)


def _out_of_memory(case: Case) -> Section:
    if case.failed is None:
        return Section("At the out of memory", [])
    e, s = case.trace.events, case.moment.state
    left, request = int(e.address[case.failed]), int(e.size[case.failed])
    lines = [
        f"{bytes_text(request)} were asked for at {case.moment.where}; it happened "
        f"{count_text(len(failed_requests(case.trace, case.device)), 'time')} in this trace",
        f"then: allocated {bytes_text(s.allocated)}, reserved {bytes_text(s.reserved)}, of it free "
        f"{bytes_text(case.moment.free)}, the largest free block {pool_of(request)}"
        f"{bytes_text(case.moment.largest_for(request))}",
        f"the device had {bytes_text(left)} left",
    ]
    known = case.trace.about.get("capacity")
    outside = known - s.reserved - left if known and left else 0
    if outside > 0:
        lines.append(f"{bytes_text(outside)} of the device are outside of PyTorch's allocator")
    return Section("At the out of memory", lines)


def _remedies(remedies: list[Tried], why_not: str, found: list[Finding]) -> Section:
    if why_not:
        return Section("Remedies", [why_not])
    lines = [f"{'helps: ' if t.helps else ''}{t.name}: {t.text}" for t in remedies]
    return Section("Remedies, each tried by a replay of this trace", lines)


def _told(trace: Trace) -> Section:
    return Section("What this trace cannot say, or says with care", list(trace.warnings))


def _unknown(case: Case) -> Section:
    trace = case.trace
    lines = list(trace.warnings)
    if len(trace.owners) < 2:
        lines.append("whose a block is: a file names no owners; kvviz.record() does")
    if not trace.stacks and not any("frames" in line for line in lines):
        lines.append("where in the program a block was asked for: it was recorded without stacks")
    if case.shown is None and "served" in trace.about:
        lines.append("whether views or autograd keep memory alive: a replay has no tensors; diagnose the recording for that")
    elif case.shown is None:
        lines.append(
            "whether views or autograd keep memory alive: only a recording by kvviz.record() looks at the program's tensors"
        )
    if case.failed is None or not case.trace.about.get("capacity"):
        lines.append("memory outside of PyTorch's allocator (the CUDA context, other libraries and processes)")
    return Section("What this trace cannot say, or says with care", lines)


def _figures(case: Case, remedies: list[Tried]) -> dict[str, Any]:
    curves, s = case.trace.curves(case.device), case.moment.state
    return {
        "device": case.device,
        "events": len(case.trace),
        "peak_allocated": int(curves.allocated.max()),
        "peak_active": int(curves.active.max()),
        "peak_reserved": int(curves.reserved.max()),
        "out_of_memory_at": case.failed,
        "moment": {
            "event": case.moment.i, "allocated": s.allocated, "active": s.active, "reserved": s.reserved,
            "free": case.moment.free, "largest_free": s.largest_free, "releasable": s.releasable,
            "pinned": case.moment.pinned,
        },
        "tried": [
            {"name": t.name, "conf": t.conf, "helps": t.helps, "peak_reserved": t.peak_reserved, "text": t.text}
            for t in remedies
        ],
    }  # fmt: skip
