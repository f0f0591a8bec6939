"""What every still picture has around its map: header, timeline, footer. Drawn as it opens, in the light theme."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from kvviz.view.base import Base
from kvviz.view.layout import Span
from kvviz.view.paper import Paper

WIDTH, PAD, TOP = 1100, 18, 78
INNER = WIDTH - 2 * PAD
PLOT_TOP, PLOT_HEIGHT, PLOT_FOOT = 20, 82, 18
LIMIT = 40_000  # bytes; a notebook holds many of these
_INKS = ("back", "front", "line")


class Series(NamedTuple):
    """A total over all events: values after 0 … n of them, and how one reads."""

    name: str
    values: np.ndarray
    format: Callable[[int], str]


class Moving(Protocol):
    """What can be drawn here: a Scene or a PageScene. peak: of the second series. warned: how many warnings there are."""

    events: int
    start: int
    origin: str
    warned: int

    @property
    def peak(self) -> int: ...
    @property
    def series(self) -> list[Series]: ...
    @property
    def marks(self) -> list[tuple[int, str]]: ...
    @property
    def base(self) -> Base: ...
    def figures(self, i: int) -> list[tuple[str, str]]: ...


def header(paper: Paper, scene: Moving, title: str, subtitle: str) -> None:
    paper.card()
    x: float = WIDTH - PAD
    for name, value in reversed(scene.figures(scene.start)):
        paper.text(x, 37, value, 16, anchor="rs", bold=True)
        paper.text(x, 56, name.upper(), 10.5, "muted", "rs")
        x -= max(paper.measure(value, 16), paper.measure(name.upper(), 10.5)) + 24
    paper.text(PAD, 37, paper.fit(title, 17, x - PAD), 17, bold=True)
    paper.text(PAD, 56, paper.fit(subtitle, 12.5, x - PAD), 12.5, "muted")


def footer(paper: Paper, scene: Moving) -> None:
    count = scene.warned
    warned = f" · {count} warning{'s' if count > 1 else ''}" if count else ""
    paper.text(PAD, paper.height - 14, paper.fit(scene.origin + warned, 11.5, INNER - 200), 11.5, "muted")
    place = f"event {scene.start:,} / {scene.events:,}"
    paper.text(WIDTH - PAD, paper.height - 14, place, 11.5, "muted", "rs")


def series_keys(paper: Paper, scene: Moving, baseline: float) -> None:
    x: float = WIDTH - PAD
    for series, ink in reversed(list(zip(scene.series, _INKS, strict=True))):
        x -= paper.measure(series.name)
        paper.text(x, baseline, series.name, 12, "muted")
        height = 2 if ink == "line" else 10
        paper.rect(x - 22, baseline - 4 - height / 2, 16, height, ink)
        x -= 40


def plot(paper: Paper, scene: Moving, top: float) -> None:
    """The first two series as areas, the third as a line; marks, the peak, the opening event."""
    n, base = scene.events, scene.base
    most = max(1, *(int(series.values.max()) for series in scene.series))
    plot_top, bottom = top + PLOT_TOP, top + PLOT_TOP + PLOT_HEIGHT
    columns = round(INNER * paper.scale)
    edges = np.arange(columns) * (n + 1) // columns
    for series, ink in zip(scene.series, _INKS, strict=True):
        values = np.maximum.reduceat(series.values, edges) - base.size
        heights = values * (PLOT_HEIGHT / (most - base.size))
        (paper.steps if ink == "line" else paper.area)(PAD, bottom, heights, ink)
    paper.rect(PAD, bottom, INNER, 0.5, "rule")
    if most > 1:
        _patch(paper, scene, PAD + 4, plot_top + 4, scene.series[0].format(most))
    if base.size:
        _broken(paper, bottom)
        _patch(paper, scene, PAD + 15, bottom - 21, f"from {base.text}")
    paper.text(PAD, bottom + 14, "0", 11, "muted")
    paper.text(WIDTH - PAD, bottom + 14, f"{n:,} event{'' if n == 1 else 's'}", 11, "muted", "rs")
    _ticks(paper, scene, plot_top, bottom)
    x = min(max(_x(scene, scene.start), PAD + 1), WIDTH - PAD - 1)
    paper.rect(x - 1, plot_top, 2, PLOT_HEIGHT, "text")
    paper.dot(x, bottom, 5, "text")


def _patch(paper: Paper, scene: Moving, left: float, y: float, text: str) -> None:
    """A word on the plot: on paper of its own, so that no curve runs through it, and beside the cursor."""
    width, cursor = paper.measure(text, 11) + 10, _x(scene, scene.start)
    x = cursor + 7 if left - 7 < cursor < left + width + 7 else left
    paper.frame(Span(x, y, width, True, True), 17, None, "paper")
    paper.text(x + 5, y + 12.5, text, 11, "muted")


def _broken(paper: Paper, bottom: float) -> None:
    """The mark of an axis that does not start at zero."""
    corners: list[tuple[float, float]] = [
        (PAD, bottom - 7), (PAD + 11, bottom - 13), (PAD + 11, bottom - 9), (PAD, bottom - 3)
    ]  # fmt: skip
    paper.polygon(corners, "paper")
    paper.line(corners[:2], "muted")
    paper.line(corners[2:], "muted")


def _ticks(paper: Paper, scene: Moving, top: float, bottom: float) -> None:
    """The peak first, then marks in order; a label that would touch another is left out, its tick stays."""
    taken: list[tuple[float, float]] = []

    def place(text: str, x: float, ink: str) -> None:
        width = paper.measure(text, 11)
        left = min(max(PAD, x - width / 2), WIDTH - PAD - width)
        if all(left > b + 8 or left + width < a - 8 for a, b in taken):
            taken.append((left, left + width))
            paper.text(left, top - 9, text, 11, ink, bold=ink == "text")

    if scene.events:
        x = _x(scene, scene.peak)
        paper.polygon([(x - 4, top - 6), (x + 4, top - 6), (x, top)], "text")
        height = scene.series[1]
        place(f"peak {height.format(int(height.values[scene.peak]))}", x, "text")
    for event, name in scene.marks:
        x = min(_x(scene, event), WIDTH - PAD - 0.5)
        for y in np.arange(top - 6, bottom, 5).tolist():
            paper.rect(x, y, 0.5, 2, "muted")
        place(name, x, "muted")


def _x(scene: Moving, event: int) -> float:
    return PAD + (event / scene.events * INNER if scene.events else 0)
