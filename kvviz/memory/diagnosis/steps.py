"""A run in steps: what each of them leaves behind, and what comes and goes within one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvviz.memory.lifetimes import BlockSpans, rows
from kvviz.memory.trace import Trace
from kvviz.memory.whose import whose

FEWEST = 4  # steps that are needed to speak of growth
WINDOWS = 16  # of equal length, where the run has no marks
BRIEF = 0.002, 64  # of a run, but at least so many events: what lives no longer is transient


@dataclass(frozen=True)
class Kept:
    """Blocks of one owner that steps left behind: made within a step, alive in the end, and the step is over.

    steps: bytes that each finished step left. churn: bytes that its steps made and freed again.
    """

    name: str
    owner: int
    blocks: BlockSpans
    steps: np.ndarray
    churn: int

    @property
    def bytes(self) -> int:
        return int(self.blocks.size.sum())

    @property
    def leaving(self) -> np.ndarray:
        """The steps that left something."""
        return np.flatnonzero(self.steps)

    @property
    def accumulates(self) -> bool:
        """Again and again, and not most of it at once: a thing that is made once and stays is no growth."""
        many = len(self.leaving) >= 3 and self.leaving[-1] >= 0.6 * (len(self.steps) - 1)
        return bool(many and self.steps.max() <= 0.6 * self.bytes)


class Steps:
    """edges: event indices; step k is edges[k] … edges[k + 1] - 1. The first `finished` of them are over when the trace
    ends: all but the last, which may have been running.

    Marks are the steps where there are enough of them; otherwise windows of equal length stand for steps.
    """

    def __init__(self, trace: Trace, device: int):
        n = len(trace)
        self.trace, self.device = trace, device
        marks = np.unique([mark.event for mark in trace.marks if 0 < mark.event <= n]).astype("i8")
        self.marked = len(marks) >= FEWEST
        inner = marks if self.marked else np.linspace(0, n, WINDOWS + 1).astype("i8")[1:-1]
        self.edges = np.unique(np.concatenate([[0], inner, [n]])).astype("i8")
        at_the_end = self.marked and bool(inner[-1] == n)  # then the last step is over, too
        self.finished = len(self.edges) - (1 if at_the_end else 2)

    @property
    def name(self) -> str:
        return "step between marks" if self.marked else "sixteenth of the run"

    def floors(self) -> np.ndarray:
        """The least that was allocated within each step."""
        allocated = self.trace.curves(self.device).allocated
        return np.array([allocated[a:b].min() for a, b in zip(self.edges[:-1], self.edges[1:] + 1)], "i8")

    def kept(self, unseen: np.ndarray | None = None) -> list[Kept]:
        """What finished steps left behind, by owner, or by call site where nobody is named; the most first.

        unseen: a mask over the blocks, of those to leave out.
        """
        blocks = self.trace.lifetimes(self.device).blocks
        n, end = len(self.trace), self.edges[self.finished]
        born = (blocks.born >= 0) & (blocks.born < end)
        alive = blocks.freed == n
        if unseen is not None:
            born &= ~unseen
        group = np.where(blocks.owner > 0, -1 - blocks.owner, blocks.stack + 1)
        found = []
        for key in np.unique(group[born & alive]).tolist():
            mine = born & (group == key)
            left = rows(blocks, np.flatnonzero(mine & alive))
            step = np.searchsorted(self.edges, left.born, side="right") - 1
            amounts = np.bincount(step, left.size, self.finished).astype("i8")
            owner = int(left.owner[0])
            name = self.trace.owners[owner] if owner else whose(self.trace, 0, int(left.stack[0]))
            found.append(Kept(name, owner, left, amounts, int(blocks.size[mine & ~alive].sum())))
        return sorted(found, key=lambda kept: (-kept.bytes, kept.name))

    def transients(self, event: int, most: int = 5) -> list[tuple[str, int, int]]:
        """(whose, blocks, bytes) of what was allocated after `event` events and lived only briefly, the most first."""
        blocks = self.trace.lifetimes(self.device).blocks
        brief = max(int(BRIEF[0] * len(self.trace)), BRIEF[1])
        there = (blocks.born < event) & (blocks.freed >= event) & (blocks.born >= 0)
        picked = np.flatnonzero(there & (blocks.freed - blocks.born <= brief) & (blocks.freed < len(self.trace)))
        total: dict[str, list[int]] = {}
        for k in picked.tolist():
            row = total.setdefault(whose(self.trace, int(blocks.owner[k]), int(blocks.stack[k])), [0, 0])
            row[0] += 1
            row[1] += int(blocks.size[k])
        ranked = sorted(total.items(), key=lambda item: (-item[1][1], item[0]))
        return [(name, count, size) for name, (count, size) in ranked[:most]]
