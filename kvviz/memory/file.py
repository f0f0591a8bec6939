"""kvviz's own trace file: a zip of plain integer columns and one JSON text. Nothing in it can run when it is read.

Layout: about.json (names, marks, what each column is), then one member a column: little-endian integers, stored as
differences to the value before where `step` says so, less `low`, in the narrowest type that holds them.
"""

from __future__ import annotations

import json
import os
import zipfile
from dataclasses import fields
from typing import Any, BinaryIO

import numpy as np

from kvviz.errors import InconsistentTrace, TraceError
from kvviz.memory.check import LIMIT, path_of
from kvviz.memory.lifetimes import BlockSpans, Lifetimes, SegmentSpans
from kvviz.memory.snapshot import load_snapshot
from kvviz.memory.trace import COLUMNS, Action, Events, Mark, Trace

FORMAT, VERSION = "kvviz trace", 1
STAMP = (1980, 1, 1, 0, 0, 0)  # one fixed time, so that equal traces make equal files
MOST = 1 << 34  # bytes of one column
RATIO = 10_000  # LZMA packs a column of zeros about 7,000 to 1: more than this is no honest file
BLOCK_TYPES = {"address": "u8"}
SEGMENT_TYPES = {"address": "u8", "small": "?", "expandable": "?"}


def save(trace: Trace, path: str | os.PathLike) -> None:
    """Write `trace`; a file that is there already is replaced only once the new one is whole.

    Raises TraceError where it cannot be written.
    """
    path = path_of(path)
    columns = {f"events/{f.name}": getattr(trace.events, f.name) for f in fields(Events)}
    for device, lives in trace.entry.items():
        for part in ("blocks", "segments"):
            spans = getattr(lives, part)
            columns |= {f"entry/{device}/{part}/{f.name}": getattr(spans, f.name) for f in fields(spans)}
    partial = f"{path}.{os.getpid()}.part"
    try:
        with zipfile.ZipFile(partial, "w") as out:
            layout = {}
            for name, values in columns.items():
                data, layout[name] = _packed(values)
                out.writestr(_member(name), data, zipfile.ZIP_LZMA)
            about = {
                "format": FORMAT, "version": VERSION, "events": len(trace), "columns": layout,
                "devices": sorted(trace.entry), "marks": [list(mark) for mark in trace.marks],
                "owners": list(trace.owners), "stacks": list(trace.stacks), "origin": trace.origin,
                "warnings": list(trace.warnings), "about": trace.about,
            }  # fmt: skip
            out.writestr(_member("about.json"), json.dumps(about), zipfile.ZIP_DEFLATED)
        os.replace(partial, path)
    except OSError as problem:
        raise TraceError(f"the trace cannot be written to {path}: {problem.strerror}") from problem
    finally:
        if os.path.exists(partial):
            os.unlink(partial)


def load(path: str | os.PathLike) -> Trace:
    """Read a trace: a file that Trace.save() wrote, or a memory snapshot (torch.cuda.memory._dump_snapshot) of any torch
    since 2.0. Nothing in a file can run; reading takes time and memory in proportion to its length.

    What a reader of a snapshot must know stands in `warnings`; a snapshot whose blocks contradict its segments or its
    events loads with a warning that begins with "inconsistent", and at() of it raises InconsistentTrace.
    Raises TraceError in one line for any other file, FileNotFoundError and the like; no file is ever half read.
    """
    path = path_of(path)
    with open(path, "rb") as raw:  # a file that is not there is said plainly; all that follows is about what is in it
        beginning = raw.read(4)
        raw.seek(0)
        if beginning[:2] == b"PK":
            return _load_own(raw, path)
        if beginning[:1] != b"\x80":
            raise TraceError(
                f"{path}: neither a kvviz trace nor a memory snapshot of torch (a pickle of protocol 2 to 5)"
            )
        try:
            return load_snapshot(raw, os.path.basename(path))
        except Exception as problem:  # whatever a damaged file makes of the columns
            told = " ".join(str(problem).split())
            if isinstance(problem, TraceError):
                raise TraceError(f"{path}: {told}") from None
            raise TraceError(f"{path}: a damaged memory snapshot ({type(problem).__name__}: {told[:200]})") from None


def _load_own(raw: BinaryIO, path: str) -> Trace:
    try:
        with zipfile.ZipFile(raw) as file:
            _refuse_bombs(file, "about.json")
            about = json.loads(file.read("about.json"))
            _refuse_odd(about["about"])
            if about["format"] != FORMAT or about["version"] != VERSION:
                raise TraceError(f"{path}: not a kvviz trace of version {VERSION}")
            return _read(file, about)
    except Exception as problem:  # whatever a damaged file does to zip, JSON or numpy
        if isinstance(problem, TraceError):
            raise
        told = " ".join(str(problem).split())
        raise TraceError(f"{path}: not a readable kvviz trace ({type(problem).__name__}: {told})") from None


