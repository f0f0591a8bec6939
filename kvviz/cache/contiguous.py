"""Caches whose tokens lie in one piece: two that grow by concatenation, two with a buffer of a fixed size.

    ConcatCache     keeps all, in a new tensor at each append
    SliceCache      the same, cut to a window: by a view, or by a clone
    ShiftingCache   a buffer of one window; when it is full, its tail moves to the front
    RingCache       a buffer of one window; the place to write moves in a circle

They are what a paged cache is compared with.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from kvviz.cache.base import ContiguousCache, Pair, Span
from kvviz.counts import positive
from kvviz.errors import CorruptCache


class ConcatCache(ContiguousCache):
    """Grows by torch.cat, the naive way: each append copies all old tokens into a tensor that is longer.

    In memory: old and new lie side by side until the new ones are complete, so one token after n has 2n + 1 live.
    Truncate and rollback keep views: nothing is released until the next append, or until no token is left.
    """

    def __init__(
        self,
        layers: int,
        kv_heads: int,
        head_dim: int,
        batch: int = 1,
        dtype: torch.dtype | None = None,
        device: Any = None,
    ):
        super().__init__(layers, kv_heads, head_dim, batch, dtype, device)
        self._rows: list[Pair | None] = [None] * self.spec.layers

    def _write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> Pair | None:
        self._rows[layer] = self._joined(layer, keys, values)
        return None

    def _joined(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> Pair:
        """Old and new in tensors of their own, also where there is nothing old: the caller's tensors stay his."""
        rows = self._rows[layer]
        if rows is None:
            return torch.cat([keys], dim=2), torch.cat([values], dim=2)
        return torch.cat([rows[0], keys], dim=2), torch.cat([rows[1], values], dim=2)

    def _stored(self, layer: int) -> Pair:
        rows = self._rows[layer]
        assert rows is not None
        return rows

    def _cut(self, spans: list[Span]) -> None:
        self._rows = [
            None if rows is None or count == 0 else self._part(rows, first, count)
            for rows, (first, count) in zip(self._rows, spans)
        ]

    def _part(self, rows: Pair, first: int, count: int) -> Pair:
        return rows[0].narrow(2, first, count), rows[1].narrow(2, first, count)

    def _tensors(self) -> Iterator[torch.Tensor]:
        return (tensor for rows in self._rows if rows is not None for tensor in rows)

    def _check_layer(self, layer: int, length: int) -> None:
        found = [0, 0] if self._rows[layer] is None else [rows.shape[2] for rows in self._stored(layer)]
        if found != [length, length]:
            raise CorruptCache(f"layer {layer} has {found[0]} keys and {found[1]} values for {length} tokens")


class SliceCache(ConcatCache):
    """Grows by torch.cat and keeps the last `window` tokens of the result.

    clone=False keeps a slice: a view, so the whole concatenation stays alive (held > logical). clone=True copies the
    slice into a tensor of its own: held = logical, and for that moment three copies of the window are alive.
    """

    window: int

    def __init__(
        self,
        layers: int,
        kv_heads: int,
        head_dim: int,
        window: int,
        batch: int = 1,
        dtype: torch.dtype | None = None,
        device: Any = None,
        clone: bool = False,
    ):
        super().__init__(layers, kv_heads, head_dim, batch, dtype, device)
        self.window = positive("window", window)
        self._clone = bool(clone)

    def _write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> Pair | None:
        joined = self._joined(layer, keys, values)
        tokens = joined[0].shape[2]
        kept = min(tokens, self.window)
        self._rows[layer] = self._part(joined, tokens - kept, kept)
        first = max(0, self._lengths[layer] - (self.window - 1))  # the oldest that the first new query sees
        return None if tokens - first <= self.window else super()._part(joined, first, tokens - first)

    def _part(self, rows: Pair, first: int, count: int) -> Pair:
        keys, values = super()._part(rows, first, count)
        if self._clone and count < rows[0].shape[2]:
            return keys.clone(), values.clone()
        return keys, values


