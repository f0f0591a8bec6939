"""What a paged cache shares with its forks, and what it knows of the step that is on its way through the layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from kvviz.cache.pages import PagePool
from kvviz.cache.store import Loose, Place, Slab
from kvviz.cache.table import Copy

if TYPE_CHECKING:
    from kvviz.cache.codeslab import CodeSlab
    from kvviz.cache.lockstep import Lockstep

Store: TypeAlias = "Slab | Loose | CodeSlab"


@dataclass
class Memory:
    """What forks have in common: the pages, their tensors, and who is in the middle of a step."""

    pool: PagePool
    store: Store
    stepping: Lockstep | None = None

    def drop_free(self) -> None:
        """Let go of the memory of free pages, but not within a step: its layers still read what slid out, or copy it."""
        if self.stepping is None:
            self.store.drop_free(self.pool)


@dataclass
class Step:
    """The same tokens on their way through all layers. Places are known once, when the first layer comes."""

    tokens: int
    missing: set[int]  # layers that have not come yet
    copies: list[Copy]
    blank: list[int]  # pages taken in this step that stay partly unwritten
    write: Place  # the new tokens that stay
    written: int  # how many those are
    read: Place | None  # what the new queries see, all of it in pages; None: `old`, then the new tokens
    old: Place | None
