"""What a recording costs, and what it says, on SmolLM2 in bf16: 300 tokens of prompt, 64 decoded one by one.

    python benchmarks/bench_record.py          medians of five; add a number for other counts

Beside the figures stand those of PyTorch's own CUDA allocator for the same loop (torch 2.14.1, no GPU).
"""

from __future__ import annotations

import random
import statistics
import sys
import time

import torch
from transformers import DynamicCache

import kvviz

REAL = {"eager": (295_734_784, 314_572_800), "sdpa": (288_715_264, 314_572_800)}  # peak allocated, peak reserved
PROMPT, STEPS = 300, 64


def run(model: torch.nn.Module, cache: DynamicCache) -> DynamicCache:
    """Read the prompt and decode, nothing else alive at the end but the cache."""
    ids = torch.arange(1000, 1000 + PROMPT).reshape(1, PROMPT)
    kvviz.decode(model, ids, STEPS + 1, cache)
    return cache


def seconds(what) -> float:
    began = time.perf_counter()
    what()
    return time.perf_counter() - began


def record_once(model: torch.nn.Module, stacks: str | None = "python") -> tuple[kvviz.Trace, DynamicCache]:
    cache = DynamicCache(config=model.config)
    with kvviz.record(stacks=stacks) as recording:
        run(model, cache)
    return recording.trace, cache


def peaks(model: torch.nn.Module) -> kvviz.Trace:
    for attention, (allocated, reserved) in REAL.items():
        model.set_attn_implementation(attention)
        trace, cache = record_once(model)
        again = record_once(model)[0]  # while the first cache is still alive
        share = trace.peak_allocated / allocated - 1
        print(
            f"{attention:>6}: peak reserved {trace.peak_reserved:,} B (real {reserved:,}), "
            f"peak allocated {trace.peak_allocated:,} B (real {allocated:,}, {share:+.2%}), {len(trace):,} events"
        )
        held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
        print(
            f"        a second time beside the first cache ({held:,} B): reserved "
            f"{again.peak_reserved - trace.peak_reserved:+,} B, allocated {again.peak_allocated - trace.peak_allocated:+,} B"
        )
        del cache, again  # the next recording starts beside the model alone
    return trace


def costs(model: torch.nn.Module, rounds: int) -> None:
    """Bare and recorded runs in turn, so that a noisy machine troubles both alike."""
    ratios: dict[str | None, list[float]] = {"python": [], None: []}
    bare = []
    for _ in range(rounds):
        for stacks in ratios:
            bare.append(seconds(lambda: run(model, DynamicCache(config=model.config))))
            ratios[stacks].append(seconds(lambda s=stacks: record_once(model, s)) / bare[-1])
    print(f"  cost: bare run {statistics.median(bare):.2f} s; recorded with its trace, times the bare run:")
    for stacks, values in ratios.items():
        print(f"        stacks={stacks!r:8} median {statistics.median(values):.2f} (of {', '.join(f'{v:.2f}' for v in values)})")


def looks(trace: kvviz.Trace) -> None:
    trace.at(0)
    times = [seconds(lambda: trace.at(random.randrange(len(trace) + 1))) * 1e3 for _ in range(500)]
    cuts = statistics.quantiles(times, n=20)
    print(f"    at: state after a random event, median {statistics.median(times):.2f} ms, p95 {cuts[-1]:.2f} ms")


if __name__ == "__main__":
    torch.manual_seed(0)
    smol, _ = kvviz.load_model("smollm2", dtype=torch.bfloat16)
    run(smol, DynamicCache(config=smol.config))
    the_trace = peaks(smol)
    looks(the_trace)
    costs(smol, int(sys.argv[1]) if len(sys.argv) > 1 else 5)
