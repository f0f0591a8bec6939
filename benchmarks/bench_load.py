"""What loading a memory snapshot costs, in time beside a bare restricted unpickle of the same file, and in memory.

    python -m benchmarks.bench_load                   a file of about 287,000 events, made here with the allocator model
    python -m benchmarks.bench_load FILE [ROUNDS]     any snapshot file; the median of ROUNDS (5)

Times are until a state can be looked at; the two are measured in turn, so that a noisy machine troubles both alike.
"""

from __future__ import annotations

import gc
import io
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NoReturn

import kvviz
from tests.snapshot_check import snapshot_of

EVENTS = 287_000
MEMORY = """
import gc, sys, kvviz
def figure(name):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name)) * 1024
open("/proc/self/clear_refs", "w").write("5")  # forget the peak of what was imported
gc.collect()
before = figure("VmRSS")
trace = kvviz.load(sys.argv[1])
trace.at(len(trace) // 2)
print(figure("VmHWM") - before, figure("VmRSS") - before)
"""


class Restricted(pickle.Unpickler):
    """The least that a careful reader does."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(name)


def bare(path: Path) -> float:
    """Seconds to unpickle the file with no name allowed and garbage collection paused."""
    gc.disable()
    began = time.perf_counter()
    snapshot = Restricted(io.BytesIO(path.read_bytes())).load()
    taken = time.perf_counter() - began
    del snapshot
    gc.enable()
    return taken


def usable(path: Path) -> float:
    """Seconds until the state in the middle of the run is there."""
    began = time.perf_counter()
    trace = kvviz.load(path)
    trace.at(len(trace) // 2)
    return time.perf_counter() - began


def make(path: Path, events: int = EVENTS) -> None:
    """A decoding model's kind of run: many small blocks, some of a megabyte and more, a cache that grows."""
    a, cache, step = kvviz.CachingAllocator(24 << 30), [0] * 60, 0
    while a.events_so_far < events:
        step += 1
        for layer in range(60):
            short = [a.malloc(512 * (1 + (layer * 7 + k) % 40)) for k in range(12)]
            scores = a.malloc(1_200_000 + 512 * (step % 300))
            grown = a.malloc(384 * (300 + step % 2000))
            a.free(cache[layer])
            cache[layer] = grown
            for address in (*short, scores):
                a.free(address)
    path.write_bytes(pickle.dumps(snapshot_of(a), 4))


def report(path: Path, rounds: int) -> None:
    size = path.stat().st_size
    bare(path), usable(path)
    pairs = [(bare(path), usable(path)) for _ in range(rounds)]
    ratios = [load / unpickle for unpickle, load in pairs]
    trace = kvviz.load(path)
    print(f"  file: {size:,} B, {len(trace):,} events, exact: {trace.about['exact']}")
    del trace
    print(
        f"  time: bare restricted unpickle {statistics.median(p[0] for p in pairs):.3f} s, load to a usable trace "
        f"{statistics.median(p[1] for p in pairs):.3f} s; ratio: median {statistics.median(ratios):.2f} "
        f"(of {', '.join(f'{r:.2f}' for r in ratios)})"
    )
    if sys.platform != "linux":
        return
    done = subprocess.run([sys.executable, "-c", MEMORY, str(path)], capture_output=True, text=True, check=True)
    peak, after = (int(figure) / size for figure in done.stdout.split())
    print(f"memory: {peak:.1f} times the file at the peak, {after:.1f} times once it is loaded")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        report(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 5)
    else:
        with tempfile.TemporaryDirectory() as folder:
            make(Path(folder) / "made.pickle")
            report(Path(folder) / "made.pickle", 5)
