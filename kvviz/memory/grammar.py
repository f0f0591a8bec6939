"""Is a pickle of the form that a writer of plain data gives it? Asked before anything is read, so that a hostile file
cannot use what a reader can be made to do: call things, keep objects at index 4,000,000,000, or hash a tuple of tuples
of tuples, which takes 2^30 steps for a hundred bytes and, nested deeply enough, ends the process.

The form: text, numbers, None, True, False; lists and dicts of them, nested; tuples of whole numbers; keys of dicts are
text; memo indexes fit the file. What long lists of small dicts consist of is taken by regular expressions at the speed
of C, all the rest by a small machine that knows only the kind of each thing on the stack, never its value.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

# One regular expression per construct. None of them can begin in two ways, so none can backtrack at length.
_GET = rb"j....|h."


def _counted(code: bytes, *lengths: int) -> bytes:
    """An instruction that is followed by a length in one byte and as many bytes; the usual lengths first."""
    return code + b"(?:" + b"|".join(b"\\x%02x.{%d}" % (n, n) for n in lengths) + b")"


_SHORT = _counted(rb"\x8c", 3, *range(3), *range(4, 24))
_TEXT = _counted(rb"\x8c", 3, *range(3), *range(4, 64))
_LONG = _counted(rb"\x8a", 6, 7, 1, 2, 3, 4, 5, 8, 9)


class Forms(NamedTuple):
    """What may stand in a list (items) and in a dict (pairs), many at a time; one pair; how a dict of pairs begins."""

    items: re.Pattern
    pairs: re.Pattern
    pair: re.Pattern
    opening: re.Pattern


@lru_cache(maxsize=64)
def _forms(index_bytes: int, shape: bytes) -> Forms:
    """`index_bytes`: how many a memo index may fill, 0 where things are put into the memo one after the other.
    `shape`: of the dicts that the list consists of, as of _shape_of(): they are tried first, without a choice at every
    step."""
    put = rb"(?:q.|r" + b"." * index_bytes + b"\\x00" * (4 - index_bytes) + b")?" if index_bytes else rb"\x94?"
    alone = rb"(?![KMJ\x8a\x85-\x87\x95])"  # not the first of a tuple's numbers
    number = rb"K.(?:K.\x86" + put + b"|" + alone + b")|(?:M..|J....|" + _LONG + b")" + alone

    def pair_with(text: bytes, *lists: bytes) -> bytes:
        values = b"|".join((_GET, number, text + put, rb"[N\x88\x89]", *lists))
        return b"(?:" + _GET + b"|" + text + put + b")(?:" + values + b")"

    one_frame = b"}" + put + rb"\((?:" + pair_with(_SHORT) + b"){1,8}u"
    frame = b"(?:" + _GET + b"|" + one_frame + b")"
    # an empty list is one only if no element is put into it later: a key or the end of the dict follows
    frames = rb"\]" + put + rb"(?:\(" + frame + b"{1,300}e|" + frame + b"a|(?=u|(?:" + _GET + b")[^a]))"
    pair, quick = pair_with(_TEXT, frames), pair_with(_SHORT, frames)
    steps = {
        b"j": b"j....", b"h": b"h.", b"#": b"(?:J....|M..|K.)", b"(": rb"K.K.\x86" + put, b"]": frames,
        b"\x8a": _counted(rb"\x8a", 6, 7, 8, 9), b"\x8c": b"(?:" + _SHORT + put + b"|" + _GET + b")",
    }  # fmt: skip
    usual = [
        steps[shape[k : k + 1]] if k % 2 == 0 or shape[k] not in b"jh" else b"(?:" + _GET + b")"
        for k in range(len(shape))
    ]
    choices = [b"}" + put + rb"\(" + b"".join(usual) + b"u"] if shape else []
    choices += [b"}" + put + rb"\((?:" + quick + b"){1,32}u", _GET, number, _SHORT + put, rb"[N\x88\x89]"]
    items, pairs = (b"(?:" + b"|".join(choices) + b"){1,500}(?![as])", b"(?:" + pair + b"){1,50}(?![as])")
    return Forms(*(re.compile(text, re.S) for text in (items, pairs, quick, b"}" + put + rb"\(")))


_AGAIN = re.compile(rb"\x94*")  # the same thing once more into the memo: see snapshot_runs.py
_FIXED = {0x4B: 2, 0x4D: 3, 0x4A: 5, 0x68: 2, 0x6A: 5, 0x4E: 1, 0x88: 1, 0x89: 1, 0x47: 9, 0x5D: 1, 0x7D: 1, 0x29: 1}  # fmt: skip
_KIND = dict(zip(_FIXED, "iii??ooooldt", strict=True))
MOST_SHAPES, LONG = 8, 4096  # shapes of dicts learned from one file; bytes of a list that make it worth it
_KEYS = frozenset("s?")  # what may be the key of a dict: text, or something from the memo


def is_plain(data: bytes) -> bool:
    """Whether the pickle `data` has the form above. True says that reading it takes time and memory in proportion to
    its length; False says nothing."""
    if len(data) < 3 or data[0] != 0x80 or not 2 <= data[1] <= 5:
        return False
    index_bytes = 2 if len(data) < 1 << 20 else 3
    try:
        return _walk(data, 0 if data[1] >= 4 else index_bytes)
    except IndexError:  # it ends too early
        return False


def _walk(data: bytes, index_bytes: int) -> bool:
    """Kinds on the stack: i number, o other constant, s text, l list, d dict, t tuple of numbers, ? from the memo."""
    stack: list[str] = []
    marks: list[int] = []
    place, learned, long, usual = 2, 0, False, b""
    fresh = False  # whether the last thing was the birth of a list or dict, which may be filled one by one
    forms = _forms(index_bytes, usual)
    while True:
        code = data[place]
        if marks and not fresh:
            floor = marks[-1]
            opened = stack[floor - 1] if floor else ""
            if opened == "l":
                if long and code == 0x7D and learned < MOST_SHAPES:
                    shape = _shape_of(data, place, forms) or usual
                    if shape != usual:
                        learned, usual, forms = learned + 1, shape, _forms(index_bytes, shape)
                found = forms.items.match(data, place)
                long = found is not None and found.end() - place > LONG
            elif opened == "d" and (len(stack) - floor) % 2 == 0:
                found = forms.pairs.match(data, place)
            else:
                found = None
            if found:  # whole elements or pairs: nothing that a later step would have to know
                place = found.end()
                continue
        fresh = code in (0x5D, 0x7D) or (fresh and code in (0x94, 0x71, 0x72))
        if code in _FIXED:
            stack.append(_KIND[code])
            place += _FIXED[code]
        elif code == 0x8C or code == 0x58 or code == 0x8A:  # short text, text, whole number
            width = 4 if code == 0x58 else 1
            length = int.from_bytes(data[place + 1 : place + 1 + width], "little")
            if code == 0x8A and length > 9:
                return False
            stack.append("i" if code == 0x8A else "s")
            place += 1 + width + length
        elif code in (0x94, 0x71, 0x72):  # into the memo; numbers never go there, so what comes from it is a fair key
            if not stack or stack[-1] in "io" or (marks and marks[-1] == len(stack)):
                return False
            width = {0x94: 0, 0x71: 1, 0x72: 4}[code]
            if width and int.from_bytes(data[place + 1 : place + 1 + width], "little") >> 8 * index_bytes:
                return False
            place += 1 + width
            if not width:
                place = _AGAIN.match(data, place).end()  # type: ignore[union-attr]
        elif code == 0x28:  # a mark
            marks.append(len(stack))
            place += 1
        elif code in (0x65, 0x75, 0x74):  # all since the mark: into a list, into a dict, a tuple
            floor = marks.pop() if marks else -1
            since = stack[floor:]
            if floor < 0 or (code != 0x74 and (not floor or stack[floor - 1] != ("l" if code == 0x65 else "d"))):
                return False
            if code == 0x75 and (len(since) % 2 or not _KEYS.issuperset(since[::2])):
                return False
            if code == 0x74 and any(kind != "i" for kind in since):
                return False
            del stack[floor:]
            if code == 0x74:
                stack.append("t")
            place += 1
        elif code in (0x85, 0x86, 0x87):  # a tuple of the last one, two or three
            count = code - 0x84
            if len(stack) - (marks[-1] if marks else 0) < count or any(kind != "i" for kind in stack[-count:]):
                return False
            stack[-count:] = "t"
            place += 1
        elif code in (0x61, 0x73):  # one into a list, one pair into a dict
            count = 1 if code == 0x61 else 2
            if len(stack) - (marks[-1] if marks else 0) <= count or stack[-count - 1] != ("l" if code == 0x61 else "d"):
                return False
            if code == 0x73 and stack[-2] not in _KEYS:
                return False
            del stack[-count:]
            place += 1
        elif code == 0x95:  # a frame: eight bytes of length, which the reader checks
            place += 9
        else:
            return code == 0x2E and len(stack) == 1 and not marks


def _shape_of(data: bytes, place: int, forms: Forms) -> bytes:
    """For each pair of the dict at `place` what its key and its value begin with (# a number, ( a tuple of two); empty
    where it is not a whole dict of simple pairs."""
    opening, shape = forms.opening.match(data, place), b""
    if opening is None:
        return b""
    place = opening.end()
    while len(shape) < 40 and (step := forms.pair.match(data, place)):
        key = data[place : place + 1]
        inner = place + (5 if key == b"j" else 2)
        value = data[inner : inner + 1]
        if key not in b"jh" or value not in b"jhKMJ\x8a\x8c]":
            return b""
        if value in b"KMJ":
            value = b"(" if step.end() - inner >= 5 and value == b"K" else b"#"
        shape, place = shape + key + value, step.end()
    return shape if data[place] == 0x75 else b""
