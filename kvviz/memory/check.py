"""What callers pass, checked in one place: whole numbers, traces, names of files."""

from __future__ import annotations

import operator
import os
from typing import Any

from kvviz.errors import InvalidRequest, brief

LIMIT = 1 << 62  # no device, run or file comes near it, and all arithmetic below it is exact


def whole(value: Any, what: str) -> int:
    """`value` as an int: Python's and numpy's integers, and floats without a fraction (9 * MiB / 2). Otherwise
    InvalidRequest."""
    try:
        number = int(value) if isinstance(value, float) and value.is_integer() else operator.index(value)
    except TypeError:
        raise InvalidRequest(f"{what} is a whole number, not {brief(value)}") from None
    if abs(number) >= LIMIT:
        told = f"{number:,}" if abs(number) < LIMIT << 64 else brief(number)
        raise InvalidRequest(f"{what} of {told} is out of range")
    return number


def path_of(path: Any) -> str:
    """The name of a file, from a text or a Path. Raises InvalidRequest."""
    try:
        name = os.fsdecode(path)
    except TypeError:
        raise InvalidRequest(f"a file is named by a text or a Path, not {brief(path)}") from None
    if "\0" in name:
        raise InvalidRequest(f"no file is named {brief(name)}")
    return name


def traced(thing: Any) -> Any:
    """`thing`, if it is a Trace; a recording and an allocator have one as .trace, and the error says so."""
    if hasattr(thing, "lifetimes") and hasattr(thing, "curves"):
        return thing
    hint = ", which has one as .trace" if hasattr(type(thing), "trace") else ""
    raise InvalidRequest(f"this takes a Trace, not a {type(thing).__name__}{hint}")
