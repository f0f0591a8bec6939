"""What all contiguous caches share: the words, and the steps in which their layers move together.

A *step* is one append to each layer, all with the same number of tokens, the layers in any order. It is open from the
first of these appends to the last; no layer begins the next step before all have had this one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from kvviz.cache.spec import CacheSpec, storage_bytes
from kvviz.counts import natural
from kvviz.errors import CorruptCache, InvalidRequest, SequenceFreed

Pair = tuple[torch.Tensor, torch.Tensor]  # keys and values, each [batch, kv_heads, tokens, head_dim]
Span = tuple[int, int]  # of the stored tokens, oldest first: the first one, and how many


class ContiguousCache:
    """Keys and values of the newest tokens; all of them, or those in a window.

    `length` counts stored and visible tokens, `seen` all that ever came. Both count an open step once its first layer
    has come. What is returned is to be read before the next call, and only read: it may be a view of what is stored.
    Tensors are detached: a cache is no way for gradients.

    A subclass says what it keeps: `_write`, `_stored`, `_cut`, `_tensors`, `_check_layer`.
    """

    window: int | None = None  # tokens that a query sees, its own included; None: all

    def __init__(
        self,
        layers: int,
        kv_heads: int,
        head_dim: int,
        batch: int = 1,
        dtype: torch.dtype | None = None,
        device: Any = None,
    ):
        self.spec = CacheSpec(layers, kv_heads, head_dim, batch, dtype, device)
        self._lengths = [0] * self.spec.layers
        self._seen = 0
        self._step = 0  # tokens of the open step, 0 between steps
        self._lacking: set[int] = set()  # layers that the open step has not reached
        self._freed = False

    # -- what a model does ---------------------------------------------------------------------------------------

    def append(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> Pair:
        """Store new tokens of one layer; give back what their queries may read, oldest first, the new ones last.

        With a window W each query sees its last W keys, its own included. So up to W - 1 old tokens come before *all*
        new ones, also where only the last W are stored; the caller's mask says which query sees which.
        No tokens: nothing changes, and get_all(layer) is the answer. Raises InvalidRequest, SequenceFreed.
        """
        self._must_live()
        tokens = self.spec.accept(layer, keys, values)
        if tokens == 0:
            return self.get_all(layer)
        self._must_be_its_turn(layer, tokens)
        read = self._write(layer, keys.detach(), values.detach())
        self.spec.settle(keys)
        if not self._lacking:
            self._lacking = set(range(self.spec.layers))
            self._step = tokens
            self._seen += tokens
        self._lacking.discard(layer)
        if not self._lacking:
            self._step = 0
        self._lengths[layer] = self._visible(self._lengths[layer] + tokens)
        return self._stored(layer) if read is None else read

    def get_all(self, layer: int) -> Pair:
        """The stored tokens of a layer, oldest first; tensors of 0 tokens where there are none."""
        self._must_live()
        self.spec.accept_layer(layer)
        if self._lengths[layer]:
            return self._stored(layer)
        shape = (self.spec.batch, self.spec.kv_heads, 0, self.spec.head_dim)
        keys, values = (torch.empty(shape, dtype=self.spec.dtype, device=self.spec.device) for _ in "kv")
        return keys, values

    def truncate(self, keep: int) -> None:
        """Keep the most recent `keep` tokens; a no-op where there are no more. `seen` stays. Not within a step."""
        self._must_live()
        keep = natural("keep", keep)
        if self._lacking:
            raise InvalidRequest(
                f"cannot truncate within a step: layer {min(self._lacking)} still lacks its {self._step} tokens"
            )
        if keep < self.length:
            self._keep([(self.length - keep, keep)] * self.spec.layers)

    def rollback(self, n: int) -> None:
        """Drop the newest n tokens, as if they had never come. What the window let go of for them does not come back.

        Within a step it mends an interrupted forward: the step goes from all layers that have it, and with it, for an n
        larger than the step, tokens before it. Raises InvalidRequest when n > length, or when a part of the step would
        be left; a step may always be dropped whole, also one longer than the window.
        """
        self._must_live()
        n = natural("n", n)
        if n == 0:
            return
        if n < self._step:
            raise InvalidRequest(
                f"cannot drop {n} of the {self._step} tokens of a step that layer {min(self._lacking)} still lacks: "
                f"drop all {self._step} or more"
            )
        if n > max(self.length, self._step):
            raise InvalidRequest(f"cannot drop the newest {n} tokens: {self.length} are stored, of {self.seen} seen")
        left = max(0, self.length - n)
        spans = []
        for layer, length in enumerate(self._lengths):
            end = length - (n - self._step if layer in self._lacking else n)
            spans.append((max(0, end - left), left))
        self._keep(spans)
        self._seen -= n

    def reset(self) -> None:
        """Empty the cache, for the next sequence. Buffers of a fixed size stay, all others go."""
        self._must_live()
        self._keep([(0, 0)] * self.spec.layers)
        self._seen = 0

    def free(self) -> None:
        """Let go of all tensors. Whatever comes after it raises SequenceFreed; only a second free does nothing."""
        if not self._freed:
            self._keep([(0, 0)] * self.spec.layers)
            self._drop()
            self._freed = True

    # -- what a reader sees --------------------------------------------------------------------------------------

    @property
    def length(self) -> int:
        """Stored and visible tokens."""
        return max(self._lengths)

    @property
    def seen(self) -> int:
        """Tokens that ever came, less those rolled back."""
        return self._seen

    @property
    def logical_bytes(self) -> int:
        """What the visible tokens need."""
        return self.length * self.spec.token_bytes * self.spec.batch

    @property
    def held_bytes(self) -> int:
        """What the storages of all tensors in here keep alive."""
        return storage_bytes(self._tensors())

    def check(self) -> None:
        """Walk all layers. Raises CorruptCache, with the numbers, where tensors and counts contradict one another."""
        layers = set(range(self.spec.layers))
        lacking = self._lacking
        if bool(self._step) != bool(lacking) or not lacking < layers:
            raise CorruptCache(f"a step of {self._step} tokens is lacking in {len(lacking)} of {len(layers)} layers")
        for some in (lacking, layers - lacking):
            lengths = {self._lengths[layer] for layer in some}
            if len(lengths) > 1:
                raise CorruptCache(f"layers of one step have {min(lengths)} to {max(lengths)} tokens")
        for layer, length in enumerate(self._lengths):
            most = self._visible(self._seen - (self._step if layer in lacking else 0))
            if not 0 <= length <= most:
                raise CorruptCache(f"layer {layer} has {length} tokens; there can be 0 to {most}")
            self._check_layer(layer, length)
        wanted = self.spec.dtype, self.spec.device
        for tensor in self._tensors():
            if (tensor.dtype, tensor.device) != wanted:
                raise CorruptCache(
                    f"a tensor is {tensor.dtype} on {tensor.device}, the cache {wanted[0]} on {wanted[1]}"
                )
        if not lacking and self.held_bytes < self.logical_bytes:
            raise CorruptCache(f"{self.held_bytes:,} B are held, the visible tokens need {self.logical_bytes:,} B")

    # -- what a subclass says ------------------------------------------------------------------------------------

    def _write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> Pair | None:
        """Store; give what the new queries may read, or None where that is just what is stored afterwards."""
        raise NotImplementedError

    def _stored(self, layer: int) -> Pair:
        """The tokens of a layer that has some, oldest first."""
        raise NotImplementedError

    def _cut(self, spans: list[Span]) -> None:
        """Keep one span of each layer's stored tokens; (0, 0) where none is left."""
        raise NotImplementedError

    def _drop(self) -> None:
        """Let go of what `_cut` keeps when nothing is left."""

    def _tensors(self) -> Iterator[torch.Tensor]:
        raise NotImplementedError

    def _check_layer(self, layer: int, length: int) -> None:
        raise NotImplementedError

    # -- inside --------------------------------------------------------------------------------------------------

    def _visible(self, tokens: int) -> int:
        return tokens if self.window is None else min(tokens, self.window)

    def _keep(self, spans: list[Span]) -> None:
        """Cut all layers, and close the step: they are all alike then."""
        self._cut(spans)
        self._lengths = [count for _, count in spans]
        self._lacking = set()
        self._step = 0

    def _must_live(self) -> None:
        if self._freed:
            raise SequenceFreed(f"this {type(self).__name__} was freed: make a new one")

    def _must_be_its_turn(self, layer: int, tokens: int) -> None:
        if not self._lacking:
            return
        if layer not in self._lacking:
            raise InvalidRequest(
                f"layer {layer} already has the {self._step} tokens of this step, layer {min(self._lacking)} still lacks "
                f"them; rollback({self._step}) undoes the step"
            )
        if tokens != self._step:
            raise InvalidRequest(f"layer {layer} gets {tokens} tokens in a step of {self._step}")
