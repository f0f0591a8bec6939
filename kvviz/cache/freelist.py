"""FreeList: the free pages of a pool in the order of their re-use. Each operation takes the same time, however many."""

from __future__ import annotations

from array import array
from collections.abc import Iterator


class FreeList:
    """A doubly linked list in two arrays: page p is cell p + 1, cell 0 is both ends.

    Freed pages go to the end, so what was freed last keeps its content longest: the order is that of eviction, too.
    """

    def __init__(self, pages: int):
        self._next, self._prev, self._in = array("q", [0]), array("q", [0]), bytearray(1)
        self.count = 0
        self.extend(pages)

    def __contains__(self, page: int) -> bool:
        return 0 <= page < len(self._in) - 1 and bool(self._in[page + 1])

    def __iter__(self) -> Iterator[int]:
        cell = self._next[0]
        while cell:
            yield cell - 1
            cell = self._next[cell]

    def first(self) -> int:
        """The page to be used next. There must be one."""
        return self._next[0] - 1

    def remove(self, page: int) -> None:
        cell = page + 1
        before, after = self._prev[cell], self._next[cell]
        self._next[before], self._prev[after] = after, before
        self._in[cell] = 0
        self.count -= 1

    def append(self, page: int) -> None:
        cell, last = page + 1, self._prev[0]
        self._next[last] = self._prev[0] = cell
        self._prev[cell], self._next[cell] = last, 0
        self._in[cell] = 1
        self.count += 1

    def extend(self, pages: int) -> None:
        """That many new pages, with the next ids, behind all others."""
        for page in range(len(self._in) - 1, len(self._in) - 1 + pages):
            self._next.append(0)
            self._prev.append(0)
            self._in.append(0)
            self.append(page)
