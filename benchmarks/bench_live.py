"""What a live picture costs a run: SmolLM2 in fp32, decoded in a real Jupyter kernel, without and with it in turns.

    python benchmarks/bench_live.py            medians of five turns of 200 tokens; add other numbers: turns, tokens

The kernel is one as a notebook has it, and every batch is read from it as a page would. A page's own work is not in here:
it rests ten times as long as a picture took it. Beside wall time stands the processor time of the kernel, all its threads:
on a machine that has other work it is the steadier of the two.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

import kvviz

PROMPT = 32
ROOT = Path(__file__).parent.parent


class Spent(NamedTuple):
    """Seconds of the run by the clock and of the processor, and by the clock to the end of what follows."""

    run: float
    processor: float
    whole: float
    words: str = ""


def decode(model: torch.nn.Module, tokens: int, cache: object) -> tuple[float, float]:
    ids = torch.arange(1000, 1000 + PROMPT).reshape(1, PROMPT)
    began, worked = time.perf_counter(), time.process_time()
    kvviz.decode(model, ids, tokens, cache)
    return time.perf_counter() - began, time.process_time() - worked


def page_map_once(model: torch.nn.Module, tokens: int, live: bool) -> Spent:
    """What follows: the last picture."""
    cache = kvviz.paged_cache(model, tokens=PROMPT + tokens)
    began = time.perf_counter()
    if not live:
        return Spent(*decode(model, tokens, cache), time.perf_counter() - began)
    with cache.live() as picture:
        took = decode(model, tokens, cache)
    return Spent(*took, time.perf_counter() - began, picture.told)


def block_map_once(model: torch.nn.Module, tokens: int, live: bool) -> Spent:
    """What follows: the trace. Without the last picture, which takes what block_map(trace) takes."""
    began = time.perf_counter()
    with kvviz.record(device="cpu") as run:
        picture = run.live() if live else None
        took = decode(model, tokens, kvviz.paged_cache(model, tokens=PROMPT + tokens))
    if picture is None:
        assert len(run.trace)
        return Spent(*took, time.perf_counter() - began)
    whole = time.perf_counter() - began
    again = time.perf_counter()
    kvviz.block_map(run.trace)._repr_mimebundle_()
    return Spent(*took, whole - (time.perf_counter() - again), picture.told)


def in_turns(once: Callable[..., Spent], model: torch.nn.Module, tokens: int, turns: int) -> list[tuple[Spent, Spent]]:
    """(without, with) of each turn."""
    once(model, 8, True)
    pairs = []
    for turn in range(turns):
        pair = {live: once(model, tokens, live) for live in ((False, True), (True, False))[turn % 2]}
        pairs.append((pair[False], pair[True]))
    return pairs


def inside(turns: int, tokens: int) -> None:
    """What runs in the kernel."""
    model, _ = kvviz.load_model("smollm2", dtype=torch.float32)
    threads = torch.get_num_threads()
    print(f"SmolLM2, fp32, {threads} threads, a prompt of {PROMPT} tokens")
    tell("cache.live()", tokens, "with the last picture", in_turns(page_map_once, model, tokens, turns))
    few = max(8, tokens // 4)
    tell("run.live() on a CPU", few, "until run.trace is there", in_turns(block_map_once, model, few, turns))


def tell(name: str, tokens: int, then: str, pairs: list[tuple[Spent, Spent]]) -> None:
    run, processor, whole = (
        statistics.median(pair[1][k] / pair[0][k] for pair in pairs) for k in range(3)
    )  # fmt: skip
    bare = statistics.median(pair[0].run for pair in pairs)
    print(
        f"{name}: {tokens} tokens take {bare:.2f} s without it; with it {run:.3f} times the clock's time, {processor:.3f} "
        f"times the processor's; {then} {whole:.3f} times the clock's"
    )
    print(f"    {pairs[-1][1].words}")


def main(turns: int, tokens: int) -> None:
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(kernel_name="python3", cwd=str(ROOT))
    batches, size = 0, 0

    def heard(message: dict) -> None:
        nonlocal batches, size
        content = message["content"]
        if message["msg_type"] == "stream":
            print(content["text"], end="", flush=True)
        elif message["msg_type"] == "error":
            raise SystemExit("\n".join(content["traceback"]))
        elif "kvviz-news" in str(content.get("data", {}).get("text/html")):
            batches += 1
            size = max(size, len(content["data"]["text/html"]))

    try:
        here = str(Path(__file__).parent)
        code = f"import sys; sys.path.insert(0, {here!r}); import bench_live; bench_live.inside({turns}, {tokens})"
        client.execute_interactive(code, timeout=None, output_hook=heard)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    print(f"{batches:,} batches came through the kernel, the largest of {size:,} bytes")


if __name__ == "__main__":
    main(*(int(sys.argv[k]) if len(sys.argv) > k else usual for k, usual in ((1, 5), (2, 200))))
