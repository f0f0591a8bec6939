"""Pace: when the next picture is due. By wall time, and by what the last ones cost."""

from __future__ import annotations

import time
from collections.abc import Callable

LEAST = 0.25  # seconds between two pictures: four a second are a moving picture
SHARE = 0.05  # of the run: so much may go into pictures


class Pace:
    """After a picture that took t seconds the next one waits until it is less than `share` of the time since.

    least: seconds from one picture to the next, at the least. pictures, spent: how many there were, and their seconds.
    """

    def __init__(self, least: float = LEAST, share: float = SHARE, clock: Callable[[], float] = time.perf_counter):
        self.least, self.share, self.clock = least, share, clock
        self.began = self._next = clock()
        self.pictures, self.spent = 0, 0.0

    @property
    def due(self) -> bool:
        return self.clock() >= self._next

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return self.clock() - self.began

    def drawn(self, began: float, other: float = 0.0) -> None:
        """A picture is done that was begun at that time. other: seconds since then that went into something else."""
        now = self.clock()
        took = now - began - other
        self.pictures += 1
        self.spent += took
        self._next = now + max(self.least - took, took * (1 - self.share) / self.share)
