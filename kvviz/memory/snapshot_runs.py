"""Runs of events straight from the bytes of a pickle to columns, where they all have one form: no object an event.

A snapshot of a million events is a million dicts of the same keys in the same order, one behind the other. Such a run is
cut out of the pickle, and a text stands in its place (in the memo too, as often as the run put things there, so that all
numbers in the rest still mean the same). The rest is read as ever, and what the runs refer to in the memo is asked for
at its end. Whatever is not surely of the form (see snapshot_rows.py) stays in the pickle: `find` may miss events, but
reads none wrong. What no trace has (a compile context, say) must look like a value, and is not looked at further.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from itertools import pairwise
from typing import BinaryIO, NamedTuple

import numpy as np

from kvviz.memory.snapshot_rows import BEYOND, NAMES, Rows, form_of

FEWEST = 4096  # events, below which there is nothing to win
WINDOW = 16 << 20  # bytes of the pickle that are looked at together
CHUNK = 1 << 14  # events that are looked at together: their columns fit the processor's cache


class Runs(NamedTuple):
    """What was cut out, one row an event. Numbers of the memo stand for what only the rest of the pickle can tell."""

    pickle: bytes  # the rest: a list of the snapshot, and of a list of what was asked for
    asked: list[int]  # numbers of the memo, in that order
    keys: list[int]  # … of NAMES, and of "frames" where events have them
    starts: list[int]  # the row with which each run begins, and the number of rows
    probes: list[tuple[int, int]]  # (number of the memo, the run whose text must be there)
    action: np.ndarray  # numbers of the memo
    address: np.ndarray
    size: np.ndarray
    stream: np.ndarray
    time: np.ndarray
    stack: np.ndarray  # index into `stacks`
    stacks: list[list[int] | int]  # the frames' numbers of the memo, or that of a whole list


def text_of(run: int) -> str:
    """What stands in the place of a run."""
    return f"run {run}\0"


class Unsure(Exception):
    """The rest of the pickle does not bear out what was taken for granted: all of it must be read the long way."""


class Cut:
    """Runs with the rest of the pickle at hand: their columns, as what a reader of dicts would make of the same events."""

    def __init__(self, runs: Runs, got: list):
        """got: what was asked for. Raises Unsure."""
        self.runs, self._got = runs, dict(zip(runs.asked, got, strict=True))
        self._left = set(range(len(runs.starts) - 1))
        if [self._got[key] for key in runs.keys] != [*NAMES, "frames"][: len(runs.keys)]:
            raise Unsure
        if any(self._got[number] != text_of(run) for number, run in runs.probes):
            raise Unsure

    def actions(self, codes: dict[str, int]) -> np.ndarray:
        """The code of each event's action, among `codes`. Raises Unsure where one has none."""
        numbers = np.unique(self.runs.action)
        told = [self._got[number] for number in numbers.tolist()]
        if not all(type(text) is str and text in codes for text in told):
            raise Unsure
        return np.array([codes[text] for text in told], "u1")[np.searchsorted(numbers, self.runs.action)]

    def stacks(self) -> tuple[list, np.ndarray]:
        """The distinct lists of frames, and of each event the index into them, -1 for none. Raises Unsure."""
        lists = [[self._got[n] for n in known] if isinstance(known, list) else self._got[known]
                 for known in self.runs.stacks]  # fmt: skip
        if any(type(frames) not in (list, tuple) for frames in lists):
            raise Unsure
        return lists, self.runs.stack

    def rows_of(self, text: str) -> slice:
        """The rows of the run that a text stands for, once. Raises Unsure."""
        run = int(text[4:-1]) if text[4:-1].isdecimal() else -1
        if run not in self._left or text != text_of(run):
            raise Unsure
        self._left.discard(run)
        return slice(self.runs.starts[run], self.runs.starts[run + 1])

    def finish(self) -> None:
        """Raises Unsure unless each run was found in its place."""
        if self._left:
            raise Unsure


def find(file: BinaryIO) -> Runs | None:
    """The runs of events in an open pickle; None where there are none, or too few to be worth it."""
    if file.seek(0, 2) < FEWEST:
        return None
    whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)  # it goes with the last view of it
    view = memoryview(whole)
    form = form_of(whole) if _is_framed(view) else None
    found = None if form is None else _Reader(Rows(np.zeros(WINDOW + BEYOND, "u1"), form)).read(view)
    return found if found is not None and found.starts[-1] >= FEWEST else None


def _is_framed(view: memoryview) -> bool:
    """Is it a pickle of protocol 4 or 5 that consists of frames throughout?"""
    if bytes(view[:2]) not in (b"\x80\x04", b"\x80\x05") or view[-1] != 0x2E:
        return False
    place = 2
    while place + 9 <= len(view) and view[place] == 0x95:
        place += 9 + int.from_bytes(view[place + 1 : place + 9], "little")
    return place == len(view)


def _pieces(view: memoryview, most: int) -> Iterator[memoryview]:
    """What stands in the frames of a pickle."""
    place = 2
    while place < len(view):
        stop = place + 9 + int.from_bytes(view[place + 1 : place + 9], "little")
        for start in range(place + 9, stop, most):
            yield view[start : min(start + most, stop)]
        place = stop


