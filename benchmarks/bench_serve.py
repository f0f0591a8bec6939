"""kvviz.serve on SmolLM2 (fp32): the same tokens as alone, how many a second, and what memory it wastes.

    python -m benchmarks.bench_serve               all of it
    python -m benchmarks.bench_serve same          64 requests, too few pages: every output against the run alone
    python -m benchmarks.bench_serve speed 3 24,64 8 requests, 3 rounds, 24 and 64 new tokens: the engine, one by one, and
                                                   transformers' generate_batch; a last number for other thread counts
    python -m benchmarks.bench_serve waste         shares of memory on ShareGPT-like and Alpaca-like lengths

The engine and the runs alone take turns step by step, so that a noisy machine troubles both alike. On a machine that others
use, too, set OMP_WAIT_POLICY=PASSIVE: threads that wait for one another then let others run.

generate_batch is measured twice: as it is called without settings, when it first takes much of the machine's memory for its
blocks, and told to take 16 of them, twice what the engine has. How long it takes until its first batch is said for both.
"""

from __future__ import annotations

import itertools
import random
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from transformers import DynamicCache

import kvviz
from kvviz.serve import Engine, record_batching, shared_prefixes
from kvviz.serve.waste import CAPACITY, compare
from kvviz.serve.workload import workload

TIE = 1e-4  # of a logit: closer than that, rounding may choose either of two tokens
REQUESTS = 8  # of the speed test
DEFAULTS, TOLD = "generate_batch, defaults", "generate_batch, told 16 blocks"
BLOCKS: dict[str, int | None] = {DEFAULTS: None, TOLD: 16}  # of 256 tokens each; None: what it takes by itself
LIMITS = {"one by one": 3.5, DEFAULTS: 2.5}  # times slower than the engine, at least
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

    others = ["one by one", *(BLOCKS if hasattr(model, "generate_batch") else ())]
    ratios: dict[str, list[float]] = {name: [] for name in others}
    rates: dict[str, list[float]] = {name: [] for name in ("engine", *others)}
    starts: dict[str, list[str]] = {name: [] for name in others}
    for _ in range(rounds):
        (own, ours), (theirs, alone_outputs) = in_turn(engine(), one_by_one(), REQUESTS)
        assert ours == alone_outputs
        ratios["one by one"].append(theirs / own)
        rates["engine"].append(REQUESTS * new / own)
        rates["one by one"].append(REQUESTS * new / theirs)
        for name in others[1:]:
            (own, _), (theirs, _) = in_turn(engine(), batched(model, prompts, new, BLOCKS[name], starts[name]), 1)
            ratios[name].append(theirs / own)
            rates[name].append(REQUESTS * new / theirs)
    print(f"{REQUESTS} requests of {new} new tokens, {torch.get_num_threads()} threads, medians of {rounds} rounds:")
    print(f"    {'engine':30} {statistics.median(rates['engine']):6.1f} tokens/s")
    for name, found in ratios.items():
        ratio, limit = statistics.median(found), LIMITS.get(name)
        told = "for comparison" if limit is None else f"limit {limit}{'' if ratio >= limit else '   UNDER'}"
        print(
            f"    {name:30} {statistics.median(rates[name]):6.1f} tokens/s: the engine makes {ratio:.2f} times as many "
            f"(of {', '.join(f'{r:.2f}' for r in found)})   {told}",
            flush=True,
        )
        for start in starts[name]:
            print(f"        {start}", flush=True)


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


def batched(
    model: Any, prompts: list[list[int]], new: int, blocks: int | None, starts: list[str]
) -> Iterator[list[list[int]]]:
    """transformers' own continuous batching, with its own page size and step. starts: gets a line on how it began."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    config = GenerationConfig(max_new_tokens=new, do_sample=False, eos_token_id=-1, pad_token_id=0)
    began = time.perf_counter()
    with record_batching(model) as run:
        found = model.generate_batch(
            prompts,
            generation_config=config,
            continuous_batching_config=ContinuousBatchingConfig(num_blocks=blocks),
        )
    took, waited = time.perf_counter() - began, min(each.lifespan[0] for each in found.values()) - began
    pool = run.log.pools[0]
    starts.append(
        f"takes {pool.pages:,} blocks of {pool.page_size} tokens ({pool.pages * pool.page_bytes / 1e9:.1f} GB) before its "
        f"first batch: {waited:.1f} s of {took:.1f}"
    )
    by_prompt = {tuple(each.prompt_ids): list(each.generated_tokens) for each in found.values()}
    yield [by_prompt.get(tuple(prompt), []) for prompt in prompts]


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
            rounds, lengths, threads = sys.argv[2:5] + ["3", "24,64", "0"][len(sys.argv[2:5]) :]
            torch.set_num_threads(int(threads) or torch.get_num_threads())
            for new in lengths.split(","):
                speed(smollm2, int(rounds), int(new))
