"""What the player's panels need beside the map's own data: see player/pins.js, whose.js and pick.js."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from kvviz.view.scene import Scene

TIMES = 512  # steps between the times that are sent; a time for each event would outweigh all the rest


def inspecting(scene: Scene) -> dict[str, Any]:
    """page: bytes by which expandable segments of the large pool are mapped. nobody: place of "other", the owner of what
    nobody owns, among those shown; -1 where it has nothing. times: see times_of."""
    shown = scene.shown_owners.tolist()
    return {
        "page": scene.trace.page,
        "nobody": shown.index(0) if 0 in shown else -1,
        "times": times_of(scene.trace.events.time_us),
    }


def times_of(time_us: np.ndarray) -> list[int]:
    """Microseconds since the first event of the states 0 … n, or, of a long trace, of evenly spaced ones from 0 to n.

    Empty where the trace has no times, or such as go backwards. A time of 0 is unknown: it is that of the first known one.
    """
    known = time_us[time_us > 0]
    if not len(known) or known[-1] <= known[0]:
        return []
    time_us = np.where(time_us > 0, time_us, known[0])
    states = np.linspace(0, len(time_us), min(len(time_us), TIMES) + 1)
    picked = time_us[np.maximum(np.rint(states).astype("i8") - 1, 0)].astype("i8")
    since = picked - int(time_us[0])
    return [] if (np.diff(since) < 0).any() else [int(t) for t in since]
