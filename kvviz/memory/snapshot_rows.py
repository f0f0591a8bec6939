"""Dicts of one form, as a pickle writes them, to columns: many at a time, each byte of them looked at.

A dict of the form, as Python has written it since protocol 4 (GET: h or j, with an index of the memo):

    } MEMOIZE ( GET "action" GET   GET "addr" number   GET "size" number   GET "stream" number   GET "time_us" number
    further pairs …   GET "frames" (a list of GETs, or a GET of an earlier list)   u
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

NAMES = ("action", "addr", "size", "stream", "time_us")  # the first keys, in this order
NOWHERE = -1  # in place of a number of the memo
WIDEST = 4096  # bytes of a list of frames
BEYOND = WIDEST + 16  # zeros behind what is looked at, so that a look ahead stays inside

_GET = rb"(?:j....|h.)"
_NUMBER = rb"(?:\x8a[\x01-\x08].{1,8}?|K.|M..|J....)"
_SAMPLE = re.compile(rb"}\x94\((" + _GET + rb")" + _GET + (rb"(" + _GET + rb")" + _NUMBER) * 4 + rb"(?=[hj])", re.S)
_LIST = re.compile(rb"\]\x94(?:\(" + _GET + rb"+e)?", re.S)
_TRACES = re.compile(rb"\x8c\rdevice_traces\x94")
_GETS = re.compile(_GET, re.S)
_PAIR = re.compile(rb"(?:K.|M..|J....){2}\x86\x94", re.S)

# bytes of an instruction with its operand, 0 where it may not stand here; of 8A and 8C without it
_WIDTH = np.zeros(256, "i8")
for _code, _bytes in zip(b"KMJhjN\x88\x89\x8a\x8c", (2, 3, 5, 2, 5, 1, 1, 1, 2, 3), strict=True):
    _WIDTH[_code] = _bytes
_OPERAND = np.zeros(256, "u8")
_OPERAND[list(b"Kh")], _OPERAND[ord("M")], _OPERAND[list(b"Jj")] = 0xFF, 0xFFFF, 0xFFFFFFFF
_LOW = np.array([(1 << 8 * min(n, 8)) - 1 for n in range(256)], "u8")  # the lowest n bytes
_NUMBERS, _GETTERS = np.zeros(256, "?"), np.zeros(256, "?")
_NUMBERS[list(b"KMJ\x8a")], _GETTERS[list(b"hj")] = True, True
_BATCH = np.uint64(0x286575)  # u, the end of a batch of a thousand, the beginning of the next


@dataclass
class Form:
    """Of such dicts: the bytes that name each key, and the kind of its value: "get", "number", "one" (any single thing),
    "pair" (of numbers), "frames" (the last, and it may be missing)."""

    keys: list[bytes]
    kinds: list[str]

    @property
    def numbers(self) -> list[int]:
        """Of the memo, for the keys in NAMES and, where there is one, "frames"."""
        keys = self.keys[: len(NAMES)] + ([self.keys[-1]] if self.kinds[-1] == "frames" else [])
        return [number_of(key) for key in keys]


def number_of(get: bytes) -> int:
    """Of the memo, in a GET."""
    return int.from_bytes(get[1:], "little")


def form_of(whole: Any) -> Form | None:
    """Of the events in a pickle, as bytes or the like; None where none shows."""
    form, traces = None, _TRACES.search(whole)
    if traces is None:
        return None
    for sample in islice(_SAMPLE.finditer(whole, traces.end(), traces.end() + (8 << 20)), 50):
        form = _at(whole, sample)
        if form is not None and form.kinds[-1] == "frames":
            break
    return form


def _at(whole: Any, sample: re.Match[bytes]) -> Form | None:
    form, place = Form(list(sample.groups()), ["get", "number", "number", "number", "number"]), sample.end()
    while whole[place] != 0x75:  # u
        key = _GETS.match(whole, place)
        if key is None or len(form.keys) > 16:
            return None
        place, kind = key.end(), "one"
        if listed := _LIST.match(whole, place):
            if whole[listed.end()] != 0x75:
                return None
            kind, place = "frames", listed.end()
        elif pair := _PAIR.match(whole, place):
            kind, place = "pair", pair.end()
        else:
            code = int(whole[place])
            if not _WIDTH[code]:
                return None
            place += int(_WIDTH[code]) + (int(whole[place + 1]) if code in (0x8A, 0x8C) else 0)
        form.keys.append(key.group())
        form.kinds.append(kind)
    return form


class Rows:
    """Dicts of one form in a buffer that is filled again and again, with BEYOND spare bytes behind it."""

    def __init__(self, buffer: np.ndarray, form: Form):
        self.bytes, self.form, self.length = buffer, form, len(buffer) - BEYOND
        self.words = np.ndarray(len(buffer) - 7, "<u8", buffer, strides=(1,))  # eight bytes from any place
        self.known: dict[bytes, int] = {}  # the bytes of a list of frames -> its index in lists
        self.lists: list[list[int]] = []  # of numbers of the memo

    def starts(self, filled: int) -> np.ndarray:
        """Where dicts of the form may begin."""
        first = b"}\x94(" + self.form.keys[0]
        here = np.flatnonzero(self.bytes[:filled] == 0x7D)
        return here[self.words[here] & _LOW[len(first)] == np.uint64(int.from_bytes(first[:8], "little"))]

    def columns(self, start: np.ndarray) -> tuple[np.ndarray, ...]:
        """Of each dict but the last, which only bounds the one before: is it of the form and does the next follow it;
        where it ends; how many things it puts into the memo; action, address, size, stream, time; the index into lists,
        -1 for none, and where it refers to an earlier list, that one's number of the memo."""
        place, following = start[:-1] + 3, start[1:]
        good, memo = np.ones(len(place), "?"), np.ones(len(place), "i8")
        columns: list[np.ndarray] = []
        stack = np.full(len(place), -1, "i8")
        referred = np.full(len(place), NOWHERE, "i8")
        for key, kind in zip(self.form.keys, self.form.kinds, strict=True):
            np.minimum(place, self.length, out=place)
            named = self.words[place] & _LOW[len(key)] == np.uint64(int.from_bytes(key, "little"))
            if kind == "frames":
                self._frames(place, len(key), named, following, good, memo, stack, referred)
                continue
            good &= named
            place += len(key)
            allowed = {"get": _GETTERS, "number": _NUMBERS, "pair": _NUMBERS}.get(kind)
            value = self._one(place, good, memo, allowed)
            if kind == "pair":
                self._one(place, good, memo, _NUMBERS)
                good &= self.words[place] & np.uint64(0xFFFF) == np.uint64(0x9486)
                place += 2
                memo += 1
            columns.append(value)
        np.minimum(place, self.length, out=place)
        closes = self.words[place]  # u, and then the next; or u, the end of a batch of a thousand, and then the next
        good &= closes & np.uint64(0xFF) == np.uint64(0x75)
        batch = (closes & np.uint64(0xFFFFFF) == _BATCH) & (place + 3 == following)
        good &= batch | (place + 1 == following)
        action, address, size, stream, time = columns[:5]
        good &= (address >= 0) & (size >= 0) & (time >= 0)
        memo = memo.astype("u1")
        return good, place + 1, memo, action.astype("u4"), address, size, stream, time, stack.astype("i4"), referred

    def _one(self, place: np.ndarray, good: np.ndarray, memo: np.ndarray, allowed: np.ndarray | None) -> np.ndarray:
        """The numbers (of the memo, for GETs) at `place`, which moves on."""
        np.minimum(place, self.length, out=place)
        word = self.words[place]
        code = (word & np.uint64(0xFF)).astype("u1")
        width = _WIDTH[code]
        good &= (width > 0) if allowed is None else allowed[code]
        operand = word >> np.uint64(8)
        value = (operand & _OPERAND[code]).view("i8")
        if (signed := np.flatnonzero((code == 0x4A) & (value >= 1 << 31))).size:
            value[signed] -= 1 << 32
        if (long := np.flatnonzero(code == 0x8A)).size:
            count = (operand[long] & np.uint64(0xFF)).astype("i8")
            good[long] &= (count > 0) & (count <= 8)
            spare = (8 * (8 - np.clip(count, 1, 8))).astype("u8")
            lifted = self.words[np.minimum(place[long] + 2, self.length)] << spare
            value[long] = lifted.view("i8") >> spare.view("i8")  # with its sign
            width[long] += count
        if (text := np.flatnonzero(code == 0x8C)).size:
            width[text] += (operand[text] & np.uint64(0xFF)).astype("i8")
            good[text] &= self.bytes[np.minimum(place[text] + width[text] - 1, self.length)] == 0x94
            memo[text] += 1
        place += width
        return value

    def _frames(
        self, place: np.ndarray, width: int, named: np.ndarray, following: np.ndarray, good: np.ndarray, memo: np.ndarray,
        stack: np.ndarray, referred: np.ndarray,
    ) -> None:  # fmt: skip
        """Where the key is `named`, fill the index into stacks, or the number of the memo that is referred to; `place`
        moves to where the value ends."""
        place += np.where(named, width, 0)
        np.minimum(place, self.length, out=place)
        listed = named & (self.bytes[place] == 0x5D)
        if (single := np.flatnonzero(named & ~listed)).size:
            there, fine = place[single], good[single]
            referred[single] = self._one(there, fine, np.zeros(len(there), "i8"), _GETTERS)
            good[single], place[single] = fine, there
        # a list reaches as far as the next dict lets it; what is in between must then be one
        rows = np.flatnonzero(listed & good)
        batch = self.words[following[rows] - 3] & np.uint64(0xFFFFFF) == _BATCH
        until = following[rows] - np.where(batch, 3, 1)
        length = until - place[rows]
        possible = (length >= 2) & (length <= WIDEST)
        good[rows[~possible]] = False
        rows, until, length = rows[possible], until[possible], length[possible]
        for size in np.unique(length).tolist():
            some = rows[length == size]
            stack[some] = self._intern(place[some], size)
        good[rows] &= stack[rows] >= 0
        place[rows] = until
        memo[rows] += 1

    def _intern(self, place: np.ndarray, size: int) -> np.ndarray:
        """For each of the pieces of `size` bytes the index of its list of frames, -1 where it is none."""
        count = -(-size // 8)
        rows = np.ndarray((len(self.bytes) - 8 * count + 1,), f"V{8 * count}", self.bytes, strides=(1,))[place]
        words = rows.view("<u8").reshape(-1, count)
        words[:, -1] &= _LOW[size - 8 * (count - 1)]
        weights = np.arange(1, 2 * count, 2, dtype="u8") * np.uint64(0x9E3779B97F4A7C15)
        mixed = words ^ (words >> np.uint64(29))
        sums = (mixed * weights).sum(1)
        distinct = np.unique(sums)
        which = np.searchsorted(distinct, sums)
        first = np.zeros(len(distinct), "i8")
        first[which] = np.arange(len(which))  # one of each
        index = np.array([self._index(words[k].tobytes()[:size]) for k in first.tolist()], "i8")[which]
        index[(words != words[first[which]]).any(1)] = -1  # of the same sum, but not the same
        return index

    def _index(self, piece: bytes) -> int:
        if piece not in self.known:
            self.known[piece] = -1
            if _LIST.fullmatch(piece):
                self.known[piece] = len(self.lists)
                self.lists.append([number_of(get) for get in _GETS.findall(piece, 3)])
        return self.known[piece]
