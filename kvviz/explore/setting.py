"""Setting: one thing that a reader of an explorer can choose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import ipywidgets as widgets

from kvviz.errors import InvalidRequest


class Setting(NamedTuple):
    """label; values to choose from; the one to begin with; the few that are recorded, () for none.

    texts: how the values read, one each; () for numbers, which read as 1,024. menu: a list to open, not a slider.
    """

    label: str
    values: Sequence[Any]
    first: Any
    recorded: Sequence[Any] = ()
    texts: Sequence[str] = ()
    menu: bool = False

    def text(self, value: Any) -> str:
        """How a value reads."""
        return self.texts[list(self.values).index(value)] if self.texts else f"{value:,}"

    def widget(self, name: str, value: Any, label_width: int) -> widgets.SelectionSlider | widgets.Dropdown:
        """What the reader moves, at `value`. Raises InvalidRequest for one that is not among the values."""
        if value not in self.values:
            raise InvalidRequest(f"{name} is one of {', '.join(map(str, self.values))}, got {value!r}")
        look = {
            "style": {"description_width": f"min({label_width}px, 52%)"},  # beside its slider on a narrow page, too
            "layout": {"width": f"{label_width + 230}px", "max_width": "calc(100% - 4px)"},
        }
        told = {"options": [(self.text(v), v) for v in self.values], "value": value, "description": self.label}
        if self.menu:
            return widgets.Dropdown(**told, **look)
        return widgets.SelectionSlider(continuous_update=False, **told, **look)


Settings = Mapping[str, Setting]
