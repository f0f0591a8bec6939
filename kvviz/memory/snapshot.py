"""Memory snapshots, torch.cuda.memory._dump_snapshot(file) of every torch since 2.0, as a Trace.

The file is read without trust (unpickle.py), its lists become checked columns (snapshot_columns.py), the sizes of blocks
and what lived before the history are worked out (backward.py). Here it is put together, and said what a reader must know.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Any, BinaryIO

import numpy as np

from kvviz.errors import TraceError
from kvviz.memory.backward import Findings, complete
from kvviz.memory.settings import Settings
from kvviz.memory.snapshot_about import annotations_of, generation, recorded_settings
from kvviz.memory.snapshot_columns import Budget, Dump, History, cut_history, read_dump, read_history
from kvviz.memory.snapshot_runs import Cut, Unsure, find
from kvviz.memory.snapshot_stacks import Stacks
from kvviz.memory.state import State
from kvviz.memory.trace import Events, Mark, Trace
from kvviz.memory.unpickle import collection_paused, read_plain

KNOWN_KEYS = {"segments", "device_traces", "allocator_settings", "external_annotations", "host_segments", "host_traces"}
FEWEST_BYTES = 8  # of one event or block in a pickle
DEVICES = 256


def load_snapshot(file: BinaryIO, name: str) -> Trace:
    """The trace in an open snapshot file. Raises TraceError."""
    with collection_paused():
        most = file.seek(0, 2) // FEWEST_BYTES
        held = [find(file)]
        if held[0] is not None:
            with suppress(TraceError, Unsure):  # what is wrong with it, the long way finds and says
                return _from_runs(held, name, most)
        file.seek(0)
        return from_snapshot([read_plain(file.read())], name, most)


def _from_runs(held: list, name: str, most: int) -> Trace:
    """Of the runs in `held`, which is emptied. Raises TraceError, Unsure."""
    runs = held.pop()
    rest = read_plain(runs.pickle)
    runs = runs._replace(pickle=b"")
    if type(rest) is not list or len(rest) != 2 or type(rest[1]) is not list or len(rest[1]) != len(runs.asked):
        raise Unsure
    return from_snapshot([rest[0]], name, most, Cut(runs, rest[1]))


def from_snapshot(held: list, name: str, most: int = 1 << 62, cut: Cut | None = None) -> Trace:
    """`held`: a list with the snapshot, a dict, as its only entry. It is emptied, so that what is no longer needed can go
    before the columns grow. `most`: how many events and blocks there can be. `cut`: the events that are not in it."""
    snapshot = held.pop()
    if type(snapshot) is list and snapshot and type(snapshot[0]) is dict and "total_size" in snapshot[0]:
        snapshot = {"segments": snapshot}  # of torch.cuda.memory_snapshot(): segments alone
    if type(snapshot) is not dict or type(snapshot.get("segments")) is not list:
        raise TraceError("plain data, but no memory snapshot: it has no list of segments")
    stacks, budget = Stacks(), Budget(most)
    told: list[str] = []
    dump = read_dump(snapshot["segments"], stacks, budget)
    conf, settings, overflow, most_entries, notes = recorded_settings(snapshot.get("allocator_settings"))
    told += notes
    about: dict[str, Any] = {"torch": generation(snapshot, dump.placed), "conf": conf, "capacity": None}
    about["max_entries"] = most_entries
    traces = snapshot.get("device_traces") or []
    if type(traces) is not list or len(traces) > DEVICES:
        raise TraceError(f"device_traces is no list of at most {DEVICES} lists")
    runs = None if cut is None else cut_history(cut, stacks)
    histories = [read_history(events, device, stacks, budget, cut, runs) for device, events in enumerate(traces)]
    if cut is not None:
        cut.finish()
    spans, odd = annotations_of(snapshot.get("external_annotations"), budget)
    unknown = sorted(str(key)[:40] for key in set(snapshot) - KNOWN_KEYS)
    host = len(snapshot.get("host_segments") or ()) if type(snapshot.get("host_segments")) is list else 0
    del snapshot, traces
    if unknown:
        told.append(f"{len(unknown)} unknown parts of the file were ignored: {', '.join(unknown[:5])}")
    if host:
        told.append(f"{host:,} segments of pinned host memory are not shown")
    return _put_together(dump, histories, settings, stacks, about, told, spans, odd, overflow, name)


def _put_together(
    dump: Dump, histories: list[History], settings: Settings, stacks: Stacks, about: dict, told: list[str],
    spans: list[tuple[int, str]], odd: Counter, overflow: bool, name: str,
) -> Trace:  # fmt: skip
    streams = _stream_handles(histories, dump)
    about["streams"] = [int(handle) for handle in streams]
    devices = sorted({k for k, h in enumerate(histories) if len(h)} | set(np.unique(dump.device).tolist()))
    dump_stream = _small_numbers(dump.stream, streams)
    parts: list[dict[str, np.ndarray]] = []
    entry, found = {}, {}
    for device in devices:
        history = histories[device] if device < len(histories) else None
        if history is None:
            history = read_history([], device, stacks, Budget(0))
        small = _small_numbers(history.stream, streams)
        findings = found[device] = complete(history, dump, device, small, dump_stream, settings)
        entry[device] = findings.entry
        parts.append(
            {
                "action": history.action, "address": history.address, "size": findings.size,
                "requested": findings.requested, "stream": small, "device": np.full(len(history), device, "i2"),
                "time_us": np.zeros(len(history), "i8") if history.time is None else history.time, "stack": history.stack,
            }
        )  # fmt: skip
    timed = all(h.time is not None for h in histories if len(h))
    events, order = _merged(parts, timed)
    marks = _marks(histories, devices, events, order, spans, timed and len(events) > 0, odd)
    _tell(dump, histories, found, stacks, overflow, about, told, timed, len(spans), odd)
    return Trace(events, entry, marks, ("other",), stacks.texts, f"file {name}", told, about)


def _stream_handles(histories: list[History], dump: Dump) -> np.ndarray:
    """The default stream, then the others in order of appearance."""
    handles = [np.zeros(1, "u8")]
    for column in [*(h.stream for h in histories), dump.stream]:
        if column.any():
            distinct, first = np.unique(column, return_index=True)
            handles.append(distinct[np.argsort(first)])
    together = np.concatenate(handles)
    distinct, first = np.unique(together, return_index=True)
    return distinct[np.argsort(first)]


def _small_numbers(column: np.ndarray, streams: np.ndarray) -> np.ndarray:
    if len(streams) == 1:
        return np.zeros(len(column), "i4")
    order = np.argsort(streams)
    return order[np.searchsorted(streams[order], column)].astype("i4")


def _merged(parts: list[dict[str, np.ndarray]], timed: bool) -> tuple[Events, np.ndarray]:
    """All devices' events in order of time; without times one device after the other. And, for each event of the
    devices one after the other, its place."""
    if not parts:
        return Events.of(0), np.zeros(0, "i8")
    columns = (
        {name: np.concatenate([part[name] for part in parts]) for name in parts[0]} if len(parts) > 1 else parts[0]
    )
    count = len(columns["action"])
    place = np.arange(count)
    if len(parts) > 1 and timed:
        # a clock may step back; within a device the order of the file is the truth
        order = np.argsort(np.concatenate([np.maximum.accumulate(part["time_us"]) for part in parts]), kind="stable")
        columns = {name: values[order] for name, values in columns.items()}
        place[order] = np.arange(count)
    return Events.of(count, **columns), place


def _marks(
    histories: list[History], devices: list[int], events: Events, place: np.ndarray, spans: list[tuple[int, str]],
    timed: bool, odd: Counter,
) -> list[Mark]:  # fmt: skip
    """Annotations of memory stand among the events; those of the profiler have a time only."""
    marks, before = [], 0
    for device in devices:
        history = histories[device] if device < len(histories) else None
        if history is None:
            continue
        for count, text in history.notes:
            marks.append(Mark(int(place[before + count - 1]) + 1 if count else 0, text))
        before += len(history)
    if spans and timed:
        clock = np.maximum.accumulate(events.time_us)
        at = np.searchsorted(clock, np.array([time for time, _ in spans], "i8"), "left")
        marks += [Mark(int(k), text) for k, (_, text) in zip(at, spans, strict=True)]
    elif spans:
        odd["without a place, since events have no time"] += len(spans)
    return sorted(marks, key=lambda mark: mark.event)


def _tell(
    dump: Dump, histories: list[History], found: dict[int, Findings], stacks: Stacks, overflow: bool, about: dict,
    told: list[str], timed: bool, spans: int, odd: Counter,
) -> None:  # fmt: skip
    """Fill `told`, the trace's warnings, and say in `about` whether the trace is exact, or inconsistent and why."""

    def total(name: str) -> int:
        return sum(getattr(f, name) for f in found.values())

    events = sum(len(h) for h in histories)
    problems = [] if dump.tiles else ["blocks do not tile their segments"]
    problems += [problem for f in found.values() for problem in f.problems]
    living, freed, lone, resized = (total(n) for n in ("living_ghosts", "freed_ghosts", "lone_frees", "resized"))
    old = sum(len(f.entry.segments) for f in found.values())
    full = overflow or (about["max_entries"] is not None and any(0 < about["max_entries"] <= len(h) for h in histories))
    about["exact"] = not (problems or living or freed or lone or resized or old or full) and events > 0
    if problems:
        about["inconsistent"] = "; ".join(problems)
        told.insert(0, f"inconsistent: {about['inconsistent']}")
    if not events:
        told.append("no history was recorded: only the final state is known")
    elif full or living or freed or old:
        why = "the history is as long as it could get" if full else "recording began late"
        told.append(
            f"history starts mid-run ({why}): {living + freed:,} blocks and {old:,} segments are older than it"
            + (f"; the sizes of {freed:,} of these blocks follow from their requests" if freed else "")
        )
    if lone:
        told.append(f"{lone:,} frees of unknown blocks were ignored")
    if resized:
        told.append(f"{resized:,} living blocks have another size than their requests and settings give")
    stale = int(np.count_nonzero(dump.block_requested[dump.block_state == State.INACTIVE]))
    if stale:
        told.append(f"{stale:,} cached blocks still carry the size of an older request, which does not count")
    given = sum(int(np.count_nonzero(h.action == 4)) for h in histories)
    taken = sum(int(np.count_nonzero(h.action == 3)) for h in histories)
    if given > taken:
        told.append(f"{given:,} segments are given back and {taken:,} taken: the others are older than the history")
    unknown = sum((h.unknown for h in histories), Counter())
    if unknown:
        names = ", ".join(sorted(unknown)[:5])
        told.append(f"{sum(unknown.values()):,} events of {len(unknown)} unknown kinds were ignored: {names}")
    if events and not timed:
        told.append("events have no time stamps")
    if events and not stacks.texts:
        told.append("no frames were recorded")
    private = len({pool for pool in dump.pool if any(pool)})
    if private:
        count = sum(any(pool) for pool in dump.pool)
        told.append(f"{count:,} segments belong to {private} private pools")
        about["private_pools"] = private
    if not dump.placed and len(dump.block_size):
        told.append("blocks have no addresses (torch 2.0): laid one after the other in their segments")
    if len(found) > 1:
        told.append(f"{len(found)} devices: {', '.join(map(str, found))}")
    for what, count in odd.items():
        told.append(f"{count:,} annotations {what}")
