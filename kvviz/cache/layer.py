"""PagedLayer: one layer of a PagedCache, as transformers asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from transformers import CacheLayerMixin

from kvviz.cache.groups import Group
from kvviz.errors import InvalidRequest, OutOfMemory, PoolExhausted

if TYPE_CHECKING:
    from kvviz.cache.transformers import PagedCache


class PagedLayer(CacheLayerMixin):
    """One layer, as transformers wants it; all it knows is its group, and its place there."""

    is_compileable = False
    is_croppable = True

    def __init__(self, owner: PagedCache, group: Group, number: int, slides: bool):
        super().__init__()
        self.owner, self.group, self.number = owner, group, number
        self.is_sliding = slides  # decides which of the model's masks is made with this layer's sizes
        self.is_croppable = owner.dtype != "int4"  # generate() must not draft what a coded group would not give back

    def __repr__(self) -> str:
        return f"PagedLayer({self.group.name})"

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.owner.prepare(self.group, key_states[:, :, :0])
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Put new tokens into pages; return what their queries may see, or leave word for kvviz's own attention."""
        extra = kwargs.get("kwargs") if self.owner.attached else None  # of the attention function, since 5.24
        given = key_states.dtype
        try:
            cache = self.owner.prepare(self.group, key_states, self.number, ours=extra is not None)
            keys, values = key_states.to(cache.spec.dtype), value_states.to(cache.spec.dtype)
            step = cache.write(self.number, keys, values)
        except (OutOfMemory, PoolExhausted):
            self.owner.undo_first(self.group)
            raise
        self.is_initialized = True
        if extra is not None and self.owner.masks(self.group):
            extra["kv_window"] = self.group.window
        if extra is None or step is None or step.read is None or keys.dtype != given or not cache.in_place:
            keys, values = cache.get_all(self.number) if step is None else cache.read(self.number, step, keys, values)
            return keys.to(given), values.to(given)
        cache.put(self.number, step, keys, values)
        extra["kv_pages"] = cache.pages_of(self.number, step)
        return key_states, value_states

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(number of keys, number of the first of them) that update will return for so many new tokens."""
        new = query_length.shape[0] if isinstance(query_length, torch.Tensor) else query_length  # positions until 5.5
        first = self.group.cache.next_from if self.group.cache else 0
        return self.get_seq_length() + new - first, first

    def get_seq_length(self) -> int:
        """Tokens that this layer has seen."""
        return self.group.cache.seen_by(self.number) if self.group.cache else 0

    def get_max_length(self) -> int:
        return -1 if self.group.window is None else self.group.window

    get_max_cache_shape = get_max_length  # until 5.15

    def offload(self) -> None:
        raise InvalidRequest("pages are not offloaded: use a smaller pool, or a window")

    prefetch = offload
