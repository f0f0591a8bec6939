"""Recorded states to choose from by sliders: what an explorer shows where no kernel runs."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
from collections.abc import Sequence
from typing import NamedTuple

from kvviz.errors import ViewError
from kvviz.view.bundle import player_source, shell_source
from kvviz.view.html import View


class Axis(NamedTuple):
    """One slider: its label, its values, and which of them it begins with."""

    label: str
    values: Sequence[int]
    first: int = 0


class State(NamedTuple):
    """What one choice shows: a map that the player plays, a still chart under it, and a line of HTML above it."""

    view: View
    curves: bytes
    words: str


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
        maps = [base64.b64encode(gzip.compress(s.view.data or b"", 9, mtime=0)).decode() for s in self._states]
        pictures: list[str] = []  # several states may share one
        shown: list[tuple[int, str]] = []
        for state in self._states:
            picture = "data:image/png;base64," + base64.b64encode(state.curves).decode()
            if picture not in pictures:
                pictures.append(picture)
            shown.append((pictures.index(picture), state.words))
        opens = self._states[self._place]
        pictures[shown[self._place][0]] = ""  # it stands in the page already
        told = {
            "axes": [[axis.label, [f"{v:,}" for v in axis.values], axis.first] for axis in self._axes],
            "maps": maps, "states": shown, "pictures": pictures,
        }  # fmt: skip
        data = json.dumps(told, sort_keys=True).replace("<", "\\u003c")
        name = hashlib.sha256(data.encode()).hexdigest()[:12]
        curves = "data:image/png;base64," + base64.b64encode(opens.curves).decode()
        still = base64.b64encode(self.png).decode()
        return (
            f'<div class="kvviz-choices" data-kvviz="{name}"><div class="kvviz-words">{opens.words}</div>'
            f'<div class="kvviz-player"><img alt="{html.escape(self.words, quote=True)}" '
            f'src="data:image/png;base64,{still}" style="display:block;width:100%;max-width:1100px;height:auto"></div>'
            f'<img class="kvviz-curves" alt="" src="{curves}" style="max-width:100%"></div>\n'
            f'<script type="module">{player_source("pages")}\n{shell_source("choices")}\n'
            f'await bootChoices("{name}",{data});</script>'
        )


def choices(title: str, axes: Sequence[Axis], states: Sequence[State]) -> View:
    """The picture. Raises ViewError unless there is one state for each combination."""
    wanted = 1
    for axis in axes:
        wanted *= len(axis.values)
    if wanted != len(states):
        raise ViewError(f"{wanted} combinations of {len(axes)} sliders, {len(states)} states")
    return Choices(title, axes, states)
