"""The block map: every byte the allocator reserved, in address order, and what it holds after any event."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvviz.view import excerpt, poster
from kvviz.view.html import View
from kvviz.view.scene import Scene, refuse_options

if TYPE_CHECKING:
    from kvviz.memory.trace import Trace


def block_map(
    trace: Trace,
    device: int = 0,
    title: str | None = None,
    renderer: str = "auto",
    start: int | None = None,
    autoplay: bool = False,
    theme: str = "auto",
    fold: bool | None = None,
    events: tuple[int, int] | None = None,
) -> View:
    """A moving map of one device's memory.

    start: the number of events after which it opens, 0 … len(trace); None is the peak of allocated bytes.
    renderer: "player" (also "auto") moves through every event; "plotly" makes plotly objects, at most 100 steps.
    autoplay: begin playing, unless the reader asked for less motion. theme: "auto" follows the page, "light", "dark".
    fold: the segments in which no block is born or dies and which are there throughout become one bar at the top, and
    the byte scale is that of the others. None: where they are more than a third of the reserved bytes. The player has a
    button for it.
    events: (i, j) shows events i to j alone, 0 ≤ i < j ≤ len(trace); what lived before them is there from the start.
    None: all; of more than a million, a notebook gets the million around the opening event, and the picture says so;
    save_html(path) has all.

    Raises ViewError for an unknown device, start, renderer, theme, fold or part; InconsistentTrace where no true picture exists.
    """
    refuse_options(renderer, theme, title, fold)
    scene, part = excerpt.scenes(trace, device, start, fold, events)
    title = "Block map by address" if title is None else title
    where = f"device {device} · " if len(trace.devices) > 1 else ""
    if renderer == "plotly":
        return _plotly(scene, title, where, theme)
    _ = scene.places  # raises here, not when it is looked at
    options = {"autoplay": bool(autoplay), "theme": theme}
    return excerpt.view(title, "blocks", lambda shown: _player(shown, title, where, options), scene, part)


def _drawn(scene: Scene, title: str, where: str) -> tuple[bytes, str, str]:
    """The still; the subtitle where all is shown, and where what never changes is folded."""
    where = f"{scene.part} · {where}" if scene.part else where
    subtitle = f"{where}Segments in address order on one byte scale; colour = owner, hatch = reserved but inactive"
    folded = f"{where}Segments in address order on one byte scale; the folded ones, in the top bar, on another"
    return poster.block_map(scene, title, folded if scene.folded else subtitle), subtitle, folded


def _player(scene: Scene, title: str, where: str, options: dict[str, Any]) -> View:
    png, subtitle, folded = _drawn(scene, title, where)
    data = scene.pack("blocks", title, subtitle, folded)
    return View(title, scene.words(mapped=True), png, data=data, options=options)


def _plotly(scene: Scene, title: str, where: str, theme: str) -> View:
    from kvviz.view.plotly_map import figure

    png, _, _ = _drawn(scene, title, where)
    return View(
        title, scene.words(mapped=True), png, figure=figure(scene, title, "light" if theme == "auto" else theme)
    )
