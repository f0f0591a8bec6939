"""Small programs for the AllocatorExplorer: each a plain function that drives a CachingAllocator.

No tensor is made. What a program asks for, and in which order, is written here; what the allocator does then is its model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from kvviz.memory.allocator import CachingAllocator
from kvviz.memory.trace import Events, Mark, Trace

MIB = 1 << 20
LAYERS, KV_HEADS, HEAD_DIM, HIDDEN, MLP = 30, 3, 64, 576, 1536  # SmolLM2-135M
FP32 = 4  # bytes
KV, ACTIVATIONS = "kv cache", "activations"


class Noted(CachingAllocator):
    """An allocator that knows what its blocks are for, where the program says so by note(), and names for moments."""

    def __init__(self, capacity: int, conf: str = ""):
        super().__init__(capacity, conf)
        self._whose: dict[int, str] = {}  # number of the event -> owner
        self._marks: list[Mark] = []

    def note(self, owner: str) -> None:
        """The block that was made last is `owner`'s."""
        self._whose[self.events_so_far - 1] = owner

    def mark(self, name: str) -> None:
        """Name this moment."""
        self._marks.append(Mark(self.events_so_far, name))

    @property
    def trace(self) -> Trace:
        """Everything that happened, with owners and marks."""
        bare = super().trace
        names = ["other", *dict.fromkeys(self._whose.values())]
        owner = np.zeros(len(bare), "i4")
        for event, name in self._whose.items():
            owner[event] = names.index(name)
        columns = vars(bare.events) | {"owner": owner}
        return replace(bare, events=Events(**columns), owners=names, marks=list(self._marks))


def take(allocator: CachingAllocator, size: int, owner: str) -> int:
    """malloc(), and note the owner where the allocator can."""
    address = allocator.malloc(size)
    if isinstance(allocator, Noted):
        allocator.note(owner)
    return address


def mark(allocator: CachingAllocator, name: str) -> None:
    """Name this moment where the allocator can."""
    if isinstance(allocator, Noted):
        allocator.mark(name)


def pinned_segment(allocator: CachingAllocator) -> None:
    """530 MiB that go, then 270 MiB, and 270 MiB again after empty_cache()."""
    allocator.free(take(allocator, 530 * MIB, ACTIVATIONS))
    take(allocator, 270 * MIB, KV)
    allocator.empty_cache()
    mark(allocator, "empty_cache()")
    take(allocator, 270 * MIB, KV)


def survivors(allocator: CachingAllocator, cycles: int = 100) -> None:
    """In each cycle 91 and 45.5 MiB that go, and 2 MiB that stay."""
    for _ in range(cycles):
        big, middle = take(allocator, 91 * MIB, ACTIVATIONS), take(allocator, 91 * MIB // 2, ACTIVATIONS)
        take(allocator, 2 * MIB, KV)
        allocator.free(big)
        allocator.free(middle)


def growing_cache(allocator: CachingAllocator, batch: int = 8, prompt: int = 400, new_tokens: int = 8) -> None:
    """SmolLM2's shapes in fp32: a prompt, then tokens one by one; keys and values grow by concatenation."""
    cache: dict[tuple[int, int], int] = {}
    _answer(allocator, cache, batch, prompt, new_tokens)


def kept_caches(allocator: CachingAllocator, generations: int = 8, batch: int = 8) -> None:
    """SmolLM2's shapes in fp32: prompts of 300 tokens and more, one token each; every second cache is kept."""
    for number in range(generations):
        mark(allocator, f"generation {number}")
        cache: dict[tuple[int, int], int] = {}
        _answer(allocator, cache, batch, 300 + 37 * number, 1)
        if number % 2:
            for address in cache.values():
                allocator.free(address)


def _answer(
    allocator: CachingAllocator, cache: dict[tuple[int, int], int], batch: int, prompt: int, new_tokens: int
) -> None:
    """One answer. cache: (layer, keys or values) -> address; it is filled, and grows with every token."""
    length = 0
    for step in range(1 + new_tokens):
        came = 1 if step else prompt
        hidden = take(allocator, batch * came * HIDDEN * FP32, ACTIVATIONS)
        length += came
        for layer in range(LAYERS):
            for which in (0, 1):
                state = take(allocator, batch * KV_HEADS * came * HEAD_DIM * FP32, ACTIVATIONS)
                # torch.cat: the new tensor beside the old one, which goes when the copy is made
                grown = take(allocator, batch * KV_HEADS * length * HEAD_DIM * FP32, KV)
                if (layer, which) in cache:
                    allocator.free(cache[layer, which])
                cache[layer, which] = grown
                allocator.free(state)
            inner = take(allocator, batch * came * MLP * FP32, ACTIVATIONS)
            after = take(allocator, batch * came * HIDDEN * FP32, ACTIVATIONS)
            allocator.free(inner)
            allocator.free(hidden)
            hidden = after
        allocator.free(hidden)
        if not step:
            mark(allocator, "decode")


PROGRAMS: dict[str, Callable[[CachingAllocator], Any]] = {
    "530 MiB go, 270 + 270 come": pinned_segment,
    "100 cycles, 2 MiB of each stay": survivors,
    "a cache grows by torch.cat": growing_cache,
    "every second cache is kept": kept_caches,
}
