"""record(): a live run goes in, a Trace comes out."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch

from kvviz.errors import InvalidRequest, RecordingError
from kvviz.memory.check import whole
from kvviz.memory.cpu import CpuRecorder
from kvviz.memory.cuda import CudaRecorder
from kvviz.memory.trace import Trace

if TYPE_CHECKING:
    from kvviz.view.live import Live

_running = threading.Lock()  # torch has one memory history and one profiler: one recording at a time


class Recording:
    """What `with record() as run` gives: name moments and owners while it runs, read `run.trace` after it."""

    def __init__(self, recorder: CpuRecorder | CudaRecorder):
        self._recorder: CpuRecorder | CudaRecorder | None = recorder
        self._trace: Trace | None = None
        self._state = "not started"
        self._picture: Live | None = None

    def __enter__(self) -> Recording:
        if self._state != "not started":
            raise RecordingError("a recording runs once; call record() again")
        if not _running.acquire(blocking=False):
            raise RecordingError("a recording is already running; one at a time")
        try:
            assert self._recorder is not None
            self._recorder.start()
        except BaseException:
            _running.release()
            raise
        self._state = "running"
        return self

    def __exit__(self, *problem: object) -> None:
        if self._state != "running" or self._recorder is None:
            raise RecordingError(f"the recording is {self._state}, there is nothing to end")
        try:
            self._recorder.stop()
            self._state = "done"
        finally:
            _running.release()
            if self._picture is not None:
                self._picture.stop()

    def mark(self, name: str) -> None:
        """Name this moment of the run: "prefill", "step 12"."""
        self._now("mark").mark(str(name))

    def own(self, thing: Any, name: str) -> None:
        """Say whose memory this is. `thing`: a tensor, a module, a cache, or a container or object that holds some.

        A cache (anything with `update` or `append`) is followed as it grows. Transformers' caches are followed without
        being asked, as "kv cache", and modules that live at entry are "weights".
        """
        self._now("own").owners.own(thing, str(name))

    def live(self, device: int = 0, title: str | None = None, theme: str = "auto") -> Live:
        """Show the block map of one device on the notebook's page while the run goes on; in the end, that of `trace`.

            with kvviz.record() as run:
                run.live()
                model.generate(**inputs)

        Each picture is a look at what lives between two calls of modules: the segments, the blocks, whose they are. What
        came and went between two looks is in the map at the end. At most four looks a second, in at most 5 % of the time.

        On CUDA a look is PyTorch's list of its segments without the history: some milliseconds, and the time to pack it.
        On a CPU it costs more. The profiler tells what it saw only when it is stopped, so each look ends a slice of some
        steps: 25 µs for each allocation and free of the slice are spent now that the making of `trace` is spared later,
        which is a third to a half of a model's run again; they do not count as the picture's.

        Raises RecordingError outside the with block, ViewError for an unknown theme or title.
        """
        from kvviz.view.live import Live
        from kvviz.view.live.blocks import RecordedBlocks
        from kvviz.view.scene import refuse_options

        recorder = self._now("live")
        refuse_options("auto", theme, title)
        if self._picture is not None:
            self._picture.stop()
        subject = RecordedBlocks(
            recorder, lambda: self.trace if self._state == "done" else None, whole(device, "a device"), title, theme
        )
        self._picture = Live(subject, theme)
        return self._picture

    @property
    def trace(self) -> Trace:
        """The recorded run; made at the first look, once the `with` block is over (a second or two per 100,000 events)."""
        if self._trace is None:
            if self._state != "done" or self._recorder is None:
                raise RecordingError(f"the recording is {self._state}: its trace is there when the with block is over")
            self._trace = self._recorder.trace()
            self._recorder = None
        return self._trace

    def _now(self, what: str) -> CpuRecorder | CudaRecorder:
        if self._state != "running" or self._recorder is None:
            raise RecordingError(f"{what}() works inside the with block; the recording is {self._state}")
        return self._recorder


def record(device: str | None = None, max_events: int = 2_000_000, stacks: str | None = "python") -> Recording:
    """Record what a run does with memory: `with record() as run: …`, then `run.trace`.

    device: "cuda": PyTorch's own record of its allocator, on all devices. "cpu": each allocation and free of this thread
    (and of autograd for it) drives the model of PyTorch's CUDA allocator, so the trace shows what the run would have
    taken on a GPU, and says so in its origin. None: "cuda" where there is a GPU, otherwise "cpu".
    max_events: of a longer run the newest are kept, and what lived before them is known.
    stacks: "python" names the torch function, the module and your own line for each block; None is faster, and the
    choice for compiled models.

    What lived when the block was entered counts from the start, and its end is seen. Nothing stays switched on behind
    it, also after an exception or an interrupt. Raises RecordingError if a recording or a profiler runs already.
    """
    device = None if device is None else str(device)
    if device not in (None, "cpu", "cuda"):
        raise InvalidRequest(f"device {device!r}; known: 'cpu', 'cuda', None")
    if stacks not in (None, "python"):
        raise InvalidRequest(f"stacks {stacks!r}; known: 'python', None")
    if whole(max_events, "max_events") <= 0:
        raise InvalidRequest(f"max_events must be positive, not {max_events}")
    if device == "cuda" and not torch.cuda.is_available():
        raise InvalidRequest("device 'cuda', but PyTorch finds no GPU here; device='cpu' models one")
    on_cuda = device == "cuda" or (device is None and torch.cuda.is_available())
    return Recording(CudaRecorder(stacks, int(max_events)) if on_cuda else CpuRecorder(stacks, int(max_events)))
