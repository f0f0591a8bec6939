"""paged_cache: the way to a cache of pages for transformers' generate(). Importing this does not import transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from kvviz.cache import attach
from kvviz.cache.capacity import USUAL_TOKENS, Capacity
from kvviz.cache.codes import scheme_of
from kvviz.counts import positive
from kvviz.errors import InvalidRequest

if TYPE_CHECKING:
    from kvviz.cache.transformers import PagedCache

SLIDING = ("sliding_attention", "chunked_attention")


def paged_cache(
    model: Any,
    page_size: int | None = None,
    tokens: int | None = None,
    pages: int | None = None,
    max_bytes: int | None = None,
    window: int | None = None,
    dtype: torch.dtype | str | None = None,
    grow: bool = False,
) -> PagedCache:
    """A cache for `model.generate(**inputs, cache=kvviz.paged_cache(model))` and kvviz.decode.

    page_size: tokens a page, 16 if not given, and 32 for int4. Capacity: one of tokens (of each sequence), pages or
    max_bytes (of all sequences and layer types together); with none of them min(max_position_embeddings, 8192) tokens a
    sequence. The pool is taken when the first tokens come. dtype: what is stored, None: what the model computes; "int8" or
    "int4": codes and scales, see kvviz.cache.quantized. grow: pages are taken from torch's allocator one by one, for
    lessons.
    window: every layer sees the last `window` tokens only, also those of a model that was not made so. A model that does
    not mask like this by itself is attached (kvviz.attach) for it.

    Raises InvalidRequest for a model without keys and values to page.
    """
    from kvviz.cache.transformers import PagedCache

    config = attach.text_config(model)
    if getattr(model.config, "is_encoder_decoder", False):
        raise InvalidRequest("encoder-decoder models have a second cache, which is not paged: use a decoder-only model")
    windows = windows_of(config)
    if tokens is pages is max_bytes is None:
        tokens = min(getattr(config, "max_position_embeddings", None) or USUAL_TOKENS, USUAL_TOKENS)
    scheme = scheme_of(dtype)
    if page_size is None:
        page_size = scheme.page_size if scheme else 16
    page_size, capacity = positive("page_size", page_size), Capacity(tokens, pages, max_bytes)
    if scheme:
        scheme.group_of(page_size)
        if grow:
            raise InvalidRequest(f"pages of {scheme.name} are taken at once: grow=True is for lessons with plain pages")
    if window is not None:
        window = positive("window", window)
        if any(own is None or own > window for own in windows):
            attach.attach(model)
        windows = [window if own is None else min(own, window) for own in windows]
    return PagedCache(config, windows, page_size, capacity, dtype, grow)


def windows_of(config: Any) -> list[int | None]:
    """The window of each layer, None for full attention."""
    try:
        from transformers.cache_utils import get_layer_types_and_kwargs

        types, extras = get_layer_types_and_kwargs(config)
    except ImportError:  # before 5.17
        own = getattr(config, "sliding_window", None)
        types = (
            getattr(config, "layer_types", None) or [SLIDING[0] if own else "full_attention"] * config.num_hidden_layers
        )
        extras = [{"sliding_window": own} if kind in SLIDING else {} for kind in types]
    for layer, kind in enumerate(types):
        if kind == "dummy":  # it takes over those of an earlier layer, or has no attention
            raise InvalidRequest(f"layer {layer} has no keys and values of its own")
        if kind not in ("full_attention", *SLIDING):
            raise InvalidRequest(f"layer {layer} is of type {kind}, which has no keys and values to page")
    return [extra.get("sliding_window") for extra in extras]
