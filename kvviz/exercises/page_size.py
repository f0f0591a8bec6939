"""Notebook 06: pages of three sequences, the largest page for a limit of waste, the largest window for a pool."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from kvviz.cache.capacity import most_pages
from kvviz.exercises import Exercise, Verdict

THREE, SIZE = (33, 100, 1000), 64
POWERS = [1 << k for k in range(11)]


def exercises() -> list[Exercise]:
    """The exercises of notebook 06."""
    return [
        Exercise(
            "06.1", "Three sequences", 1, 4,
            f"Three sequences of {THREE[0]}, {THREE[1]} and {THREE[2]:,} tokens, {SIZE} tokens a page. How many pages do "
            "they use, and how many slots of these pages are empty?\nCall check(pages, empty_slots).",
            _three,
            "1 + 2 + 16 pages are 1,216 slots, and 1,133 of them hold a token.",
            ["Each sequence has pages of its own. A page that is begun counts as a whole page.",
             "How many pages do 100 tokens need? How many slots are these?"],
        ),
        Exercise(
            "06.2", "The largest page", 2, 8,
            "Write largest_page(lengths, limit): the largest page size of 1, 2, 4, 8, … 1,024 with which at most `limit` "
            "per cent of the slots of all used pages are empty. `lengths` are the tokens of the sequences.\n"
            "Call check(largest_page).",
            _largest_page,
            "Most of the waste is decided by one number, the mean length; but a few short sequences can decide it, too.",
            ["Slots in use: for each length, the pages it needs times the page size. Round up: -(-tokens // page_size).",
             "Waste is (slots - tokens) / slots, for all sequences together, not the mean of each.",
             "Twice the page size never wastes less, so the search may stop at the first size that wastes too much."],
        ),
        Exercise(
            "06.3", "The largest window", 3, 10,
            "A pool has `pages` pages of `page_size` tokens, for `sequences` sequences with a window each. Write "
            "largest_window(pages, page_size, sequences): the largest window with which the pool never runs out, however "
            "long the sequences get; 0 where there is none.\nCall check(largest_window).",
            _largest_window,
            "Each sequence may use pages // sequences pages, and one of them is needed for windows that begin inside a page.",
            ["How many pages may each sequence use?",
             "A window of W tokens lies in at most ceil((W - 1) / page_size) + 1 pages. Turn this round.",
             "With one page for each sequence, a window of 1 is possible: each new token may take a new page, "
             "because the one before has slid out."],
        ),
    ]  # fmt: skip


def used(lengths: Sequence[int], page_size: int) -> int:
    """Pages of these sequences."""
    return sum(-(-tokens // page_size) for tokens in lengths)


def _three(pages: int, empty: int) -> Verdict:
    right = used(THREE, SIZE)
    if pages != right:
        together = -(-sum(THREE) // SIZE)
        if pages == together:
            return f"{together} pages would do if sequences could share a page; each has its own."
        return f"It is not {pages:,} pages."
    slots = right * SIZE
    if empty == slots:
        return "These are all slots; how many hold no token?"
    return None if empty == slots - sum(THREE) else f"The pages are right; {empty:,} empty slots are not."


def _largest_page(answer: Callable[[list[int], float], Any]) -> Verdict:
    draw = random.Random(6)
    fixed: list[tuple[list[int], float]] = [([100], 5), ([64, 64], 0), ([1, 1, 1], 50), ([48], 1)]
    mixes = [
        ([draw.randint(1, draw.choice((40, 400, 4000))) for _ in range(draw.randint(1, 12))], draw.choice((1, 5, 10, 25)))
        for _ in range(40)
    ]  # fmt: skip
    for lengths, limit in fixed + mixes:
        total = sum(lengths)
        over = {size: (100 - limit) * used(lengths, size) * size - 100 * total for size in POWERS}
        if (lengths, limit) not in fixed and 0 in over.values():
            continue  # just at the limit rounding would decide
        fits = [size for size in POWERS if over[size] <= 0]
        said = answer(list(lengths), limit)
        if said != fits[-1]:
            return f"With lengths {lengths} and a limit of {limit} % it is {fits[-1]}, your function says {said!r}."
    return None


def _largest_window(answer: Callable[[int, int, int], Any]) -> Verdict:
    draw = random.Random(6)
    cases = [(1, 16, 1), (2, 16, 1), (8, 1, 2), (3, 16, 4), (16, 8, 4)]
    cases += [(draw.randint(1, 40), draw.choice(POWERS[:8]), draw.randint(1, 6)) for _ in range(40)]
    for pages, size, sequences in cases:
        fits = 0
        while sequences * most_pages(fits + 1, size) <= pages:
            fits += 1
        said = answer(pages, size, sequences)
        if said == fits:
            continue
        of = f"{pages} page{'s' * (pages > 1)} of {size}, {sequences} sequence{'s' * (sequences > 1)}"
        if said == pages // sequences * size:
            return f"{of}: a window of {said} does not always begin at the first slot of a page; your function forgets that."
        return f"{of}: the largest window is {fits}, your function says {said!r}."
    return None
