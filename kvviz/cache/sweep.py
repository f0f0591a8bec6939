"""Page sizes against workloads, the points divided over ranks: one table of waste, table length and time a step.

    torchrun --standalone --nproc-per-node 2 -m kvviz.cache.sweep --page-sizes 1,4,16,64,256 --out sweep.json

Waste and tables are counted on a PagePool, so they are exact and the same on every machine. Time is that of one layer of
SmolLM2's shape at the workload's mean length, on one thread; ranks that share cores disturb one another, so times are
to be compared within a run. Works without torchrun, as one rank.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import torch

from kvviz.cache import ranks
from kvviz.cache.capacity import pages_for
from kvviz.cache.pages import PagePool
from kvviz.cache.spec import CacheSpec
from kvviz.cache.store import Place, Slab
from kvviz.cache.table import PageTable
from kvviz.counts import positive
from kvviz.errors import InvalidRequest, KvvizError

WORKLOADS = {"short": (16, 128), "mixed": (16, 2048), "long": (1024, 2048)}  # tokens of a sequence: from, to
SIZES = (1, 4, 16, 64, 256)
_AT_ONCE, _SEQUENCES = 8, 48
_CPU = torch.device("cpu")
_HEADS, _KV_HEADS, _DIM = 9, 3, 64  # one layer of SmolLM2-135M


class Row(NamedTuple):
    """waste: share of the slots in used pages that hold no token, mean over the run. peak_pages: used at one time.
    longest: entries of the longest table. step_us: microseconds to write a token, gather scattered pages and attend, the
    fastest of the steps. rank: who measured it."""

    workload: str
    page_size: int
    waste: float
    peak_pages: int
    longest: int
    step_us: float
    rank: int


def sweep(
    here: ranks.Ranks, page_sizes: Sequence[int], workloads: Sequence[str], steps: int = 24, seed: int = 0
) -> list[Row]:
    """One row a point, sizes within workloads, on every rank. Collective. Raises InvalidRequest, RankError."""
    for name in workloads:
        if name not in WORKLOADS:
            raise InvalidRequest(f"no workload {name!r}; there are {', '.join(WORKLOADS)}")
    sizes = [positive("page size", size) for size in page_sizes]
    points = list(product(workloads, sizes))
    return here.spread(points, lambda point: _measure(*point, steps, seed, here.rank))


def _measure(workload: str, page_size: int, steps: int, seed: int, rank: int) -> Row:
    low, high = WORKLOADS[workload]
    draw = random.Random(f"{workload} {seed}")  # the same lengths for every page size
    lengths = [draw.randint(low, high) for _ in range(_SEQUENCES)]
    pool = PagePool(_AT_ONCE * pages_for(0, high, page_size), page_size)
    living: list[tuple[PageTable, int]] = []  # and the tokens it will have
    slots = stored = peak = longest = 0
    waiting = list(lengths)
    while waiting or living:
        while waiting and len(living) < _AT_ONCE:
            table, length = pool.table(), waiting.pop()
            table.append(length // 2)  # its prompt
            living.append((table, length))
        tokens = min(16, *(length - table.seen for table, length in living))
        for table, _ in living:
            table.append(tokens)
        slots += pool.used_count * page_size * tokens
        stored += sum(table.seen for table, _ in living) * tokens
        peak, longest = max(peak, pool.used_count), max(longest, *(len(table.pages) for table, _ in living))
        for table, length in living:
            if table.seen == length:
                table.free()
        living = [(table, length) for table, length in living if not table.freed]
    pool.check()
    step = _time(page_size, round(statistics.mean(lengths)), steps)
    return Row(workload, page_size, 1 - stored / slots, peak, longest, step * 1e6, rank)


def _time(page_size: int, tokens: int, steps: int) -> float:
    """Seconds of a decode step in one layer with so many tokens in pages that lie anywhere."""
    count = pages_for(0, tokens, page_size)
    ids = random.Random(0).sample(range(2 * count), count)
    places = [(1, (tokens - 1) % page_size, ids[-1:]), (tokens, 0, ids)]  # of the newest token, and of all
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode():
            slab = Slab(CacheSpec(1, _KV_HEADS, _DIM, 1, torch.float32, _CPU), 2 * count, page_size)
            new, query = torch.randn(1, _KV_HEADS, 1, _DIM), torch.randn(1, _HEADS, 1, _DIM)
            best = float("inf")
            for _ in range(positive("steps", steps)):
                begun = time.perf_counter()
                at = [Place(length, -1, 0, [pages], skip, page_size, _CPU) for length, skip, pages in places]
                slab.write(0, at[0], new, new)
                keys, values = slab.read(0, at[1], lasting=False)
                torch.nn.functional.scaled_dot_product_attention(query, keys, values, enable_gqa=True)
                best = min(best, time.perf_counter() - begun)
            return best
    finally:
        torch.set_num_threads(threads)


def table(rows: Sequence[Row]) -> str:
    lines = ["workload   tokens a page   waste   most pages   longest table   µs a step   rank"]
    lines += [
        f"{r.workload:<8} {r.page_size:>15,} {r.waste:>7.1%} {r.peak_pages:>12,} {r.longest:>15,} {r.step_us:>11,.0f} {r.rank:>6}"
        for r in rows
    ]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("sweep", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--page-sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--steps", type=int, default=24, help="decode steps that are timed")
    parser.add_argument("--out", help="file for the rows (.json)")
    options = parser.parse_args(arguments)
    try:
        sizes = [int(size) if size.strip().isdigit() else 0 for size in options.page_sizes.split(",")]
        with ranks.join() as here:
            rows = sweep(here, sizes, options.workloads.split(","), options.steps)
            if here.rank == 0:
                print(f"{len(rows)} points on {here.count} rank{'s' * (here.count > 1)}\n{table(rows)}", flush=True)
                if options.out:
                    with open(options.out, "w", encoding="utf-8") as file:
                        json.dump([row._asdict() for row in rows], file, indent=1)
    except KvvizError as error:
        print(f"kvviz: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    ranks.leave(main())
