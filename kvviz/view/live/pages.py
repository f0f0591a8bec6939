"""cache.live(): the page map of a cache, and its numbers held, in use and logical, while it fills."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from kvviz.cache.pagelog import PageLog
from kvviz.view.html import View
from kvviz.view.live.live import Live
from kvviz.view.live.pace import Pace
from kvviz.view.pages import page_map
from kvviz.view.scene import refuse_options


class CachePages:
    """The pages of what has a log at `.log`. The cache is held weakly, its log is kept: the last picture needs no more."""

    kind = "pages"
    spared = 0.0

    def __init__(self, cache: Any, title: str | None, theme: str, **words: Any):
        self._cache, self._log = weakref.ref(cache), cache.log
        self._title, self._theme, self._words = title, theme, words

    @property
    def log(self) -> PageLog:
        """The cache's log, also after the cache took a new one, as it does for a batch of another size."""
        cache = self._cache()
        if cache is not None:
            self._log = cache.log
        return self._log

    def follow(self, tick: Callable[[], None] | None) -> None:
        self.log.watch = tick

    def now(self) -> tuple[bytes, int]:
        view = page_map(self.log, title=self._title, start=len(self.log), **self._words)
        assert view.data is not None
        return view.data, len(self.log)

    def last(self) -> View:
        return page_map(self.log, title=self._title, theme=self._theme, **self._words)


def live(cache: Any, title: str | None = None, theme: str = "auto", pace: Pace | None = None, **words: Any) -> Live:
    """See PagedKVCache.live(). words: tokens and tokenizer, as for page_map."""
    refuse_options("auto", theme, title)
    running = getattr(cache.log.watch, "__self__", None)
    if isinstance(running, Live):  # one picture of a cache at a time
        running.stop()
    return Live(CachePages(cache, title, theme, **words), theme, pace)
