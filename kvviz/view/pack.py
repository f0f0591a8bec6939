"""Columns to bytes, as small as the player can read them back fast.

    u32 length of the header | header, JSON | columns, each beginning at a multiple of 8 bytes

A column goes as the smallest unsigned type that holds it; as differences (zigzag) where they are smaller in practice;
as a single value where it never changes. `decode` in player/data.js is the other end.
"""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any, NamedTuple

import numpy as np


class Column(NamedTuple):
    """Values, and whether neighbours are alike, so that differences compress better."""

    values: np.ndarray
    alike: bool = False


def alike_or_not(values: np.ndarray) -> Column:
    """The column, as differences or not: whichever compresses better."""
    ways = [Column(values, alike) for alike in (False, True)]
    return min(ways, key=lambda way: len(zlib.compress(_encode(way)[1], 6)))


def pack(meta: dict[str, Any], columns: dict[str, Column]) -> bytes:
    """The buffer; the same input always gives the same bytes."""
    heads, bodies, offset = [], [], 0
    for name, column in columns.items():
        head, body = _encode(column)
        if body:
            head["offset"] = offset
            body += bytes(-len(body) % 8)
            bodies.append(body)
            offset += len(body)
        heads.append({"name": name, **head})
    header = json.dumps({"meta": meta, "columns": heads}, separators=(",", ":"), ensure_ascii=False).encode()
    start = struct.pack("<I", len(header)) + header
    return start + bytes(-len(start) % 8) + b"".join(bodies)


def _encode(column: Column) -> tuple[dict[str, Any], bytes]:
    values = np.asarray(column.values)
    count = len(values)
    low, high = (int(values.min()), int(values.max())) if count else (0, 0)
    final = "i4" if -(1 << 31) <= low and high < 1 << 31 else "u4" if low >= 0 and high < 1 << 32 else "f8"
    if low == high:
        return {"type": final, "length": count, "wire": "constant", "value": low}, b""
    whole = values.astype("i8")
    if final == "i4" and (column.alike or low < 0):
        steps = np.diff(whole, prepend=0)
        if np.abs(steps).max() < 1 << 30:
            whole = (steps << 1) ^ (steps >> 63)
            wire = _smallest(int(whole.max()))
            return {"type": final, "length": count, "wire": wire, "delta": True}, whole.astype("<" + wire).tobytes()
    wire = _smallest(high) if low >= 0 else "f8"
    return {"type": final, "length": count, "wire": wire}, whole.astype("<" + wire).tobytes()


def _smallest(high: int) -> str:
    return "u1" if high < 1 << 8 else "u2" if high < 1 << 16 else "u4" if high < 1 << 32 else "f8"