class _FixedCache(ContiguousCache):
    """A buffer of `window` tokens for keys and one for values in each layer, all taken at the first append."""

    window: int

    def __init__(
        self,
        layers: int,
        kv_heads: int,
        head_dim: int,
        window: int,
        batch: int = 1,
        dtype: torch.dtype | None = None,
        device: Any = None,
    ):
        super().__init__(layers, kv_heads, head_dim, batch, dtype, device)
        self.window = positive("window", window)
        self._buffers: list[Pair] = []
        self._starts = [0] * self.spec.layers  # the slot of each layer's oldest token

    def _place(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Write up to `window` tokens into the buffers, over tokens that they push out."""
        raise NotImplementedError

    def _write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> Pair | None:
        if not self._buffers:
            self._take(keys)
        keys, values = self._apart(layer, keys), self._apart(layer, values)
        past = min(self._lengths[layer], self.window - 1)  # tokens that the first new query sees
        read = None
        if past + keys.shape[2] > self.window:  # more than the buffers will hold: old and new side by side for once
            read = keys, values
            if past:
                old_keys, old_values = self._newest(layer, past)
                read = torch.cat([*old_keys, keys], dim=2), torch.cat([*old_values, values], dim=2)
        self._place(layer, keys[:, :, -self.window :], values[:, :, -self.window :])
        return read

    def _take(self, keys: torch.Tensor) -> None:
        self._buffers = [(self._room(keys, self.window), self._room(keys, self.window)) for _ in self._lengths]

    def _room(self, keys: torch.Tensor, tokens: int) -> torch.Tensor:
        shape = (self.spec.batch, self.spec.kv_heads, tokens, self.spec.head_dim)
        with torch.inference_mode(False):  # a tensor made in inference mode could not be written outside of it
            return torch.empty(shape, dtype=keys.dtype, device=keys.device)

    def _apart(self, layer: int, new: torch.Tensor) -> torch.Tensor:
        """`new`, copied if it is a view of the buffers about to be written, as get_all gives them."""
        storage = new.untyped_storage()._cdata
        return new.clone() if storage in {b.untyped_storage()._cdata for b in self._buffers[layer]} else new

    def _newest(self, layer: int, count: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Views of the newest `count` tokens, keys and values: one each, or two where the buffer's end lies between."""
        first = (self._starts[layer] + self._lengths[layer] - count) % self.window
        ahead = min(count, self.window - first)
        keys, values = (
            [b.narrow(2, first, ahead)] + ([b.narrow(2, 0, count - ahead)] if ahead < count else [])
            for b in self._buffers[layer]
        )
        return keys, values

    def _stored(self, layer: int) -> Pair:
        keys, values = (
            pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=2)
            for pieces in self._newest(layer, self._lengths[layer])
        )
        return keys, values

    def _cut(self, spans: list[Span]) -> None:
        self._starts = [
            (start + first) % self.window if count else 0 for start, (first, count) in zip(self._starts, spans)
        ]

    def _drop(self) -> None:
        self._buffers = []

    def _tensors(self) -> Iterator[torch.Tensor]:
        return (buffer for pair in self._buffers for buffer in pair)

    def _check_layer(self, layer: int, length: int) -> None:
        start = self._starts[layer]
        if not 0 <= start < self.window:
            raise CorruptCache(f"layer {layer} begins at slot {start} of {self.window}")
        slots = [buffer.shape[2] for buffer in self._buffers[layer]] if self._buffers else []
        if slots != [self.window] * 2 and (slots or length):
            raise CorruptCache(f"layer {layer} has {length} tokens in buffers of {slots} slots, not {self.window}")


class ShiftingCache(_FixedCache):
    """A buffer of `window` tokens; when it is full, the tail is copied to the front and the newest go at the end.

    In memory: nothing is allocated after the first append, but up to window - 1 tokens move at each one. They move by
    way of a spare of window // 16 tokens, one for all layers, since a copy must not overlap with itself. Only several
    tokens at once that overflow the buffer are read from a copy beside it, which lives as long as the caller keeps it.
    """

    _spare: torch.Tensor | None = None

    def _take(self, keys: torch.Tensor) -> None:
        spare = self._room(keys, self.window // 16)
        super()._take(keys)
        self._spare = spare

    def _place(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        start, length, tokens = self._starts[layer], self._lengths[layer], keys.shape[2]
        kept = min(length, self.window - tokens)
        if start + length + tokens > self.window:
            for buffer in self._buffers[layer]:
                self._move_to_front(buffer, start + length - kept, kept)
            self._starts[layer] = start = 0
        for buffer, new in zip(self._buffers[layer], (keys, values)):
            buffer[:, :, start + kept : start + kept + tokens] = new

    def _move_to_front(self, buffer: torch.Tensor, distance: int, count: int) -> None:
        """Piece by piece from the front. Up to `distance` tokens do not overlap with their place; more go by the spare."""
        assert self._spare is not None
        piece = max(distance, self._spare.shape[2])
        for at in range(0, count, piece):
            size = min(piece, count - at)
            source = buffer.narrow(2, at + distance, size)
            if size > distance:
                source = self._spare.narrow(2, 0, size).copy_(source)
            buffer.narrow(2, at, size).copy_(source)

    def _drop(self) -> None:
        super()._drop()
        self._spare = None

    def _tensors(self) -> Iterator[torch.Tensor]:
        yield from super()._tensors()
        if self._spare is not None:
            yield self._spare

    def _check_layer(self, layer: int, length: int) -> None:
        super()._check_layer(layer, length)
        if self._starts[layer] + length > self.window:
            raise CorruptCache(f"layer {layer}: {length} tokens from slot {self._starts[layer]} in {self.window} slots")


class RingCache(_FixedCache):
    """A buffer of `window` tokens; the place to write moves in a circle, over the oldest token, and nothing moves.

    In memory: nothing is kept beside the buffers of the first append. But to read the tokens in order, once the circle
    has closed, takes a copy of them, which lives as long as the caller keeps it.
    """

    def _place(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        length, tokens = self._lengths[layer], keys.shape[2]
        at = (self._starts[layer] + length) % self.window
        ahead = min(tokens, self.window - at)
        for buffer, new in zip(self._buffers[layer], (keys, values)):
            buffer[:, :, at : at + ahead] = new[:, :, :ahead]
            buffer[:, :, : tokens - ahead] = new[:, :, ahead:]
        self._starts[layer] = (at + tokens - min(length + tokens, self.window)) % self.window
