"""View: one picture in every form a notebook, a code host or a browser may ask for."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import os
import sys
from collections.abc import Callable, Collection, Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvviz.errors import ViewError
from kvviz.view.bundle import script
from kvviz.view.theme import DARK, LIGHT

if TYPE_CHECKING:
    import plotly.graph_objects as go

_UNSEEN = "position:absolute;clip-path:inset(50%);width:1px;height:1px;overflow:hidden"  # but heard: pictures have titles
_LARGE = 4 << 20  # bytes of data
PLOTLY_MIME = "application/vnd.plotly.v1+json"


class View:
    """A picture. Put it last in a cell to see it.

    title, words: what it is, and what it shows in words. png: the still picture, bytes, or a function that draws it when
    it is first looked at. One of `data` (a packed buffer: the player plays it) and `figure` (plotly draws it). kind: of
    the data, see bundle.py.
    """

    def __init__(
        self,
        title: str,
        words: str,
        png: bytes | Callable[[], bytes],
        *,
        data: bytes | None = None,
        kind: str = "blocks",
        figure: go.Figure | None = None,
        options: dict[str, Any] | None = None,
    ):
        self.title, self.words, self._png = title, words, png
        self.data, self.kind, self.figure = data, kind, figure
        self._options = options or {}

    def __repr__(self) -> str:
        return f"<View: {self.title}. {self.words}>"

    @cached_property
    def png(self) -> bytes:
        """The still picture."""
        return self._png() if callable(self._png) else self._png

    @cached_property
    def html(self) -> str:
        """A fragment that stands by itself: nothing is fetched, and without scripts the still picture shows."""
        if self.data is None:
            return still(self.png, self.words)
        level = 9 if len(self.data) < _LARGE else 6  # a third of the time, for a twentieth more
        told, name = named([packed(self.data, level), self._options])
        return (
            f'<div class="kvviz-player" data-kvviz="{name}">{still(self.png, self.words)}</div>\n'
            f"{script(name, self.kind, told)}"
        )

    def save_html(self, path: str | os.PathLike[str]) -> Path:
        """Write one self-contained page; returns its path. Raises ViewError where that cannot be written."""
        target, page = Path(path), self.page
        try:
            target.write_text(page, encoding="utf-8", newline="\n")
        except (OSError, ValueError) as problem:  # ValueError: a name that no file can have
            why = getattr(problem, "strerror", None) or problem
            raise ViewError(f"the picture cannot be written to {target}: {why}") from problem
        return target

    @property
    def whole_html(self) -> str:
        """What a file gets: the same, or more than `html`, which keeps to what a notebook can hold."""
        return self.html

    @property
    def page(self) -> str:
        """The self-contained page that save_html writes."""
        body = self.whole_html
        if self.figure is not None:
            body = self.figure.to_html(
                full_html=False, include_plotlyjs=True, auto_play=False, div_id=self._figure_id()
            )
        return _page(self.title, body)

    def _figure_id(self) -> str:
        assert self.figure is not None
        return "kvviz-" + hashlib.sha256(self.figure.to_json().encode()).hexdigest()[:12]

    def _repr_mimebundle_(
        self, include: Collection[str] | None = None, exclude: Collection[str] | None = None
    ) -> dict[str, Any]:
        bundle: dict[str, Any] = {
            "text/plain": repr(self), "image/png": base64.b64encode(self.png).decode(), "text/html": self.html
        }  # fmt: skip
        if self.figure is not None:
            if "google.colab" in sys.modules:  # Colab does not know plotly's type
                bundle["text/html"] = self.figure.to_html(
                    full_html=False, include_plotlyjs="cdn", auto_play=False, div_id=self._figure_id()
                )
            else:
                bundle[PLOTLY_MIME] = json.loads(self.figure.to_json())
                del bundle["image/png"]  # JupyterLab's plotly would show that until a mouse comes by; text/html has it
        if include:
            bundle = {kind: form for kind, form in bundle.items() if kind in include}
        if exclude:
            bundle = {kind: form for kind, form in bundle.items() if kind not in exclude}
        return bundle


def packed(data: bytes, level: int = 9) -> str:
    """What `unpack` in player/unpack.js takes."""
    return base64.b64encode(gzip.compress(data, level, mtime=0)).decode()


def scripted(told: Any) -> str:
    """JSON that may stand in a script."""
    return json.dumps(told, sort_keys=True).replace("<", "\\u003c")


def named(told: Any) -> tuple[str, str]:
    """The same, and a name made from it."""
    text = scripted(told)
    return text, hashlib.sha256(text.encode()).hexdigest()[:12]


def data_uri(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode()


def still(png: bytes, words: str) -> str:
    return (
        f'<img alt="{html.escape(words)}" src="{data_uri(png)}" '
        'style="display:block;width:100%;max-width:1100px;height:auto">'
    )


def row(stills: Iterable[tuple[bytes, str]], least: int) -> str:
    """Places for players, each with its still and its words: side by side where each has `least` px, else one below the other."""
    players = "".join(
        f'<div class="kvviz-player" style="flex:1 1 {least}px;min-width:0">{still(png, words)}</div>'
        for png, words in stills
    )
    return f'<div style="display:flex;flex-wrap:wrap;align-items:flex-start;gap:0 10px">{players}</div>'


def _page(title: str, body: str) -> str:
    # the page around a player is the player's own paper, so that no seam shows while it loads
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{html.escape(title)}</title>
<style>
body {{ margin: 0 auto; padding: clamp(8px, 2vw, 28px); max-width: 1680px; background: {LIGHT["scrim"]}; }}
@media (prefers-color-scheme: dark) {{ body {{ background: {DARK["scrim"]}; }} }}
</style>
</head>
<body>
<main>
<h1 style="{_UNSEEN}">{html.escape(title)}</h1>
{body}
</main>
</body>
</html>
"""
