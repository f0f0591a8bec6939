"""What a decode step of SmolLM2 (fp32) takes with each cache, beside transformers' DynamicCache, over context lengths.

    python -m benchmarks.bench_decode              medians of 3 rounds of 16 steps; add a number for other counts

The caches hold the same tokens and take the same steps in turn, in an order that changes from step to step, so that a
noisy machine troubles all alike. DynamicCache reads the prompt; the others are given its keys and values.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from transformers import DynamicCache, StaticCache

import kvviz

STEPS = 16  # of a round
CHUNK = 1024  # of the prompt
BASE = "DynamicCache"
LIMITS = {  # times DynamicCache, at most
    512: {"paged_cache": 1.03},
    4096: {"paged_cache": 0.97},
    8192: {"paged_cache": 0.95, "attached": 0.92},
}


def filled(model: Any, ids: torch.Tensor, room: int) -> dict[str, Any]:
    """The caches to compare, each with all of `ids` and room for `room` tokens."""
    caches = {
        BASE: DynamicCache(config=model.config),
        "StaticCache": StaticCache(config=model.config, max_cache_len=room),
        "paged_cache": kvviz.paged_cache(model, page_size=16, tokens=room),
        "attached": kvviz.paged_cache(model, page_size=16, tokens=room),
    }
    for chunk in ids.split(CHUNK, dim=1):
        model(chunk, cache=caches[BASE], use_cache=True, logits_to_keep=1)
    for name, cache in caches.items():
        if name != BASE:
            for number, layer in enumerate(caches[BASE].layers):
                cache.update(layer.keys, layer.values, number)
    return caches


def step(model: Any, token: torch.Tensor, name: str, cache: Any) -> tuple[float, torch.Tensor]:
    """Milliseconds of one decode step, and its logits. Attaching is not part of the step."""
    attached = kvviz.attach(model) if name == "attached" else None
    began = time.perf_counter()
    logits = model(token, cache=cache, use_cache=True, logits_to_keep=1).logits
    taken = time.perf_counter() - began
    if attached:
        attached.detach()
    return taken * 1e3, logits


def rounds(model: Any, context: int, count: int) -> Iterator[dict[str, float]]:
    """The median step of each cache, round by round. Raises AssertionError where the caches come to disagree."""
    total = count * STEPS + 2
    ids = torch.randint(model.config.vocab_size, (1, context + total), generator=torch.Generator().manual_seed(0))
    caches = filled(model, ids[:, :context], context + total)
    names = list(caches)
    tokens = iter(ids[:, context:].split(1, dim=1))

    def all_step(turn: int) -> dict[str, tuple[float, torch.Tensor]]:
        token = next(tokens)
        order = names[turn % len(names) :] + names[: turn % len(names)]
        return {name: step(model, token, name, caches[name]) for name in order}

    all_step(0)  # buffers are made here
    for _ in range(count):
        taken = [all_step(turn) for turn in range(STEPS)]
        yield {name: statistics.median(results[name][0] for results in taken) for name in names}
    last = {name: logits for name, (_, logits) in all_step(0).items()}
    for name, logits in last.items():
        assert caches[name].get_seq_length() == context + total, name
        off = (logits - last[BASE]).abs().max().item()
        assert off < 2e-4, f"{name}: logits are off by {off} after {context + total} tokens"


def report(model: Any, context: int, count: int) -> None:
    medians = list(rounds(model, context, count))
    print(f"{context:,} tokens of context:")
    for name in medians[0]:
        ratios = [each[name] / each[BASE] for each in medians]
        ratio, limit = statistics.median(ratios), LIMITS.get(context, {}).get(name)
        against = "" if limit is None else f"   limit {limit}{'' if ratio <= limit else '   OVER'}"
        print(
            f"    {name:14} {statistics.median(each[name] for each in medians):7.1f} ms, {ratio:.3f} times {BASE} "
            f"(of {', '.join(f'{r:.3f}' for r in ratios)}){against}",
            flush=True,
        )


if __name__ == "__main__":
    smollm2, _ = kvviz.load_model("smollm2", dtype=torch.float32)
    with torch.inference_mode():
        for length in LIMITS:
            report(smollm2, length, int(sys.argv[1]) if len(sys.argv) > 1 else 3)
