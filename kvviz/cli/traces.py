"""show, diagnose, compare and replay: what the commands about files answer."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from kvviz.cli.answer import Progress, answer, check_page, check_trace_file
from kvviz.cli.summary import busiest, first_failure, summary
from kvviz.errors import InvalidRequest
from kvviz.memory.file import load
from kvviz.memory.report import Finding, Report, bytes_text, count_text
from kvviz.memory.trace import Trace

FINE, FOUND = 0, 1


def show(args: argparse.Namespace) -> int:
    """What a trace is. Nothing to find: 0."""
    trace = _load(args.file, args)
    device = busiest(trace) if args.device is None else args.device
    report = summary(trace, device, args.at)

    def page() -> str:
        from kvviz.cli import page as pages

        start = None if args.at is None else report.figures["state"]["event"]
        return pages.page(report, pages.pictures(trace, device, start))

    answer(args, report, page)
    return FINE


def diagnose(args: argparse.Namespace) -> int:
    """1 where a fault is found."""
    from kvviz.memory.diagnose import diagnose as diagnosis

    _check_settings(args.setting)
    progress = Progress()
    trace = _load(args.file, args, progress=progress)
    device = busiest(trace) if args.device is None else args.device
    if args.capacity is not None:
        trace, device = _on(trace, args.capacity, device, progress)
    report = diagnosis(trace, device, args.setting, progress)
    progress.done()

    def page() -> str:
        from kvviz.cli import page as pages

        moment = report.figures.get("moment", {}).get("event")  # what most of the report is about
        return pages.page(report, pages.pictures(trace, device, moment))

    answer(args, report, page)
    return FOUND if report else FINE


def _on(trace: Trace, capacity: int, device: int, progress: Progress) -> tuple[Trace, int]:
    """The run as on a device of `capacity` bytes, and the number of the device there: where it does not fit, its replay
    to the out of memory."""
    from kvviz.memory.replay import replay as again

    progress(f"replay on a device of {bytes_text(capacity)}")
    replayed = again(trace, str(trace.about.get("conf") or ""), capacity, device)
    if replayed.about["stopped_at"] is not None:
        return replayed, replayed.devices[0]
    return replace(trace, about=trace.about | {"capacity": capacity}), device


def compare(args: argparse.Namespace) -> int:
    """1 where the runs differ."""
    from kvviz.memory.compare import compare as comparison

    a, b = (_load(path, args, args.a, args.b) for path in (args.a, args.b))
    device = busiest(a) if args.device is None else args.device
    report = comparison(a, b, device)

    def page() -> str:
        from kvviz.cli import page as pages

        return pages.page(report, pages.beside((f"the first, {args.a}", f"the second, {args.b}"), (a, b), device))

    answer(args, report, page)
    return FOUND if report else FINE


class Replayed(NamedTuple):
    """One setting. ran_out: the recorded event at which memory ran out, None where all requests were served."""

    name: str
    conf: str | None
    peak_reserved: int
    peak_allocated: int
    ran_out: int | None
    retries: int | None


def replay(args: argparse.Namespace) -> int:
    """1 where memory runs out under every setting."""
    from kvviz.memory.replay import SETTINGS_TO_TRY

    _check_settings(args.setting)
    if args.out is not None:
        if len(args.setting or ()) != 1:
            raise InvalidRequest("--out saves the replay of one setting: give one --setting")
        check_trace_file(args.out)
        if os.path.exists(args.out) and os.path.samefile(args.out, args.file):
            raise InvalidRequest(f"--out {args.out} is the recording itself: name another file")
    progress = Progress()
    trace = _load(args.file, args, progress=progress)
    device = busiest(trace) if args.device is None else args.device
    rows, best, troubles = _replays(trace, args.setting or SETTINGS_TO_TRY, args.capacity, device, progress)
    progress.done()
    if best is None:
        raise InvalidRequest(troubles[0])
    if args.out is not None:
        best.save(args.out)
    report, text = _told(trace, rows, troubles, device, args.capacity)

    def page() -> str:
        from kvviz.cli import page as pages

        best_name = rows[1].name
        drawn = pages.pictures(best, best.devices[0])
        return pages.page(report, [f"The pictures show the replay under {best_name}.", *drawn])

    answer(args, report, page, text)
    return FOUND if all(row.ran_out is not None for row in rows[1:]) else FINE


def _replays(
    trace: Trace, confs: list[str] | tuple[str, ...], capacity: int | None, device: int, progress: Callable[[str], None]
) -> tuple[list[Replayed], Trace | None, list[str]]:
    """The recorded run and its replays, the best first; the best one's trace; what could not be tried, and why."""
    from kvviz.memory.replay import replay as again

    curves = trace.curves(device)
    recorded = Replayed(
        "as recorded", None, int(curves.reserved.max()), int(curves.allocated.max()), first_failure(trace, device), None
    )
    rows, traces, troubles = [], {}, []
    for k, conf in enumerate(dict.fromkeys(confs), 1):
        name = conf or "the defaults"
        progress(f"replay {k} of {len(confs)}: {name}")
        try:
            run = again(trace, conf, capacity, device)
        except InvalidRequest as problem:
            troubles.append(f"{name}: {problem}")
            continue
        stopped, refused = run.about["stopped_at"], run.about["refused"]
        ran_out = stopped if stopped is not None else (refused[0] if refused else None)
        rows.append(Replayed(name, conf, run.peak_reserved, run.peak_allocated, ran_out, run.about["retries"]))
        if rows[-1] == min(rows, key=_rank):  # large traces: only the best one so far is kept
            traces = {conf: run}
    rows.sort(key=_rank)
    return [recorded, *rows], next(iter(traces.values()), None), troubles


