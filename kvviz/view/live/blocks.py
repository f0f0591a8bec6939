"""run.live(): the block map of a recording while it goes on, from looks at what lives."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from torch.nn.modules.module import register_module_forward_hook

from kvviz.memory.looks import Looks
from kvviz.view.blocks import block_map
from kvviz.view.html import View
from kvviz.view.scene import Scene

if TYPE_CHECKING:
    from kvviz.memory.looks import Look
    from kvviz.memory.owners import Owners
    from kvviz.memory.trace import Trace

SUBTITLE = "Seen {count} times so far; what came and went between two looks is in the map at the end"


class Recorder(Protocol):
    """What records. spared: seconds of look() that its trace is spared later."""

    owners: Owners
    spared: float
    tick: Callable[[], None] | None

    @property
    def origin(self) -> str: ...

    def look(self, device: int) -> Look | None: ...


class RecordedBlocks:
    """The blocks of one device. whole: gives the trace once the recording is over, None before.

    A look may be taken when a module has done its work, when a followed cache grows, and at each mark.
    """

    kind = "blocks"

    def __init__(
        self, recorder: Recorder, whole: Callable[[], Trace | None], device: int, title: str | None, theme: str
    ):
        self._recorder, self._whole, self._device = recorder, whole, device
        self._title, self._theme = title, theme
        self._thread = threading.get_ident()
        self._hook: Any = None
        self.looks = Looks(recorder.origin)

    @property
    def spared(self) -> float:
        return self._recorder.spared

    def follow(self, tick: Callable[[], None] | None) -> None:
        if self._hook is not None:
            self._hook.remove()
        self._hook = self._recorder.tick = None
        if tick is None:
            return

        def here(*_: Any) -> None:
            if threading.get_ident() == self._thread:  # a profiler sees one thread
                tick()

        self._recorder.tick = here
        self._hook = register_module_forward_hook(here)

    def now(self) -> tuple[bytes, int] | None:
        look = self._recorder.look(self._device)
        if look is None:
            return None
        self.looks.add(look)
        trace = self.looks.trace(self._recorder.owners.names)
        subtitle = SUBTITLE.format(count=f"{self.looks.looks:,}")
        data = Scene(trace, start=len(trace)).pack("blocks", self._title or "Block map by address", subtitle)
        return data, len(trace)

    def last(self) -> View:
        trace, device = self._whole(), self._device
        if trace is None:  # stopped before the recording
            trace, device = self.looks.trace(self._recorder.owners.names), 0
        return block_map(trace, device=device, title=self._title, theme=self._theme)
