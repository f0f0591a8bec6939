"""Pickles of plain data, read without trust: dict, list, tuple, str, int, float, bool and None, and nothing that runs.

Two ways lead there. What has the form of plain data (see grammar.py) is read by Python's own unpickler, which even then
may load no name. What has not is read by a small machine here, slower, that knows the harmless instructions only and
checks each key. Both take time and memory in proportion to the file, whatever it says.
"""

from __future__ import annotations

import gc
import io
import pickle
import pickletools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from kvviz.errors import TraceError
from kvviz.memory.grammar import is_plain

UNUSUAL = 16 << 20  # bytes: a longer pickle must have the usual form, since the machine here reads about 1 MB a second
MOST_BYTES_OF_AN_INTEGER = 1024


@contextmanager
def collection_paused() -> Iterator[None]:
    """No garbage collection inside: millions of new objects, all of them in use, would be looked through for nothing."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _Plain(pickle.Unpickler):
    """Loads no name at all, so nothing can be called."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise TraceError("it asks for code to be loaded, which no memory snapshot needs: refused")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise TraceError("it asks for an outside object, which no memory snapshot needs: refused")


def read_plain(data: bytes) -> object:
    """The plain data in the pickle `data`. Raises TraceError, in one line, for everything else."""
    if len(data) < 2 or data[0] != 0x80:
        raise TraceError("not a pickle of protocol 2 to 5")
    if not 2 <= data[1] <= 5:
        raise TraceError(f"a pickle of protocol {data[1]}; known: 2 to 5")
    try:
        with collection_paused():
            if is_plain(data):
                return _Plain(io.BytesIO(data)).load()
            if len(data) > UNUSUAL:
                raise TraceError("its pickle is damaged, or not of the form in which torch writes plain data")
            with warnings.catch_warnings():  # of forms of text that pickletools decodes before they are refused
                warnings.simplefilter("ignore")
                return _Machine().run(data)
    except TraceError:
        raise
    except Exception as problem:  # whatever damaged bytes do to the readers of Python's library
        told = " ".join(str(problem).split())[:200]
        raise TraceError(f"a damaged pickle ({type(problem).__name__}: {told})") from None


class _Machine:
    """A pickle's instructions, one by one, as far as they are harmless."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self, data: bytes) -> object:
        """What `data` describes. Raises TraceError."""
        for instruction, value, _ in pickletools.genops(data):
            name = instruction.name
            if name in _VALUES:
                self.stack.append(value)
            elif name in _ACTIONS:
                _ACTIONS[name](self, value)
            elif name in ("LONG1", "LONG4"):
                if int(value or 0).bit_length() > 8 * MOST_BYTES_OF_AN_INTEGER:
                    raise TraceError("it holds a number of more than 1,024 bytes")
                self.stack.append(value)
            elif name == "STOP":
                if len(self.stack) != 1 or self.marks:
                    raise TraceError("a damaged pickle: it does not end with one thing")
                return self.stack[0]
            elif name not in ("PROTO", "FRAME"):
                raise TraceError(f"its pickle does more than describe plain data ({name}): refused")
        raise TraceError("a damaged pickle: it has no end")

    def take(self, count: int) -> list[Any]:
        floor = self.marks[-1] if self.marks else 0
        if len(self.stack) - floor < count:
            raise TraceError("a damaged pickle: it takes what is not there")
        taken = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return taken

    def take_to_mark(self) -> list[Any]:
        if not self.marks:
            raise TraceError("a damaged pickle: a mark is missing")
        floor = self.marks.pop()
        taken = self.stack[floor:]
        del self.stack[floor:]
        return taken

    def put_into_list(self, values: list[Any]) -> None:
        target = self.top()
        if type(target) is not list:
            raise TraceError("a damaged pickle: it appends to what is no list")
        target.extend(values)

    def put_into_dict(self, values: list[Any]) -> None:
        target = self.top()
        if type(target) is not dict or len(values) % 2:
            raise TraceError("a damaged pickle: it sets items of what is no dict")
        for key, value in zip(values[::2], values[1::2], strict=True):
            if not _is_fair_key(key):
                raise TraceError("it holds a dict with keys that are neither text nor small numbers: refused")
            target[key] = value

    def top(self) -> Any:
        if not self.stack:
            raise TraceError("a damaged pickle: it takes what is not there")
        return self.stack[-1]

    def remember(self, index: int | None) -> None:
        self.memo[len(self.memo) if index is None else index] = self.top()

    def recall(self, index: int) -> None:
        if index not in self.memo:
            raise TraceError("a damaged pickle: it recalls what it never remembered")
        self.stack.append(self.memo[index])


def _is_fair_key(key: object, nested: bool = False) -> bool:
    """Whether it is hashed in a moment, and not made to collide with a million others."""
    if type(key) is tuple and not nested:
        return len(key) <= 4 and all(_is_fair_key(part, nested=True) for part in key)
    return type(key) in (str, bool, type(None)) or (type(key) is int and abs(key) < 1 << 53)


_VALUES = frozenset(("BININT", "BININT1", "BININT2", "BINFLOAT", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"))
_ACTIONS: dict[str, Callable[[_Machine, Any], None]] = {
    "NONE": lambda m, _: m.stack.append(None),
    "NEWTRUE": lambda m, _: m.stack.append(True),
    "NEWFALSE": lambda m, _: m.stack.append(False),
    "EMPTY_LIST": lambda m, _: m.stack.append([]),
    "EMPTY_DICT": lambda m, _: m.stack.append({}),
    "EMPTY_TUPLE": lambda m, _: m.stack.append(()),
    "MARK": lambda m, _: m.marks.append(len(m.stack)),
    "APPEND": lambda m, _: m.put_into_list(m.take(1)),
    "APPENDS": lambda m, _: m.put_into_list(m.take_to_mark()),
    "SETITEM": lambda m, _: m.put_into_dict(m.take(2)),
    "SETITEMS": lambda m, _: m.put_into_dict(m.take_to_mark()),
    "TUPLE1": lambda m, _: m.stack.append(tuple(m.take(1))),
    "TUPLE2": lambda m, _: m.stack.append(tuple(m.take(2))),
    "TUPLE3": lambda m, _: m.stack.append(tuple(m.take(3))),
    "TUPLE": lambda m, _: m.stack.append(tuple(m.take_to_mark())),
    "MEMOIZE": lambda m, _: m.remember(None),
    "BINPUT": lambda m, index: m.remember(index),
    "LONG_BINPUT": lambda m, index: m.remember(index),
    "BINGET": lambda m, index: m.recall(index),
    "LONG_BINGET": lambda m, index: m.recall(index),
}
