"""Explorer: sliders above, a moving map and its curves below. Each change runs the pages anew and plays the result.

Without a kernel (exported, or not yet run) the same explorer shows states that were recorded: see `recorded`.
"""

from __future__ import annotations

import base64
import html
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import ipywidgets as widgets

from kvviz.errors import InvalidRequest, KvvizError
from kvviz.explore.panels import Panel, panels
from kvviz.view.choices import Axis, State, choices
from kvviz.view.html import View

Settings = Mapping[str, tuple[str, tuple[int, ...], int, tuple[int, ...]]]


@dataclass
class Outcome:
    """What one setting gives: a map, charts with a note, figures by name, and the same in words."""

    view: View
    charts: Sequence[Panel]
    note: str
    figures: dict[str, float]
    words: str

    def curves(self, marked: bool = True) -> bytes:
        """The charts as a still picture. marked: with the chosen value."""
        return panels(self.charts if marked else [replace(chart, at=None) for chart in self.charts], self.note)


class Explorer(widgets.VBox):
    """Base of the explorers. A subclass names its settings and turns them into an Outcome.

    settings: name -> (label, values of the slider, value to begin with, the few values that are recorded; () for none).
    After every change `outcome` is new: .figures holds the numbers, .view the map.
    """

    title = ""
    settings: ClassVar[Settings] = {}

    def __init__(self, **chosen: int):
        self.outcome: Outcome | None = None
        self.sliders: dict[str, widgets.SelectionSlider] = {}
        for name in chosen:
            if name not in self.settings:
                raise InvalidRequest(f"no setting {name!r}; there are {', '.join(self.settings)}")
        for name, (label, values, first, _) in self.settings.items():
            value = chosen.get(name, first)
            if value not in values:
                raise InvalidRequest(f"{name} is one of {', '.join(map(str, values))}, got {value!r}")
            slider = widgets.SelectionSlider(
                options=[(f"{v:,}", v) for v in values], value=value, description=label, continuous_update=False,
                style={"description_width": "110px"}, layout={"width": "340px"},
            )  # fmt: skip
            slider.observe(self._changed, names="value")
            self.sliders[name] = slider
        self._words, self._curves = widgets.HTML(), widgets.Image(format="png", layout={"max_width": "100%"})
        self._map = widgets.Output()
        rows = widgets.HBox(list(self.sliders.values()), layout={"flex_flow": "row wrap"})
        super().__init__([rows, self._words, self._map, self._curves])
        self._changed()

    def __getattr__(self, name: str) -> Any:
        """A setting's slider by its name: explorer.page_size.value = 64."""
        sliders = self.__dict__.get("sliders", {})
        if name in sliders:
            return sliders[name]
        raise AttributeError(name)

    def measure(self, *args: Any, **chosen: Any) -> Outcome:
        """The outcome of one setting, by the settings' names."""
        raise NotImplementedError

    @property
    def chosen(self) -> dict[str, int]:
        return {name: slider.value for name, slider in self.sliders.items()}

    def _changed(self, change: object = None) -> None:
        self.outcome = None
        shown: tuple[dict[str, Any], ...] = ()
        try:
            self.outcome = self.measure(**self.chosen)
            self._words.value, self._curves.value = self.outcome.words, self.outcome.curves()
            data = self.outcome.view._repr_mimebundle_()
            shown = ({"output_type": "display_data", "data": data, "metadata": {}},)
        except KvvizError as error:
            self._words.value, self._curves.value = f"<b>{type(error).__name__}</b>: {html.escape(str(error))}", b""
        self._map.outputs = shown  # not displayed: where no page is open, that would print, and end up in some cell

    # without a kernel

    def recorded(self) -> View:
        """The explorer as one picture with sliders of its own, for a page that has no kernel: a few values of each.

        It opens where the sliders stand, if that was recorded. What has no slider there is as chosen now.
        """
        chosen, axes, grids, rest = self.chosen, [], [], []
        for name, (label, _, first, values) in self.settings.items():
            grids.append(values or (chosen[name],))
            if values:
                opens = next((v for v in (chosen[name], first) if v in values), values[0])
                axes.append(Axis(label, values, values.index(opens)))
            else:
                rest.append(f" · {label}: {chosen[name]:,}")
        states = []
        pictures: dict[str, bytes] = {}  # without a mark, so that many states share one
        for values in itertools.product(*grids):
            outcome = self.measure(**dict(zip(self.settings, values, strict=True)))
            drawn = repr([(chart.title, chart.x, chart.series) for chart in outcome.charts])
            if drawn not in pictures:
                pictures[drawn] = outcome.curves(marked=False)
            states.append(State(outcome.view, pictures[drawn], outcome.words + "".join(rest)))
        return choices(self.title, axes, states)

    def save_html(self, path: str | Path) -> Path:
        """Write the recorded explorer as one self-contained page."""
        return self.recorded().save_html(path)

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        made = super()._repr_mimebundle_(**kwargs)
        bundle: dict[str, Any] = dict(made[0] if isinstance(made, tuple) else made or {})
        recorded = self.recorded()
        still = base64.b64encode(recorded.png).decode()
        return bundle | {"text/plain": repr(recorded), "image/png": still, "text/html": recorded.html}
