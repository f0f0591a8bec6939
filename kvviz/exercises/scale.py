"""Notebook 12: how many tokens fit, and which heads a rank gets."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain

from kvviz.exercises import Exercise, Verdict
from kvviz.sizing import plan


def exercises() -> list[Exercise]:
    """The exercises of notebook 12."""
    return [
        Exercise(
            "12.1", "How long a context?", 2, 6,
            "Llama-3-8B, weights and cache in bf16, one sequence, pages of 16 tokens, a card of 24 GiB, and what a plan "
            "assumes for the rest. How many tokens fit?",
            _tokens,
            "The plan subtracts weights and workspace, and divides by 131,072 bytes a token, in whole pages.",
            ['kvviz.plan("llama-3-8b", "24GiB", tokens=…)', "A plan says how many tokens fit: .tokens_that_fit"],
        ),
        Exercise(
            "12.2", "Heads over ranks", 2, 8,
            "Write heads_of(rank, ranks, kv_heads): the KV heads of a rank, in order, so that every head has one rank and "
            "no rank has more than one head more than another. 3 heads over 2 ranks are 2 and 1. Call check(heads_of).",
            _heads,
            "One page table serves all ranks, and each holds its heads' part of every page.",
            ["divmod(kv_heads, ranks)", "The first ranks take one head more."],
        ),
    ]  # fmt: skip


def _tokens(answer: float) -> Verdict:
    right = plan("llama-3-8b", "24GiB", 1, dtype="bf16", kv_dtype="bf16", page_size=16).tokens_that_fit
    assert right is not None
    if answer == right:
        return None
    if answer == 24 * 2**30 // 131_072:
        return "So many would fit if the card held nothing else: what about the weights?"
    return f"{'Too many' if answer > right else 'Too few'}: {'not so many' if answer > right else 'more'} fit."


def _heads(heads_of: Callable[[int, int, int], Iterable[int]]) -> Verdict:
    for kv_heads in (1, 2, 3, 4, 5, 8, 13):
        for ranks in range(1, kv_heads + 1):
            shares = [list(heads_of(rank, ranks, kv_heads)) for rank in range(ranks)]
            if sorted(chain.from_iterable(shares)) != list(range(kv_heads)):
                return f"{kv_heads} heads over {ranks} ranks: {shares}. Every head should have one rank."
            if max(map(len, shares)) - min(map(len, shares)) > 1:
                return f"{kv_heads} heads over {ranks} ranks: {shares}. One rank has two more than another."
    return None
