"""A snapshot's lists of dicts as columns: the final segments with their blocks, and the events. Every value is checked.

Nothing here knows what events mean; unknown keys are not looked at, unknown actions are only counted.
"""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import Any

import numpy as np

from kvviz.errors import TraceError
from kvviz.memory.snapshot_runs import Cut
from kvviz.memory.snapshot_stacks import Stacks
from kvviz.memory.state import State
from kvviz.memory.trace import Action

MOST = 1 << 62  # bytes: a size, or a sum of sizes, beyond this does not fit the columns of a trace
ANNOTATE, UNKNOWN = 100, 255
CODES = {action.name.lower(): int(action) for action in Action} | {"annotate": ANNOTATE, "user_defined": ANNOTATE}
STATES = {
    "active_allocated": State.ALLOCATED, "active_awaiting_free": State.AWAITING_FREE,
    "active_pending_free": State.AWAITING_FREE, "inactive": State.INACTIVE,
}  # fmt: skip
_FOUR = itemgetter("addr", "size", "stream", "time_us")
PLACED = int(Action.SEGMENT_UNMAP)  # actions up to this one are about a range of addresses


class Budget:
    """Of how many things a snapshot may consist. A list can be named many times in a pickle: a file of a kilobyte could
    otherwise describe millions of events, and one of a megabyte more than any memory holds."""

    def __init__(self, things: int):
        self.left = things

    def spend(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise TraceError(
                "it names the same lists over and over: more events and blocks than a file of its length holds"
            )


@dataclass(frozen=True)
class Dump:
    """What lived when the snapshot was taken: columns for its segments, and for their blocks, on all devices.

    `home`: the index of a block's segment. `states`: as State. Bytes; `stream` are the handles as recorded.
    """

    device: np.ndarray
    address: np.ndarray
    size: np.ndarray
    stream: np.ndarray
    small: np.ndarray
    expandable: np.ndarray
    pool: list[tuple]
    block_home: np.ndarray
    block_address: np.ndarray
    block_size: np.ndarray
    block_requested: np.ndarray
    block_state: np.ndarray
    block_stack: np.ndarray
    placed: bool  # whether blocks carry addresses (since torch 2.1); otherwise they were laid out one after the other
    tiles: bool  # whether the blocks fill their segments exactly, in order


@dataclass(frozen=True)
class History:
    """One device's events as recorded, known actions only. `size` is what the file says: requested, for blocks."""

    action: np.ndarray
    address: np.ndarray
    size: np.ndarray
    stream: np.ndarray
    time: np.ndarray | None
    stack: np.ndarray
    notes: list[tuple[int, str]]  # annotate: (how many of the events came before, the text)
    unknown: Counter

    def __len__(self) -> int:
        return len(self.action)

    def part(self, rows: slice) -> History:
        """Some of the events, where there are no notes among them."""
        time = None if self.time is None else self.time[rows]
        columns = (self.action[rows], self.address[rows], self.size[rows], self.stream[rows], time, self.stack[rows])
        return History(*columns, [], Counter())


def joined(parts: list[History]) -> History:
    """One after the other."""
    columns = {name: np.concatenate([getattr(part, name) for part in parts])
               for name in ("action", "address", "size", "stream", "stack")}  # fmt: skip
    times = [part.time for part in parts if part.time is not None]
    notes, before = [], 0
    for part in parts:
        notes += [(before + count, text) for count, text in part.notes]
        before += len(part)
    return History(
        **columns, time=np.concatenate(times) if len(times) == len(parts) else None, notes=notes,
        unknown=sum((part.unknown for part in parts), Counter()),
    )  # fmt: skip


def integers(values: list, what: str, signed: bool = False) -> np.ndarray:
    """A list of int as u8 or i8. Raises TraceError for anything else in it."""
    try:
        return np.frombuffer(array("q" if signed else "Q", values), "i8" if signed else "u8")
    except (TypeError, OverflowError):
        for k, value in enumerate(values):
            if type(value) is not int:
                raise TraceError(f"{what} of entry {k:,} is {_kind(value)}, not a whole number") from None
        raise TraceError(f"{what}: a number that is negative or does not fit 64 bits") from None


def sizes(values: list, what: str) -> np.ndarray:
    """Numbers of bytes, as i8."""
    return fit(integers(values, what), what).astype("i8")


def fit(column: np.ndarray, what: str) -> np.ndarray:
    """The column, if it and its sum can be bytes. Raises TraceError."""
    if len(column) and (int(column.max()) >= MOST or float(column.sum(dtype="f8")) >= MOST):
        raise TraceError(f"{what}: more bytes than 64 bits can count")
    return column


def within_64_bits(address: np.ndarray, size: np.ndarray, what: str) -> None:
    """Raise TraceError where a range reaches beyond the last address."""
    if np.any(size.astype("u8") > np.uint64(2**64 - 1) - address):
        raise TraceError(f"{what}: a range of addresses reaches beyond 64 bits")


def rows_of(thing: Any, what: str) -> list:
    """A list whose entries are all dicts. Raises TraceError."""
    if type(thing) not in (list, tuple):
        raise TraceError(f"{what} is {_kind(thing)}, not a list")
    if not set(map(type, thing)) <= {dict}:
        raise TraceError(f"{what} holds something that is not a dict")
    return thing


def read_dump(segments: Any, stacks: Stacks, budget: Budget) -> Dump:
    """The key `segments` of a snapshot. Raises TraceError."""
    segments = rows_of(segments, "segments")
    budget.spend(len(segments))
    columns: dict[str, list] = {
        name: [] for name in ("device", "address", "size", "stream", "small", "expandable", "pool")
    }
    homes: list[int] = []
    blocks: list[dict] = []
    for k, segment in enumerate(segments):
        try:
            address, inside = segment["address"], segment["blocks"]
            size = segment["total_size"]
        except KeyError as missing:
            raise TraceError(f"segment {k} has no {missing}") from None
        budget.spend(len(inside) if type(inside) is list else 0)
        inside = rows_of(inside, f"blocks of segment {k}")
        pool = segment.get("segment_pool_id") or (0, 0)
        if type(pool) not in (list, tuple) or len(pool) != 2 or not set(map(type, pool)) <= {int}:
            raise TraceError(f"segment_pool_id of segment {k} is not a pair of numbers")
        for name, value in (
            ("device", segment.get("device", 0)), ("address", address), ("size", size),
            ("stream", segment.get("stream", 0)), ("small", segment.get("segment_type") == "small"),
            ("expandable", segment.get("is_expandable") is True), ("pool", tuple(pool)),
        ):  # fmt: skip
            columns[name].append(value)
        homes.extend([k] * len(inside))
        blocks.extend(inside)
    try:
        state = bytes([STATES[block["state"]] for block in blocks])
        size = sizes([block["size"] for block in blocks], "size of blocks")
    except (KeyError, TypeError):
        raise TraceError("a block lacks its size, or its state is none that is known") from None
    requested = sizes([block.get("requested_size", block["size"]) for block in blocks], "requested_size of blocks")
    device = integers(columns["device"], "device of segments")
    if len(device) and int(device.max()) > 4095:
        raise TraceError(f"device {int(device.max()):,}: too large a number")
    home, starts = np.array(homes, "i8"), integers(columns["address"], "address of segments")
    totals = sizes(columns["size"], "total_size of segments")
    within_64_bits(starts, totals, "segments")
    before = np.cumsum(size) - size
    first = np.searchsorted(home, np.arange(len(starts)))
    laid = starts[home] + (before - before[np.minimum(first, max(len(before) - 1, 0))][home]).astype("u8")
    placed = all("address" in block for block in blocks)
    at = integers([block["address"] for block in blocks], "address of blocks") if placed else laid
    within_64_bits(at, size, "blocks")
    lies = placed and bool(blocks)
    filled = np.bincount(home, size, len(starts)) if len(home) else np.zeros(len(starts))
    tiles = np.array_equal(laid, at) and np.array_equal(filled, totals) and _apart(device, starts, totals)
    return Dump(
        device.astype("i2"), starts, totals, handles(columns["stream"], "stream of segments"),
        np.array(columns["small"], "?"), np.array(columns["expandable"], "?"), columns["pool"],
        home, at, size, requested, np.frombuffer(state, "u1"), stacks.column([_frames_of(block) for block in blocks]),
        lies, tiles,
    )  # fmt: skip


def _apart(device: np.ndarray, start: np.ndarray, size: np.ndarray) -> bool:
    """Whether no two segments of a device overlap."""
    order = np.lexsort((start, device))
    start, stop, device = start[order], (start + size.astype("u8"))[order], device[order]
    return not bool(np.any((start[1:] < stop[:-1]) & (device[1:] == device[:-1])))


def _frames_of(block: dict) -> Any:
    """A block's frames; torch 2.0 kept them in its history, the newest first."""
    if "frames" in block or "history" not in block:
        return block.get("frames")
    history = block["history"]
    if type(history) is not list or not history or type(history[0]) is not dict:
        return None
    return history[0].get("frames")


def handles(values: list, what: str) -> np.ndarray:
    """Stream handles: any 64 bits, signed or not, as u8."""
    try:
        return np.frombuffer(array("Q", values), "u8")
    except OverflowError:
        return integers(values, what, signed=True).view("u8")
    except TypeError:
        return integers(values, what)


def cut_history(cut: Cut, stacks: Stacks) -> History:
    """All runs that were cut out of the pickle, one after the other. Raises TraceError, Unsure."""
    runs = cut.runs
    action = cut.actions({name: code for name, code in CODES.items() if code <= PLACED})
    within_64_bits(runs.address, fit(runs.size, "size in device_traces"), "device_traces")
    lists, which = cut.stacks()
    lines = np.append(stacks.column(lists), np.int32(-1))  # the last for those without frames
    return History(action, runs.address, runs.size, runs.stream, runs.time, lines[which], [], Counter())


def read_history(
    events: Any, device: int, stacks: Stacks, budget: Budget, cut: Cut | None = None, runs: History | None = None
) -> History:
    """One list of the key `device_traces`. cut, runs: where texts in it stand for events that were cut out.

    Raises TraceError, Unsure.
    """
    what = f"device_traces[{device}]"
    if type(events) is not list:
        raise TraceError(f"{what} is {_kind(events)}, not a list")
    if cut is None or runs is None:
        return _read_events(events, what, stacks, budget)
    parts: list[History] = []
    rest: list = []
    for thing in events:
        if type(thing) is not str:
            rest.append(thing)
            continue
        parts += [_read_events(rest, what, stacks, budget), runs.part(cut.rows_of(thing))]
        budget.spend(len(parts[-1]))
        rest = []
    return joined([*parts, _read_events(rest, what, stacks, budget)])


def _read_events(events: list, what: str, stacks: Stacks, budget: Budget) -> History:
    budget.spend(len(events))
    unknown: Counter = Counter()
    try:
        action = np.frombuffer(bytes([CODES[event["action"]] for event in events]), "u1")
    except KeyError:
        names = [event.get("action") for event in rows_of(events, what)]
        if not set(map(type, names)) <= {str}:
            raise TraceError(f"{what}: an event without an action") from None
        action = np.frombuffer(bytes([CODES.get(name, UNKNOWN) for name in names]), "u1")
        unknown = Counter(name[:40] for name in names if name not in CODES)
    except TypeError:  # of all plain data only a dict has a key "action"
        raise TraceError(f"{what} holds something that is not a dict, or an action that is not text") from None
    notes: list[tuple[int, str]] = []
    kept = action <= max(Action)
    if not kept.all():
        so_far = np.cumsum(kept)
        for k in np.flatnonzero(action == ANNOTATE).tolist():
            text = events[k].get("user_metadata")
            notes.append((int(so_far[k]), text[:200] if type(text) is str and text else "annotation"))
        events = [events[k] for k in np.flatnonzero(kept).tolist()]
        action = action[kept]
    places = action <= PLACED
    address, size, stream, time = _numbers(events, places, what)
    within_64_bits(address[places], fit(size, f"size in {what}")[places], what)
    timed = not len(time) or int(time.view("i8").min()) >= 0
    return History(
        action,
        address,
        size.astype("i8"),
        stream,
        time.view("i8") if timed else None,
        stacks.of_events(events),
        notes,
        unknown,
    )


def _numbers(events: list[dict], places: np.ndarray, what: str) -> tuple[np.ndarray, ...]:
    """Address, size, stream handle and time of each event, as u8; a time that is not there is -1."""
    try:  # all at once where all of them have all four, as since torch 2.4
        flat = np.frombuffer(array("Q", list(chain.from_iterable(map(_FOUR, events)))), "u8").reshape(-1, 4)
        return tuple(np.ascontiguousarray(flat[:, k]) for k in range(4))
    except (KeyError, TypeError, OverflowError):
        pass
    return (
        integers(_values(events, "addr", places, what, other="device_free"), f"addr in {what}"),
        integers(_values(events, "size", places, what), f"size in {what}"),
        handles(_values(events, "stream", None, what), f"stream in {what}"),
        integers(_values(events, "time_us", None, what, default=-1), f"time_us in {what}", signed=True).view("u8"),
    )


def _values(
    events: list[dict], name: str, needed: np.ndarray | None, what: str, default: int = 0, other: str = ""
) -> list:
    """One key of all events, with `other` and then `default` where it is not there; where it is `needed`, that is an
    error. An event of out of memory has `device_free` instead of an address: it is kept in its place.
    """
    try:
        return [event[name] for event in events]
    except KeyError:
        pass
    values = [event.get(name, event.get(other, default)) for event in events]
    if needed is not None:
        for k in np.flatnonzero(needed).tolist():
            if name not in events[k]:
                raise TraceError(f"{what}: an event without {name!r}")
    return values


def _kind(value: object) -> str:
    return "nothing" if value is None else f"of type {type(value).__name__}"
