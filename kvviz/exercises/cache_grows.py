"""Notebook 01: bytes of a large model's cache, the rows that concatenation copies, and a window that lets go."""

from __future__ import annotations

from typing import Any

from kvviz.exercises import Exercise, Verdict
from kvviz.memory.owners import storage_of

LLAMA_2_7B = 2 * 32 * 32 * 128 * 2  # bytes a token in fp16


def exercises() -> list[Exercise]:
    """The exercises of notebook 01."""
    return [
        Exercise(
            "01.1", "One conversation of a 7B model", 1, 3,
            "Llama-2-7B has 32 layers with 32 KV heads of 128 numbers, 2 bytes each in fp16. How many bytes does the "
            "cache of one sequence of 4,096 tokens need?",
            _conversation,
            "2 GiB. Its weights take 13.5 GB: six such sequences need as much as the model.",
            ["2 × layers × KV heads × head size × bytes of a number, times the tokens.", "2 × 32 × 32 × 128 × 2 × 4,096"],
        ),
        Exercise(
            "01.2", "What concatenation copies", 2, 5,
            "A prompt of 100 tokens is in the cache. 50 tokens follow, each appended by torch.cat. How many rows are "
            "written in all, old ones again included?",
            _copied,
            "The k-th step writes 100 + k rows. Written in place it would be 50.",
            ["The first step writes 101 rows, the last one 150.", "Add 100 + k for k = 1 … 50."],
        ),
        Exercise(
            "01.3", "Let go of the rest", 2, 5,
            "`rows` has 1,000 tokens. Make a tensor with its last 100 tokens that keeps no more than their own bytes "
            "alive.\nCall check(your_tensor, rows).",
            _let_go,
            "The old storage can go as soon as nobody else refers to it.",
            ["A slice is a view: it has the storage of the tensor that it was cut from.", "A copy has a storage of its own."],
        ),
    ]  # fmt: skip


def _conversation(answer: int) -> Verdict:
    right = LLAMA_2_7B * 4096
    if answer == right:
        return None
    known = {LLAMA_2_7B: "This is one token.", right // 2: "Keys and values are both kept.", right * 2: "This is fp32."}
    return known.get(answer, f"{answer:,} is {'more' if answer > right else 'less'} than it needs.")


def _copied(answer: int) -> Verdict:
    right = sum(100 + k for k in range(1, 51))
    if answer == right:
        return None
    if answer == 50:
        return "This is what writing in place costs."
    return (
        "One step too early or too late?"
        if abs(answer - right) <= 150
        else f"{answer:,} is too {'many' if answer > right else 'few'}."
    )


def _let_go(answer: Any, rows: Any) -> Verdict:
    if not hasattr(answer, "shape") or answer.shape[-2] != 100:
        return f"It should have 100 tokens; its shape is {tuple(getattr(answer, 'shape', ()))}."
    if not bool((answer == rows[..., -100:, :]).all()):
        return "It has 100 tokens, but not the last ones."
    storage = storage_of(answer)
    held = storage.nbytes() if storage is not None else 0
    if held > answer.numel() * answer.element_size():
        return f"It keeps {held:,} bytes alive for {answer.numel() * answer.element_size():,} bytes of tokens."
    return None
