"""The player's source as one module: its files joined, for a page that may load nothing."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

# each file after those it imports from
MODULES = ("format", "dom", "layout", "data", "theme", "style", "blocks", "timeline", "controls", "mount", "boot")


@cache
def player_source() -> str:
    """The joined module, without imports, comments and indentation."""
    folder = files(__package__) / "player"
    return "\n".join(_bare((folder / f"{name}.js").read_text(encoding="utf-8")) for name in MODULES)


def _bare(source: str) -> str:
    source = re.sub(r"^import .*;\n", "", source, flags=re.MULTILINE)
    source = re.sub(r"^export (async |)(class|const|function)", r"\1\2", source, flags=re.MULTILINE)
    source = re.sub(r"^ *//.*\n| +// .*$", "", source, flags=re.MULTILINE)
    source = re.sub(r"^ */\*\*.*?\*/\n", "", source, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"^ +|\n(?=\n)", "", source, flags=re.MULTILINE)
