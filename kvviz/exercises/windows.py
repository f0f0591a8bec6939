"""Notebook 04: what a slice holds, which pages a window no longer needs, and a ring read in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kvviz.exercises import Exercise, Verdict

WINDOW, PROMPT = 512, 3000


def exercises() -> list[Exercise]:
    """The exercises of notebook 04."""
    return [
        Exercise(
            "04.1", "What a slice holds", 1, 4,
            f"A cache keeps a window of {WINDOW} tokens by a slice of what torch.cat gives, as SliceCache does. A prompt of "
            f"{PROMPT:,} tokens comes, then one more token. For how many tokens does it hold memory after the prompt, and for "
            "how many after the next token?\nCall check(after_the_prompt, after_the_next_token).",
            _holds,
            "The slice keeps its whole source alive; the next cat copies 512 + 1 rows, and the source of 3,000 goes.",
            ["A slice holds the tensor that it was cut from.",
             "The next token is appended to the slice: torch.cat([512 rows, 1 row]), and the result is cut again."],
        ),
        Exercise(
            "04.2", "Pages that may go", 2, 8,
            "A sequence has a window of `window` tokens and pages of `page_size` tokens; `done` tokens are in it. Write "
            "pages_to_go(done, window, page_size): how many of its first pages will no later query read? The next query is "
            "token number `done`, and its window includes itself.\nCall check(pages_to_go).",
            _may_go,
            "The first token still needed is max(0, done - window + 1); every page that ends before it may go.",
            ["Which is the first token that query number `done` sees?",
             "With a window of 4, query 5 sees 2, 3, 4 and itself.",
             "A page may go when all of its tokens come before that one."],
        ),
        Exercise(
            "04.3", "A ring in order", 2, 8,
            "A ring buffer has the shape [window, numbers]. Token t was written into row t % window, and `seen` tokens came. "
            "Write in_order(buffer, seen): the rows of the tokens that are stored, oldest first.\nCall check(in_order).",
            _ring,
            "Two pieces: from the oldest row to the end of the buffer, then from its front. To read a ring in order costs "
            "this copy; an attention that does not care about the order can do without it.",
            ["How many tokens are stored after `seen` of them came?",
             "While seen <= window, the rows lie in order already.",
             "After that the oldest token lies in row seen % window."],
        ),
    ]  # fmt: skip


def _holds(after_prompt: int, after_next: int) -> Verdict:
    if after_prompt != PROMPT:
        return (
            "It stores 512 tokens after the prompt, but what does the slice keep alive?"
            if after_prompt in (WINDOW, WINDOW - 1)
            else f"After the prompt it is not {after_prompt:,}."
        )
    known = {
        WINDOW + 1: None,
        WINDOW: "This slice, too, was cut from something: the result of the next cat.",
        PROMPT + 1: "The new token is appended to the 512 rows of the slice, not to the 3,000.",
        PROMPT: "The next append makes a new tensor; what refers to the old one after that?",
    }
    return known.get(after_next, f"After the next token it is not {after_next:,}.")


def _may_go(pages_to_go: Callable[[int, int, int], int]) -> Verdict:
    for page_size in (1, 2, 3, 4, 16):
        for window in (1, 2, 4, 5, 16, 33):
            for done in range(80):
                right, got = max(0, done - window + 1) // page_size, pages_to_go(done, window, page_size)
                if got != right:
                    trouble = "a later query still reads one of them" if got > right else "more may go"
                    return (
                        f"After {done} tokens, with a window of {window} and {page_size} tokens a page, "
                        f"it says {got}: {trouble}."
                    )
    return None


def _ring(in_order: Callable[[torch.Tensor, int], Any]) -> Verdict:
    for window in (1, 4, 5):
        for seen in range(3 * window + 2):
            buffer = torch.full((window, 2), -1.0)
            for token in range(seen):
                buffer[token % window] = token
            wanted = list(range(max(0, seen - window), seen))
            rows = in_order(buffer, seen)
            if not isinstance(rows, torch.Tensor) or rows.shape != (len(wanted), 2):
                return f"A window of {window}, {seen} tokens seen: {len(wanted)} rows of 2 numbers are stored."
            got = [int(row) for row in rows[:, 0]]
            if got != wanted:
                return f"A window of {window}, {seen} tokens seen: the tokens come in the order {got}, not {wanted}."
    return None
