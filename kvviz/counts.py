"""Whole numbers that callers pass: counts of layers, tokens, pages. Sizes and events of a trace: memory/check.py."""

from __future__ import annotations

import operator
from typing import Any

from kvviz.errors import InvalidRequest, brief


def counted(name: str, value: Any, least: int = 1, most: int | None = None) -> int:
    """A whole number from `least` to `most`. Raises InvalidRequest, and never prints hundreds of digits."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:  # also of a tensor of several numbers
        number = None
    if number is None:
        got = brief(value, 40)
    elif least <= number and (most is None or number <= most):
        return number
    else:
        got = "more" if number > least else str(number) if number > -(1 << 60) else "less"
    bounds = f"{least} up" if most is None else f"{least} to {most:,}"
    raise InvalidRequest(f"{name} must be a whole number from {bounds}, got {got}")


def positive(name: str, value: Any) -> int:
    """The value as an int. Raises InvalidRequest unless it is a whole number from 1 up."""
    return counted(name, value)


def natural(name: str, value: Any) -> int:
    """The value as an int. Raises InvalidRequest unless it is a whole number from 0 up."""
    return counted(name, value, 0)
