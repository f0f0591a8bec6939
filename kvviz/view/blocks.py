"""The block map: every byte the allocator reserved, in address order, and what it holds after any event."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvviz.errors import ViewError
from kvviz.view import poster
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
) -> View:
    """A moving map of one device's memory.

    start: the number of events after which it opens, 0 … len(trace); None is the peak of allocated bytes.
    renderer: "player" (also "auto") moves through every event; "plotly" makes plotly objects, at most 100 steps.
    autoplay: begin playing, unless the reader asked for less motion. theme: "auto" follows the page, "light", "dark".
    fold: the segments in which no block is born or dies and which are there throughout become one bar at the top, and
    the byte scale is that of the others. None: where they are more than a third of the reserved bytes. The player has a
    button for it.

    Raises ViewError for an unknown device, start, renderer, theme or fold; InconsistentTrace where no true picture exists.
    """
    refuse_options(renderer, theme, title)
    if fold not in (None, True, False):
        raise ViewError(f"fold must be True, False or None, not {fold!r}")
    scene = Scene(trace, device, start, fold)
    title = "Block map by address" if title is None else title
    where = f"device {device} · " if len(trace.devices) > 1 else ""
    subtitle = f"{where}Segments in address order on one byte scale; colour = owner, hatch = reserved but inactive"
    folded = f"{where}Segments in address order on one byte scale; the folded ones, in the top bar, on another"
    words = scene.words(mapped=True)
    png = poster.block_map(scene, title, folded if scene.folded else subtitle)
    if renderer == "plotly":
        from kvviz.view.plotly_map import figure

        return View(title, words, png, figure=figure(scene, title, "light" if theme == "auto" else theme))
    data = scene.pack("blocks", title, subtitle, folded)
    return View(title, words, png, data=data, options={"autoplay": bool(autoplay), "theme": theme})
