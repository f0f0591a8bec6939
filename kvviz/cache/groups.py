"""Groups: the layers of one type, and how the types share what was named for all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvviz.cache.capacity import Capacity, most_pages
from kvviz.cache.paged import PagedKVCache
from kvviz.cache.quantized import QuantizedPagedKVCache
from kvviz.errors import PoolExhausted


@dataclass
class Group:
    """The layers of one type, and their cache once the first tokens have come."""

    name: str
    window: int | None
    layers: list[int]
    cache: PagedKVCache | None = field(default=None, repr=False)


def share_out(caches: Sequence[PagedKVCache], capacity: Capacity, page_size: int) -> None:
    """Pages of each cache without a pool: as many for all, but windows no more than they need.

    Raises PoolExhausted where one of them would get none.
    """
    named = capacity.named
    if named == "tokens":
        for cache in caches:
            cache.capacity = capacity
        return
    total = getattr(capacity, named)
    wish, rest, needs = f"{named}, now {total:,}", total, {}
    if named == "max_bytes":  # tokens of all that wait to be coded come off first
        rest -= sum(c.spec.waiting_bytes for c in caches if isinstance(c, QuantizedPagedKVCache))
    prices = [1 if named == "pages" else cache.spec.token_bytes * page_size for cache in caches]
    for k, cache in enumerate(caches):
        if cache.pool:
            rest -= prices[k] * cache.pool.pages
        else:
            stored = None if cache.window is None else cache.window + cache.past
            needs[k] = math.inf if stored is None else cache.spec.batch * most_pages(stored, page_size)
    for k, pages in share(rest, prices, needs).items():
        if pages < 1:
            raise PoolExhausted(
                f"{named}={total:,} leaves no page for {caches[k].name}, where a page of each type of layers takes "
                f"{sum(prices):,}: raise {named}"
            )
        caches[k].capacity = Capacity(pages=pages, wish=wish)


def share(total: int, prices: Sequence[int], needs: dict[int, float]) -> dict[int, int]:
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
