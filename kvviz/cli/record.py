"""kvviz record: somebody's script runs as under python itself, and what it did with memory is kept, however it ends."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import Any

from kvviz.cli.answer import Progress, check_trace_file, complain, say
from kvviz.cli.script import Script, on_import
from kvviz.cli.summary import busiest, failures
from kvviz.errors import InvalidRequest, KvvizError, TraceError
from kvviz.memory.record import Recording
from kvviz.memory.record import record as recording
from kvviz.memory.report import bytes_text, count_text
from kvviz.memory.trace import Trace

TROUBLE = 2


def record(args: argparse.Namespace) -> int:
    """Run args.theirs; returns the script's own exit code."""
    script = Script.of(args.theirs)
    out = args.out or _free_name(script.short_name)
    check_trace_file(out)
    run = recording(args.device, args.max_events, None if args.no_stacks else "python")
    with run, on_import("transformers.cache_utils", lambda: _watch(run)):
        with _terminated_like_interrupted():
            error, everything = script.run()
        with _uninterrupted():
            _name_weights(run)
    with _uninterrupted():  # a second Ctrl-C must not cost what was recorded
        code = script.tell(error)
        torch_ran_out = _is_out_of_memory(error)
        del error, everything
        progress = Progress()
        try:
            progress("making the trace of what was recorded")
            trace = run.trace
            progress(f"saving {out}")
            saved = _save(trace, out)
            progress.done()
        except (KvvizError, OSError) as problem:
            complain(f"nothing was saved: {problem}")
            return code or TROUBLE
        _tell_of_memory(trace, torch_ran_out)
        complain(
            f"{saved}: {count_text(len(trace), 'event')}, at most {bytes_text(trace.peak_allocated)} allocated and "
            f"{bytes_text(trace.peak_reserved)} reserved ({trace.origin})"
        )
    if args.diagnose:
        from kvviz.memory.diagnose import diagnose

        text = diagnose(trace, progress=progress).text
        progress.done()
        say(text)
    return code


def _free_name(stem: str) -> str:
    """stem.kvviz in this folder, or with a number: an earlier recording is not lost because the next one has no --out."""
    number, name = 1, f"{stem}.kvviz"
    while os.path.exists(name):
        number += 1
        name = f"{stem}-{number}.kvviz"
    return name


def _watch(run: Recording) -> None:
    """The recording knows the caches of transformers if that is imported already; a script imports it later."""
    recorder = run._recorder
    if recorder is not None:
        recorder.owners.watch_transformers()


def _name_weights(run: Recording) -> None:
    """The models of a script are made while it runs: those that are there in the end are named then."""
    from kvviz.memory.alive import modules_and_tensors, roots

    modules, _ = modules_and_tensors(collect=False)
    tensors = [p.data for root in roots(modules) for p in root.parameters()]
    with contextlib.suppress(InvalidRequest):  # none of them holds a tensor
        run.own(tensors, "weights")


@contextlib.contextmanager
def _handled(number: int, handler: Any) -> Iterator[None]:
    """A signal's handler for a while; only the main thread may set one."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def _uninterrupted() -> contextlib.AbstractContextManager[None]:
    return _handled(signal.SIGINT, signal.SIG_IGN)


@contextlib.contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """A job that is told to end (kill, timeout, a scheduler) ends as by sys.exit(143), so that its trace is saved."""

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    with _handled(signal.SIGTERM, end):
        yield


def _is_out_of_memory(error: BaseException | None) -> bool:
    import torch

    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "can't allocate memory" in str(error)


def _tell_of_memory(trace: Trace, torch_ran_out: bool) -> None:
    """One line about the last out of memory: where, and the sizes then."""
    places = [(event, device) for device in trace.devices for event in failures(trace, device)]
    if not places and not torch_ran_out:
        return
    event, device = max(places) if places else (len(trace), busiest(trace))
    s, e = trace.at(event, device), trace.events
    sizes = (
        f"allocated {bytes_text(s.allocated)}, reserved {bytes_text(s.reserved)}, of it free "
        f"{bytes_text(s.reserved - s.active)}, the largest free block {bytes_text(s.largest_free)}"
    )
    if not places:
        complain(f"out of memory, of which the trace has no event; at its end {sizes}")
        return
    more = f" (the last of {len(places):,})" if len(places) > 1 else ""
    complain(
        f"out of memory at event {event:,} of {len(trace):,}{more}: {bytes_text(int(e.size[event]))} asked for; then {sizes}; "
        f"the device had {bytes_text(int(e.address[event]))} left"
    )


def _save(trace: Trace, out: str, save: Callable[[Trace, str], None] = Trace.save) -> str:
    """Where it was saved: if `out` fails now (the disk is full, say), in the folder for temporary files."""
    try:
        save(trace, out)
        return out
    except (TraceError, OSError) as problem:
        why = problem.__cause__ if isinstance(problem, TraceError) else problem
        folder = tempfile.mkdtemp(prefix="kvviz-")
        saved = os.path.join(folder, os.path.basename(out))
        save(trace, saved)
        complain(f"{out} cannot be written any more ({getattr(why, 'strerror', None) or problem})")
        return saved
