"""Outputs: how a live picture reaches a notebook's page while the kernel is busy, and how it leaves it clean.

A busy kernel answers nothing, so the page must not have to ask. Two outputs of the cell: one holds the player, the
content of the other is replaced by each batch, a script that leaves the newest buffer where the player finds it. A page
that is slow sees only the newest. At the end the first becomes the ordinary picture, the other a line of text: what is
stored in the notebook is complete, small, and no script of the live picture is left.
"""

from __future__ import annotations

import json
import uuid
from typing import Any

from kvviz.view.bundle import script
from kvviz.view.html import View, packed, scripted

WAITING = "A live picture: it begins with the first step of the run, and needs the notebook's kernel."


def shell() -> Any:
    """IPython's shell, or None in plain Python."""
    try:
        from IPython import get_ipython
    except ImportError:
        return None
    return get_ipython()


def has_page() -> bool:
    """Is this a kernel, so that there may be a page to show something on?"""
    return getattr(shell(), "kernel", None) is not None


class Outputs:
    """The two outputs of one live picture. kind: of the data, as in bundle.py."""

    def __init__(self, kind: str, theme: str = "auto"):
        self.kind, self.theme = kind, theme
        self.name = f"live-{uuid.uuid4().hex[:12]}"
        self._open = False

    def open(self) -> None:
        """Put both on the page."""
        self._open = True
        told = json.dumps([self.name, {"theme": self.theme}])
        player = f'<div class="kvviz-player" data-kvviz="{self.name}">{WAITING}</div>\n'
        self._show(player + script(self.name, self.kind, told, "live"), self.name, False)
        self._show("", self.name + "-news", False)

    def send(self, data: bytes, words: str) -> None:
        """One batch: the whole buffer. words: how far the run is."""
        told = scripted([packed(data, 1), words])
        where = f'((globalThis.kvviz??={{}}).news??={{}})["{self.name}"]'
        self._show(f'<script>{where}={told};dispatchEvent(new Event("kvviz-news"))</script>', self.name + "-news")

    def close(self, view: View | None, words: str) -> None:
        """The last picture, and what the live one cost. In a terminal, which had no live one, only the picture."""
        from IPython.display import display, update_display

        if not self._open:
            if view is not None and shell() is not None:
                display(view)
            return
        self._open = False
        text = {"text/plain": words}
        if view is None:
            update_display({"text/plain": "no picture"}, display_id=self.name, raw=True)
        else:
            update_display(view, display_id=self.name)
        update_display(text, display_id=self.name + "-news", raw=True)

    def _show(self, html: str, name: str, update: bool = True) -> None:
        from IPython.display import display

        bundle = {"text/html": html, "text/plain": "live picture"}
        display(bundle, raw=True, display_id=name, update=update)
