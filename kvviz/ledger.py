"""The ledger: claims about the memory of language models, each with what was measured and the verdict that follows.

    ledger = kvviz.Ledger()
    ledger.settle(4, "slicing the context does not release memory", held > shown, "49.0 MiB held for 32.0", lesson="04")
    ledger                                  # a table in a notebook

A verdict is computed from the measurement in the same call: it is never typed in.
"""

from __future__ import annotations

import html
from dataclasses import dataclass

from kvviz.errors import InvalidRequest

HOLDS, NOT, OPEN = "holds", "does not hold", "not decidable on this machine"


@dataclass(frozen=True)
class Entry:
    """One claim. verdict: "holds", "holds if …", "does not hold" or "not decidable on this machine (needs …)"."""

    number: int
    claim: str
    verdict: str
    measured: str
    lesson: str


class Ledger:
    """Entries by number; settling a claim again replaces it."""

    def __init__(self) -> None:
        self._entries: dict[int, Entry] = {}

    def settle(
        self, number: int, claim: str, holds: bool | None, measured: str, *, lesson: str, only: str = "", needs: str = ""
    ) -> Entry:
        """Write the verdict on a claim.

        holds: what the measurement says; None where it cannot say, and then `needs` names what would. only: the condition
        under which a claim holds that holds in part. measured: the figures, in words.

        Raises InvalidRequest for a claim without figures, for None without `needs`, and for a condition on what does not
        hold.
        """
        if not measured:
            raise InvalidRequest(f"claim {number}: a verdict needs figures")
        if holds is None:
            if not needs:
                raise InvalidRequest(f"claim {number}: say what it needs to be decided")
            verdict = f"{OPEN} (needs {needs})"
        elif holds:
            verdict = f"{HOLDS} if {only}" if only else HOLDS
        elif only:
            raise InvalidRequest(f"claim {number} does not hold: there is no condition to name")
        else:
            verdict = NOT
        self._entries[number] = Entry(number, claim, verdict, measured, lesson)
        return self._entries[number]

    @property
    def entries(self) -> list[Entry]:
        """By number."""
        return [self._entries[number] for number in sorted(self._entries)]

    def missing(self, count: int) -> list[int]:
        """Which of the claims 1 … count are not settled yet."""
        return [number for number in range(1, count + 1) if number not in self._entries]

    @property
    def text(self) -> str:
        return "\n".join(
            f"{e.number:2}  {e.claim}\n    {e.verdict}: {e.measured} (lesson {e.lesson})" for e in self.entries
        )

    def __repr__(self) -> str:
        return self.text or "<Ledger: nothing settled yet>"

    def _repr_html_(self) -> str:
        heads = "".join(f"<th style='text-align:left'>{name}</th>" for name in ("row", "claim", "verdict", "measured", "lesson"))
        rows = "".join(f"<tr>{''.join(map(_cell, _cells(e)))}</tr>" for e in self.entries)
        return f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"


def _cells(e: Entry) -> tuple[object, ...]:
    return e.number, html.escape(e.claim), f"<b>{html.escape(e.verdict)}</b>", html.escape(e.measured), e.lesson


def _cell(content: object) -> str:
    return f"<td style='text-align:left;vertical-align:top'>{content}</td>"
