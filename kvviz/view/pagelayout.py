"""Where pages and page tables lie on the picture. Numbers only, and no text is measured: px in, px out.

Everything here is the twin of player/pagelayout.js, number for number: the still picture and the player show the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

NULL, HIDDEN = -1, -2  # in the place of a page: the null page; entries that there is no room for
HEIGHT = 420  # px for all grids together
LARGEST = 46  # px: a page's side, where there are few
HEAD, LINE, BOX = 24, 25, 18  # px: a heading; a line of a table; a page in it
CHAR = 6.4  # px: a character of the monospaced font at the size used in tables
_SIDE = 720  # px of width from which the tables lie beside the grid
_GAP, _RULE = 18, 48  # px: between two pools; between grid and tables
_LOW = 260  # px: a grid need not be lower
_WIDEST = 640  # px of tables, unless their pages need more
_COLUMNS = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
_HIDDEN_UNITS = 3


class Most(NamedTuple):
    """The most that a pool's tables ever need. Counts at one time, but for the last three: over the whole log.

    letters, digits, label: characters of a sequence's name, of a page's number, of what stands behind a table.
    """

    sequences: int
    entries: int
    longest: int
    letters: int
    digits: int
    label: int


class Grid(NamedTuple):
    """Pages in rows. size, gap: px."""

    columns: int
    rows: int
    size: int
    gap: int

    @property
    def width(self) -> int:
        return self.columns * (self.size + self.gap) - self.gap

    @property
    def height(self) -> int:
        return self.rows * (self.size + self.gap) - self.gap


class Section(NamedTuple):
    """One pool: the grid's corner, the tables' heading, and the tables below it. boxes: px from `x` where pages begin."""

    grid: Grid
    top: int
    grid_top: int
    x: int
    head: int
    lines: int
    per_line: int
    boxes: int
    unit: int  # px from one box to the next
    width: int  # of the tables, with what stands behind them


class Layout(NamedTuple):
    sections: list[Section]
    height: int
    beside: bool  # are the tables beside the grids, not below them?


@dataclass(frozen=True)
class Item:
    """One box of a table: `count` entries from `index` on; more than one only where they are null or hidden."""

    index: int
    count: int
    page: int

    @property
    def units(self) -> int:
        return _HIDDEN_UNITS if self.page == HIDDEN else 2 if self.count > 1 else 1


class Placed(NamedTuple):
    item: Item
    line: int
    at: int  # units from the left


def grid(pages: int, width: int, height: int) -> Grid:
    """Square pages, nearly as large as can be; 16 columns or more, and low, where that leaves them as large."""
    gap = 4 if pages <= 256 else 2 if pages <= 1024 else 1
    tried = []
    for columns in [c for c in _COLUMNS if c < pages] + [max(1, pages)] * (pages <= 16):
        rows = max(1, -(-pages // columns))
        size = min(LARGEST, (width + gap) // columns - gap, (height + gap) // rows - gap)
        tried.append(Grid(columns, rows, size, gap))
    largest = max(g.size for g in tried)
    if largest < 2:  # too many for the height: as wide as can be, and higher
        columns = max(c for c in _COLUMNS if c * (2 + gap) - gap <= width)
        return Grid(columns, -(-pages // columns), 2, gap)
    good = [g for g in tried if g.size * 100 >= largest * 78]
    return next((g for g in good if g.columns >= min(16, pages) and g.height <= _LOW), good[-1])


def layout(pages: Sequence[int], most: Sequence[Most], width: int) -> Layout:
    """Pools of so many pages, one under another, with their tables."""
    beside = width >= _SIDE
    grids: dict[int, Grid] = {}
    left = HEIGHT
    for done, k in enumerate(sorted(range(len(pages)), key=lambda k: pages[k])):  # what small ones spare, others get
        share = max(60, left // (len(pages) - done))
        grids[k] = grid(pages[k], width * 62 // 100 if beside else width, share)
        left -= grids[k].height
    several = len(pages) > 1
    column = max((g.width for g in grids.values()), default=0)
    if several:
        column = max(column, 240)  # for the headings
    sections, y = [], 0
    for k, need in enumerate(most):
        x = column + _RULE if beside else 0
        chip = max(24, need.letters * 8 + 10)
        unit = max(24, int(need.digits * CHAR) + 11) + 3
        label = int(need.label * CHAR) + 12
        per_line = min((width - x - chip - 8 - label + 3) // unit, max(8, need.longest))
        per_line = max(_HIDDEN_UNITS, per_line)
        grid_top = y + HEAD * several
        bottom = grid_top + grids[k].height
        head = y if beside else bottom + 16
        room = max(bottom, y + HEIGHT // len(pages)) - y - HEAD if beside else 11 * LINE
        lines = max(1, min(room // LINE, need.sequences + need.entries // per_line))
        wide = min(width - x, max(_WIDEST, chip + 8 + per_line * unit - 3 + label))
        sections.append(Section(grids[k], y, grid_top, x, head, lines, per_line, chip + 8, unit, wide))
        y = max(bottom, head + HEAD + lines * LINE - (LINE - BOX)) + _GAP
    return Layout(sections, max(0, y - _GAP), beside)


def share_lines(needs: Sequence[int], lines: int) -> list[int]:
    """Lines for each table, at least one; shorter than `needs` where the last line must say how many more there are."""
    if len(needs) > lines:
        return [1] * (lines - 1)
    given, left = [1] * len(needs), lines - len(needs)
    while left > 0 and any(g < n for g, n in zip(given, needs, strict=True)):
        for k, need in enumerate(needs):
            if given[k] < need and left > 0:
                given[k] += 1
                left -= 1
    return given


def items(entries: Sequence[tuple[int, int]]) -> list[Item]:
    """Boxes for a table's (index, page) in order, null pages in a row as one."""
    boxes, expected = [], 0
    for index, page in entries:
        if index > expected:
            boxes.append(Item(expected, index - expected, NULL))
        boxes.append(Item(index, 1, page))
        expected = index + 1
    return boxes


def place(boxes: Sequence[Item], per_line: int) -> list[Placed]:
    """One after the other, as many lines as it takes."""
    placed, line, at = [], 0, 0
    for item in boxes:
        if at and at + item.units > per_line:
            line, at = line + 1, 0
        placed.append(Placed(item, line, at))
        at += item.units
    return placed


def fit(boxes: Sequence[Item], per_line: int, lines: int) -> list[Placed]:
    """In so many lines, with the middle left out where all do not fit: what the newest tokens are in is at the end."""
    placed = place(boxes, per_line)
    if not placed or placed[-1].line < lines:
        return placed
    head = (per_line * lines - _HIDDEN_UNITS) // 2
    tail = per_line * lines - _HIDDEN_UNITS - head
    while True:
        front = _take(boxes[:-1], head)
        back = _take(boxes[front + 1 :][::-1], tail)
        inner = boxes[front : len(boxes) - back]
        hidden = Item(inner[0].index, sum(item.count for item in inner), HIDDEN)
        placed = place([*boxes[:front], hidden, *boxes[len(boxes) - back :]], per_line)
        if placed[-1].line < lines:
            return placed
        head, tail = (head - 1, tail) if head > tail else (head, tail - 1)


def _take(boxes: Sequence[Item], units: int) -> int:
    """How many from the start fit in so many units."""
    taken = 0
    while taken < len(boxes) and units >= boxes[taken].units:
        units -= boxes[taken].units
        taken += 1
    return taken
