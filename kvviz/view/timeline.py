"""The timeline: reserved, allocated and requested over all events, with marks and the peak."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvviz.view import charts, excerpt, poster
from kvviz.view.html import View
from kvviz.view.scene import SERIES, Scene, refuse_options

if TYPE_CHECKING:
    from kvviz.memory.trace import Trace

_NEUTRAL = {"reserved": "#a5afbb", "allocated": "#5b636d", "requested": "#1f2328"}  # colour means an owner elsewhere


def timeline(
    trace: Trace,
    device: int = 0,
    title: str | None = None,
    renderer: str = "auto",
    start: int | None = None,
    theme: str = "auto",
    events: tuple[int, int] | None = None,
) -> View:
    """The three totals of one device after 0 … len(trace) events.

    Where allocated never falls below half of what was reserved, the scale starts just below the lowest curve, and says so.

    start: the number of events at which the cursor stands first; None is the peak of allocated bytes.
    renderer: "player" (also "auto") has a cursor that plays and scrubs; "plotly" is a line chart of at most 2,000
    points a line, no minimum or maximum lost. theme: "auto" follows the page, "light", "dark".
    events: (i, j) shows events i to j alone, 0 ≤ i < j ≤ len(trace). None: all; of more than a million, a notebook gets
    the million around the opening event, and the picture says so; save_html(path) has all.

    Raises ViewError for an unknown device, start, renderer, theme or part.
    """
    refuse_options(renderer, theme, title)
    scene, part = excerpt.scenes(trace, device, start, None, events)
    title = "Memory over time" if title is None else title
    where = f"device {device} · " if len(trace.devices) > 1 else ""
    if renderer == "plotly":
        marks = [(scene.peak, "peak")] if scene.events else []
        view = charts.lines(
            np.arange(scene.events + 1), {name: getattr(scene.curves, name) for name in SERIES}, title, "event", "bytes",
            steps=True, marks=marks + scene.marks, colors=_NEUTRAL, note=trace.origin,
            theme="dark" if theme == "dark" else "light", floor=scene.base.size,
        )  # fmt: skip
        return View(title, scene.words(), view.png, figure=view.figure)
    options = {"theme": theme}
    return excerpt.view(title, "timeline", lambda shown: _player(shown, title, where, options), scene, part)


def _player(scene: Scene, title: str, where: str, options: dict[str, Any]) -> View:
    part = f"{scene.part} · " if scene.part else ""
    subtitle = f"{part}{where}What the allocator reserved and handed out, and what the program asked for"
    png = poster.timeline(scene, title, subtitle)
    data = scene.pack("timeline", title, subtitle)
    return View(title, scene.words(), png, data=data, kind="timeline", options=options)
