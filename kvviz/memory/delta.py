"""delta(): allocated, reserved and held before and after a few lines, and the difference."""

from __future__ import annotations

import gc
from typing import NamedTuple

import torch

from kvviz.errors import InvalidRequest, RecordingError
from kvviz.memory.owners import storage_of
from kvviz.memory.record import record

CUDA_ORIGIN = "PyTorch's own counters"


class Numbers(NamedTuple):
    """Bytes. allocated: blocks that are handed out; reserved: segments; held: storages of all living tensors."""

    allocated: int
    reserved: int
    held: int


class Delta:
    """What `with delta() as d` gives; complete when the block is over."""

    def __init__(self, device: str):
        self._cuda = device == "cuda"
        self._run = None if self._cuda else record("cpu", stacks=None)
        self._held, self._started = 0, False
        self.before: Numbers | None = None
        self.after: Numbers | None = None
        self.origin = CUDA_ORIGIN

    def __enter__(self) -> Delta:
        if self.before is not None or self._started:
            raise RecordingError("a delta runs once; call delta() again")
        self._started = True
        self._held = _held(self._cuda)
        if self._run is not None:
            self._run.__enter__()
        else:
            self.before = _counters(self._held)
        return self

    def __exit__(self, *problem: object) -> None:
        if self._run is None:
            self.after = _counters(_held(True))
            return
        self._run.__exit__(*problem)
        trace = self._run.trace
        first, last = trace.at(0), trace.at(-1)
        self.before = Numbers(first.allocated, first.reserved, self._held)
        self.after = Numbers(last.allocated, last.reserved, _held(False))
        self.origin, self._run = trace.origin, None

    @property
    def difference(self) -> Numbers:
        """after less before."""
        if self.before is None or self.after is None:
            raise RecordingError("the difference is there when the with block is over")
        return Numbers(*(y - x for x, y in zip(self.before, self.after, strict=True)))

    def __repr__(self) -> str:
        if self.before is None or self.after is None:
            return "<Delta, running>"
        rows = zip(Numbers._fields, self.before, self.after, self.difference, strict=True)
        lines = [f"{name:>9}  {x:15,}  {y:15,}  {d:+15,}" for name, x, y, d in rows]
        head = f"{'bytes':>9}  {'before':>15}  {'after':>15}  {'difference':>15}"
        return "\n".join([head, *lines, f"from: {self.origin}"])


def delta(device: str | None = None) -> Delta:
    """`with delta() as d: …`, then print d: the three numbers before and after, and what changed.

    device: "cuda" reads PyTorch's counters; "cpu" records the lines and asks the model of the allocator; None takes
    CUDA where there is one. Raises RecordingError inside a recording on CPU.
    """
    if device not in (None, "cpu", "cuda"):
        raise InvalidRequest(f"device {device!r}; known: 'cpu', 'cuda', None")
    if device == "cuda" and not torch.cuda.is_available():
        raise InvalidRequest("device 'cuda', but PyTorch finds no GPU here; device='cpu' models one")
    return Delta(device or ("cuda" if torch.cuda.is_available() else "cpu"))


def _counters(held: int) -> Numbers:
    return Numbers(torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), held)


def _held(cuda: bool) -> int:
    """Bytes of the storages of all living tensors on the device, each storage once."""
    gc.collect()
    storages = {}
    for thing in gc.get_objects():
        if issubclass(type(thing), torch.Tensor):
            storage = storage_of(thing)
            if storage is not None and storage.device.type == ("cuda" if cuda else "cpu"):
                storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())
