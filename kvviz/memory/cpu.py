"""A CPU run as a trace of the allocator model: torch's profiler tells each allocation and free, the model replays them.

The profiler reports address, size and time of every allocation of the recording thread, and the frees of those; it
drops frees of blocks that are older than itself. So the storages alive at entry are looked up first, and finalizers
tell when they die. Everything is put in order by one clock, ns since the epoch.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

from kvviz.errors import RecordingError
from kvviz.memory.alive import modules_and_tensors, roots
from kvviz.memory.allocator import CachingAllocator
from kvviz.memory.drive import Driver
from kvviz.memory.looks import Look, of_segments
from kvviz.memory.owners import WEIGHTS, Owners, storage_of
from kvviz.memory.shown import Shown, shown
from kvviz.memory.sites import Sites
from kvviz.memory.trace import Trace
from kvviz.memory.unpickle import collection_paused

ORIGIN = "model of PyTorch's CUDA allocator, fed by a CPU run"
CAPACITY = 1 << 40  # the modelled device does not run out: the CPU run did not either
ALLOC, FREE, CLAIM, MARK = range(4)


class CpuRecorder:
    """start(), then claim() and mark() while the run goes on, then stop(). What was seen is in the public lists."""

    origin = ORIGIN

    def __init__(self, stacks: str | None, max_events: int):
        self.entry: list[tuple[int, int, int]] = []  # address, bytes, owner of what lived before, in order of making
        self.entry_frees: list[tuple[int, int]] = []  # time, address
        self.claims: list[tuple[int, int, int]] = []  # time, address, owner
        self.marks: list[tuple[int, str]] = []  # time, name
        self.owners = Owners(self.claim)
        self.sites: Sites | None = None
        self.result: Any = None  # torch's own record, until it is read
        self.shown: Shown | None = None
        self.tick: Callable[[], None] | None = None  # a live picture's: called at moments that it may look at
        self.driver: Driver | None = None  # has been through all that was taken from the profiler
        self.spared = 0.0  # seconds of look() that trace() is spared
        self._stacks, self._max_events = stacks, max_events
        self._off: list[Callable[[], Any]] = []  # what stop() has to do, in the reverse order of start()

    def start(self) -> None:
        """Switch recording on; if anything goes wrong on the way, off again."""
        if torch.autograd._profiler_enabled():
            raise RecordingError(
                "another profiler is running on this thread; record() needs torch's profiler for itself"
            )
        try:
            _profile_once_in_silence()
            modules, tensors = modules_and_tensors()
            self._enter(modules, tensors)
            self._off.append(self.owners.close)
            self.owners.watch_transformers()
            if self._stacks:
                self.sites = Sites(roots(modules))
                self.sites.__enter__()
                self._off.append(partial(self.sites.__exit__, None, None, None))
            del modules, tensors  # nothing that the program frees may live on in here
            _start_profiler()
            self._off.append(self._stop_profiler)
        except BaseException:
            self.stop()
            raise

    def claim(self, owner: int, tensors: Iterable[torch.Tensor]) -> None:
        """From now on these tensors' storages belong to `owner`."""
        now = time.time_ns()
        for tensor in tensors:
            storage = storage_of(tensor)
            if storage is not None:
                self.claims.append((now, storage.data_ptr(), owner))
        if self.tick:
            self.tick()

    def mark(self, name: str) -> None:
        """Name this moment."""
        self.owners.look_again()
        self.marks.append((time.time_ns(), name))
        if self.tick:
            self.tick()

    def look(self, device: int = 0) -> Look | None:
        """What lives now, and everything up to now put through the model; None where the profiler was taken away.

        The profiler tells what it saw only when it stops, so it is stopped and started again. What was born in an
        earlier slice it still knows (torch keeps the sizes), so the slices together say what one profile would.
        """
        self.owners.look_again()
        if not torch.autograd._profiler_enabled():
            return None
        began = time.perf_counter()
        with _uninterrupted():
            driver = self._feed(allocations(_swap_profilers()))
        self.spared += time.perf_counter() - began
        return of_segments(driver.model.segments, driver.owners, time.time_ns() // 1000)

    def trace(self) -> Trace:
        """The recorded run, driven through the model; of a longer one the newest events."""
        if self.result is None:
            raise RecordingError("another profiler was started inside the recording and took torch's profiler away")
        driver = self._feed(allocations(self.result))
        self.result = None
        if self.sites is not None:
            driver.set_stacks(self.sites.running_at(driver.alloc_times))
        trace = driver.trace(
            one_event_a_free=True,  # a CPU run has no streams
            owners=list(self.owners.names),
            stacks=list(self.sites.texts) if self.sites else [],
            origin=ORIGIN,
            warnings=self.shown.elsewhere(driver.places) if self.shown else [],
            about={"torch": torch.__version__} | ({"tensors": self.shown.at(driver.places)} if self.shown else {}),
        )
        return trace.last(self._max_events)

    def stop(self) -> None:
        """Switch everything off, each part even if another fails to."""
        with contextlib.ExitStack() as stack:
            while self._off:
                stack.callback(self._off.pop(0))

    def _stop_profiler(self) -> None:
        if torch.autograd._profiler_enabled():
            self.result = torch.autograd._disable_profiler()
            self.shown = shown(modules_and_tensors(collect=False)[1], "cpu")
        self.owners.look_again()

    def _enter(self, modules: list[torch.nn.Module], tensors: list[torch.Tensor]) -> None:
        """Note every storage alive: modules' weights first, in the order in which a model makes them."""
        weights = [p for root in roots(modules) for p in root.parameters()]
        buffers = [b for root in roots(modules) for b in root.buffers()]
        known = set()
        for tensor in [*weights, *buffers, *tensors]:
            storage = storage_of(tensor)
            if storage is None or storage.device.type != "cpu" or storage.data_ptr() in known:
                continue
            address = storage.data_ptr()
            known.add(address)
            self.entry.append((address, storage.nbytes(), WEIGHTS if isinstance(tensor, torch.nn.Parameter) else 0))
            watch = weakref.finalize(storage, _note_free, self.entry_frees, address)
            watch.atexit = False
            self._off.append(watch.detach)

    def _feed(self, table: np.ndarray) -> Driver:
        """Put what has come since the last time through the model: as the CUDA allocator would have served it, all on
        one stream. table: of allocations()."""
        if self.driver is None:
            self.driver = Driver(CachingAllocator(CAPACITY))
            for address, size, owner in self.entry:
                self.driver.enter(address, size, owner)
            self.driver.begin()
        alloc, free, own = self.driver.alloc, self.driver.free, self.driver.own
        for moment, kind, address, value in _in_order(self, table):
            if kind == ALLOC:
                alloc(address, value, moment)
            elif kind == FREE:
                free(address, moment)
            elif kind == CLAIM:
                own(address, value)
            else:
                self.driver.mark(self.marks[value][1])
        for told in (self.entry_frees, self.claims, self.marks):
            told.clear()
        return self.driver


def _in_order(seen: CpuRecorder, table: np.ndarray) -> Iterator[tuple[int, int, int, int]]:
    """(time, kind, address, value) of everything that happened, in order."""
    ends = np.array(seen.entry_frees, "i8").reshape(-1, 2)
    claims = np.array(seen.claims, "i8").reshape(-1, 3)
    moments = np.array([moment for moment, _ in seen.marks], "i8")
    when = np.concatenate([table[:, 0], ends[:, 0], claims[:, 0], moments])
    kind = np.repeat([FREE, FREE, CLAIM, MARK], [len(table), len(ends), len(claims), len(moments)])
    kind[: len(table)][table[:, 2] > 0] = ALLOC
    address = np.concatenate([table[:, 1], ends[:, 1], claims[:, 1], np.zeros(len(moments), "i8")])
    value = np.concatenate([table[:, 2], np.zeros(len(ends), "i8"), claims[:, 2], np.arange(len(moments))])
    order = np.argsort(when, kind="stable")
    return zip(*(column[order].tolist() for column in (when, kind, address, value)), strict=True)


def _note_free(frees: list, address: int) -> None:
    frees.append((time.time_ns(), address))


def _start_profiler() -> None:
    from torch._C import _profiler as c

    config = c.ProfilerConfig(c.ProfilerState.KINETO, False, True, False, False, False, c._ExperimentalConfig())
    activities = {c.ProfilerActivity.CPU}
    # memory events need no scope; leaving operators out makes recording three times cheaper (Sites names them instead)
    scopes = ({c.RecordScope.USER_SCOPE},) if hasattr(c, "RecordScope") else ()
    torch.autograd._prepare_profiler(config, activities)
    torch.autograd._enable_profiler(config, activities, *scopes)


def _swap_profilers() -> Any:
    """What the running profiler saw; a new one runs in its place."""
    with collection_paused():  # nothing may die while nobody looks
        result = torch.autograd._disable_profiler()
        _start_profiler()
    return result


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Let an interrupt wait until the end of the block, so that it is done whole."""
    if threading.current_thread() is not threading.main_thread():  # where none arrives
        yield
        return
    waiting: list[tuple] = []
    before = signal.signal(signal.SIGINT, lambda *what: waiting.append(what))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if waiting and callable(before):
            before(*waiting[0])


_profiled_before: list[bool] = []


def _profile_once_in_silence() -> None:
    """torch prints a warning at the first free of a block older than the profiler: let that happen here, unseen.

    What it warns of (such frees are not reported) is just what the finalizers make up for.
    """
    if _profiled_before:
        return
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    stderr, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        older = torch.empty(1)
        _start_profiler()
        del older
        torch.autograd._disable_profiler()
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nowhere)
    _profiled_before.append(True)


def allocations(result: Any) -> np.ndarray:
    """Rows (time ns, address, bytes; negative bytes: a free) of torch's record, in order of time."""
    from torch._C._profiler import _EventType

    allocation, mixed = _EventType.Allocation, torch.cuda.is_available()
    rows: list[tuple[int, int, int]] = []

    def walk(nodes: Any) -> None:
        for node in nodes:
            if node.tag == allocation:
                fields = node.extra_fields
                if not mixed or fields.device.type == "cpu":
                    rows.append((node.start_time_ns, fields.ptr, fields.alloc_size))
            else:
                walk(node.children)

    with collection_paused():
        walk(result.experimental_event_tree())
    table = np.array(rows, dtype="i8").reshape(-1, 3)
    return table[np.argsort(table[:, 0], kind="stable")]
