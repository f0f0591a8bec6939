"""The player's source as one program: its files joined and packed, for a page that may load nothing."""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
from functools import cache
from importlib.resources import files

from kvviz.view.squeeze import squeeze

# each file after those it imports from
_BEFORE = ("unpack", "format", "dom", "kinds", "data", "theme", "draw", "style", "zoom")
_OF = {
    "blocks": (
        "blockmodel", "layout", "screen", "detail", "strips", "outlines", "foldbar", "labels", "tips", "places", "blocks",
        "whose", "colours", "table", "pick", "filters", "pins", "breakdown", "lifebars", "inspect", "panelstyle", "panels",
    ),
    "timeline": ("blockmodel",),
    "pages": ("pagereplay", "pagemodel", "pagelayout", "pagegrid", "pagetables", "pagetips", "pages"),
}
_AFTER = ("peaks", "timeline", "controls", "legend", "voice", "tip", "help", "gestures", "zooming", "mount")
KINDS = tuple(_OF)


@cache
def player_source(kind: str, shell: str = "inline") -> str:
    """The joined program for one kind of picture, without imports, and squeezed. shell: the file that stands at its end."""
    return _joined(*_BEFORE, *_OF[kind], *_AFTER, shell)


def script(name: str, kind: str, told: str, shell: str = "inline") -> str:
    """The script element that brings the elements with data-kvviz=name to life.

    told: JSON of what the shell is to show. The shell is a file of player/ with a function of the same name, which gets
    the elements and that.
    """
    key, program = _program(kind, shell)
    return f'<script type="module">{_joined("unpack", "boot")}\nawait boot("{name}","{key}","{program}",{told});</script>'


@cache
def _program(kind: str, shell: str) -> tuple[str, str]:
    """A name for the program, and the program: base 85 of gzip, in digits that mean nothing to HTML, JavaScript or TeX."""
    source = f"{player_source(kind, shell)}\nreturn {shell};".encode()
    return hashlib.sha256(source).hexdigest()[:12], to85(gzip.compress(source, 9, mtime=0))


def to85(data: bytes) -> str:
    """The twin of from85 in player/boot.js."""
    return base64.b85encode(data).translate(bytes.maketrans(b"<$`&", b",.[]")).decode()


@cache
def _joined(*names: str) -> str:
    folder = files(__package__) / "player"
    return "\n".join(_plain((folder / f"{name}.js").read_text(encoding="utf-8")) for name in names)


def _plain(source: str) -> str:
    source = re.sub(r"^import .*;\n", "", source, flags=re.MULTILINE)
    return squeeze(re.sub(r"^export (async |)(class|const|function)", r"\1\2", source, flags=re.MULTILINE))
