"""Remedies, each tried on this very trace: other settings of the allocator, and what the program could have let go."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from kvviz.errors import InvalidRequest
from kvviz.memory.diagnosis.faults import Case, pool_of
from kvviz.memory.diagnosis.moment import Moment, failed_requests
from kvviz.memory.lifetimes import BlockSpans, rows
from kvviz.memory.replay import SETTINGS_TO_TRY, replay
from kvviz.memory.report import bytes_text
from kvviz.memory.trace import COLUMNS, Action, Events, Trace

NOTICEABLE = 0.05  # of the reserved peak: a smaller fall is no help
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Tried:
    """One remedy, replayed. `helps`: the request that failed fits, or the reserved peak falls. `conf` is None for what
    the program itself would have to do."""

    name: str
    conf: str | None
    helps: bool
    text: str
    peak_reserved: int
    stopped_at: int | None


def tried(case: Case, settings: Sequence[str] | None = None, progress: Progress | None = None) -> list[Tried]:
    """Every remedy that can be tried, those that help first. Raises InvalidRequest where no replay is possible."""
    recorded = str(case.trace.about.get("conf") or "")
    confs = list(dict.fromkeys([recorded, *(SETTINGS_TO_TRY if settings is None else settings)]))
    edits = list(_edits(case))
    count = len(confs) + len(edits)

    def run(trace: Trace, conf: str, k: int, name: str) -> Trace:
        if progress:
            progress(f"replay {k} of {count}: {name}")
        return replay(trace, conf, case.capacity, case.device)

    base = run(case.trace, recorded, 1, "the recorded settings")
    faithful = case.failed is None or (base.about["stopped_at"] is None and base.about["refused"][:1] == [case.failed])
    found = [_judge(case, base, base, f"as recorded ({recorded or 'the defaults'})", recorded)]
    for k, conf in enumerate(confs[1:], 2):
        name = conf or "the default settings"
        try:
            found.append(_judge(case, run(case.trace, conf, k, name), base, name, conf))
        except InvalidRequest as problem:
            found.append(Tried(name, conf, False, f"cannot be tried: {problem}", 0, None))
    for k, (name, edited) in enumerate(edits, len(confs) + 1):
        found.append(_judge(case, run(edited, recorded, k, name), base, name, None))
    if not faithful:  # then no replay says anything about the recording's end
        first = replace(found[0], text=f"{found[0].text}, where the recording failed at {case.failed:,}: no remedy is judged")
        found = [first, *(replace(t, helps=False) for t in found[1:])]
    return found[:1] + sorted(found[1:], key=lambda t: (not t.helps, t.stopped_at is not None, t.peak_reserved))


def _judge(case: Case, again: Trace, base: Trace, name: str, conf: str | None) -> Tried:
    peak, before = (int(t.curves().reserved.max()) for t in (again, base))
    stopped = again.about["stopped_at"]
    if stopped is not None:
        text = f"memory runs out at event {stopped:,} already"
        return Tried(name, conf, False, text, peak, stopped)
    if case.failed is not None:
        fits = not again.about["refused"]
        if fits and again is not base:
            text = (
                f"the request that failed fits, with at most {bytes_text(peak)} reserved; what the program would have done "
                "then is not in the trace"
            )
        elif fits:
            text = f"the model serves the request that failed, with at most {bytes_text(peak)} reserved: it is not exact here"
        else:
            event = int(failed_requests(again, 0)[0])  # a replay's device is always 0
            then, request = Moment(again, event, 0), int(again.events.size[event])
            text = (
                f"{'no help: ' if again is not base else ''}the request fails, with "
                f"{bytes_text(then.free)} reserved and free, the largest free block {pool_of(request)}"
                f"{bytes_text(then.largest_for(request))}"
            )
        return Tried(name, conf, fits and again is not base, text, peak, None)
    if again is base:
        return Tried(name, conf, False, f"peak reserved is {bytes_text(peak)}", peak, None)
    helps = before - peak >= NOTICEABLE * before
    if peak == before:
        change = f"no help: peak reserved stays at {bytes_text(before)}"
    elif helps:
        change = f"peak reserved falls from {bytes_text(before)} to {bytes_text(peak)}"
    else:
        change = f"{'little' if peak < before else 'no'} help: peak reserved goes from {bytes_text(before)} to {bytes_text(peak)}"
    return Tried(name, conf, helps, change, peak, None)


def _edits(case: Case) -> Iterator[tuple[str, Trace]]:
    """(name, trace) of what the program could have done: let go, as each step ends, of what the step left behind."""
    for kept in case.kept:
        yield (
            f"“{kept.name}” let go when its step ends",
            freed_after_steps(case.trace, kept.blocks, case.steps.edges, case.device),
        )
    if case.unseen.any() and case.material(int(case.trace.lifetimes(case.device).blocks.size[case.unseen].sum())):
        blocks = rows(case.trace.lifetimes(case.device).blocks, np.flatnonzero(case.unseen))
        yield "no graph beyond a step", freed_after_steps(case.trace, blocks, case.steps.edges, case.device)


def freed_after_steps(trace: Trace, blocks: BlockSpans, edges: np.ndarray, device: int = 0) -> Trace:
    """The trace with a free of each of these blocks, which live to its end, where the step of their birth ends.

    For replays only: its segments are still the recorded ones.
    """
    step = np.searchsorted(edges, blocks.born, side="right") - 1
    at = edges[np.minimum(step + 1, len(edges) - 1)]
    order = np.argsort(at, kind="stable")
    at = at[order]
    places = np.repeat(at, 2)  # the free is requested, then completed
    extra = {name: np.zeros(len(places), dtype) for name, dtype in COLUMNS.items()}
    for name in ("address", "size", "requested", "stream", "owner", "stack"):
        extra[name] = np.repeat(getattr(blocks, name)[order], 2).astype(COLUMNS[name])
    extra["action"] = np.tile([Action.FREE_REQUESTED, Action.FREE_COMPLETED], len(at)).astype("u1")
    extra["device"] += device
    times = np.concatenate([[0], trace.events.time_us])
    extra["time_us"] = times[places]
    columns = {f.name: np.insert(getattr(trace.events, f.name), places, extra[f.name]) for f in fields(Events)}
    marks = [mark._replace(event=mark.event + 2 * int(np.searchsorted(at, mark.event))) for mark in trace.marks]
    return replace(trace, events=Events(**columns), marks=marks)
