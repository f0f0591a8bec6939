"""A CUDA run as a trace: PyTorch's own record of its allocator, with owners and marks laid over it by time.

The history is bounded and its stacks are Python's only: the unbounded default with C++ stacks can take a hundred times
longer to read than the run took. All devices of the process are recorded.
"""

from __future__ import annotations

import inspect
import time
import weakref
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from kvviz.errors import RecordingError
from kvviz.memory.alive import modules_and_tensors, roots
from kvviz.memory.lifetimes import Lifetimes
from kvviz.memory.looks import Look, of_snapshot
from kvviz.memory.owners import WEIGHTS, Owners, storage_of
from kvviz.memory.shown import Shown, shown
from kvviz.memory.snapshot import from_snapshot
from kvviz.memory.trace import Events, Mark, Trace
from kvviz.origin import of_cuda

# what a file's reader must be told goes without saying here: a recording begins late, on purpose, and knows its settings
GOES_WITHOUT_SAYING = ("recording began late", "cached blocks still carry", "no frames were recorded")


class CudaRecorder:
    """start(), then claim() and mark() while the run goes on, then stop(); trace() at leisure."""

    def __init__(self, stacks: str | None, max_events: int):
        self.claims: list[tuple[int, int, int]] = []  # time in us, address, owner
        self.marks: list[tuple[int, str]] = []  # time in us, name
        self.owners = Owners(self.claim)
        self._stacks, self._max_events = stacks, max_events
        self._snapshot: dict[str, Any] | None = None
        self._shown: Shown | None = None
        self._on = False
        self.tick: Callable[[], None] | None = None  # a live picture's: called at moments that it may look at
        self.spared = 0.0  # seconds of look() that trace() is spared: none
        self._living: dict[int, tuple[weakref.ref, int]] = {}  # address -> the storage claimed there, and its owner
        self._streams = [0]  # handles, in the order in which look() met them

    @property
    def origin(self) -> str:
        """Where the numbers come from."""
        return of_cuda(torch.cuda.get_device_properties(0).name)

    def start(self) -> None:
        """Switch the history on; if anything goes wrong on the way, off again."""
        torch.cuda.init()  # before anything is asked of the allocator: without it the next line is a crash
        if torch._C._cuda_isHistoryEnabled():
            raise RecordingError("PyTorch's memory history is already being recorded; switch that off first")
        try:
            modules, tensors = modules_and_tensors()
            self.claim(WEIGHTS, (p for root in roots(modules) for p in root.parameters()))
            del modules, tensors
            self.owners.watch_transformers()
            self._on = True
            torch.cuda.memory._record_memory_history(
                "all", context="alloc" if self._stacks else None, stacks="python", max_entries=self._max_events
            )
        except BaseException:
            self.stop()
            raise

    def claim(self, owner: int, tensors: Iterable[torch.Tensor]) -> None:
        """From now on these tensors' storages belong to `owner`."""
        now = time.time_ns() // 1000
        for tensor in tensors:
            storage = storage_of(tensor)
            if storage is not None and storage.device.type == "cuda":
                self.claims.append((now, storage.data_ptr(), owner))
                self._living[storage.data_ptr()] = weakref.ref(storage), owner
        if self.tick:
            self.tick()

    def mark(self, name: str) -> None:
        """Name this moment."""
        self.owners.look_again()
        self.marks.append((time.time_ns() // 1000, name))
        if self.tick:
            self.tick()

    def look(self, device: int = 0) -> Look:
        """What lives now on a device: PyTorch's list of its segments, without the history."""
        self.owners.look_again()
        self._living = {at: known for at, known in self._living.items() if known[0]() is not None}
        owners = {address: owner for address, (_, owner) in self._living.items()}
        return of_snapshot(_segments(), device, owners, self._streams, time.time_ns() // 1000)

    def stop(self) -> None:
        """Take the history and switch it off, whatever has happened."""
        try:
            if self._on:
                self.owners.look_again()
                self._snapshot = torch.cuda.memory._snapshot()
                self._shown = shown(modules_and_tensors(collect=False)[1], "cuda")
        finally:
            self.owners.close()
            if self._on:
                self._on = False
                torch.cuda.memory._record_memory_history(enabled=None)

    def trace(self) -> Trace:
        """The recorded run."""
        assert self._snapshot is not None
        held, self._snapshot = [self._snapshot], None
        device = torch.cuda.get_device_properties(0)
        bare = from_snapshot(held, "")
        about = bare.about | {"torch": torch.__version__, "capacity": device.total_memory}
        if self._shown is not None:
            about["tensors"] = self._shown.at({address: address for address in self._shown.storages})
        told = [w for w in bare.warnings if not any(phrase in w for phrase in GOES_WITHOUT_SAYING)]
        if len(bare) and np.bincount(bare.events.device).max() >= self._max_events:
            told.append(f"history starts mid-run: only the newest {self._max_events:,} events were kept (max_events)")
        bare = replace(bare, origin=self.origin, about=about, warnings=told)
        return with_owners(bare, self.claims, self.marks, self.owners.names)


def _segments() -> list[dict[str, Any]]:
    """Without the history where torch can leave it out (from 2.13 on): it is what takes long."""
    ask = torch.cuda.memory.memory_snapshot
    return ask(include_traces=False) if "include_traces" in inspect.signature(ask).parameters else ask()


def with_owners(
    trace: Trace, claims: list[tuple[int, int, int]], marks: list[tuple[int, str]], names: list[str]
) -> Trace:
    """`trace` with owners and marks laid over it. claims: (time in us, address, owner index); marks: (time in us, name).

    A claim is about the block that lived at that address at that time. Blocks that nobody claimed belong to owner 0.
    """
    times = np.maximum.accumulate(trace.events.time_us) if len(trace) else np.zeros(0, "i8")
    owner = np.zeros(len(trace), "i8")
    entry = dict(trace.entry)
    for device in trace.devices:
        blocks = trace.lifetimes(device).blocks
        of_block = np.zeros(len(blocks), "i8")
        order = np.lexsort((blocks.born, blocks.address))
        address, born = blocks.address[order], blocks.born[order]
        for moment, at, who in claims:
            event = int(np.searchsorted(times, moment, side="right"))  # events that had happened by then
            low, high = np.searchsorted(address, np.array([at, at + 1], "u8"))
            k = low + int(np.searchsorted(born[low:high], event)) - 1
            if k >= low and blocks.freed[order[k]] >= event:
                of_block[order[k]] = who
        for events in (blocks.born, blocks.freed, blocks.died):
            there = (events >= 0) & (events < len(trace))
            owner[events[there]] = of_block[there]
        if device in entry:
            lived = entry[device]
            ghosts = of_block[blocks.born < 0]
            entry[device] = Lifetimes(replace(lived.blocks, owner=ghosts), lived.segments)
    columns = {name: trace.events[name] for name in Events.__dataclass_fields__}
    placed = [Mark(int(np.searchsorted(times, moment, side="right")), name) for moment, name in marks]
    return replace(
        trace,
        events=Events(**(columns | {"owner": owner.astype("i4")})),
        entry=entry,
        marks=sorted([*trace.marks, *placed]),
        owners=list(names),
    )
