"""Recorded states to choose from by sliders: what an explorer shows where no kernel runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kvviz.errors import ViewError
from kvviz.view.bundle import script
from kvviz.view.html import View, data_uri, named, packed, row
from kvviz.view.theme import CHART_STYLE


class Axis(NamedTuple):
    """One slider: its label, how its values read, and which of them it begins with. menu: a list to open instead."""

    label: str
    values: Sequence[str]
    first: int = 0
    menu: bool = False


class State(NamedTuple):
    """What one choice shows: a map that the player plays, a still chart under it, and a line of HTML above it.

    against: a map to compare with. It stands before the other, side by side where there is room.
    """

    view: View
    curves: bytes
    words: str
    against: View | None = None

    @property
    def maps(self) -> list[View]:
        """In the order in which they stand."""
        return [self.view] if self.against is None else [self.against, self.view]


class Choices(View):
    """A map with sliders. states: in the order of itertools.product over the axes, the last axis fastest."""

    def __init__(self, title: str, axes: Sequence[Axis], states: Sequence[State]):
        place = 0
        for axis in axes:
            place = place * len(axis.values) + axis.first
        opens = states[place]
        super().__init__(title, opens.view.words, opens.view.png)
        self._axes, self._states, self._place = axes, states, place

    @property
    def html(self) -> str:
        maps, pictures = _Once(), _Once()  # several states may share one
        shown = []
        for state in self._states:
            places = [maps.place(packed(view.data or b"")) for view in state.maps]
            shown.append((places, pictures.place(data_uri(state.curves)), state.words))
        opens = self._states[self._place]
        pictures.texts[shown[self._place][1]] = ""  # it stands in the page already
        told, name = named({
            "axes": [[axis.label, list(axis.values), axis.first, axis.menu] for axis in self._axes],
            "maps": maps.texts, "states": shown, "pictures": pictures.texts,
        })  # fmt: skip
        return (
            f'<div class="kvviz-choices" data-kvviz="{name}"><div class="kvviz-words">{opens.words}</div>'
            f"{row([(view.png, view.words) for view in opens.maps], 420)}"
            f'{CHART_STYLE}<img class="kvviz-curves" alt="" src="{data_uri(opens.curves)}" '
            f'style="width:100%;max-width:{width(opens.curves)}px"></div>\n'
            f"{script(name, opens.view.kind, told, 'choices')}"
        )


class _Once:
    """Texts without repetition, and the place of each."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._places: dict[str, int] = {}

    def place(self, text: str) -> int:
        if text not in self._places:
            self._places[text] = len(self.texts)
            self.texts.append(text)
        return self._places[text]


def width(curves: bytes) -> int:
    """CSS px of a chart: it is drawn with two pixels to each. 0 for none."""
    return int.from_bytes(curves[16:20], "big") // 2


def choices(title: str, axes: Sequence[Axis], states: Sequence[State]) -> View:
    """The picture. Raises ViewError unless there is one state for each combination."""
    wanted = 1
    for axis in axes:
        wanted *= len(axis.values)
    if wanted != len(states):
        raise ViewError(f"{wanted} combinations of {len(axes)} sliders, {len(states)} states")
    return Choices(title, axes, states)
