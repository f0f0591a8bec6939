"""Still pictures of charts, drawn by Pillow: the same lines and bars that plotly draws."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from kvviz.view.paper import Paper

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 900, 380, 70, 24, 76, 62


def lines(
    series: Mapping[str, tuple[np.ndarray, np.ndarray]],
    colors: Mapping[str, str],
    title: str,
    x_title: str,
    y_title: str,
    steps: bool,
    marks: Sequence[tuple[float, str]],
    note: str,
    floor: float = 0,
) -> bytes:
    """Lines, each with its own x. floor: where the y axis starts. PNG bytes."""
    xs = np.concatenate([x for x, _ in series.values()] or [np.zeros(0)])
    ys = np.concatenate([y for _, y in series.values()] or [np.zeros(0)])
    paper, high, low = _frame(ys, title, y_title, colors, note, floor)
    first, last = (float(xs.min()), float(xs.max())) if len(xs) else (0.0, 1.0)
    span = (last - first) or 1.0

    def x_of(value: float) -> float:
        return LEFT + (value - first) / span * (WIDTH - LEFT - RIGHT)

    def y_of(value: float) -> float:
        return HEIGHT - BOTTOM - (value - low) / ((high - low) or 1) * (HEIGHT - TOP - BOTTOM)

    for value in ticks(first, last, 8):
        if first <= value <= last:
            paper.text(x_of(value), HEIGHT - BOTTOM + 16, _number(value), 11, "muted", "ms")
    paper.text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - BOTTOM + 34, x_title, 12, "muted", "ms")
    taken: list[tuple[float, float]] = []
    for place, name in marks:
        x, width = x_of(place), paper.measure(name, 11)
        for y in np.arange(TOP, HEIGHT - BOTTOM, 5).tolist():
            paper.rect(x, y, 0.5, 2, "muted")
        left = min(max(LEFT, x - width / 2), WIDTH - RIGHT - width)
        if all(left > b + 8 or left + width < a - 8 for a, b in taken):
            taken.append((left, left + width))
            paper.text(left, TOP - 4, name, 11, "muted")
    for name, (xs, ys) in series.items():
        points = [(x_of(a), y_of(b)) for a, b in zip(xs.tolist(), ys.tolist(), strict=True)]
        if steps:
            corners = [(right[0], left[1]) for left, right in zip(points, points[1:], strict=False)]
            points = [p for pair in zip(points, [*corners, points[-1]], strict=True) for p in pair] if points else []
        paper.line(points, colors[name], 2)
    return paper.png()


def bars(
    labels: Sequence[str],
    series: Mapping[str, np.ndarray],
    colors: Mapping[str, str],
    title: str,
    x_title: str,
    y_title: str,
    note: str,
) -> bytes:
    """Stacked bars. PNG bytes."""
    total = sum(series.values(), np.zeros(len(labels)))
    paper, high, low = _frame(total, title, y_title, colors, note)
    step = (WIDTH - LEFT - RIGHT) / max(1, len(labels))
    scale = (HEIGHT - TOP - BOTTOM) / ((high - low) or 1)
    for k, label in enumerate(labels):
        x, foot = LEFT + step * (k + 0.15), float(HEIGHT - BOTTOM)
        for name, values in series.items():
            height = max(0.0, float(values[k])) * scale
            if height:
                paper.rect(x, foot - height, step * 0.7, height, colors[name])
                paper.rect(x, foot - height, step * 0.7, 0.5, "paper")
            foot -= height
        shown = paper.fit(label, 11, step - 4)
        paper.text(x + step * 0.35, HEIGHT - BOTTOM + 16, shown, 11, "muted", "ms")
    paper.text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - BOTTOM + 34, x_title, 12, "muted", "ms")
    return paper.png()


def ticks(low: float, high: float, about: int) -> list[float]:
    """Round numbers from at or below `low` to at or above `high`, some `about` of them."""
    if high <= low:
        high = low + 1
    raw = (high - low) / about
    power = 10 ** math.floor(math.log10(raw))
    step = next(s * power for s in (1, 2, 2.5, 5, 10) if s * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [k * step for k in range(first, last + 1)]


def _frame(
    values: np.ndarray, title: str, y_title: str, colors: Mapping[str, str], note: str, floor: float = 0
) -> tuple[Paper, float, float]:
    """Card, title, legend, y axis; and the top and the bottom of the scale."""
    paper = Paper(WIDTH, HEIGHT)
    paper.card()
    paper.text(18, 32, paper.fit(title, 16, WIDTH - 36), 16, bold=True)
    paper.text(18, 52, y_title, 12, "muted")
    x: float = WIDTH - RIGHT
    for name, color in reversed(list(colors.items()) if len(colors) > 1 else []):
        x -= paper.measure(name)
        paper.text(x, 52, name, 12, "muted")
        paper.rect(x - 22, 46, 16, 4, color)
        x -= 40
    low, high = min(0.0, float(values.min(initial=0))), float(values.max(initial=0))
    # counted from the floor, so that the lowest is the floor itself, however odd
    scale = [floor + tick for tick in ticks(0, high - floor, 4)] if floor else ticks(low, high, 4)
    for value in scale:
        y = HEIGHT - BOTTOM - (value - scale[0]) / (scale[-1] - scale[0]) * (HEIGHT - TOP - BOTTOM)
        paper.rect(LEFT, y, WIDTH - LEFT - RIGHT, 0.5, "rule")
        paper.text(LEFT - 8, y + 4, _number(value), 11, "muted", "rs")
    paper.text(18, HEIGHT - 10, paper.fit(note, 11, WIDTH - 36), 11, "muted")
    return paper, scale[-1], scale[0]


def _number(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.4g}"
