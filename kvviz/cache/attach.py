"""attach: let a model read pages where they lie, by an attention function of kvviz's own.

transformers hands every attention function the keys and values that the cache returned. Attached, the cache returns
only the new ones, and says in the keywords where the pages are. A model without a paged cache is not changed by it.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any

import torch

from kvviz.cache import flex
from kvviz.cache.attention import Pages, plain_attention, window_mask
from kvviz.cache.store import Slab
from kvviz.errors import InvalidRequest

NAME, GATHERING = "kvviz_paged", "kvviz_paged_gathering"  # the second one never compiles
_before: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()  # model -> its attention until attach()


class Attached:
    """What attach() did: `how` says it in words, detach() takes it back."""

    def __init__(self, model: Any, before: str, how: str):
        self.model, self.before, self.how = model, before, how

    def __repr__(self) -> str:
        return f"<attached: {self.how}>"

    def detach(self) -> None:
        """The attention that the model had before."""
        self.model.set_attn_implementation(self.before)
        _before.pop(self.model, None)


def attach(model: Any, compile: bool | None = None) -> Attached:
    """Let the model read the pages of a kvviz.paged_cache in place, without a gather, where that is possible.

    Pages in a row are read by a view. Scattered pages are read by FlexAttention in decode steps, if it can be compiled
    (compile: None tries when it is first needed, False never does), and gathered otherwise; `how` says which.

    Raises InvalidRequest where transformers cannot change the model's attention.
    """
    _register()
    config = text_config(model)
    before = getattr(config, "_attn_implementation", None) or "eager"
    if is_attached(config):
        before = _before.get(model, "eager")
    name = GATHERING if compile is False else NAME
    try:
        model.set_attn_implementation(name)
    except (ValueError, NotImplementedError, RuntimeError) as error:
        raise InvalidRequest(f"the attention of {type(model).__name__} cannot be changed: {error}") from error
    if config._attn_implementation != name:
        raise InvalidRequest(
            f"transformers did not change the attention of {type(model).__name__}: a model class that is defined in a "
            "notebook cell must be moved into a file"
        )
    _before[model] = before
    scattered = (
        "gathered"
        if compile is False
        else f"read by FlexAttention from {flex.SMALLEST} tokens a page on, if it compiles"
    )
    return Attached(model, before, f"pages in a row are read by a view, scattered ones {scattered}")


def text_config(model: Any) -> Any:
    """The configuration of a transformers model's language part. Raises InvalidRequest for anything else."""
    config: Any = getattr(model, "config", None)
    if not callable(getattr(config, "get_text_config", None)):
        raise InvalidRequest(f"a transformers model is needed, got {type(model).__name__}")
    return config.get_text_config(decoder=True)


def is_attached(config: Any) -> bool:
    return getattr(config, "_attn_implementation", None) in (NAME, GATHERING)


@functools.cache
def _register() -> None:
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    for name in (NAME, GATHERING):
        AttentionInterface.register(name, paged_attention)
        AttentionMaskInterface.register(name, sdpa_mask)  # without it, no mask would come at all


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    kv_pages: Pages | None = None,
    kv_window: int | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The attention function: query [batch, heads, queries, head_dim] to [batch, queries, heads, head_dim].

    kv_pages: where the keys and values are, instead of `key` and `value`. kv_window: a window that the mask lacks.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    plain = softcap is None and s_aux is None and kwargs.get("position_bias") is None
    if kv_pages is not None:
        if plain and kv_window is None and _in_place(module, query, kv_pages, attention_mask):
            slab = kv_pages.store
            assert isinstance(slab, Slab)
            mask = _page_mask(slab, query)
            mask.set(kv_pages.place, attention_mask)
            return flex.decode(query, slab, kv_pages.layer, mask, scale).transpose(1, 2).contiguous(), None
        key, value = kv_pages.tensors()
    if kv_window is not None and (query.shape[2] > 1 or key.shape[2] > kv_window):
        attention_mask = window_mask(query.shape[2], key.shape[2], kv_window, attention_mask, query.device)
    if not plain and kwargs.get("position_bias") is None:
        out = plain_attention(query, key, value, attention_mask, scale, softcap, s_aux)
        return out.transpose(1, 2).contiguous(), None
    return sdpa_attention_forward(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs)


def _in_place(module: Any, query: torch.Tensor, pages: Pages, mask: torch.Tensor | None) -> bool:
    """Is FlexAttention the way? Decode steps over large scattered pages, where it can be compiled."""
    if query.shape[2] != 1 or pages.in_a_row or not isinstance(pages.store, Slab):
        return False
    if pages.place.page_size < flex.SMALLEST or module.config._attn_implementation == GATHERING:
        return False
    if query.requires_grad:  # on CPUs it cannot go back
        return False
    if mask is not None and mask.dtype != torch.bool:
        return False
    return flex.compiled() is not None


def _page_mask(slab: Slab, query: torch.Tensor) -> flex.PageMask:
    """The slab's block mask, made anew where the batch or the pool has changed."""
    rows = query.shape[1] // slab.spec.kv_heads
    mask = slab.page_mask
    if mask is None or mask.pages != slab.pages or mask.logical.shape[0] != query.shape[0]:
        with torch.inference_mode(False):  # else no one outside that mode could write into it later
            mask = slab.page_mask = flex.PageMask(slab, query.shape[0], rows)
    return mask
