"""The player's source as one module: its files joined, for a page that may load nothing."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

from kvviz.view.squeeze import squeeze

# each file after those it imports from
_BEFORE = ("format", "dom", "kinds", "data", "theme", "draw", "style")
_OF = {
    "blocks": ("blockmodel", "layout", "blocks"),
    "timeline": ("blockmodel",),
    "pages": ("pagereplay", "pagemodel", "pagelayout", "pagegrid", "pagetables", "pagetips", "pages"),
}
_AFTER = ("timeline", "controls", "mount", "boot")
KINDS = tuple(_OF)


@cache
def player_source(kind: str) -> str:
    """The joined module for one kind of picture, without imports, and squeezed."""
    folder = files(__package__) / "player"
    names = (*_BEFORE, *_OF[kind], *_AFTER)
    return "\n".join(_joined((folder / f"{name}.js").read_text(encoding="utf-8")) for name in names)


@cache
def shell_source(name: str) -> str:
    """A file that builds on the joined module, squeezed, to stand behind it."""
    return _joined((files(__package__) / "player" / f"{name}.js").read_text(encoding="utf-8"))


def _joined(source: str) -> str:
    source = re.sub(r"^import .*;\n", "", source, flags=re.MULTILINE)
    return squeeze(re.sub(r"^export (async |)(class|const|function)", r"\1\2", source, flags=re.MULTILINE))
