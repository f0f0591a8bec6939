"""PagedCache: a cache of pages that transformers' generate() takes, for full, sliding and hybrid models.

transformers keeps one object a layer; here those are thin, and the layers of one type (full attention, or sliding with
one window) share a PagedKVCache. All of them write into one PageLog.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from transformers import Cache, CacheLayerMixin

from kvviz.cache import attach
from kvviz.cache.capacity import Capacity, most_pages
from kvviz.cache.generate import windows_of
from kvviz.cache.paged import PagedKVCache
from kvviz.cache.pagelog import PageLog
from kvviz.cache.quantized import QuantizedPagedKVCache
from kvviz.errors import InvalidRequest, OutOfMemory, PoolExhausted, SequenceFreed

if TYPE_CHECKING:
    from kvviz.view.live import Live

ROLLBACK = 128  # tokens beyond a window that are kept while generate() drafts and takes back


def _share(total: int, prices: Sequence[int], needs: dict[int, float]) -> dict[int, int]:
    """Pages for each of `needs` at its price: as many for all, but for nobody more than it needs."""
    given: dict[int, int] = {}
    while waiting := needs.keys() - given.keys():
        each = total // sum(prices[k] for k in waiting)
        modest = [k for k in waiting if needs[k] <= each]
        given.update((k, int(needs[k])) for k in modest)
        total -= sum(prices[k] * given[k] for k in modest)
        if not modest:
            given.update(dict.fromkeys(waiting, each))
    return given


@dataclass
class Group:
    """The layers of one type, and their cache once the first tokens have come."""

    name: str
    window: int | None
    layers: list[int]
    cache: PagedKVCache | None = field(default=None, repr=False)


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


class PagedCache(Cache):
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

    def live(self, title: str | None = None, theme: str = "auto", **words: Any) -> Live:
        """Show the pages and the numbers held, in use and logical on the notebook's page while generate() goes on.

            with cache.live():                        # or cache.live() alone, until the end of the cell
                model.generate(**inputs, cache=cache)

        A picture is drawn between two steps, at most four times a second and in at most 5 % of the run's time; it shows
        all that came so far. In the end the page map of the whole stands in its place. title, theme, and in `words`
        tokens and tokenizer: as for kvviz.page_map. Where there is no notebook, nothing is drawn before the end.

        Raises ViewError for an unknown theme or title.
        """
        from kvviz.view.live.pages import live

        return live(self, title, theme, **words)

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
            self._share_out([other.cache for other in self.groups if other.cache])
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

    def _share_out(self, caches: Sequence[PagedKVCache]) -> None:
        """Pages of each group without a pool: as many for all, but windows no more than they need."""
        named = self.capacity.named
        if named == "tokens":
            for cache in caches:
                cache.capacity = self.capacity
            return
        total = getattr(self.capacity, named)
        wish, rest, needs = f"{named}, now {total:,}", total, {}
        if named == "max_bytes":  # tokens of all that wait to be coded come off first
            rest -= sum(c.spec.waiting_bytes for c in caches if isinstance(c, QuantizedPagedKVCache))
        prices = [1 if named == "pages" else cache.spec.token_bytes * self.page_size for cache in caches]
        for k, cache in enumerate(caches):
            if cache.pool:
                rest -= prices[k] * cache.pool.pages
            else:
                stored = None if cache.window is None else cache.window + cache.past
                needs[k] = math.inf if stored is None else cache.spec.batch * most_pages(stored, self.page_size)
        for k, pages in _share(rest, prices, needs).items():
            if pages < 1:
                raise PoolExhausted(
                    f"{named}={total:,} leaves no page for {caches[k].name}, where a page of each type of layers takes "
                    f"{sum(prices):,}: raise {named}"
                )
            caches[k].capacity = Capacity(pages=pages, wish=wish)

    def _caches(self) -> list[PagedKVCache]:
        return [group.cache for group in self.groups if group.cache]
