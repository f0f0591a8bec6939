"""PagedCache: a cache of pages that transformers' generate() takes, for full, sliding and hybrid models.

transformers keeps one object a layer; here those are thin, and the layers of one type (full attention, or sliding with
one window) share a PagedKVCache. All of them write into one PageLog.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from transformers import Cache

from kvviz.cache import attach
from kvviz.cache.capacity import Capacity
from kvviz.cache.generate import windows_of
from kvviz.cache.groups import Group, share_out
from kvviz.cache.layer import PagedLayer
from kvviz.cache.paged import PagedKVCache
from kvviz.cache.pagelog import PageLog
from kvviz.cache.quantized import QuantizedPagedKVCache
from kvviz.cache.watched import Watched
from kvviz.errors import InvalidRequest, SequenceFreed

ROLLBACK = 128  # tokens beyond a window that are kept while generate() drafts and takes back


class PagedCache(Watched, Cache):
    """A transformers cache whose keys and values lie in pages. Made by kvviz.paged_cache.

    log: what happened to the pages, for kvviz.page_map. groups: one for each type of layer.
    """

    def __init__(
        self,
        config: Any,
        windows: Sequence[int | None],
        page_size: int,
        capacity: Capacity,
        dtype: torch.dtype | str | None = None,
        grow: bool = False,
    ):
        self.config, self.page_size, self.capacity, self.dtype, self.grow = config, page_size, capacity, dtype, grow
        self.log = PageLog()
        self.recording = False
        self._own = windows_of(config)  # what the model masks by itself
        self._freed = False
        self.groups: list[Group] = []
        layers: list[PagedLayer] = []
        for number, (own, window) in enumerate(zip(self._own, windows, strict=True)):
            group = next((g for g in self.groups if g.window == window and self._own[g.layers[0]] == own), None)
            if group is None:
                name = "full attention" if window is None else f"window {window:,}"
                group = Group(name, window, [])
                self.groups.append(group)
            layers.append(PagedLayer(self, group, len(group.layers), own is not None))
            group.layers.append(number)
        super().__init__(layers=layers)

    def __deepcopy__(self, memo: dict[int, Any]) -> PagedCache:
        """A cache with pages of its own, for another continuation by the same model."""
        memo[id(self.config)] = self.config  # says whether the model is attached
        other = memo[id(self)] = PagedCache.__new__(PagedCache)
        other.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return other

    def __repr__(self) -> str:
        held = "freed" if self._freed else f"{self.get_seq_length():,} tokens, holds {self.held_bytes:,} bytes"
        return f"<PagedCache: {' + '.join(f'{len(g.layers)} × {g.name}' for g in self.groups)}; {held}>"

    # what it holds

    @property
    def held_bytes(self) -> int:
        """What its storages keep alive: the whole pools."""
        return sum(cache.held_bytes for cache in self._caches())

    def kept_tensors(self) -> list[torch.Tensor]:
        """Tensors whose storages are all that it holds; the recorder asks for them."""
        return [tensor for cache in self._caches() for tensor in cache.kept_tensors()]

    @property
    def logical_bytes(self) -> int:
        """What the visible tokens of all sequences need."""
        return sum(cache.logical_bytes for cache in self._caches())

    @property
    def length(self) -> int:
        """Stored and visible tokens of a sequence, in the type of layers that has most."""
        return max((cache.length for cache in self._caches()), default=0)

    @property
    def seen(self) -> int:
        return self.get_seq_length()

    @property
    def batch_size(self) -> int:
        """-1 before the first tokens."""
        return next((cache.spec.batch for cache in self._caches()), -1)

    def check(self) -> None:
        """Walk pages, references and tables of every group. Raises CorruptCache, saying the difference."""
        for cache in self._caches():
            cache.check()

    def free(self) -> None:
        """Give everything back. Then only a new cache helps."""
        for group in self.groups:
            if group.cache:
                group.cache.free()
            group.cache = None
        self._freed = True

    def truncate(self, keep: int) -> None:
        """Keep the most recent tokens; positions stay as they were."""
        for cache in self._caches():
            cache.truncate(keep)

    # what generate() calls

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if layer_idx >= len(self.layers):
            raise InvalidRequest(
                f"this cache was made for a model of {len(self.layers)} layers, got layer {layer_idx}: another model's cache?"
            )
        return super().update(key_states, value_states, layer_idx, *args, **kwargs)

    def reset(self) -> None:
        for cache in self._caches():
            cache.reset()

    def crop(self, tokens_to_remove: int) -> None:
        """Drop the newest tokens: -3 drops three, and more than there are empties the cache.

        Also mends a step that an error left unfinished, if it takes back all of that.
        """
        if tokens_to_remove > 0:
            raise InvalidRequest(f"crop takes 0 or a negative number of tokens to remove, got {tokens_to_remove}")
        lengths = [layer.get_seq_length() for layer in self.layers]
        left = max(0, max(lengths) + int(tokens_to_remove))
        if left > min(lengths):
            raise InvalidRequest(
                f"an error left a step of {max(lengths) - min(lengths):,} tokens unfinished: take back all of it"
            )
        for cache in self._caches():
            if left and cache.seen > left and not cache.can_rollback(cache.seen - left):
                raise InvalidRequest(
                    f"{-tokens_to_remove:,} tokens cannot be taken back: {self._why_not(cache, cache.seen - left)}. "
                    "Nothing has changed; reset() empties the cache"
                )
        for cache in self._caches():
            if not left:
                cache.reset()
            elif cache.seen > left:
                cache.rollback(cache.seen - left)

    def _why_not(self, cache: PagedKVCache, tokens: int) -> str:
        if isinstance(cache, QuantizedPagedKVCache) and (why := cache.cannot_go_back(tokens)):
            return why
        if cache.window is None or cache.cut:
            return f"{cache.length:,} are stored"
        if cache.past:
            return f"{cache.past:,} are kept beyond the window of {cache.window:,}"
        return (
            f"the window of {cache.window:,} has moved on. activate_past_recording() before the first tokens keeps "
            "what is needed"
        )

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        for cache in self._caches():
            cache.reorder(beam_idx.tolist())

    def batch_repeat_interleave(self, repeats: int) -> None:
        for cache in self._caches():
            cache.select([b for b in range(cache.spec.batch) for _ in range(repeats)])

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        for cache in self._caches():
            cache.select(torch.arange(cache.spec.batch)[indices.cpu()].tolist())

    def activate_past_recording(self) -> None:
        """From now on keep some tokens beyond each window, so that drafted tokens can be taken back."""
        self.recording = True
        for cache in self._caches():
            cache.keep_past(ROLLBACK)

    # what its layers need

    @property
    def attached(self) -> bool:
        """Does the model read pages by kvviz's own attention?"""
        return attach.is_attached(self.config)

    def masks(self, group: Group) -> bool:
        """Is the group's window ours, and unknown to the model's masks?"""
        return group.window != self._own[group.layers[0]]

    def prepare(self, group: Group, keys: torch.Tensor, number: int = 0, ours: bool = True) -> PagedKVCache:
        """The group's cache, made now for the first tokens, or for the first of a batch of another size.

        The first layer that a step reaches asks for the layers of all types, so that a refusal changes none.
        number: of the layer in its group. ours: does kvviz's own attention read what comes?
        """
        if self._freed:
            raise SequenceFreed("this cache was freed")
        batch, heads, tokens, size = keys.shape
        cache = group.cache
        if (
            cache is None
            or (cache.spec.batch != batch and not cache.seen)
            or self._of_another_model(cache, heads, size)
        ):
            self._make(keys)
        cache = group.cache
        assert cache is not None
        if not cache.pool and (cache.spec.kv_heads, cache.spec.head_dim) != (heads, size):
            cache.spec.kv_heads, cache.spec.head_dim = heads, size  # not like the first layer's
            self._share_out(self._caches())
        if cache.seen_by(number) == cache.seen:  # a step begins
            for other in self.groups:
                ahead = other.cache.seen - cache.seen if other.cache else 0
                if ahead not in (0, tokens):
                    raise InvalidRequest(
                        f"an error left a step of {abs(ahead):,} tokens unfinished: crop(-{abs(ahead)}) takes it back"
                    )
                if other.cache and not ahead:  # it does not have this step yet
                    if not ours:
                        self._refuse_unmasked(other, tokens)
                    if other is not group:  # which asks for itself
                        other.cache.require(tokens)
        return cache

    def _of_another_model(self, cache: PagedKVCache, heads: int, size: int) -> bool:
        """Was the pool made for other heads, by mistake, and is nothing in it now?"""
        if (cache.spec.kv_heads, cache.spec.head_dim) == (heads, size) or cache.pool is None:
            return False
        return not any(other.seen for other in self._caches())

    def undo_first(self, group: Group) -> None:
        """No room for the first tokens in one group: the others, which may have them already, forget them, too."""
        if not group.cache or not group.cache.seen:
            self.reset()

    def _refuse_unmasked(self, group: Group, tokens: int) -> None:
        if tokens > 1 and self.masks(group) and group.cache and group.cache.seen + tokens > (group.window or 0):
            raise InvalidRequest(
                f"this model does not mask a window of {group.window:,} by itself, and is no longer attached: "
                "kvviz.attach(model) again"
            )

    def _make(self, keys: torch.Tensor) -> None:
        """An empty cache for each group, all with the heads of these keys until their own come."""
        batch, heads, _, size = keys.shape
        made: list[PagedKVCache] = []
        for group in self.groups:
            shape = len(group.layers), heads, size, self.page_size
            cache: PagedKVCache
            if isinstance(self.dtype, str):
                cache = QuantizedPagedKVCache(
                    *shape, window=group.window, batch=batch, dtype=self.dtype, computes=keys.dtype, name=group.name
                )
            else:
                cache = PagedKVCache(
                    *shape, window=group.window, batch=batch, dtype=self.dtype or keys.dtype, grow=self.grow,
                    name=group.name,
                )  # fmt: skip
            if self.recording:
                cache.keep_past(ROLLBACK)
            made.append(cache)
        self._share_out(made)
        for old in self._caches():
            old.free()
        if self.log.pools:
            watch, self.log = self.log.watch, PageLog()
            self.log.watch = watch
        for group, cache in zip(self.groups, made, strict=True):
            group.cache, cache.log = cache, self.log

    def _share_out(self, caches: Sequence[PagedKVCache]) -> None:  # over ranks there is more to it: see sharded.py
        share_out(caches, self.capacity, self.page_size)

    def _caches(self) -> list[PagedKVCache]:
        return [group.cache for group in self.groups if group.cache]
