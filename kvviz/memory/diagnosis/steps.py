"""A run in steps: what each of them leaves behind, and what comes and goes within one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvviz.memory.lifetimes import BlockSpans, rows
from kvviz.memory.report import count_text
from kvviz.memory.trace import Trace
from kvviz.memory.whose import site, whose

FEWEST = 4  # steps that are needed to speak of growth
WINDOWS = 16  # of equal length, where the run has no marks
BRIEF = 0.002, 64  # of a run, but at least so many events: what lives no longer is transient


@dataclass(frozen=True)
class Kept:
    """Blocks that finished steps left behind: made within a step, alive in the end, and the step is over.

    steps: bytes that each finished step left. outlived: of these blocks, which saw younger ones of the same name come and
    go: the newest state of a cache did not, what is kept of earlier ones did.
    """

    name: str
    owner: int
    blocks: BlockSpans
    steps: np.ndarray
    outlived: np.ndarray

    @property
    def bytes(self) -> int:
        return int(self.blocks.size.sum())

    @property
    def leaving(self) -> np.ndarray:
        """The steps that left something."""
        return np.flatnonzero(self.steps)

    @property
    def accumulates(self) -> bool:
        """Again and again, from the first half of the run to its end, and not most of it at once: a thing that is made
        once and stays is no growth, nor are the newest few of a queue."""
        last = len(self.steps) - 1
        spread = len(self.leaving) >= 3 and self.leaving[-1] >= 0.6 * last and self.leaving[0] <= 0.5 * last
        return bool(spread and self.steps.max() <= 0.6 * self.bytes)


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

    def counted(self, count: int) -> str:
        """ "3 steps", "3 sixteenths of the run"."""
        return count_text(count, "step") if self.marked else f"{count_text(count, 'sixteenth')} of the run"

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
        names, group = self._groups(blocks)
        found = []
        for key in np.unique(group[born & alive]).tolist():
            mine = group == key
            left = rows(blocks, np.flatnonzero(mine & born & alive))
            gone = blocks.born[mine & ~alive]  # in order of birth
            outlived = np.searchsorted(gone, left.born, side="right") < len(gone) - FEWEST
            found.append(Kept(names[key], int(left.owner[0]), left, self.of_each_step(left), outlived))
        return sorted(found, key=lambda kept: (-kept.bytes, kept.name))

    def of_each_step(self, blocks: BlockSpans) -> np.ndarray:
        """Bytes that each finished step made of these blocks."""
        step = np.searchsorted(self.edges, blocks.born, side="right") - 1
        return np.bincount(step, blocks.size, self.finished).astype("i8")

    def _groups(self, blocks: BlockSpans) -> tuple[list[str], np.ndarray]:
        """Names, and for each block the number of its own: its owner's, or that of its call site, alike for all layers."""
        names = list(self.trace.owners)
        numbers = {}
        for stack in np.unique(blocks.stack[(blocks.owner == 0) & (blocks.stack >= 0)]).tolist():
            name = site(self.trace, stack)
            if name not in names[len(self.trace.owners) :]:
                names.append(name)
            numbers[stack] = len(self.trace.owners) + names[len(self.trace.owners) :].index(name)
        of_stack = np.array([numbers.get(stack, 0) for stack in range(len(self.trace.stacks))] or [0], "i8")
        by_site = np.where(blocks.stack >= 0, of_stack[np.maximum(blocks.stack, 0)], 0)
        return names, np.where(blocks.owner > 0, blocks.owner, by_site)

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
