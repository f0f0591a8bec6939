"""kvviz.serve on SmolLM2 (fp32): the same tokens as alone, how many a second, and what memory it wastes.

    python -m benchmarks.bench_serve               all of it
    python -m benchmarks.bench_serve same          64 requests, too few pages: every output against the run alone
    python -m benchmarks.bench_serve speed 3 64    8 requests, 3 rounds, 64 new tokens: the engine, one by one, and
                                                   transformers' generate_batch; a last number for other thread counts
    python -m benchmarks.bench_serve waste         shares of memory on ShareGPT-like and Alpaca-like lengths

The engine and the runs alone take turns step by step, so that a noisy machine troubles both alike. On a machine that others
use, too, set OMP_WAIT_POLICY=PASSIVE: threads that wait for one another then let others run.
"""

from __future__ import annotations

import itertools
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from transformers import DynamicCache

import kvviz
from kvviz.serve import Engine, shared_prefixes
from kvviz.serve.waste import CAPACITY, compare
from kvviz.serve.workload import workload

TIE = 1e-4  # of a logit: closer than that, rounding may choose either of two tokens
REQUESTS = 8  # of the speed test
LIMITS = {"one by one": 3.5, "generate_batch": 2.5}  # times slower than the engine, at least
WASTE = 0.04  # of the slots given out, at most, with 16 tokens a page


def alone(model: Any, prompt: list[int], steps: int) -> list[int]:
    return kvviz.decode(model, torch.tensor([prompt]), steps)[0, len(prompt) :].tolist()


def gap(model: Any, prompt: list[int], output: list[int], wanted: list[int]) -> tuple[int, float]:
    """Where two outputs part, and how much likelier, in logits, the one token is there than the other."""
    at = next(k for k, (a, b) in enumerate(zip(output, wanted, strict=True)) if a != b)
    with torch.inference_mode():
        logits = model(torch.tensor([[*prompt, *wanted[:at]]]), logits_to_keep=1).logits[0, -1]
    return at, float(logits[wanted[at]] - logits[output[at]])


