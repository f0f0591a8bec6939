"""Stacks as one line: the innermost frame that is the user's own, as "function · file.py:12"."""

from __future__ import annotations

from itertools import repeat
from operator import contains
from typing import Any

import numpy as np

from kvviz.errors import TraceError

LIBRARIES = (
    "site-packages/", "dist-packages/", "/lib/python3", "/src/transformers/", "/torch/nn/", "/torch/functional.py", "/torch/_",
    "/kvviz/memory/", "/kvviz/cache/", "/kvviz/models.py",
    *(f"/torch/{part}/" for part in ("utils", "autograd", "cuda", "optim", "distributed", "fx", "amp")),
)  # fmt: skip
TYPED_IN = ("<ipython-input", "<stdin>")  # what has no file, but is the user's own
LONGEST = 160  # characters
DEEP = 60  # frames; a deeper list is not looked through again where it stands at another event
NOTHING, LIBRARY, USER = 0, 1, 2


class Stacks:
    """Interns: each distinct line once, in `texts`; a column of events or blocks holds indexes into it, -1 for none."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._by_text: dict[str, int] = {}
        self._by_frames: dict[tuple[int, ...], int] = {}  # a stack, by the identities of its frames
        self._by_list: dict[int, int] = {}  # deep ones, since one list can stand at many events
        self._frames: dict[int, tuple[int, str]] = {}

    def of_events(self, events: list[dict]) -> np.ndarray:
        """The key `frames` of each event."""
        if not any(map(contains, events, repeat("frames"))):  # none at all is common, and quickly seen
            return np.full(len(events), -1, "i4")
        return self.column([event.get("frames") for event in events])

    def column(self, stacks: list) -> np.ndarray:
        """For each list of frames the index of its line. The lists must live as long as this object is asked."""
        if set(map(type, stacks)) <= {type(None)}:
            return np.full(len(stacks), -1, "i4")
        out = [-1] * len(stacks)
        known, by_frames = self._by_list, self._by_frames
        for k, frames in enumerate(stacks):
            if not frames:
                continue
            if type(frames) is not list and type(frames) is not tuple:
                raise TraceError(f"frames are of type {type(frames).__name__}, not a list")
            if len(frames) > DEEP and id(frames) in known:
                out[k] = known[id(frames)]
                continue
            key = tuple(map(id, frames))
            index = by_frames.get(key)
            if index is None:
                index = by_frames[key] = self._line(frames)
            out[k] = index
            if len(frames) > DEEP:
                known[id(frames)] = index
        return np.array(out, "i4")

    def _line(self, frames: Any) -> int:
        best = ""
        for frame in frames:
            found = self._frames.get(id(frame))
            if found is None:
                found = self._frames[id(frame)] = _frame(frame)
            kind, text = found
            if kind == USER:
                best = text
                break
            if kind == LIBRARY and not best:
                best = text
        if not best:
            return -1
        if best not in self._by_text:
            self._by_text[best] = len(self.texts)
            self.texts.append(best)
        return self._by_text[best]


def _frame(frame: Any) -> tuple[int, str]:
    """Whose it is, and its text. Frames of C++ have a file name '??', '' or one of their own kinds."""
    if type(frame) is not dict:
        raise TraceError(f"a frame is of type {type(frame).__name__}, not a dict")
    file, name, line = frame.get("filename", ""), frame.get("name", ""), frame.get("line", 0)
    if type(file) is not str or type(name) is not str or type(line) is not int:
        raise TraceError("a frame whose name, file name or line is of another type")
    if not file.endswith(".py") and not file.startswith("<"):
        return NOTHING, ""
    path = file.replace("\\", "/")
    base = path.rsplit("/", 1)[-1]
    number = line if 0 <= line < 1 << 31 else 0
    place = f"cell line {number}" if "/ipykernel_" in path else f"{base}:{number}"  # a notebook's cells lie in such files
    text = " ".join(f"{name} · {place}".split())[:LONGEST]
    own = file.startswith(TYPED_IN) if file.startswith("<") else not any(part in path for part in LIBRARIES)
    return (USER if own else LIBRARY), text
