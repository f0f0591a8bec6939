"""Notebook 09: pages of a shared prompt, steps of continuous batching, and what a prefix cache finds."""

from __future__ import annotations

import random
from collections.abc import Callable

from kvviz.cache.pages import PagePool
from kvviz.exercises import Exercise, Verdict

SIZE = 16
SYSTEM, QUESTION, NEW, REQUESTS = 100, 10, 20, 5


def exercises() -> list[Exercise]:
    """The exercises of notebook 09."""
    return [
        Exercise(
            "09.1", "Five questions, one beginning", 1, 4,
            f"{SIZE} tokens a page, and a prefix cache. {REQUESTS} requests begin with the same {SYSTEM} tokens; then each "
            f"has {QUESTION} tokens that no other has, and gets {NEW} new ones. All run at once. How many pages are in use "
            "when they are nearly done?",
            _pages,
            "Six whole pages are shared. Each request has three more of its own, the first of them with four old tokens.",
            ["A prefix is found in whole pages only.",
             "A request has 130 tokens in the end. That is nine pages: which of them can be shared?"],
        ),
        Exercise(
            "09.2", "Steps of a batch", 2, 8,
            "Short prompts, read in one step that also gives the first new token. `lengths` are the new tokens of the "
            "requests, in order; at most `width` run at once. When one is done, the next in line begins in the following "
            "step. Write steps_of(lengths, width): the steps until all are done. Call check(steps_of).",
            _steps,
            "This is what the engine does as long as no pages are missing.",
            ["Keep one number for each place in the batch: the step in which it is free again.",
             "The next request takes the place that is free first."],
        ),
        Exercise(
            "09.3", "What the prefix cache finds", 3, 10,
            "`known` are prompts that were read before, all their pages are still remembered. Write found(prompt, known, "
            "page_size): how many tokens of `prompt` the engine need not compute. Whole pages only; and the last token of "
            "the prompt is always computed, since the next token is read from it. Call check(found).",
            _found,
            "kvviz.PagePool finds the same, with one look into a dict for each page.",
            ["For each known prompt: how many tokens are equal from the start on? The longest counts.",
             "Of the known prompt, too, only whole pages are remembered.",
             "Leave out the last token of `prompt` before you compare, then round down to whole pages."],
        ),
    ]  # fmt: skip


def _pages(answer: int) -> Verdict:
    whole = SYSTEM // SIZE
    each = -(-(SYSTEM + QUESTION + NEW) // SIZE)
    right = whole + REQUESTS * (each - whole)
    if answer == right:
        return None
    known = {
        each * REQUESTS: "This is without sharing.",
        right - REQUESTS + 1: "The seventh page holds tokens of the question, too: it cannot be shared.",
        right + 1: "Only whole pages are shared; nobody shares the seventh.",
        each: "They have different questions, so they cannot share all.",
    }
    return known.get(answer, f"{answer} is too {'many' if answer > right else 'few'}.")


def _steps(steps_of: Callable[[list[int], int], int]) -> Verdict:
    draw = random.Random(9)
    cases = [([5, 2, 3], 2), ([4], 3), ([1, 1, 1, 1], 2)]
    cases += [([draw.randint(1, 20) for _ in range(draw.randint(1, 12))], draw.randint(1, 6)) for _ in range(100)]
    for lengths, width in cases:
        free = [0] * width
        for length in lengths:
            place = free.index(min(free))
            free[place] += length
        got = steps_of(list(lengths), width)
        if got != max(free):
            wholly = sum(max(lengths[k : k + width]) for k in range(0, len(lengths), width))
            why = " Nobody has to wait until a whole batch is done." if got == wholly else ""
            return f"Lengths {lengths}, {width} at once: {max(free)} steps, it says {got}.{why}"
    return None


def _found(found: Callable[[list[int], list[list[int]], int], int]) -> Verdict:
    draw = random.Random(3)
    for _ in range(200):
        size, pool_known = draw.choice((1, 2, 4)), []
        pool = PagePool(200, size)
        base = [draw.randrange(50) for _ in range(24)]
        for _ in range(draw.randint(0, 3)):
            pool_known.append(base[: draw.randint(0, 16)] + [draw.randrange(50) for _ in range(draw.randint(1, 6))])
        prompt = base[: draw.randint(1, 20)] + [draw.randrange(50) for _ in range(draw.randint(0, 3))]
        if pool_known and draw.random() < 0.3:
            prompt = list(draw.choice(pool_known))
        for ids in pool_known:
            table = pool.table()
            table.adopt(ids)
            table.append(ids[table.seen :])
            table.free()
        right = len(pool.find(prompt[:-1])) * size
        got = found(list(prompt), [list(ids) for ids in pool_known], size)
        if got != right:
            why = " The last token of the prompt is always computed." if got == len(pool.find(prompt)) * size else ""
            return f"Prompt {prompt}, known {pool_known}, {size} a page: {right} tokens are found, it says {got}.{why}"
    return None
