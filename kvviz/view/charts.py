"""plotly charts with a still picture beside each, so that a notebook read where plotly does not run is not blank.

    lines(x, {"name": y, …}, title, x_title, y_title)        bars(labels, {"name": y, …}, title, x_title, y_title)

unit="bytes" shows the values in the binary unit that suits the largest; unit="" shows them as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from kvviz.errors import ViewError
from kvviz.view import stills
from kvviz.view.html import View
from kvviz.view.theme import COLORS as OWNERS
from kvviz.view.theme import DARK, GREEN, LIGHT, template

COLORS = (*OWNERS[:2], GREEN, *OWNERS[2:])
POINTS = 2000  # in a line; more cost the browser time and the reader sees no more
DASHES = ("solid", "dash", "dot", "dashdot")  # colour is never alone
PATTERNS = ("", "/", ".", "x")
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def lines(
    x: Sequence[float] | np.ndarray,
    series: Mapping[str, Sequence[float] | np.ndarray],
    title: str,
    x_title: str,
    y_title: str,
    unit: str = "bytes",
    *,
    steps: bool = False,
    marks: Sequence[tuple[float, str]] = (),
    colors: Mapping[str, str] | None = None,
    note: str = "",
    theme: str = "light",
    floor: float = 0,
) -> View:
    """Lines over a common x. Of a line of more than 2,000 points the minima and maxima stay.

    steps: each value holds until the next x. marks: (x, name), vertical lines. colors: by name, where the default order
    will not do. note: one small line under the chart, such as where the numbers come from.
    floor: where the y axis starts, in the series' own unit; the axis' title says so.
    Raises ViewError where a line is not as long as x.
    """
    across = _numbers("x", x)
    columns = {name: _numbers(name, y, len(across)) for name, y in series.items()}
    factor, unit = _scale(columns, unit)
    looks = {name: (colors or {}).get(name, COLORS[k % len(COLORS)]) for k, name in enumerate(columns)}
    if theme == "dark":  # the darkest ink would be lost on dark paper
        looks = {name: str(DARK["line"]) if color == LIGHT["line"] else color for name, color in looks.items()}
    figure = go.Figure()
    kept = {}
    for k, (name, y) in enumerate(columns.items()):
        index = thin(y, POINTS)
        kept[name] = (across[index], y[index] / factor)
        figure.add_scatter(
            x=_plain(across[index]), y=_plain(y[index] / factor), name=name, mode="lines",
            line={"color": looks[name], "width": 2, "dash": "solid" if colors else DASHES[k % len(DASHES)],
                  "shape": "hv" if steps else "linear"},
            hovertemplate=f"%{{y:,.6~g}} {unit}".strip(),
        )  # fmt: skip
    if len(across):
        figure.update_xaxes(range=[float(across.min()), float(across.max())])
    _mark(figure, marks, across)
    y_title = _with_unit(y_title, unit)
    if floor:
        y_title += f", axis from {floor / factor:,.6g}"
    _finish(figure, title, x_title, y_title, note, theme)
    if floor:
        highest = max((float(y.max(initial=floor)) for y in columns.values()), default=floor)
        figure.update_yaxes(range=[floor / factor, (highest + 0.05 * (highest - floor)) / factor])
    png = stills.lines(kept, looks, title, x_title, y_title, steps, marks, note, floor / factor)
    return View(title, _words("Line chart", columns, factor, unit, x_title), png, figure=figure)


def bars(
    labels: Sequence[str],
    series: Mapping[str, Sequence[float] | np.ndarray],
    title: str,
    x_title: str,
    y_title: str,
    unit: str = "bytes",
    *,
    note: str = "",
    theme: str = "light",
) -> View:
    """Stacked bars: for each label one, made of a part from each series. Raises ViewError where lengths differ."""
    names = [str(label) for label in labels]
    columns = {name: _numbers(name, y, len(names)) for name, y in series.items()}
    total = {"": sum(columns.values(), np.zeros(len(names)))}
    factor, unit = _scale(total, unit)
    looks = {name: COLORS[k % len(COLORS)] for k, name in enumerate(columns)}
    figure = go.Figure()
    for k, (name, y) in enumerate(columns.items()):
        figure.add_bar(
            x=names, y=_plain(y / factor), name=name, hovertemplate=f"%{{y:,.6~g}} {unit}".strip(),
            marker={"color": looks[name], "pattern": _pattern(PATTERNS[k % len(PATTERNS)], looks[name])},
        )  # fmt: skip
    figure.update_layout(barmode="stack", bargap=0.3)
    figure.update_xaxes(type="category")
    _finish(figure, title, x_title, _with_unit(y_title, unit), note, theme)
    parts = {name: y / factor for name, y in columns.items()}
    png = stills.bars(names, parts, looks, title, x_title, _with_unit(y_title, unit), note)
    return View(title, _words("Stacked bars", columns, factor, unit, x_title), png, figure=figure)


def _pattern(shape: str, color: str) -> dict[str, Any]:
    return {"shape": shape, "bgcolor": color, "fgcolor": "#ffffff", "fgopacity": 0.5, "size": 6} if shape else {}


def _mark(figure: go.Figure, marks: Sequence[tuple[float, str]], across: np.ndarray) -> None:
    """Vertical lines; a name that would touch another is left out, its line stays."""
    span, taken = float(np.ptp(across)) if len(across) else 0.0, list[tuple[float, float]]()
    for place, name in marks:
        figure.add_vline(float(place), line={"width": 1, "dash": "dot", "color": "#8b949e"})
        half = (0.004 * len(name) + 0.006) * span
        if all(place - half > b or place + half < a for a, b in taken):
            taken.append((place - half, place + half))
            left = place - half < across.min() if len(across) else False
            figure.add_annotation(
                x=float(place), y=1, yref="paper", text=name, showarrow=False, yanchor="bottom", font={"size": 11},
                xanchor="left" if left else "right" if place + half > across.max() else "center",
            )  # fmt: skip


def thin(values: np.ndarray, most: int) -> np.ndarray:
    """Indices of at most `most` values that keep the first, the last, and the extremes of every stretch."""
    count = len(values)
    if count <= most:
        return np.arange(count)
    edges = np.linspace(0, count, (most - 2) // 2 + 1).astype(int)
    keep = {0, count - 1}
    for start, stop in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        keep |= {start + int(values[start:stop].argmin()), start + int(values[start:stop].argmax())}
    return np.array(sorted(keep))


def _numbers(name: str, values: Sequence[float] | np.ndarray, length: int | None = None) -> np.ndarray:
    column = np.asarray(values, dtype=float)
    if column.ndim != 1 or (length is not None and len(column) != length):
        raise ViewError(
            f"{name!r} has shape {column.shape}; a row of {'numbers' if length is None else length} is needed"
        )
    return column


def _scale(columns: Mapping[str, np.ndarray], unit: str) -> tuple[float, str]:
    """What to divide by, and the unit's name."""
    if unit != "bytes":
        return 1, unit
    most = max((float(np.abs(y).max(initial=0)) for y in columns.values()), default=0)
    power = next((p for p in range(4, 0, -1) if most >= 1024**p), 0)
    return 1024**power, _UNITS[power]


