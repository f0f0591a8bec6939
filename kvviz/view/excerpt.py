"""A part of a run: the one that was asked for; or, of a run too long for a notebook, the part around the opening event."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from kvviz.errors import ViewError
from kvviz.view.html import View
from kvviz.view.scene import Scene

if TYPE_CHECKING:
    from kvviz.memory.trace import Trace

MOST = 1_000_000  # events in an output; a file takes all


class Excerpt(View):
    """A part in a notebook, the whole run in a file. Each is made when it is first asked for."""

    def __init__(self, title: str, kind: str, part: Callable[[], View], whole: Callable[[], View]):
        self.title, self.kind, self.figure = title, kind, None
        self._part, self._whole = cache(part), cache(whole)

    def __getattr__(self, name: str) -> Any:  # asked only for what was not set here
        if name in ("words", "data", "_png", "_options"):
            return getattr(self._part(), name)
        raise AttributeError(name)

    @property
    def whole_html(self) -> str:
        return self._whole().html


def view(title: str, kind: str, make: Callable[[Scene], View], scene: Scene, part: Callable[[], Scene] | None) -> View:
    """The picture of what scenes() gave. make: draws a scene."""
    return make(scene) if part is None else Excerpt(title, kind, lambda: make(part()), lambda: make(scene))


def scenes(
    trace: Trace, device: int, start: int | None, fold: bool | None, events: tuple[int, int] | None
) -> tuple[Scene, Callable[[], Scene] | None]:
    """The scene of what was asked for; and, where that is too long for a notebook, how to get that of a part of it.

    events: the part, None for all. Raises ViewError for a part that is none, and as Scene does.
    """
    if events is not None:
        low, high = _checked(events, len(trace))
        return _of(trace, low, high, device, None if start is None else start - low, fold), None
    scene = Scene(trace, device, start, fold)
    if scene.events <= MOST:
        return scene, None
    low = max(0, min(scene.start - MOST * 3 // 4, scene.events - MOST))
    return scene, lambda: _of(trace, low, low + MOST, device, scene.start - low, fold, "; save_html(path) shows all")


def _checked(events: tuple[int, int], n: int) -> tuple[int, int]:
    try:
        low, high = events
        if type(low) is bool or type(high) is bool or not 0 <= low < high <= n or (low, high) != (int(low), int(high)):
            raise ValueError
    except (TypeError, ValueError):
        raise ViewError(f"events must be two numbers (i, j), 0 ≤ i < j ≤ {n:,}, not {events!r}") from None
    return int(low), int(high)


def _of(trace: Trace, low: int, high: int, device: int, start: int | None, fold: bool | None, more: str = "") -> Scene:
    if start is not None and not 0 <= start <= high - low:
        raise ViewError(f"start {start + low:,} is outside the part that is shown, {low:,} … {high:,}")
    scene = Scene(trace.range(low, high), device, start, fold)
    if high - low < len(trace):
        scene.part = f"Showing {low:,} to {high:,} of {len(trace):,} events: event 0 here is event {low:,} there{more}"
    return scene
