"""QuantizedPagedKVCache: a PagedKVCache whose pages hold int8 or int4 codes with their scales.

Tables, windows and forks are the same as for other pages. How numbers become codes says kvviz.cache.codes, where they lie
kvviz.cache.codeslab.
"""

from __future__ import annotations

import torch

from kvviz.cache.codes import scheme_of
from kvviz.cache.codeslab import CodeSlab, QuantizedSpec
from kvviz.cache.paged import PagedKVCache
from kvviz.cache.pagelog import PageLog
from kvviz.cache.spec import CacheSpec
from kvviz.cache.step import Step
from kvviz.counts import natural, positive
from kvviz.errors import InvalidRequest


class QuantizedPagedKVCache(PagedKVCache):
    """Keys and values of `batch` sequences in pages of int8 or int4 codes. The verbs are PagedKVCache's.

        cache = QuantizedPagedKVCache(layers=2, kv_heads=2, head_dim=64, dtype="int4", tokens=1024)

    dtype: "int8", one scale for each token and head; or "int4", in groups of 32 tokens (or of a page, if that is less):
    the tokens of a group wait in 16 bits until it is complete. page_size: 16 tokens for int8, 32 for int4, if not given.

    The queries of a step read its own tokens as they came, and those before from pages. A rollback goes back to where a
    group begins, or stays within the group that is not complete; anything else would need numbers that are gone, and
    raises InvalidRequest.
    """

    spec: QuantizedSpec
    in_place = False

    def __init__(
        self,
        layers: int,
        kv_heads: int,
        head_dim: int,
        page_size: int | None = None,
        pages: int | None = None,
        tokens: int | None = None,
        max_bytes: int | None = None,
        window: int | None = None,
        batch: int = 1,
        dtype: str = "int8",
        device: torch.device | str | None = None,
        *,
        computes: torch.dtype | None = None,
        log: PageLog | None = None,
        name: str | None = None,
    ):
        """computes: the floating-point dtype that comes in; None: the first tokens tell."""
        scheme = scheme_of(dtype)
        if scheme is None:
            raise InvalidRequest(f"dtype must be 'int8' or 'int4', got {dtype!r}: PagedKVCache takes a torch.dtype")
        page_size = scheme.page_size if page_size is None else positive("page_size", page_size)
        super().__init__(
            layers, kv_heads, head_dim, page_size, pages, tokens, max_bytes, window, batch, computes, device,
            log=log, name=name,
        )  # fmt: skip
        s = self.spec
        self.spec = QuantizedSpec(s.layers, s.kv_heads, s.head_dim, s.batch, s.dtype, s.device, scheme, page_size)
        scheme.page_bytes(s.kv_heads, s.head_dim, page_size)  # raises what does not go together

    @property
    def logical_bytes(self) -> int:
        """What the visible tokens of all sequences need: codes and scales, and those that wait in 16 bits."""
        waiting = min(self.seen % self.spec.group, self.length)
        coded = self.length - waiting
        return self.spec.batch * (coded * self.spec.token_bytes + waiting * self.spec.open_bytes)

    def read(
        self, layer: int, step: Step, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Put the tokens into pages; what came before them is read from there, and they are as they came."""
        seen = super().read(layer, step, keys, values)
        if step.read:
            for whole, new in zip(seen, (keys, values), strict=True):
                whole[:, :, -step.tokens :] = new.detach()
        return seen

    def rollback(self, tokens: int) -> None:
        """Drop the newest tokens. Raises InvalidRequest where fewer are stored, or a group would be cut that is coded."""
        tokens = natural("tokens", tokens)
        if 0 < tokens <= self._stored and (why := self.cannot_go_back(tokens)):
            raise InvalidRequest(f"cannot roll back {tokens:,} tokens: {why}")
        super().rollback(tokens)

    def can_rollback(self, tokens: int) -> bool:
        return not self.cannot_go_back(tokens) and super().can_rollback(tokens)

    def cannot_go_back(self, tokens: int) -> str:
        """Why not, if the group of the last token that is left is coded; empty if it is not."""
        left, group = self.seen - tokens, self.spec.group
        if left % group == 0 or left // group == self.seen // group:
            return ""
        return (
            f"of {self.seen:,} tokens {self.seen % group} wait in 16 bits and can be taken back; before them only whole "
            f"groups of {group}"
        )

    def _wanted_pages(self, spec: CacheSpec | None = None, past: int | None = None) -> int:
        """max_bytes is for all: what waits comes off first."""
        spec = spec or self.spec
        assert isinstance(spec, QuantizedSpec)
        if self.capacity.max_bytes is None or not spec.waiting_bytes:
            return super()._wanted_pages(spec, past)
        page_bytes, left = self.page_size * spec.token_bytes, self.capacity.max_bytes - spec.waiting_bytes
        if left < page_bytes:
            raise InvalidRequest(
                f"max_bytes={self.capacity.max_bytes:,} is less than one page and the tokens that wait, which take "
                f"{page_bytes + spec.waiting_bytes:,} bytes"
            )
        return left // page_bytes

    def _new_store(self, spec: CacheSpec, pages: int) -> CodeSlab:
        assert isinstance(spec, QuantizedSpec)
        return CodeSlab(spec, pages, self.page_size)