def _rank(row: Replayed) -> tuple[float, int]:
    """Those that run on the longest, then those that reserve the least."""
    return (-float("inf") if row.ran_out is None else -row.ran_out), row.peak_reserved


def _told(
    trace: Trace, rows: list[Replayed], troubles: list[str], device: int, capacity: int | None
) -> tuple[Report, str]:
    """As a report, and as a text with a table."""
    size = capacity if capacity is not None else trace.about.get("capacity")
    place = f"a device of {bytes_text(size)}" if size else "a device without a limit"
    title = f"Replay: {trace.origin}, {count_text(len(trace), 'event')}, on {place}"
    cells = [("setting", "peak reserved", "peak allocated", "ran out at event")] + [
        (row.name, bytes_text(row.peak_reserved), bytes_text(row.peak_allocated),
         "–" if row.ran_out is None else f"{row.ran_out:,}")
        for row in rows
    ]  # fmt: skip
    widths = [max(len(line[k]) for line in cells) for k in range(4)]
    table = ["  ".join([line[0].ljust(widths[0]), *(line[k].rjust(widths[k]) for k in (1, 2, 3))]) for line in cells]
    findings = [
        Finding(
            line[0],
            f"peak reserved {line[1]}, peak allocated {line[2]}, "
            + ("runs to its end" if row.ran_out is None else f"out of memory at event {line[3]}"),
            row.peak_reserved,
        )
        for line, row in zip(cells[1:], rows, strict=True)
    ]
    figures = {
        "device": device,
        "capacity": size,
        "replays": [row._asdict() for row in rows[1:]],
        "recorded": rows[0]._asdict(),
        "not_tried": troubles,
    }
    return Report(title, findings, figures=figures), "\n".join([title, *table, *(f"not tried: {t}" for t in troubles)])


def _check_settings(settings: list[str] | None) -> None:
    """A setting that nobody knows is said before the work. Raises InvalidRequest."""
    from kvviz.memory.allocator import CachingAllocator

    for conf in settings or ():
        CachingAllocator(1 << 40, conf)


def _load(path: str, args: argparse.Namespace, *inputs: str, progress: Progress | None = None) -> Trace:
    """The trace at `path`; before that, a look whether the page that was asked for can be written."""
    check_page(args, *(inputs or (path,)))
    if progress:
        progress(f"reading {path}")
    return load(path)
