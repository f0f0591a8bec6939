"""A trace of a realistic size for the pictures: a transformer that decodes with a cache that grows by concatenation.

Shapes are those of a 135M-parameter model (30 layers, 576 wide, 3 key-value heads of 64, bf16). Nothing is computed:
each tensor's size goes through `CachingAllocator`, with about sixty tensors a layer and a step, as eager code makes.
"""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np

from kvviz.memory.allocator import CachingAllocator
from kvviz.memory.trace import Action, Events, Mark, Trace

OTHER, WEIGHTS, CACHE = 0, 1, 2
LAYERS, WIDTH, HIDDEN, KV, VOCABULARY, BYTES = 30, 576, 1536, 192, 49152, 2
SITES = (
    "aten::mm · self_attn.q_proj", "aten::cat · self_attn", "aten::mul · input_layernorm", "aten::silu · mlp.act_fn",
    "aten::mm · mlp.down_proj", "aten::_softmax · self_attn", "aten::add · residual",
)  # fmt: skip


class _Run:
    """Notes which owner and call site each allocation has, in the order in which the allocator's trace lists them."""

    def __init__(self, capacity: int):
        self.allocator = CachingAllocator(capacity)
        self.notes: list[tuple[int, int]] = []

    def take(self, size: int, owner: int = OTHER, site: int = -1) -> int:
        self.notes.append((owner, site))
        return self.allocator.malloc(size)

    def drop(self, address: int) -> None:
        self.allocator.free(address)

    def passing(self, sizes: list[int], layer: int) -> None:
        """Temporaries that live one or two operations, as in eager code."""
        held: list[int] = []
        for k, size in enumerate(sizes):
            held.append(self.take(size, site=layer * len(SITES) + k % len(SITES)))
            if len(held) > 3:
                self.drop(held.pop(0))
        for address in held:
            self.drop(address)


def decode_trace(prompt: int = 300, steps: int = 64, chats: int = 1) -> Trace:
    """`chats` times a prompt and `steps` decoded tokens: about 115,000 blocks and, at 64 steps, 230,000 events or more."""
    run = _Run(8 << 30)
    for _ in range(LAYERS):
        for size in (WIDTH * WIDTH, WIDTH * KV, WIDTH * KV, WIDTH * WIDTH, *[WIDTH * HIDDEN] * 3, WIDTH, WIDTH):
            run.take(size * BYTES, WEIGHTS)
    run.take(VOCABULARY * WIDTH * BYTES, WEIGHTS)
    loaded = len(run.notes)
    marks: list[tuple[int, str]] = [(loaded, "weights loaded")]
    for chat in range(chats):
        cache: list[int] = []
        for step in range(steps + 1):
            tokens, past = (prompt, 0) if step == 0 else (1, prompt + step - 1)
            if step <= 1:
                marks.append((len(run.notes), f"{'prefill' if step == 0 else 'decode'} {chat + 1}" if chats > 1
                              else ("prefill" if step == 0 else "decode")))  # fmt: skip
            for layer in range(LAYERS):
                row = tokens * WIDTH * BYTES
                run.passing([row, row * 2, tokens * 4, row, tokens * KV * BYTES] * 5, layer)
                for half in (0, 1):
                    grown = run.take((past + tokens) * KV * BYTES, CACHE, layer * len(SITES) + 1)
                    if past:
                        run.drop(cache[2 * layer + half])
                        cache[2 * layer + half] = grown
                    else:
                        cache.append(grown)
                run.passing([tokens * (past + tokens) * 9 * BYTES, tokens * HIDDEN * BYTES, row] * 11, layer)
            run.passing([VOCABULARY * 4, VOCABULARY * BYTES, 8], 0)
        for address in cache:
            run.drop(address)
    return _labelled(run, marks)


def busy_trace(blocks: int = 120_000, live: int = 1_000, seed: int = 0) -> Trace:
    """The hard case: random sizes of 512 B to 2 MiB in random order, about `live` of them at any time."""
    chance, run = random.Random(seed), _Run(80 << 30)
    held: list[int] = []
    for k in range(blocks):
        size = int(512 * 4096 ** chance.random())
        held.append(run.take(size, 1 + k % 2 if k < live // 2 else chance.randrange(3), chance.randrange(7 * LAYERS)))
        if len(held) > live:
            place = chance.randrange(len(held))
            held[place], held[-1] = held[-1], held[place]
            run.drop(held.pop())
    return _labelled(run, [(live, "full")])


def _labelled(run: _Run, marks: list[tuple[int, str]]) -> Trace:
    """The allocator's trace with owners, call sites and marks; a mark's place counts allocations until here."""
    trace = run.allocator.trace
    events = trace.events
    allocs = np.flatnonzero(events.action == Action.ALLOC)
    notes = np.array(run.notes, dtype="i4")
    owner, stack = np.zeros(len(events), "i4"), np.full(len(events), -1, "i4")
    owner[allocs], stack[allocs] = notes[:, 0], notes[:, 1]
    columns = {name: events[name] for name in Events.__dataclass_fields__}
    columns.update(owner=owner, stack=stack)
    after = np.append(allocs, len(events))
    return replace(
        trace, events=Events(**columns), owners=["other", "weights", "KV cache"],
        stacks=[f"{site} · model.layers.{layer} · decode.py:{40 + k}" for layer in range(LAYERS)
                for k, site in enumerate(SITES)],
        marks=[Mark(int(after[place]), name) for place, name in marks],
        origin="PyTorch's allocator model, fed by a made-up decode loop",
    )  # fmt: skip
