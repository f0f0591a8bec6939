"""The oracle: what PyTorch's own allocator does with a workload.

Everything here runs with the stub CUDA runtime (see README.md). A process that has started CUDA keeps its allocator
for good, so each question is asked in a forked child: torch is imported once, a child takes 20 ms.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import traceback
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np

from tests.cuda_stub.workloads import COLUMNS, Outcome, Workload, tidy_trace

# what a program may set for the stub and for the allocator; a child starts with none of them but its own
VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "STUBCUDA_")


class ChildDied(RuntimeError):
    """The child ended without an answer; its own message is on stderr."""


def present() -> bool:
    """True where this Python runs over the stub."""
    return bool(os.environ.get("KVVIZ_ON_CUDA_STUB"))


def in_child(function: Callable, *args: Any, **environment: object) -> Any:
    """function(*args) in a child of this process that sees a fresh device; its result, or its exception, comes back.

    environment: STUBCUDA_TOTAL_MIB=…, PYTORCH_CUDA_ALLOC_CONF=… and so on. This process must not have started CUDA.
    """
    import torch

    assert not torch.cuda.is_initialized(), "this process has started CUDA: its children cannot use it"
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            _set_environment(environment)
            answer = pickle.dumps((True, function(*args)))
        except BaseException as error:
            answer = _pickled(error)
        with open(writer, "wb") as pipe:
            pipe.write(answer)
        os._exit(0)  # no tidying: CUDA's threads and pytest's reports belong to the parent
    os.close(writer)
    with open(reader, "rb") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(child, 0)
    if not answer:
        raise ChildDied(f"exit status {os.waitstatus_to_exitcode(status)}")
    fine, result = pickle.loads(answer)
    if fine:
        return result
    raise result


def _set_environment(environment: dict[str, object]) -> None:
    for name in [n for n in os.environ if n.startswith(VARIABLES)]:
        del os.environ[name]
    os.environ |= {name: str(value) for name, value in environment.items()}
    stub_library().stub_read_environment()


def stub_library() -> ctypes.CDLL:
    """The library that holds the device's state; it is loaded already, by torch."""
    return ctypes.CDLL("libcuda.so.1")


def _pickled(error: BaseException) -> bytes:
    error.add_note("in the child:\n" + traceback.format_exc()) if hasattr(error, "add_note") else None
    try:
        return pickle.dumps((False, error))
    except Exception:
        return pickle.dumps((False, RuntimeError(f"{type(error).__name__}: {error}")))


def real_outcome(workload: Workload) -> Outcome:
    """Run the workload on PyTorch's allocator."""
    conf = {"PYTORCH_CUDA_ALLOC_CONF": workload.conf} if workload.conf else {}
    return in_child(
        _run, workload, STUBCUDA_TOTAL_MIB=workload.capacity >> 20, STUBCUDA_POLICY=workload.placement.replace("-", ""),
        STUBCUDA_EVENTS=workload.events, **conf,
    )  # fmt: skip


def _run(workload: Workload) -> Outcome:
    import torch

    warnings.simplefilter("ignore")  # that the device has no fabric to ask about
    torch.cuda.init()
    torch.cuda.current_stream()
    others = sorted((torch.cuda.Stream() for _ in range(workload.streams - 1)), key=lambda s: s.cuda_stream)
    streams = [torch.cuda.default_stream(), *others]  # in the order of their handles, as the allocator sorts them
    torch.cuda.memory._record_memory_history(
        enabled="all", context=None, max_entries=40 * len(workload.operations) + 1000
    )
    program = _TensorProgram(streams) if workload.shares_blocks else _RawProgram(streams)
    rows = [(program.step(*operation), *_counters()) for operation in workload.operations]
    snapshot = torch.cuda.memory._snapshot()
    number = {s.cuda_stream: k for k, s in enumerate(streams)}
    return Outcome(
        np.array(rows, dtype="i8").reshape(-1, len(COLUMNS)),
        sorted(_segment(s, number) for s in snapshot["segments"]),
        tidy_trace([_entry(t, number) for t in snapshot["device_traces"][0]]),
    )


class _RawProgram:
    """Calls the allocator directly."""

    def __init__(self, streams: list):
        import torch

        self.torch, self.streams, self.live = torch, streams, {}

    def step(self, verb: str, *args: Any) -> int:
        """One operation; of an alloc the address comes back, or -1 where memory ran out."""
        if verb != "alloc":
            getattr(self, verb)(*args)
            return 0
        number, size, stream = args
        try:
            self.live[number], address = self.take(size, stream)
        except self.torch.OutOfMemoryError:
            return -1
        return address

    def take(self, size: int, stream: int) -> tuple[Any, int]:
        address = self.torch._C._cuda_cudaCachingAllocator_raw_alloc(size, self.streams[stream].cuda_stream)
        return address, address

    def free(self, number: int) -> None:
        address = self.live.pop(number, 0)
        if address:
            self.torch._C._cuda_cudaCachingAllocator_raw_delete(address)

    def sync(self) -> None:
        self.torch.cuda.synchronize()

    def empty_cache(self) -> None:
        self.torch.cuda.empty_cache()

    def memory_fraction(self, fraction: float) -> None:
        self.torch.cuda.set_per_process_memory_fraction(fraction)

    def settings(self, conf: str) -> None:
        self.torch._C._accelerator_setAllocatorSettings(conf)


class _TensorProgram(_RawProgram):
    """The same with tensors, which alone can be recorded on another stream."""

    def take(self, size: int, stream: int) -> tuple[Any, int]:
        with self.torch.cuda.stream(self.streams[stream]) if stream else nullcontext():
            tensor = self.torch.empty(size, dtype=self.torch.uint8, device="cuda")
        return tensor, tensor.data_ptr()

    def free(self, number: int) -> None:
        self.live.pop(number, None)

    def record_stream(self, number: int, stream: int) -> None:
        if number in self.live:
            self.live[number].record_stream(self.streams[stream])


def _counters() -> tuple[int, ...]:
    import torch

    stats = torch._C._cuda_memoryStats(0)
    names = ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes")
    return (
        *(stats[n]["all"]["current"] for n in names),
        stats["num_alloc_retries"], stats["num_ooms"], stats["segment"]["all"]["current"],
    )  # fmt: skip


def _segment(segment: dict, number: dict[int, int]) -> tuple:
    blocks = [  # of a free block PyTorch tells what was once asked for
        (b["address"], b["size"], 0 if b["state"] == "inactive" else b["requested_size"], b["state"])
        for b in segment["blocks"]
    ]
    small = segment["segment_type"] == "small"
    return (
        segment["address"], segment["total_size"], number[segment["stream"]], small, segment["is_expandable"], blocks,
    )  # fmt: skip


def _entry(entry: dict, number: dict[int, int]) -> tuple:
    address = entry["device_free"] if entry["action"] == "oom" else entry.get("addr", 0)
    return entry["action"], address, entry["size"], number.get(entry["stream"], entry["stream"])
