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

from kvviz.errors import InvalidRequest, KvvizError, brief
from kvviz.explore.panels import Panel, panels
from kvviz.explore.setting import Setting, Settings
from kvviz.view.choices import Axis, State, choices, width
from kvviz.view.html import View
from kvviz.view.theme import CHART_STYLE


@dataclass
class Outcome:
    """What one setting gives: a map, charts with a note, figures by name, and the same in words.

    against: a second map, which the first is compared with. below: HTML that stands between the words and the maps.
    """

    view: View
    charts: Sequence[Panel]
    note: str
    figures: Mapping[str, float]
    words: str
    against: View | None = None
    below: str = ""

    def curves(self, marked: bool = True) -> bytes:
        """The charts as a still picture. marked: with the chosen value."""
        return panels(self.charts if marked else [replace(chart, at=None) for chart in self.charts], self.note)


class Explorer(widgets.VBox):
    """Base of the explorers. A subclass names its settings and turns them into an Outcome.

    offered: the settings of this one, where they are not those of all of its class.
    After every change `outcome` is new: .figures holds the numbers, .view the map.
    """

    title = ""
    settings: ClassVar[Settings] = {}
    label_width: ClassVar[int] = 110  # px

    def __init__(self, offered: Settings | None = None, /, **chosen: Any):
        self.offered: Settings = self.settings if offered is None else offered
        self.outcome: Outcome | None = None
        self.sliders: dict[str, widgets.SelectionSlider | widgets.Dropdown] = {}
        if not isinstance(self.offered, Mapping) or not all(isinstance(s, Setting) for s in self.offered.values()):
            raise InvalidRequest(f"offered are settings by their names, got {brief(self.offered)}")
        for name in chosen:
            if name not in self.offered:
                raise InvalidRequest(f"no setting {name!r}; there are {', '.join(self.offered)}")
        for name, setting in self.offered.items():
            slider = setting.widget(name, chosen.get(name, setting.first), self.label_width)
            slider.observe(self._changed, names="value")
            self.sliders[name] = slider
        self._words, self._curves = widgets.HTML(), widgets.Image(format="png")
        self._curves.add_class("kvviz-curves")
        # side by side where both have room, else one below the other
        self._against, self._map = (widgets.Output(layout={"flex": "1 1 420px", "min_width": "0"}) for _ in range(2))
        rows = widgets.HBox(list(self.sliders.values()), layout={"flex_flow": "row wrap"})
        maps = widgets.HBox([self._against, self._map], layout={"flex_flow": "row wrap"})
        super().__init__([rows, self._words, maps, self._curves, widgets.HTML(CHART_STYLE, layout={"display": "none"})])
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
    def chosen(self) -> dict[str, Any]:
        return {name: slider.value for name, slider in self.sliders.items()}

    def _changed(self, change: object = None) -> None:
        self.outcome = None
        try:
            self.outcome = self.measure(**self.chosen)
            self._words.value, self._curves.value = self.outcome.words + self.outcome.below, self.outcome.curves()
            self._curves.layout.max_width = f"min(100%, {width(self._curves.value)}px)"
        except KvvizError as error:
            self._words.value, self._curves.value = _complaint(error), b""
        against = self.outcome.against if self.outcome else None
        self._against.layout.display = None if against else "none"
        for output, view in ((self._against, against), (self._map, self.outcome.view if self.outcome else None)):
            shown = ({"output_type": "display_data", "data": self.forms(view), "metadata": {}},) if view else ()
            if output.outputs != shown:  # a map that stays the same keeps its cursor
                # not displayed: where no page is open, that would print, and end up in some cell
                output.outputs = shown

    def forms(self, view: View) -> dict[str, Any]:
        """A map as the live explorer shows it, by MIME type."""
        return view._repr_mimebundle_()

    # without a kernel

    def recorded(self) -> View:
        """The explorer as one picture with sliders of its own, for a page that has no kernel: a few values of each.

        It opens where the sliders stand, if that was recorded. What has no slider there is as chosen now.
        """
        chosen, axes, grids, rest = self.chosen, [], [], []
        for name, setting in self.offered.items():
            values = setting.recorded
            grids.append(values or (chosen[name],))
            if values:
                opens = next((v for v in (chosen[name], setting.first) if v in values), values[0])
                axes.append(Axis(setting.label, [setting.text(v) for v in values], values.index(opens), setting.menu))
            else:
                rest.append(f" · {setting.label}: {html.escape(setting.text(chosen[name]))}")
        states = []
        pictures: dict[str, bytes] = {}  # without a mark, so that many states share one
        for values in itertools.product(*grids):
            outcome = self.measure(**dict(zip(self.offered, values, strict=True)))
            drawn = repr([replace(chart, at=None) for chart in outcome.charts])
            if drawn not in pictures:
                pictures[drawn] = outcome.curves(marked=False)
            states.append(
                State(outcome.view, pictures[drawn], outcome.words + "".join(rest) + outcome.below, outcome.against)
            )
        return choices(self.title, axes, states)

    def save_html(self, path: str | Path) -> Path:
        """Write the recorded explorer as one self-contained page."""
        return self.recorded().save_html(path)

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        made = super()._repr_mimebundle_(**kwargs)
        bundle: dict[str, Any] = dict(made[0] if isinstance(made, tuple) else made or {})
        try:
            recorded = self.recorded()
        except KvvizError as error:  # what is chosen, or one of the values beside it, cannot be
            return bundle | {"text/plain": f"<{self.title}: {error}>", "text/html": _complaint(error)}
        still = base64.b64encode(recorded.png).decode()
        return bundle | {"text/plain": repr(recorded), "image/png": still, "text/html": recorded.html}


def _complaint(error: KvvizError) -> str:
    return f"<b>{type(error).__name__}</b>: {html.escape(str(error))}"
