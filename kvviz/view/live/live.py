"""Live: a picture of a run while it goes on."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cached_property
from typing import Any, Protocol

from kvviz.errors import ViewError
from kvviz.view.html import View
from kvviz.view.live import outputs
from kvviz.view.live.pace import Pace


class Subject(Protocol):
    """What is shown. kind: of its data, as in bundle.py. spared: seconds of now() so far that last() is spared."""

    kind: str

    @property
    def spared(self) -> float: ...

    def follow(self, tick: Callable[[], None] | None) -> None:
        """Have `tick` called between the steps of the run; None: no more."""

    def now(self) -> tuple[bytes, int] | None:
        """The player's buffer of all that has happened, and how many events that is; None: at this moment nothing."""

    def last(self) -> View:
        """The ordinary picture of the whole."""


class Live:
    """Shows a run on the notebook's page until stop(), the end of a `with` block, or the end of the cell.

    It draws between two steps of the run, at most four times a second and in at most 5 % of its time; each picture is of
    all that came so far. Where there is no page (a script, a terminal) it does nothing until the end. An error in
    drawing ends the picture, never the run.

    view: the ordinary picture of the whole, once it has stopped. told: what the live one cost, in words.
    """

    def __init__(self, subject: Subject, theme: str = "auto", pace: Pace | None = None):
        self.told = "nothing yet"
        self._subject, self._pace = subject, pace or Pace()
        self._outputs = outputs.Outputs(subject.kind, theme)
        self._events, self._spared = 0, 0.0
        self._running, self._drawing = True, False
        self._shell = outputs.shell()
        if self._shell is not None:
            self._shell.events.register("post_run_cell", self._cell_ends)
        if outputs.has_page():
            self._outputs.open()
            subject.follow(self.tick)

    def __enter__(self) -> Live:
        return self

    def __exit__(self, *problem: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return "<Live: running>" if self._running else f"<{self.told}>"

    @cached_property
    def view(self) -> View:
        """Raises ViewError while it is running, and where there is no true picture, as block_map and page_map do."""
        if self._running:
            raise ViewError("the live picture is running: its view is there after stop()")
        return self._subject.last()

    def tick(self) -> None:
        """A moment between two steps: draw if it is time."""
        if self._drawing or not self._running or not self._pace.due:
            return
        self._drawing, began, spared = True, self._pace.clock(), self._subject.spared
        try:
            now = self._subject.now()
            if now is not None:
                data, self._events = now
                self._outputs.send(data, f"Live: event {self._events:,}, {self._pace.elapsed:.1f} s after the start")
        except Exception as problem:
            self._subject.follow(None)
            warnings.warn(f"the live picture stopped, the run goes on: {problem}", stacklevel=2)
        finally:
            self._drawing = False
        spared = self._subject.spared - spared
        self._spared += spared
        self._pace.drawn(began, spared)

    def stop(self) -> None:
        """Let go of the run, and put the ordinary picture where the live one was. A second call does nothing."""
        if not self._running:
            return
        self._subject.follow(None)
        self._running = False
        pace = self._pace
        share, moved = pace.spent / max(pace.elapsed, 1e-9), ""
        if self._spared:
            moved = f"; {self._spared:.1f} s more went into what the map at the end needs"
        self.told = (
            f"Live: {pace.pictures:,} pictures, {self._events:,} events, drawn in {pace.spent:.2f} s: {share:.1%} of the "
            f"{pace.elapsed:.1f} s it ran{moved}"
        )
        if self._shell is None:
            return
        self._shell.events.unregister("post_run_cell", self._cell_ends)
        try:
            view = self.view
        except Exception as problem:
            warnings.warn(f"no picture of the whole: {problem}", stacklevel=2)
            self._outputs.close(None, self.told)
        else:
            self._outputs.close(view, self.told)

    def _cell_ends(self, *result: Any) -> None:
        self.stop()
