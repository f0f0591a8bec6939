"""Small charts side by side: how figures change with one setting, and where it stands now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from kvviz.view.charts import COLORS
from kvviz.view.paper import Paper
from kvviz.view.stills import ticks

WIDTH, HEIGHT, GAP, TOP, LEFT, FOOT = 250, 200, 26, 58, 46, 40


@dataclass
class Panel:
    """One chart: lines by name over x. at: the x that is chosen now. choices: x is a list of choices, evenly apart.

    A line may be shorter than x. ends: words for where a line ends, by its name. width: px. nested: the first line is
    the thickest, so that lines which coincide can all be seen.
    """

    title: str
    x_title: str
    x: Sequence[float]
    series: Mapping[str, Sequence[float]]
    at: float | None = None
    choices: bool = True
    ends: Mapping[str, str] = field(default_factory=dict)
    width: float = WIDTH
    nested: bool = False


def panels(charts: Sequence[Panel], note: str = "") -> bytes:
    """Up to four charts in a row. PNG bytes."""
    paper = Paper(GAP + sum(chart.width + GAP for chart in charts), HEIGHT + (24 if note else 6))
    paper.card()
    left: float = GAP
    for chart in charts:
        _draw(paper, chart, left)
        left += chart.width + GAP
    if note:
        paper.text(GAP, paper.height - 12, paper.fit(note, 11, paper.width - 2 * GAP), 11, "muted")
    return paper.png()


def _draw(paper: Paper, chart: Panel, left: float) -> None:
    x0, x1, bottom = left + LEFT, left + chart.width, HEIGHT - FOOT
    ys = np.concatenate([np.asarray(y, float) for y in chart.series.values()])
    scale = ticks(0.0, float(ys.max()) or 1.0, 3)
    places = np.arange(len(chart.x), dtype=float) if chart.choices else np.asarray(chart.x, float)
    span = (places[-1] - places[0]) or 1.0

    def across(place: float) -> float:
        return float(x0 + 6 + (place - places[0]) / span * (x1 - x0 - 12))

    def up(value: float) -> float:
        return float(bottom - value / scale[-1] * (bottom - TOP))

    paper.text(left, 24, paper.fit(chart.title, 12.5, chart.width), 12.5, bold=True)
    for value in scale:
        paper.rect(x0, up(value), x1 - x0, 0.5, "rule")
        paper.text(x0 - 6, up(value) + 4, short(value), 10.5, "muted", "rs")
    shown = range(len(chart.x)) if chart.choices else [0, len(chart.x) - 1]
    free = x0 - 20.0
    for k in shown:
        text = short(chart.x[k])
        wide = paper.measure(text, 10.5)
        if (middle := across(places[k])) - wide / 2 > free:
            paper.text(middle, bottom + 15, text, 10.5, "muted", "ms")
            free = middle + wide / 2 + 4
    paper.text((x0 + x1) / 2, bottom + 31, chart.x_title, 10.5, "muted", "ms")
    if chart.at is not None and chart.at in list(chart.x):
        now = across(places[list(chart.x).index(chart.at)])
        for dash in np.arange(TOP, bottom, 5).tolist():
            paper.rect(now, dash, 0.5, 2, "text")
    legend = left
    for k, ((name, y), color) in enumerate(zip(chart.series.items(), COLORS, strict=False)):
        points = [(across(a), up(float(b))) for a, b in zip(places.tolist(), y, strict=False)]
        paper.line(points, color, max(1, 4 - 1.5 * k) if chart.nested else 2)
        if chart.choices:
            for px, py in points:
                paper.dot(px, py, 3, color)
        if name in chart.ends:
            _end(paper, chart.ends[name], *points[-1], x1, k % 2 == 1, color)
        if len(chart.series) > 1:
            paper.rect(legend, 37, 12, 4, color)
            paper.text(legend + 16, 43, name, 10.5, "muted")
            legend += 26 + paper.measure(name, 10.5)


def _end(paper: Paper, text: str, x: float, y: float, most: float, low: bool, color: str) -> None:
    """A dot and words where a line ends; low: under it, so that two which end at one place do not cover one another."""
    paper.dot(x, y, 4, color)
    right = x + 8 + paper.measure(text, 10.5) < most
    paper.text(x + (8 if right else -8), y + (16 if low else -6), text, 10.5, "text", "ls" if right else "rs")


def short(value: float) -> str:
    """1536 -> "1,536", 0.25 -> "0.25"."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.3g}"
