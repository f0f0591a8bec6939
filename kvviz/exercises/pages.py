"""Notebook 05: pages of a fork, the slots of tokens, and a rollback for the mended sketch."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from kvviz.cache.pagelog import NULL
from kvviz.exercises import Exercise, Verdict
from kvviz.exercises.trial import Trial


def exercises() -> list[Exercise]:
    """The exercises of notebook 05."""
    return [
        Exercise(
            "05.1", "Four answers to one prompt", 1, 4,
            "16 tokens a page. A prompt of 40 tokens is read once and forked three times, so that there are four sequences. "
            "Each of the four then writes one token. How many pages are in use?",
            _forked,
            "Two full pages are shared by all four; the third, with 8 tokens, ends as four pages, one for each.",
            ["40 tokens are two full pages and one with 8 tokens.",
             "Who writes into a shared page gets a copy of it first. The last of the four finds it unshared."],
        ),
        Exercise(
            "05.2", "From tokens to slots", 2, 8,
            "In the tensors of a pool, page p has the slots p * page_size … p * page_size + page_size - 1. `table` lists the "
            "pages of a sequence in logical order; entries that slid out are -1. Write slots_of(table, page_size, first, "
            "end): the list of the slots of tokens first … end - 1.\nCall check(slots_of).",
            _slots,
            "keys[:, slots] is now a whole read of a sequence. Notebook 08 measures what such a read costs.",
            ["Token t is in entry t // page_size of the table.", "In its page it has place t % page_size."],
        ),
        Exercise(
            "05.3", "Take it back", 3, 15,
            "A draft that turns out wrong is taken back. Give the mended sketch a method rollback(n), which drops the newest "
            "n tokens; n is never more than there are. Pages without a token must go, too.\nCall check(YourClass).",
            _rollback,
            "60 random programs of append, keep and rollback give what a list gives, in no more pages than needed.",
            ["Only `length` and `pages` change.",
             "From self.first + self.length follows how many pages are still needed; rounded up.",
             "Where no token is left, no page is needed."],
        ),
    ]  # fmt: skip


def _forked(answer: int) -> Verdict:
    if answer == 6:
        return None
    known = {
        12: "This is without sharing: four times three pages.",
        3: "Nobody may write into a page that others read: the last page is copied before it is written.",
        7: "Does the last of the four still need a copy?",
        5: "One page too few: the last page ends as four different ones.",
    }
    return known.get(answer, f"{answer} is too {'many' if answer > 6 else 'few'}.")


def _slots(slots_of: Callable[[list[int], int, int, int], Any]) -> Verdict:
    draw = random.Random(5)
    for _ in range(200):
        size, entries = draw.choice((1, 2, 4, 16)), draw.randint(1, 6)
        table = draw.sample(range(40), entries)
        first, end = sorted(draw.randint(0, entries * size) for _ in range(2))
        table = [NULL if (index + 1) * size <= first else page for index, page in enumerate(table)]
        wanted = [table[t // size] * size + t % size for t in range(first, end)]
        got = list(slots_of(list(table), size, first, end))
        if got != wanted:
            return f"Table {table} with {size} tokens a page: tokens {first} … {end - 1} should be in {wanted}, it says {got}."
    return None


def _rollback(make: Callable[[int], Any]) -> Verdict:
    draw = random.Random(7)
    for _ in range(60):
        trial = Trial(make, _program(draw), pages=20)
        if not trial.same:
            return "It fails on this program:\n" + repr(trial)
    return None


def _program(draw: random.Random) -> str:
    """Some steps, none of which takes back more than is there."""
    steps, stored = ["append 3"], 3
    for _ in range(draw.randint(1, 8)):
        verb, number = draw.choice(("append", "keep", "rollback")), draw.randint(0, 9)
        if verb == "rollback":
            number = min(number, stored)
        stored = {"append": stored + number, "keep": min(stored, number), "rollback": stored - number}[verb]
        steps.append(f"{verb} {number}")
    return ", ".join(steps)
