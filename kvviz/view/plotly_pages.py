"""The page map as plotly objects: heatmaps of the pages, a slider of at most 100 steps, a play button.

plotly's cost is the number of steps, so this shows moments, not every event; the player shows every event, page tables
and what slid out, too.
"""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from kvviz.cache.pagelog import NULL, PoolState
from kvviz.view.pagelayout import HEIGHT, grid
from kvviz.view.pagescene import PageScene
from kvviz.view.paper import mix
from kvviz.view.plotly_map import moments, play, slider
from kvviz.view.theme import COLORS, DARK, LIGHT, sequence, template

WIDTH = 1000  # px that the grids are laid out for; plotly stretches them
LETTERED = 26_000  # pages in all frames up to which each brings its letters
SHARED = "#5b636d"  # a page has one colour here, so what several sequences hold gets one of its own


def figure(scene: PageScene, title: str, theme: str = "light") -> go.Figure:
    """One heatmap for each pool; colour = sequence, its strength = share of the slots in use."""
    inks = DARK if theme == "dark" else LIGHT
    times = moments(scene)
    laid = [grid(scene.pages(k), WIDTH, HEIGHT // len(scene.shown)) for k in scene.shown]
    pages = sum(scene.pages(k) for k in scene.shown)
    lettered = pages * len(times) <= LETTERED
    states = [scene.states(i) for i in times]
    opening = times.index(scene.start)

    def traces(k: int) -> list[dict[str, Any]]:
        return [_cells(state, g.columns, lettered) for state, g in zip(states[k], laid, strict=True)]

    scale = _scale(inks)
    looks: dict[str, Any] = {
        "zmin": 0, "zmax": len(COLORS) + 2, "colorscale": scale, "showscale": False, "xgap": 2, "ygap": 2,
        "hovertemplate": "%{customdata}<extra></extra>" if lettered else None, "texttemplate": "%{text}" if lettered else None,
        "hoverinfo": None if lettered else "skip",
    }  # fmt: skip
    data = [
        go.Heatmap(
            part | looks, xaxis=f"x{k + 1 if k else ''}", yaxis=f"y{k + 1 if k else ''}", name=scene.heading(pool)
        )
        for k, (pool, part) in enumerate(zip(scene.shown, traces(opening), strict=True))
    ]
    drawn = list(range(len(data)))
    frames = [
        go.Frame(name=str(i), data=[{"type": "heatmap", **part} for part in traces(k)], traces=drawn)
        for k, i in enumerate(times)
    ]
    heights = [g.rows * max(4, min(26, g.size)) + 30 for g in laid]
    total = sum(heights) or 60
    labels = [", ".join(f"{name} {text}" for name, text in scene.figures(i)) for i in times]
    result = go.Figure(data=data, frames=frames)
    result.update_layout(
        template=template(theme), title_text=title, height=190 + total, hovermode="closest",
        sliders=[slider(times, labels, opening, inks)], updatemenus=[play()], margin={"l": 18, "r": 18, "t": 64, "b": 110},
    )  # fmt: skip
    above = 0
    for k, (pool, height) in enumerate(zip(scene.shown, heights, strict=True)):
        name = str(k + 1) if k else ""
        top, foot = 1 - above / total, 1 - (above + height) / total
        result.update_layout({
            f"xaxis{name}": {"visible": False, "anchor": f"y{name}"},
            f"yaxis{name}": {"visible": False, "autorange": "reversed", "domain": [foot, top - 24 / total]},
        })  # fmt: skip
        result.add_annotation(_note(scene.heading(pool), y=top, color=inks["text"], size=12))
        above += height
    if not laid:
        result.add_annotation(_note("No pool yet", y=1, color=inks["muted"], size=12))
    result.add_annotation(_note(scene.origin, y=0, color=inks["muted"], size=11, yshift=-84))
    return result


def _note(text: str, y: float, color: Any, size: int, **more: Any) -> dict[str, Any]:
    return {"text": text, "showarrow": False, "xref": "paper", "yref": "paper", "x": 0, "y": y, "xanchor": "left",
            "yanchor": "top", "font": {"size": size, "color": color}, **more}  # fmt: skip


def _cells(state: PoolState, columns: int, lettered: bool) -> dict[str, Any]:
    """z: 0 a free page; k + f the k-th colour, a share f < 1 of its slots in use; the last colour: several have it."""
    holders: dict[int, list[str]] = {}
    color: dict[int, int] = {}
    for number in sorted(state.tables):
        for page in state.tables[number]:
            if page != NULL:
                color[page] = 1 + number % len(COLORS) if page not in color else len(COLORS) + 1
                holders.setdefault(page, []).append(sequence(number).letter)
    share = (state.high - state.low) / state.pool.page_size * 0.98
    z = [round(float(color.get(p, 0) + (share[p] if p in color else 0)), 2) for p in range(len(share))]
    part: dict[str, Any] = {"z": _rows(z, columns)}
    if lettered:
        text = [f"×{len(h)}" if len(h) > 1 else "".join(h) for h in (holders.get(p, []) for p in range(len(z)))]
        tips = [
            f"page {p} · {', '.join(holders[p])} · {state.high[p] - state.low[p]} of {state.pool.page_size} slots in use"
            if p in holders else f"page {p} · free" for p in range(len(z))
        ]  # fmt: skip
        part |= {"text": _rows(text, columns), "customdata": _rows(tips, columns)}
    return part


def _rows(cells: list[Any], columns: int) -> list[list[Any]]:
    cells = cells + [None] * (-len(cells) % columns)
    return [cells[k : k + columns] for k in range(0, len(cells), columns)]


def _scale(inks: dict[str, Any]) -> list[list[Any]]:
    """A band of z for each colour, from thin to full."""
    end = len(COLORS) + 2
    scale: list[list[Any]] = [[0, inks["grid"]], [1 / end - 1e-6, inks["grid"]]]
    for k, color in enumerate((*COLORS, SHARED)):
        thin = mix(color, 0.25, inks["paper"])
        scale += [[(k + 1) / end, thin], [(k + 2) / end - (1e-6 if k < len(COLORS) else 0), color]]
    return scale
