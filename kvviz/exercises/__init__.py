"""Exercises that check themselves: a question, a check that says what is off, hints one at a time.

    task = kvviz.exercise("00.1")     # shows the question
    task.check(46_080)                # says whether the answer is right, and if not, in which direction to look
    task.hint()                       # the next hint

The questions of each notebook stand in a module of their own; solutions are notebooks under notebooks/solutions.
"""

from __future__ import annotations

import html
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kvviz.errors import InvalidRequest

Verdict = str | None  # None: right; otherwise what is off


@dataclass
class Exercise:
    """One question. `judge(answer)` returns None for a right answer, otherwise one sentence on what is off."""

    number: str
    title: str
    difficulty: int  # 1 … 3
    minutes: int
    question: str
    judge: Callable[..., Verdict]
    well_done: str
    hints: list[str]
    _shown: int = field(default=0, repr=False)

    def check(self, answer: Any, *more: Any) -> bool:
        """Say whether the answer is right. Returns True or False; an unfinished answer (None, …) is no error."""
        if answer is None or answer is ...:
            print(f"{self.number}: no answer yet.")
            return False
        try:
            problem = self.judge(answer, *more)
        except Exception:  # a reader's half-made answer must not end in a stack trace of ours
            problem = (
                f"The check could not use an answer of type {type(answer).__name__}"
                f"{' with these other arguments' if more else ''}; the question says what it expects."
            )
        print(f"{self.number}: right. {self.well_done}" if problem is None else f"{self.number}: not yet. {problem}")
        return problem is None

    def hint(self) -> None:
        """Print the next hint; after the last one, where the solution is."""
        if self._shown < len(self.hints):
            print(f"Hint {self._shown + 1} of {len(self.hints)}: {self.hints[self._shown]}")
            self._shown += 1
        else:
            print(f"No more hints. The solution is in notebooks/solutions/{self.number.partition('.')[0]}.ipynb")

    def __repr__(self) -> str:
        return f"Exercise {self.number} ({'*' * self.difficulty}, {self.minutes} min): {self.title}\n{self.question}"

    def _repr_html_(self) -> str:
        stars = "●" * self.difficulty + "○" * (3 - self.difficulty)
        text = html.escape(self.question).replace("\n", "<br>")
        return (
            f"<p><b>Exercise {self.number} · {html.escape(self.title)}</b> &nbsp; difficulty {stars} &nbsp; "
            f"{self.minutes} min</p><p>{text}</p>"
        )


def exercise(number: str) -> Exercise:
    """The exercise of that number, "00.1" for the first one of notebook 00. Raises InvalidRequest for an unknown one."""
    from kvviz.exercises import (
        allocator,
        cache_grows,
        debug_oom,
        fragmentation,
        many_sequences,
        page_size,
        pages,
        precision,
        reading_pages,
        real_model,
        scale,
        start_here,
        windows,
    )

    lessons = (
        start_here, cache_grows, allocator, fragmentation, windows, pages, page_size, real_model, reading_pages,
        many_sequences, precision, debug_oom, scale,
    )  # fmt: skip
    known = {e.number: e for lesson in lessons for e in lesson.exercises()}
    if number not in known:
        raise InvalidRequest(f"no exercise {number!r}; there are {', '.join(sorted(known))}")
    return known[number]
