"""What reading scattered pages costs in a decode step: the attention of SmolLM2's 30 layers, by every way of reading.

    python -m benchmarks.bench_reading             medians of 25 rounds; add a number for other counts

All ways read the same tokens and take turns within a round, so that a noisy machine troubles all alike; the figures are
times that of ordinary attention (SDPA) over keys and values that lie in one piece. The pages lie anywhere in a pool of
twice the size. What is worked out once a step, such as a list of slots, is worked out in each round.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace

import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from kvviz.cache import attach, flex
from kvviz.cache.attention import Pages
from kvviz.cache.spec import CacheSpec
from kvviz.cache.store import Place, Slab

LAYERS, HEADS, KV_HEADS, DIM = 30, 9, 3, 64  # SmolLM2's
BASE, MASKED, FLEX, CHOICE = "in one piece", "the pool, masked", "FlexAttention", "attach's choice"
GATHERS = ("plain gather", "kvviz's gather")
WAYS = (*GATHERS, MASKED, FLEX, CHOICE)
LIMITS = {16: 2.5, 64: 1.6, 128: 1.4}  # of attach's choice, at 4,096 tokens
NOISE = 1.05  # how much slower than the best gather attach's choice may look
SIZES = (1, 4, 16, 64, 128, 256, 1024)
LENGTHS = (512, 1024, 2048, 4096, 8192)


def measure(tokens: int, page_size: int, rounds: int = 25, seed: int = 0) -> dict[str, float]:
    """Milliseconds of a decode step's attention over all layers, for each way of reading: medians.

    Raises AssertionError where two ways give different answers.
    """
    torch.manual_seed(seed)
    count = -(-tokens // page_size)
    slab = Slab(CacheSpec(LAYERS, KV_HEADS, DIM, 1, torch.float32, torch.device("cpu")), 2 * count, page_size)
    for slots in (*slab.keys, *slab.values):
        slots.uniform_(-1, 1)
    ids = random.Random(seed).sample(range(2 * count), count)
    query = torch.randn(1, HEADS, 1, DIM)
    config = SimpleNamespace(_attn_implementation=attach.NAME)  # all that attention asks of a layer:
    module = SimpleNamespace(num_key_value_groups=HEADS // KV_HEADS, is_causal=True, config=config)
    whole = [slab.read(layer, place(slab, ids, tokens)) for layer in range(LAYERS)]

    def sdpa(keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return sdpa_attention_forward(module, query, keys, values, mask)[0]

    def in_one_piece() -> torch.Tensor:
        return [sdpa(*pair) for pair in whole][-1]

    def plain_gather() -> torch.Tensor:
        pages = torch.tensor(ids)
        for slabs in zip(slab.keys, slab.values, strict=True):
            keys, values = (s.view(KV_HEADS, -1, page_size, DIM).index_select(1, pages) for s in slabs)
            out = sdpa(*(s.view(1, KV_HEADS, -1, DIM)[:, :, :tokens] for s in (keys, values)))
        return out

    def kvvizs_gather() -> torch.Tensor:
        at = place(slab, ids, tokens)
        return [sdpa(*slab.read(layer, at, lasting=False)) for layer in range(LAYERS)][-1]

    def flex_attention() -> torch.Tensor:
        at, mask = place(slab, ids, tokens), attach._page_mask(slab, query)
        mask.set(at, None)
        scale = DIM**-0.5
        return [flex.decode(query, slab, layer, mask, scale) for layer in range(LAYERS)][-1].transpose(1, 2)

    def masked_pool() -> torch.Tensor:
        seen = torch.zeros(slab.keys[0].shape[1], dtype=torch.bool)
        seen[place(slab, ids, tokens).slots] = True
        pairs = zip(slab.keys, slab.values, strict=True)
        return [sdpa(keys[None], values[None], seen[None, None, None]) for keys, values in pairs][-1]

    def attachs_choice() -> torch.Tensor:
        at, new = place(slab, ids, tokens), query[:, :KV_HEADS]
        read = (
            attach.paged_attention(module, query, new, new, None, kv_pages=Pages(slab, layer, at))
            for layer in range(LAYERS)
        )
        return [out for out, _ in read][-1]

    ways = {BASE: in_one_piece, GATHERS[0]: plain_gather, GATHERS[1]: kvvizs_gather, MASKED: masked_pool}
    if page_size >= 16 and flex.compiled() is not None:
        ways[FLEX] = flex_attention
    return times(ways | {CHOICE: attachs_choice}, rounds)


def place(slab: Slab, ids: list[int], tokens: int) -> Place:
    return Place(tokens, -1, 0, [ids], 0, slab.page_size, torch.device("cpu"))


def times(ways: dict[str, Callable[[], torch.Tensor]], rounds: int) -> dict[str, float]:
    """Median milliseconds. The first round, in which things are made and compiled, is not counted."""
    first = {name: way() for name, way in ways.items()}
    for name, out in first.items():
        assert torch.allclose(out, first[BASE], atol=1e-5), f"{name} gives another answer"
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            began = time.perf_counter()
            way()
            taken[name].append((time.perf_counter() - began) * 1e3)
    return {name: statistics.median(values) for name, values in taken.items()}


def report(tokens: int, page_size: int, rounds: int) -> None:
    """One line: the base in milliseconds, all others as ratios to it, and whether attach chose well."""
    taken = measure(tokens, page_size, rounds)
    ratio = {name: value / taken[BASE] for name, value in taken.items()}
    limit = LIMITS.get(page_size) if tokens == 4096 else None
    best = min(ratio[name] for name in GATHERS)
    told = "" if limit is None else f"   limit {limit}{'' if ratio[CHOICE] <= limit else '   OVER'}"
    told += "" if ratio[CHOICE] <= best * NOISE else "   SLOWER THAN A GATHER"
    columns = " ".join(f"{ratio[n]:16.2f}" if n in ratio else f"{'-':>16}" for n in WAYS)
    print(f"{tokens:6,} {page_size:5,} {taken[BASE]:9.1f} ms {columns}{told}", flush=True)


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 25
    print(f"{'tokens':>6} {'page':>5} {BASE:>12} " + " ".join(f"{n:>16}" for n in WAYS))
    with torch.inference_mode():
        for size in SIZES:
            report(4096, size, count)
        for size in (16, 64):
            for length in LENGTHS:
                report(length, size, count)
