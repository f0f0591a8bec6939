"""How fast the allocator model is, beside PyTorch's own allocator called from Python over the stub CUDA runtime.

Operations are mallocs and frees of one workload, sizes as a model's run has them; the best of five.
"""

from __future__ import annotations

import os
import pathlib
import random
import subprocess
import sys
import time
from collections.abc import Callable

ROOT = pathlib.Path(__file__).parents[1]
MIB = 1 << 20
Operations = list[tuple[int, int]]  # (number, size); a size of 0 frees


def workload(count: int = 100_000) -> Operations:
    r = random.Random(1)
    live, operations = [], []
    for number in range(count):
        if live and (len(live) > 400 or r.random() < 0.45):
            operations.append((live.pop(r.randrange(len(live))), 0))
        else:
            size = r.choice([r.randint(1, 4096), r.randint(1, MIB), r.randint(1, MIB), r.randint(MIB, 40 * MIB)])
            operations.append((number, size))
            live.append(number)
    return operations


def run(operations: Operations, malloc: Callable[[int], int], free: Callable[[int], object]) -> float:
    """Seconds."""
    at: dict[int, int] = {}
    began = time.perf_counter()
    for number, size in operations:
        if size:
            at[number] = malloc(size)
        else:
            free(at.pop(number))
    seconds = time.perf_counter() - began
    for address in at.values():
        free(address)
    return seconds


def report(name: str, count: int, seconds: float) -> None:
    print(f"{name:48} {count / seconds:10,.0f} operations/s", flush=True)


def model() -> None:
    from kvviz import CachingAllocator

    operations = workload()
    for conf in ("", "expandable_segments:True", "max_split_size_mb:64"):
        seconds = []
        for _ in range(5):
            allocator = CachingAllocator(24 << 30, conf)
            seconds.append(run(operations, allocator.malloc, allocator.free))
        report(f"kvviz.CachingAllocator {conf}", len(operations), min(seconds))


def real() -> None:
    import torch

    torch.cuda.init()
    alloc, free = torch._C._cuda_cudaCachingAllocator_raw_alloc, torch._C._cuda_cudaCachingAllocator_raw_delete
    operations = workload()
    seconds = [run(operations, lambda size: alloc(size, 0), free) for _ in range(5)]
    report(f"PyTorch's own from Python (torch {torch.__version__})", len(operations), min(seconds))
    os._exit(0)


if __name__ == "__main__":
    if sys.argv[1:] == ["real"]:
        real()
    model()
    command = [ROOT / "tests/cuda_stub/run.sh", "-W", "ignore", "-m", "benchmarks.bench_allocator", "real"]
    if subprocess.run(command, cwd=ROOT).returncode:
        print("PyTorch's own allocator: not measured, see above")
