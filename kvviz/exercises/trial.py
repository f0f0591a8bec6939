"""Trial: a sketch of a paged cache, run beside a plain list and beside kvviz.PagePool.

    trial = Trial(Sketch, "append 3, keep 2, append 1")
    trial                     # what came back, and what should have
    kvviz.page_map(trial)     # both, page by page: the sketch above, as it should be below

A sketch is made with its page size. It has `append(key, value)` for one token of [heads, dim], `keep(n)`, perhaps
`rollback(n)`, and `read()` for keys and values of [heads, tokens, dim]; its `pages` are pairs of tensors of
[heads, page_size, dim], oldest first, with UNWRITTEN in the slots that no token has. Token t comes as key t and value
t + 1/2, so what comes back says by itself where it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kvviz.cache.pagelog import PageAction, PageLog, PoolInfo
from kvviz.cache.pages import PagePool
from kvviz.errors import InvalidRequest

UNWRITTEN = -1.0  # printed as _
VERBS = ("append", "keep", "rollback")
SHOWN = 16  # tokens that a printed trial shows


class Trial:
    """program: steps such as "append 3, keep 2, rollback 1". Errors of the sketch are caught, and end the program.

    wanted, got: token numbers, oldest first, -1 for a slot that no token has; got is None where the sketch raised
    `error`. mixed: keys and values do not belong together. log: a PageLog of two pools, the sketch's drawn from what lies
    in its pages.
    """

    def __init__(self, make: Callable[[int], Any], program: str, page_size: int = 4, pages: int = 4):
        self.program, self.mixed = program, False
        self.error: Exception | None = None
        self.wanted: list[int] = []
        self.got: list[int] | None = None
        self.log = PageLog("above: what lies in the sketch's own pages; below: kvviz.PagePool; no model")
        self._drawn = _Drawn(self.log, PoolInfo("the sketch", pages, page_size, grows=True))
        pool = PagePool(pages, page_size, log=self.log, info=PoolInfo("as it should be", pages, page_size, grows=True))
        self.right = pool.table()
        self.sketch = make(page_size)
        try:
            for step in program.split(","):
                verb, number = _step(step)
                self._take(verb, number)
                self.log.mark(step.strip())
            self.got = self._read()
        except InvalidRequest:
            raise
        except Exception as problem:
            self.error = problem

    @property
    def same(self) -> bool:
        """Did all tokens come back, and no others, in as many pages as they need?"""
        return self.got == self.wanted and not self.mixed and self.pages == self.pages_wanted

    @property
    def pages(self) -> int:
        """That the sketch holds in the end."""
        return len(self.sketch.pages)

    @property
    def pages_wanted(self) -> int:
        """That these tokens need, beginning where the sketch's first one lies in its page."""
        size = self.right.pool.page_size
        first = getattr(self.sketch, "first", 0) % size
        return -(-(first + len(self.wanted)) // size) if self.wanted else 0

    def __repr__(self) -> str:
        if self.got is None:
            came = "nothing, an error is raised"
        else:
            came = _numbers(self.got) + (", with values of other tokens" if self.mixed else "")
        return (
            f"{self.program}: {'right' if self.same else 'WRONG'}\n"
            f"    should come back  {_numbers(self.wanted)}  ({_pages(self.pages_wanted)})\n"
            f"    comes back        {came}  ({_pages(self.pages)})"
        )

    def _take(self, verb: str, number: int) -> None:
        if verb == "append":
            for _ in range(number):
                token = torch.full((1, 1), float(self.right.seen))
                self.wanted.append(self.right.seen)
                self.right.append(1)
                self.sketch.append(token, token + 0.5)
                self._drawn.look(self.sketch, self.right.first, wrote=True)
            return
        if verb == "keep":
            self.right.slide(max(self.right.first, self.right.seen - number))
            self.wanted = self.wanted[max(0, len(self.wanted) - number) :]
        else:
            self.right.rollback(number)
            self.wanted = self.wanted[: len(self.wanted) - number]
        getattr(self.sketch, verb)(number)
        self._drawn.look(self.sketch, self.right.first)

    def _read(self) -> list[int]:
        keys, values = self.sketch.read()
        apart = (
            (keys + 0.5 != values) & ((keys != UNWRITTEN) | (values != UNWRITTEN))
            if keys.shape == values.shape
            else True
        )
        self.mixed = bool(torch.as_tensor(apart).any())
        return [int(key) for key in keys[0, :, 0]]


class _Drawn:
    """The sketch's pages as events of a log. A page that was never there before gets the lowest number that is free."""

    def __init__(self, log: PageLog, info: PoolInfo):
        self.log, self.size, self.most = log, info.page_size, info.pages
        self.pool = log.add_pool(info)
        self.sequence = log.begin(self.pool)
        self.there: list[tuple[Any, int]] = []  # (page, its number), oldest first
        self.base = 0  # entries that slid out
        self.first = self.end = 0  # numbers of the tokens that can be read, end not included

    def look(self, sketch: Any, wanted: int, wrote: bool = False) -> None:
        """Log what changed since the last look. wanted: number of the first token that should be there."""
        now = list(sketch.pages)
        alike = [k for k, (page, _) in enumerate(self.there) if any(page is other for other in now)]
        gone = alike[0] if alike else len(self.there)
        for k, (_, number) in enumerate(self.there):
            if k not in alike:
                action = PageAction.SLIDE if k < gone else PageAction.RELEASE
                self._add(action, page=number, index=self.base + k)
        self.there, self.base = [self.there[k] for k in alike], self.base + gone if now else wanted // self.size
        for page in now[len(self.there) :]:
            number = next(n for n in range(self.most + 1) if all(n != taken for _, taken in self.there))
            self._add(PageAction.ALLOCATE, page=number, index=self.base + len(self.there))
            self.there.append((page, number))
        first = self.base * self.size + getattr(sketch, "first", 0)
        end = max(first, min(first + sketch.length, self.base * self.size + self._written()))
        if wrote and self.there:
            self._add(PageAction.WRITE, page=self.there[-1][1], index=self.base + len(self.there) - 1, tokens=end)
        elif end != self.end:
            self._add(PageAction.LENGTH, tokens=end)
        if first != self.first:
            self._add(PageAction.FIRST, tokens=first)
        self.first, self.end = first, end

    def _written(self) -> int:
        """Slots up to the last one that was ever written."""
        if not self.there:
            return 0
        slots = (self.there[-1][0][0][0, :, 0] != UNWRITTEN).nonzero()
        return (len(self.there) - 1) * self.size + (int(slots[-1]) + 1 if len(slots) else 0)

    def _add(self, action: PageAction, page: int = -1, index: int = -1, tokens: int = -1) -> None:
        self.log.add(action, self.pool, page=page, sequence=self.sequence, index=index, tokens=tokens)


def _step(text: str) -> tuple[str, int]:
    verb, _, number = text.strip().partition(" ")
    if verb not in VERBS or not number.isdigit():
        raise InvalidRequest(
            f"a step is one of {', '.join(VERBS)} and a number, such as 'append 3', not {text.strip()!r}"
        )
    return verb, int(number)


def _numbers(tokens: list[int]) -> str:
    if not tokens:
        return "no token"
    return " ".join("_" if t == UNWRITTEN else str(t) for t in tokens[:SHOWN]) + (" …" if len(tokens) > SHOWN else "")


def _pages(count: int) -> str:
    return f"{count} page{'' if count == 1 else 's'}"
