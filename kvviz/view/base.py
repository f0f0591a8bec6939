"""Where the timeline's scale starts: at zero, or just below a curve that would else be a flat line far above it."""

from __future__ import annotations

import math
from typing import NamedTuple

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


class Base(NamedTuple):
    """The bytes at the foot of the scale, and how they read; 0 and "" for an ordinary scale."""

    size: int
    text: str


def base_of(allocated: int, lowest: int, highest: int) -> Base:
    """allocated: the least of it over the run; lowest, highest: of all that is drawn. All in bytes.

    A scale that leaves out the lower half or more of itself may start late; what moves less than that needs no help.
    """
    span = highest - lowest
    if allocated * 2 <= highest or not span or lowest <= 0:
        return Base(0, "")
    power = next((p for p in range(4, 0, -1) if highest >= 1024**p), 0)
    unit = 1024**power
    digits = math.floor(math.log10(span / unit / 8))
    step = max(s for s in (1, 2, 5) if s * 10**digits <= span / unit / 8) * 10.0**digits
    below = max(0.0, lowest - 0.05 * span)  # the lowest point stands a little above the foot
    value = math.floor(below / unit / step) * step
    return Base(int(value * unit), f"{value:,.{max(0, -digits)}f} {UNITS[power]}") if value > 0 else Base(0, "")