def _with_unit(title: str, unit: str) -> str:
    return unit if not title or title == "bytes" else f"{title} ({unit})" if unit else title


def _plain(values: np.ndarray) -> list[float]:
    """As lists: older plotly readers do not know its packed arrays."""
    return [int(v) if v.is_integer() else float(f"{v:.7g}") for v in values.tolist()]


def _words(kind: str, columns: Mapping[str, np.ndarray], factor: float, unit: str, over: str) -> str:
    ranges = "; ".join(
        f"{name} from {y.min() / factor:,.4g} to {y.max() / factor:,.4g} {unit}".strip()
        for name, y in columns.items()
        if len(y)
    )
    return f"{kind} over {over}: {ranges or 'no values'}"


def _finish(figure: go.Figure, title: str, x_title: str, y_title: str, note: str, theme: str) -> None:
    muted = (DARK if theme == "dark" else LIGHT)["muted"]
    figure.update_layout(template=template(theme), title_text=title, height=380, showlegend=len(figure.data) > 1)
    figure.update_xaxes(title_text=x_title)
    figure.update_yaxes(title_text=y_title, rangemode="tozero")
    if note:
        figure.add_annotation(
            text=note, showarrow=False, xref="paper", yref="paper", x=0, y=-0.2, xanchor="left", yanchor="top",
            font={"size": 11, "color": muted},
        )  # fmt: skip
        figure.update_layout(margin_b=76)
