"""What callers pass, checked in one place: whole numbers, traces."""

from __future__ import annotations

import operator
from typing import Any

from kvviz.errors import InvalidRequest

LIMIT = 1 << 62  # no device, run or file comes near it, and all arithmetic below it is exact


def whole(value: Any, what: str) -> int:
    """`value` as an int: Python's and numpy's integers, and floats without a fraction (9 * MiB / 2). Otherwise
    InvalidRequest."""
    try:
        number = int(value) if isinstance(value, float) and value.is_integer() else operator.index(value)
    except TypeError:
        raise InvalidRequest(f"{what} is a whole number, not {value!r}") from None
    if abs(number) >= LIMIT:
        raise InvalidRequest(f"{what} of {number:,} is out of range")
    return number


def traced(thing: Any) -> Any:
    """`thing`, if it is a Trace; a recording and an allocator have one as .trace, and the error says so."""
    if hasattr(thing, "lifetimes") and hasattr(thing, "curves"):
        return thing
    hint = ", which has one as .trace" if hasattr(type(thing), "trace") else ""
    raise InvalidRequest(f"this takes a Trace, not a {type(thing).__name__}{hint}")
