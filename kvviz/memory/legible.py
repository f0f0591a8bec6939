"""Names that people give, and files bring: as they may stand beside numbers."""

from __future__ import annotations

import re

NO_NAME = "(no name)"
# what turns the direction of the text that follows: "32 KiB" after one of these reads "BiK 23"
_TURNS = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def legible(name: str) -> str:
    """The name, with a mark (U+FFFD) for each character that would reorder what stands beside it; never blank."""
    return (name if name.isascii() else _TURNS.sub("\ufffd", name)) if name.strip() else NO_NAME
