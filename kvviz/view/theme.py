"""Colours: owners' colours, and the inks of the light and the dark theme. The player and the stills use these alone.

Owners' colours are the seven of Okabe and Ito plus a wine red: told apart with normal, deutan, protan and tritan vision
(smallest ΔE2000 10.9). Each brings the ink whose contrast on it passes 4.5 : 1. Everything that is not an owner is neutral.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import plotly.graph_objects as go

_DARK_INK, _LIGHT_INK = "#0b0d10", "#ffffff"
GREEN = "#009E73"  # for owner 0, what nobody owns: activations and temporaries
COLORS = ("#0072B2", "#E69F00", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#882255")

SANS = "Inter, system-ui, -apple-system, Segoe UI, Roboto, DejaVu Sans, sans-serif"

# back, front, line: the timeline's two areas and its line. free, hatch, edge: cached memory. dash: not reserved.
# scrim: the page around a player that stands alone.
LIGHT = {
    "scheme": "light", "paper": "#ffffff", "panel": "#f6f8fa", "rule": "#d8dee4", "grid": "#eaeef2",
    "text": "#1f2328", "muted": "#5b636d", "free": "#f1f3f6", "hatch": "#b3bcc6", "edge": "#98a2ad", "dash": "#b0b8c1",
    "focus": "#0969da", "scrim": "#f6f8fa", "back": "#dde2e8", "front": "#a5afbb", "line": "#1f2328", "tint": 0.3,
}  # fmt: skip
DARK = {
    "scheme": "dark", "paper": "#0d1117", "panel": "#151b23", "rule": "#2b323b", "grid": "#21262d",
    "text": "#e6edf3", "muted": "#98a2ad", "free": "#161c24", "hatch": "#414b57", "edge": "#5c6672", "dash": "#3d4651",
    "focus": "#58a6ff", "scrim": "#010409", "back": "#262e38", "front": "#515d6b", "line": "#e6edf3", "tint": 0.38,
}  # fmt: skip

# for explorers' charts, class kvviz-curves: drawn for light paper, turned over where the page is dark; player/theme.js
# asks the same questions in JavaScript
_TURNED = "{filter:invert(.93) hue-rotate(180deg)}"
CHART_STYLE = (
    "<style>body:is([data-jp-theme-light=false],[data-vscode-theme-kind$=dark],[data-vscode-theme-kind=vscode-high-contrast],"
    f".vscode-dark) .kvviz-curves,html:is([theme=dark],[data-theme=dark]) .kvviz-curves{_TURNED}"
    "@media screen and (prefers-color-scheme:dark){html:not([theme],[data-theme])>"
    f"body:not([data-jp-theme-light],[class*=vscode-]) .kvviz-curves{_TURNED}}}"
    "@media print{.kvviz-curves{filter:none!important}}</style>"
)


@dataclass(frozen=True)
class Owner:
    """How an owner looks: its colour, the ink for text on it, and a letter of its own, so that colour is never alone."""

    name: str
    letter: str
    color: str
    ink: str


def owners(names: list[str]) -> list[Owner]:
    """Looks for the owners of a trace, in its order; the first is "other"."""
    taken: set[str] = set()
    looks = []
    for k, name in enumerate(names):
        color = GREEN if k == 0 else COLORS[(k - 1) % len(COLORS)]
        looks.append(Owner(name, _letter(name, taken), color, ink_on(color)))
    return looks


def sequence(number: int) -> Owner:
    """The look of a sequence of a cache: the palette again and again, A … Z, AA … for letters.

    Green stays out of it: on block maps it is what nobody owns. The twin of `look` in player/pagemodel.js.
    """
    letter, left = "", number + 1
    while left:
        left, place = divmod(left - 1, 26)
        letter = chr(ord("A") + place) + letter
    color = COLORS[number % len(COLORS)]
    return Owner(letter, letter, color, ink_on(color))


def ink_on(color: str) -> str:
    """The readable one of the two inks on a colour."""
    return _LIGHT_INK if luminance(color) < 0.17 else _DARK_INK


def luminance(color: str) -> float:
    """Relative luminance of "#rrggbb", 0 to 1, as WCAG defines it."""
    channels = [int(color[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """Contrast ratio of two colours, 1 to 21."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _letter(name: str, taken: set[str]) -> str:
    """The first letter of the name that is still free, else of the alphabet, else a letter and a number."""
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    wanted = [c for c in name.upper() if c.isalnum()] + list(alphabet)
    wanted += [f"{letter}{k}" for k in range(1, 100) for letter in alphabet]
    letter = next((c for c in wanted if c not in taken), "…")
    taken.add(letter)
    return letter


def template(theme: str = "light") -> go.layout.Template:
    """plotly's template in our inks. theme: "light" or "dark"."""
    import plotly.graph_objects as go

    inks = DARK if theme == "dark" else LIGHT
    axis = {"gridcolor": inks["grid"], "linecolor": inks["rule"], "zerolinecolor": inks["rule"], "ticks": "",
            "title": {"font": {"size": 12, "color": inks["muted"]}}, "tickfont": {"size": 11, "color": inks["muted"]},
            "automargin": True}  # fmt: skip
    return go.layout.Template(
        layout={
            "font": {"family": SANS, "size": 13, "color": inks["text"]},
            "title": {"font": {"size": 16}, "x": 0, "xref": "container", "pad": {"l": 18}},
            "paper_bgcolor": inks["paper"], "plot_bgcolor": inks["paper"], "colorway": list(COLORS),
            "xaxis": axis, "yaxis": axis, "hovermode": "x unified", "margin": {"l": 64, "r": 24, "t": 56, "b": 84},
            "hoverlabel": {"bgcolor": inks["panel"], "bordercolor": inks["rule"], "font": {"color": inks["text"]}},
            "legend": {"orientation": "h", "traceorder": "normal", "y": -0.22, "yanchor": "top", "x": 0, "xanchor": "left"},
        }
    )  # fmt: skip