def same(model: Any, count: int = 64, seed: int = 0) -> None:
    """Mixed lengths, shared beginnings, joins, samples, preemption. Raises AssertionError where something is not so."""
    draw = random.Random(seed)
    vocabulary = model.config.vocab_size
    prompts = shared_prefixes(count // 2, vocabulary, prefixes=3, prefix_tokens=40, tokens=(1, 40), seed=seed)
    prompts += [[draw.randrange(vocabulary) for _ in range(draw.randint(1, 120))] for _ in range(count // 2)]
    draw.shuffle(prompts)
    engine = Engine(model, pages=24, page_size=16, max_running=12, step_tokens=64)
    todo, requests, joined = list(prompts), [], 0
    while todo or engine.has_work:
        while todo and joined <= len(engine.metrics.steps):  # eight at first, then three a step
            requests.append(engine.add(todo.pop(0), draw.randint(4, 32)))
            joined += len(requests) % 3 == 0 and len(requests) >= 8
        engine.step()
        engine.check()
    assert engine.pool.free_count == engine.pool.pages and not engine.pool.tables
    assert engine.metrics.preemptions and engine.metrics.hit_tokens
    late = [request.finished_step / request.bound for request in requests if request.finished_step is not None]
    assert len(late) == count and max(late) <= 1
    print(engine.metrics)
    print(f"all pages free; check() at every step; the latest at {max(late):.0%} of the steps it may take", flush=True)
    parted = 0
    for request in requests:
        wanted = alone(model, request.prompt, request.max_new_tokens)
        if wanted != request.outputs[0]:
            at, by = gap(model, request.prompt, request.outputs[0], wanted)
            print(f"    {request} parts from the run alone at token {at}, where two are {by:.1e} of a logit apart")
            assert by < TIE
            parted += 1
    print(f"{count - parted} of {count} outputs equal those of the run alone", flush=True)


def speed(model: Any, rounds: int, new: int = 64) -> None:
    draw = random.Random(0)
    vocabulary = model.config.vocab_size
    prompts = [[draw.randrange(vocabulary) for _ in range(draw.randint(16, 64))] for _ in range(REQUESTS)]

    def engine() -> Iterator[list[list[int]]]:
        made = Engine(model, pages=128, page_size=16, max_running=REQUESTS)
        requests = [made.add(prompt, new) for prompt in prompts]
        for _ in made:
            yield [request.outputs[0] for request in requests]

    def one_by_one() -> Iterator[list[list[int]]]:
        outputs: list[list[int]] = []
        for prompt in prompts:
            cache, ids = DynamicCache(config=model.config), torch.tensor([prompt])
            for _ in range(new):
                ids = kvviz.decode(model, ids, 1, cache)
                yield [*outputs, ids[0, len(prompt) :].tolist()]
            outputs.append(ids[0, len(prompt) :].tolist())

    batched = generate_batch(model, prompts, new)
    ratios: dict[str, list[float]] = {name: [] for name in LIMITS}
    rates: dict[str, list[float]] = {name: [] for name in ("engine", *LIMITS)}
    for _ in range(rounds):
        (own, ours), (theirs, alone_outputs) = in_turn(engine(), one_by_one(), REQUESTS)
        assert ours == alone_outputs
        ratios["one by one"].append(theirs / own)
        rates["engine"].append(REQUESTS * new / own)
        rates["one by one"].append(REQUESTS * new / theirs)
        if batched:
            (own, _), (theirs, _) = in_turn(engine(), batched(), 1)
            ratios["generate_batch"].append(theirs / own)
            rates["generate_batch"].append(REQUESTS * new / theirs)
    print(f"{REQUESTS} requests of {new} new tokens, {torch.get_num_threads()} threads, medians of {rounds} rounds:")
    print(f"    {'engine':15} {statistics.median(rates['engine']):6.1f} tokens/s")
    for name, found in ratios.items():
        if found:
            ratio, limit = statistics.median(found), LIMITS[name]
            print(
                f"    {name:15} {statistics.median(rates[name]):6.1f} tokens/s: the engine makes {ratio:.2f} times as many "
                f"(of {', '.join(f'{r:.2f}' for r in found)})   limit {limit}{'' if ratio >= limit else '   UNDER'}",
                flush=True,
            )


def in_turn(
    first: Iterator[list[list[int]]], second: Iterator[list[list[int]]], share: int
) -> list[tuple[float, list[list[int]]]]:
    """Seconds and last outputs of both: a step of the first, then `share` of the second, and so on until both end."""
    taken, last = [0.0, 0.0], [[[0]], [[0]]]
    going = [(0, first, 1), (1, second, share)]
    while going:
        for number, steps, count in list(going):
            began = time.perf_counter()
            outputs = list(itertools.islice(steps, count))
            taken[number] += time.perf_counter() - began
            if outputs:
                last[number] = outputs[-1]
            else:
                going = [each for each in going if each[0] != number]
    return list(zip(taken, last, strict=True))


def generate_batch(model: Any, prompts: list[list[int]], new: int) -> Callable[[], Iterator[list[list[int]]]] | None:
    """transformers' own continuous batching, with its own page size and step; None where this release has none.

    Only its memory is named, or it would take most of the machine's; what it takes is more than the engine's.
    """
    try:
        from transformers import ContinuousBatchingConfig, GenerationConfig
    except ImportError:
        return None
    config = GenerationConfig(max_new_tokens=new, do_sample=False, eos_token_id=-1, pad_token_id=0)

    def run() -> Iterator[list[list[int]]]:
        pages = ContinuousBatchingConfig(num_blocks=2 * REQUESTS)  # of 256 tokens
        found = model.generate_batch(prompts, generation_config=config, continuous_batching_config=pages)
        by_prompt = {tuple(each.prompt_ids): list(each.generated_tokens) for each in found.values()}
        yield [by_prompt.get(tuple(prompt), []) for prompt in prompts]

    return run


def waste(count: int = 400) -> None:
    for mix, jobs in (("sharegpt", count), ("alpaca", 8 * count)):
        print(f"{jobs:,} jobs of the {mix} mix in {CAPACITY:,} slots:")
        for shares in compare(workload(mix, jobs)):
            limit = ""
            if mix == "sharegpt" and shares.way == "reserved":
                limit = f"   paper 20.4 % … 38.2 %{'' if 0.204 <= shares.tokens <= 0.382 else '   OUTSIDE'}"
            if mix == "sharegpt" and shares.way == "16 a page":
                limit = f"   limit {WASTE:.0%}{'' if shares.waste < WASTE else '   OVER'}"
            print(f"    {shares}   waste {shares.waste:5.1%}{limit}", flush=True)


if __name__ == "__main__":
    what = sys.argv[1] if len(sys.argv) > 1 else "all"
    if what in ("all", "waste"):
        waste()
    if what != "waste":
        smollm2, _ = kvviz.load_model("smollm2", dtype=torch.float32)
        if what in ("all", "same"):
            same(smollm2)
        if what in ("all", "speed"):
            rounds, new, threads = (int(n) for n in (sys.argv[2:5] + ["3", "64", "0"][len(sys.argv[2:5]) :]))
            torch.set_num_threads(threads or torch.get_num_threads())
            speed(smollm2, rounds, new)
