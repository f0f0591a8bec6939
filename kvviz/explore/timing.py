"""How long reading pages takes on this machine: measured when asked, never assumed."""

from __future__ import annotations

import random
import time
from functools import lru_cache

import torch

from kvviz.cache.spec import CacheSpec
from kvviz.cache.store import Place, Slab

HEADS, KV_HEADS, HEAD_DIM = 9, 3, 64  # one layer of SmolLM2-135M


@lru_cache(maxsize=256)
def read_times(sizes: tuple[int, ...], tokens: int, repeats: int = 12) -> dict[int, tuple[float, float]]:
    """For each page size the seconds of one query's attention over `tokens` tokens in one layer: pages in a row, and
    pages anywhere.

    Of `repeats` rounds over all sizes the fastest counts, the one that the rest of the machine disturbed least; and one
    thread only, because several wait for each other on a busy machine.

    The layer has SmolLM2's shape, in fp32 on the CPU. Scattered pages lie in a pool of twice the size.
    """
    query = torch.randn(1, HEADS, 1, HEAD_DIM)
    slabs = {size: _places(size, tokens) for size in sizes}
    best = {size: [float("inf"), float("inf")] for size in sizes}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode():
            for turn in range(repeats + 1):  # the first warms up
                for size, (slab, places) in slabs.items():
                    for kind, place in enumerate(places):
                        begun = time.perf_counter()
                        keys, values = slab.read(0, place, lasting=False)
                        torch.nn.functional.scaled_dot_product_attention(query, keys, values, enable_gqa=True)
                        if turn:
                            best[size][kind] = min(best[size][kind], time.perf_counter() - begun)
    finally:
        torch.set_num_threads(threads)
    return {size: (row, anywhere) for size, (row, anywhere) in best.items()}


def _places(page_size: int, tokens: int) -> tuple[Slab, list[Place]]:
    """Slots with random numbers, and the same tokens in a row of pages and in pages anywhere."""
    count = -(-tokens // page_size)
    spec = CacheSpec(1, KV_HEADS, HEAD_DIM, dtype=torch.float32, device=torch.device("cpu"))
    slab = Slab(spec, 2 * count, page_size)
    slab.keys[0].normal_()
    slab.values[0].normal_()
    scattered = random.Random(0).sample(range(2 * count), count)
    row = Place(tokens, 0, 0, [list(range(count))], 0, page_size, spec.device)
    return slab, [row, Place(tokens, -1, -1, [scattered], 0, page_size, spec.device)]
