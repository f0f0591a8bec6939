"""The block map as plotly objects: horizontal bars, a slider of at most 100 steps, a play button.

plotly's cost is the number of steps, so this shows moments, not every event; the player shows every event.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go

from kvviz.view.layout import ROW_GAP, Flow, bar
from kvviz.view.scene import Scene, format_bytes
from kvviz.view.sheet import Moving
from kvviz.view.theme import DARK, LIGHT, template

STEPS = 100
WIDTH = 1000  # px that the rows are laid out for; plotly stretches them
NAMED = 15_000  # bars in all frames up to which each brings its size for the tip


def figure(scene: Scene, title: str, theme: str = "light") -> go.Figure:
    """Blocks that live through all steps are drawn once; frames carry only what changes."""
    inks = DARK if theme == "dark" else LIGHT
    laid = scene.flow(WIDTH)
    times = moments(scene)
    b, places = scene.blocks, scene.places
    living = [np.flatnonzero((b.born < i) & (i <= b.died)) for i in times]
    always = np.flatnonzero((b.born < times[0]) & (b.died >= times[-1])) if len(times) > 1 else living[0]
    owners = scene.shown_owners.tolist()
    named = sum(len(rows) for rows in living) <= NAMED

    # without any bar plotly would leave the owner out of the legend
    nothing = {"base": [0], "x": [0], "y": [0]} | ({"customdata": [""]} if named else {})

    def ranges(starts: np.ndarray, sizes: np.ndarray) -> dict[str, Any]:
        texts = [format_bytes(s) for s in sizes.tolist()] if named else []
        return _bars(laid, starts.tolist(), (sizes / scene.unit).tolist(), texts)

    def owner_bars(rows: np.ndarray, owner: int) -> dict[str, Any]:
        rows = rows[b.owner[rows] == owner]
        return ranges(places[rows], b.size[rows])

    def changing(k: int) -> list[dict[str, Any]]:
        segments = scene.trace.at(times[k], scene.device).segments
        reserved = ranges(scene.axis.places(segments["address"], segments["size"]), segments["size"])
        rest = np.setdiff1d(living[k], always)
        parts = [reserved] + [owner_bars(rest, owner) for owner in owners]
        return [part if part["x"] else part | nothing for part in parts]

    opening = times.index(scene.start)
    cached = {"color": inks["free"], "line": {"width": 1, "color": inks["edge"]}}
    looks: list[tuple[str, dict[str, Any]]] = [("cached, inactive", cached)]
    for owner in owners:
        border = {"width": 0.5, "color": inks["paper"]}
        looks.append((scene.owners[owner].name, {"color": scene.owners[owner].color, "line": border}))
    static = [owner_bars(always, owner) for owner in owners]
    data = [_trace(name, marker, part) for (name, marker), part in zip(looks, changing(opening), strict=True)]
    data += [_trace(name, marker, part, False) for (name, marker), part in zip(looks[1:], static, strict=True)]
    drawn = list(range(len(looks)))
    data += _fold(scene, inks) if laid.top else []
    frames = [
        go.Frame(name=str(i), data=[{"type": "bar", "width": 0.75, **part} for part in changing(k)], traces=drawn)
        for k, i in enumerate(times)
    ]
    result = go.Figure(data=data, frames=frames)
    rows = round(laid.height / laid.row_height)
    result.update_layout(
        template=template(theme), title_text=title, barmode="overlay", height=184 + 32 * rows,
        hovermode="closest", sliders=[slider(times, _labels(scene, times), opening, inks)], updatemenus=[play()],
        margin={"l": 18, "r": 18, "t": 64, "b": 110},
    )  # fmt: skip
    result.add_annotation(
        text=scene.trace.origin, showarrow=False, xref="paper", yref="paper", x=0, y=0, xanchor="left", yanchor="top",
        yshift=-84, font={"size": 11, "color": inks["muted"]},
    )  # fmt: skip
    result.update_xaxes(visible=False, range=[0, WIDTH])
    result.update_yaxes(visible=False, autorange="reversed")
    return result


def moments(scene: Moving) -> list[int]:
    """At most STEPS numbers of events: evenly spread, with the opening one, the peak, and as many marks as fit."""
    wanted = {0, scene.events, scene.start, scene.peak}
    for event, _ in scene.marks[: STEPS // 4]:
        wanted.add(event)
    spare = STEPS - len(wanted)
    wanted |= {int(i) for i in np.linspace(0, scene.events, min(spare, scene.events + 1))}
    return sorted(wanted)


def _bars(laid: Flow, starts: list[int], units: list[float], texts: list[str]) -> dict[str, Any]:
    bars: dict[str, Any] = {"base": [], "x": [], "y": []}
    bars |= {"customdata": []} if texts else {}
    for k, (start, length) in enumerate(zip(starts, units, strict=True)):
        for span in laid.spans(start, length):
            bars["base"].append(round(span.x, 1))
            bars["x"].append(round(max(span.w, 0.5), 1))
            bars["y"].append(round((span.y - laid.top) / (laid.row_height + ROW_GAP)))
            if texts:
                bars["customdata"].append(texts[k])
    return bars


def _trace(name: str, marker: dict[str, Any], part: dict[str, Any], legend: bool = True) -> go.Bar:
    return go.Bar(
        name=name, orientation="h", width=0.75, marker=marker, showlegend=legend, legendgroup=name,
        hovertemplate="%{fullData.name}" + " · %{customdata}" * ("customdata" in part) + "<extra></extra>", **part,
    )  # fmt: skip


def _fold(scene: Scene, inks: dict[str, Any]) -> list[go.Bar]:
    """The bar of what is folded, above the rows. No frame touches it: it never changes."""
    assert scene.fold is not None
    shares, x, bars = scene.fold.shares, 0.0, list[go.Bar]()
    for (owner, size), width in zip(shares, bar([s for _, s in shares], WIDTH), strict=True):
        look = scene.owners[owner] if owner >= 0 else None
        name, color = (look.name, look.color) if look else ("cached, inactive", inks["free"])
        tip = f"{format_bytes(size)} in {scene.fold.head}"
        part = {"base": [round(x, 1)], "x": [round(width, 1)], "y": [-1], "customdata": [tip]}
        one = _trace(name, {"color": color, "line": {"width": 0.5, "color": inks["edge"]}}, part, False)
        ink = look.ink if look else inks["text"]
        one.update(width=0.55, textposition="inside", insidetextanchor="start", constraintext="none")
        one.update(text=[scene.fold_labels[0] if not bars else ""], textfont={"color": ink, "size": 11})
        bars.append(one)
        x += width
    return bars


def _labels(scene: Scene, times: list[int]) -> list[str]:
    totals = [[format_bytes(int(c[i])) for i in times] for c in (scene.curves.reserved, scene.curves.allocated)]
    return [f"reserved {reserved}, allocated {allocated}" for reserved, allocated in zip(*totals, strict=True)]


def slider(times: list[int], labels: list[str], opening: int, inks: dict[str, Any]) -> dict[str, Any]:
    """A step for each frame, which is named after its event."""
    steps = []
    for i, label in zip(times, labels, strict=True):
        settings = {"mode": "immediate", "frame": {"duration": 0, "redraw": True}, "transition": {"duration": 0}}
        steps.append({"method": "animate", "label": f"event {i:,}: {label}", "args": [[str(i)], settings]})
    return {
        "active": opening, "steps": steps, "x": 0.08, "len": 0.92, "y": 0, "pad": {"t": 12}, "ticklen": 0,
        "minorticklen": 0, "font": {"color": "rgba(0,0,0,0)", "size": 1},
        "currentvalue": {"prefix": "", "font": {"color": inks["text"], "size": 12}},
    }  # fmt: skip


def play() -> dict[str, Any]:
    """The button."""
    settings = {"frame": {"duration": 80, "redraw": True}, "transition": {"duration": 0}, "fromcurrent": True}
    return {
        "type": "buttons", "x": 0, "xanchor": "left", "y": 0, "yanchor": "top", "pad": {"t": 30}, "showactive": False,
        "buttons": [{"label": "Play", "method": "animate", "args": [None, settings]}],
    }  # fmt: skip