def _read(file: zipfile.ZipFile, about: dict[str, Any]) -> Trace:
    def column(name: str, dtype: str) -> np.ndarray:
        return _unpacked(file, name, about["columns"][name], dtype)

    n = int(about["events"])
    events = Events.of(n, **{name: column(f"events/{name}", dtype) for name, dtype in COLUMNS.items()})
    entry = {}
    for device in map(int, about["devices"]):
        blocks = {
            f.name: column(f"entry/{device}/blocks/{f.name}", BLOCK_TYPES.get(f.name, "i8")) for f in fields(BlockSpans)
        }
        segments = {
            f.name: column(f"entry/{device}/segments/{f.name}", SEGMENT_TYPES.get(f.name, "i8"))
            for f in fields(SegmentSpans)
        }
        entry[device] = Lifetimes(BlockSpans(**blocks), SegmentSpans(**segments))
    owners, stacks = [str(o) for o in about["owners"]], [str(s) for s in about["stacks"]]
    marks = [Mark(int(event), str(name)) for event, name in about["marks"]]
    for values, low, high in (
        (events.owner, 0, len(owners)), (events.stack, -1, len(stacks)), (events.action, 0, len(Action)),
        (np.array([mark.event for mark in marks]), 0, n + 1),
    ):  # fmt: skip
        if len(values) and (values.min() < low or values.max() >= high):
            raise InconsistentTrace("a column points outside its list")
    return Trace(
        events, entry, marks, owners, stacks, str(about["origin"]), [str(w) for w in about["warnings"]],
        dict(about["about"]),
    )  # fmt: skip


def _packed(values: np.ndarray) -> tuple[bytes, dict]:
    wide = values.astype("i8") if values.dtype != np.dtype("u8") else values.view("i8")
    steps = np.diff(wide, prepend=wide[:1])
    step = bool(len(wide)) and int(np.ptp(steps)) < int(np.ptp(wide)) // 4  # differences pay where values climb
    first = int(wide[0]) if step else 0
    wide = steps if step else wide
    low = int(wide.min()) if len(wide) else 0
    narrow = np.min_scalar_type(int(wide.max()) - low) if len(wide) else np.dtype("u1")
    data = (wide - low).astype(narrow.newbyteorder("<"))
    return data.tobytes(), {"type": data.dtype.str, "low": low, "step": step, "first": first, "length": len(wide)}


def _unpacked(file: zipfile.ZipFile, name: str, how: dict, dtype: str) -> np.ndarray:
    kind = np.dtype(str(how["type"]))
    if kind.kind not in "bu" or file.getinfo(name).file_size != int(how["length"]) * kind.itemsize:
        raise InconsistentTrace(f"column {name} is not as long as it says")
    _refuse_bombs(file, name)
    wide = np.frombuffer(file.read(name), kind).astype("i8") + int(how["low"])
    if how["step"]:
        wide[:1] = int(how["first"])
        wide = np.cumsum(wide)
    return wide.view("u8") if dtype == "u8" else wide.astype(dtype)


def _refuse_odd(about: Any) -> None:
    """What others compute with is of the type that they expect."""
    whole = {"capacity", "max_entries", "stopped_at", "cut"}
    for name, value in about.items() if isinstance(about, dict) else [("about", about)]:
        if name == "about" or (name in whole and value is not None and not (type(value) is int and 0 <= value < LIMIT)):
            raise TraceError(f"{name} is {str(value)[:40]!r}")
        if name in ("conf", "placement", "torch", "inconsistent") and not isinstance(value, (str, type(None))):
            raise TraceError(f"{name} is {str(value)[:40]!r}")
        if name == "tensors":
            pairs, graphs = value["shown"], value["graphs"]
            if type(graphs) is not int or not all(type(n) is int and 0 <= n < 1 << 64 for pair in pairs for n in pair):
                raise TraceError("tensors are not pairs of whole numbers")


def _refuse_bombs(file: zipfile.ZipFile, name: str) -> None:
    """What a member claims to hold is bounded by what lies there, before a byte of it is unpacked."""
    size, packed = file.getinfo(name).file_size, file.getinfo(name).compress_size
    if size > MOST or size > RATIO * (packed + 1):
        raise TraceError(f"{name} claims {size:,} B in {packed:,} B, more than kvviz reads")


def _member(name: str) -> zipfile.ZipInfo:
    return zipfile.ZipInfo(name, STAMP)