class _Reader:
    """Goes through a pickle window by window, and keeps the columns of runs and the bytes of all the rest."""

    def __init__(self, rows: Rows):
        self.rows, self.buffer = rows, memoryview(rows.bytes)  # type: ignore[arg-type]
        self.rest: list[bytes] = [b"\x80\x04]("]
        self.parts: list[tuple[np.ndarray, ...]] = []
        self.edges = [0]
        self.stacks: list[list[int] | int] = list[list[int] | int]()

    def read(self, view: memoryview) -> Runs | None:
        filled, most = 0, WINDOW // 2
        for piece in _pieces(view, most):
            if filled + len(piece) > WINDOW:
                kept = self._window(filled)
                self.buffer[: filled - kept] = bytes(self.buffer[kept:filled])
                filled -= kept
                if filled + len(piece) > WINDOW:
                    return None  # one event of megabytes
            self.buffer[filled : filled + len(piece)] = piece
            filled += len(piece)
        kept = self._window(filled)
        self.rest.append(bytes(self.buffer[kept : filled - 1]))
        if not self.parts:
            return None
        memo, action, address, size, stream, time, stack, referred = (
            np.concatenate(c) for c in zip(*self.parts, strict=True)
        )
        self.parts.clear()
        edges = np.array(self.edges)
        held = np.append(0, np.cumsum(memo, dtype="i8"))  # things that all runs put into the memo before each event
        bases = _bases(edges, held, stack, referred)
        self.stacks = [*self.rows.lists]
        stack = self._follow(edges, held, stack, referred, bases)
        probes = [(int(number), run) for run in np.flatnonzero(bases >= 0).tolist()
                  for number in (bases[run], bases[run] + held[edges[run + 1]] - held[edges[run]] - 1)]  # fmt: skip
        keys = self.rows.form.numbers
        frames = {n for known in self.stacks for n in (known if isinstance(known, list) else [known])}
        asked = sorted({*keys, *frames, *np.unique(action).tolist(), *(number for number, _ in probes)})
        gets = b"".join(b"j" + number.to_bytes(4, "little") for number in asked)
        return Runs(
            b"".join([*self.rest, b"](", gets, b"ee."]), asked, keys, self.edges, probes, action, address.view("u8"),
            size, stream.view("u8"), time, stack, self.stacks,
        )  # fmt: skip

    def _window(self, filled: int) -> int:
        """Look at what fills the buffer; returns from where on the next window must see it again."""
        self.buffer[filled : filled + BEYOND] = bytes(BEYOND)
        starts = self.rows.starts(filled)
        if not len(starts) or (len(starts) == 1 and not starts[0]):
            kept = max(filled - 16, 0) if not len(starts) else 0  # a dict may begin in the last bytes
            self.rest.append(bytes(self.buffer[:kept]))
            return kept
        chunks = [self.rows.columns(starts[k : k + CHUNK + 1]) for k in range(0, len(starts) - 1, CHUNK)]
        place = 0
        if chunks:
            good, ends, *columns = (np.concatenate(column) for column in zip(*chunks, strict=True))
            _keep_what_is_referred_to(good, columns[-1])
            rows = np.flatnonzero(good)
            breaks = np.flatnonzero(np.diff(rows) > 1) + 1
            for first, last in pairwise([0, *breaks.tolist(), len(rows)] if len(rows) else []):
                text = text_of(len(self.edges) - 1).encode()
                put = b"\x94" * int(columns[0][rows[first:last]].sum())
                self.rest += [bytes(self.buffer[place : starts[rows[first]]]), b"\x8c", bytes([len(text)]), text, put]
                self.edges.append(self.edges[-1] + last - first)
                place = int(ends[rows[last - 1]])
            self.parts += [tuple(column[rows] for column in columns)] if len(rows) else []
        self.rest.append(bytes(self.buffer[place : starts[-1]]))
        return int(starts[-1])

    def _follow(
        self, edges: np.ndarray, held: np.ndarray, stack: np.ndarray, referred: np.ndarray, bases: np.ndarray
    ) -> np.ndarray:
        """The index into stacks also where an event refers to the list of an earlier one: of a run, or of the rest."""
        refers = np.flatnonzero(referred >= 0)
        number = referred[refers]
        known = np.flatnonzero(bases >= 0)
        run = known[np.maximum(np.searchsorted(bases[known], number, "right") - 1, 0)] if len(known) else known
        answer = np.full(len(refers), -1, "i4")
        if len(known):
            into = number - bases[run] + held[edges[run]]  # a list is the last thing that its event puts into the memo
            inside = (into >= held[edges[run]]) & (into < held[edges[run + 1]])
            event = np.clip(np.searchsorted(held, into + 1) - 1, 0, len(stack) - 1)
            found = inside & (held[event + 1] == into + 1)
            answer[found] = stack[event[found]]
        left = np.flatnonzero(answer < 0)
        lists, which = np.unique(number[left], return_inverse=True)
        answer[left] = which + len(self.stacks)
        self.stacks += lists.tolist()
        stack[refers] = answer
        return stack


def _keep_what_is_referred_to(good: np.ndarray, referred: np.ndarray) -> None:
    """What stays in the pickle must not refer to a list that is cut out: mostly that of the event before."""
    last = np.flatnonzero(good & ~np.append(good[1:], False))
    while len(last):
        good[last] = False
        last = last[referred[last] >= 0] - 1
        last = last[(last >= 0) & good[last]]


def _bases(edges: np.ndarray, held: np.ndarray, stack: np.ndarray, referred: np.ndarray) -> np.ndarray:
    """The number of the memo with which each run begins, below 0 where it does not show. It follows from events that
    refer to the list of the one before, as most that refer do; the middle of what they say is taken, and then probed."""
    before = np.concatenate([[-1], stack[:-1]])
    telling = np.flatnonzero((referred >= 0) & (before >= 0))
    run = np.searchsorted(edges, telling, "right") - 1
    inside = telling > edges[run]
    telling, run = telling[inside], run[inside]
    says = referred[telling] + 1 - (held[telling] - held[edges[run]])
    order = np.lexsort((says, run))
    runs, first, count = np.unique(run, return_index=True, return_counts=True)
    bases = np.full(len(edges) - 1, -1, "i8")
    bases[runs] = says[order][first + count // 2]
    return bases
