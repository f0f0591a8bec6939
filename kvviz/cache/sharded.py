"""A model and its paged cache over several ranks: KV heads are divided, the page table is the same on all.

    torchrun --standalone --nproc-per-node 2 program.py

    with sharded.join():
        part = sharded.shard(model)                     # this rank's heads of each layer's attention
        cache = part.paged_cache(page_size=16)          # pages with the slots of those heads
        ids = kvviz.decode(part.model, ids, 32, cache)  # the same tokens on every rank
        cache.check(); sharded.bytes_of_ranks(cache); kvviz.page_map(sharded.log_of_ranks(cache))

Tensor parallel attention: q, k and v are cut by heads, o_proj gives a part of the sum, and the parts are added up, once
a layer. Embeddings, MLP and norms are whole on each rank.

Who decides about pages? Each rank by itself. What a table does depends on counts alone (tokens, sequences, window, pages
of the pool), never on what is in the tensors, so all ranks decide alike without a message. That they did is checked
before each step's first sum: they compare digests of their page logs, and of the tokens they were given, 32 bytes a rank.
A broadcast of rank 0's decisions would cost the same wait and hide a rank that went astray.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from kvviz.cache import attach
from kvviz.cache.gathered import BytesOfRanks, RankBytes, bytes_of_ranks, load_log, log_of_ranks, save_log
from kvviz.cache.generate import paged_cache
from kvviz.cache.groups import Group
from kvviz.cache.paged import PagedKVCache
from kvviz.cache.pagelog import PageLog
from kvviz.cache.ranks import RankError, Ranks, current, heads_of, join, named, queries_of, told
from kvviz.cache.spec import storage_bytes
from kvviz.cache.transformers import PagedCache
from kvviz.errors import InvalidRequest, KvvizError

__all__ = [
    "BytesOfRanks", "RankBytes", "RankError", "Ranks", "Shard", "ShardedCache", "bytes_of_ranks", "heads_of", "join",
    "load_log", "log_of_ranks", "queries_of", "save_log", "shard",
]  # fmt: skip

_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")


class Share(NamedTuple):
    """Of one layer: this rank's KV heads and query heads, of how many."""

    heads: range
    queries: range
    kv_heads: int
    query_heads: int


class SumOverRanks(torch.nn.Module):
    """o_proj of this rank's query heads: [batch, tokens, its heads · head_dim] to the whole [batch, tokens, hidden].

    For inference: no gradient flows through it.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, ranks: Ranks):
        super().__init__()
        self.weight = torch.nn.Parameter(weight, requires_grad=False)
        self.bias = None if bias is None else torch.nn.Parameter(bias.detach().clone(), requires_grad=False)
        self.ranks = ranks

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            whole = self.ranks.add_up(torch.nn.functional.linear(states, self.weight))
            return whole if self.bias is None else whole + self.bias  # once, not once a rank


class Shard:
    """What this rank has of a model. layers: for each layer its share of the heads. weight_bytes: its projections hold."""

    def __init__(self, model: Any, ranks: Ranks, layers: list[Share], weight_bytes: int):
        self.model, self.ranks, self.layers, self.weight_bytes = model, ranks, layers, weight_bytes

    def __repr__(self) -> str:
        share, mlp = self.layers[0], "; embeddings and MLP whole" if self.ranks.count > 1 else ""
        return (
            f"<rank {self.ranks.rank} of {self.ranks.count}: {named(share.heads)} of {share.kv_heads}, query "
            f"{named(share.queries)} of {share.query_heads}, {len(self.layers)} layers{mlp}>"
        )

    def most_heads(self, layer: int) -> int:
        """KV heads of the rank that has most."""
        return max(1, -(-self.layers[layer].kv_heads // self.ranks.count))

    def paged_cache(self, page_size: int = 16, **settings: Any) -> ShardedCache:
        """kvviz.paged_cache for this rank's heads, with all its settings.

        max_bytes: of the rank that has most; the others need less for the same pages.
        """
        return ShardedCache.of(self, paged_cache(self.model, page_size, **settings))


def shard(model: Any, ranks: Ranks | None = None) -> Shard:
    """Cut a transformers model's attention to this rank's heads, in place; the memory of the others' goes.

    ranks: from join(), None: those of the process group, or one rank alone, for which nothing is cut. The model's config
    stays that of the whole model.

    Raises InvalidRequest, with the model as it was: no process group, a model whose attention has no q_proj, k_proj,
    v_proj and o_proj of its own, query heads that do not divide, more ranks than query heads, or cut before.
    """
    ranks = ranks or current()
    config = attach.text_config(model)
    found = [m for m in model.modules() if hasattr(m, "o_proj") and getattr(m, "layer_idx", None) is not None]
    name = type(model).__name__
    if any(isinstance(module.o_proj, SumOverRanks) for module in found):
        raise InvalidRequest(f"this {name} is cut already: load it anew")
    if len(found) != config.num_hidden_layers:
        raise InvalidRequest(
            f"{len(found)} of {config.num_hidden_layers} layers of {name} have q_proj, k_proj, v_proj and o_proj: only "
            "such attention is divided by heads"
        )
    layers = [_share_of(module, ranks) for module in found]
    if ranks.count > 1:
        for module, share in zip(found, layers, strict=True):
            _cut(module, share, ranks)
        model.register_forward_pre_hook(_tell_tokens, with_kwargs=True)
    parts = [parameter for module in found for name in _PROJECTIONS for parameter in getattr(module, name).parameters()]
    return Shard(model, ranks, layers, storage_bytes(parts))


def _share_of(module: Any, ranks: Ranks) -> Share:
    """Changes nothing. Raises InvalidRequest for what cannot be cut by heads."""
    where = f"{type(module).__name__} of layer {module.layer_idx}"
    parts: list[Any] = [getattr(module, name, None) for name in _PROJECTIONS]
    if not all(type(part) is torch.nn.Linear for part in parts) or not hasattr(module, "head_dim"):
        kinds = ", ".join(f"{n} {type(part).__name__}" for n, part in zip(_PROJECTIONS, parts, strict=True))
        raise InvalidRequest(f"{where} cannot be divided by heads: each projection must be a Linear, there is {kinds}")
    (q, k, v, o), size = parts, module.head_dim
    query_heads, kv_heads = q.out_features // size, k.out_features // size
    if q.out_features != o.in_features or v.out_features != k.out_features or k.out_features % size:
        raise InvalidRequest(f"{where} cannot be divided by heads: its projections are not multiples of {size} alike")
    for name, parameter in module.named_parameters():
        per_head = name == "sinks" or parameter.numel() == size  # a norm over one head is the same for all heads
        if name.split(".")[0] not in _PROJECTIONS and not per_head:
            raise InvalidRequest(f"{where} cannot be divided by heads: {name} spans {list(parameter.shape)}")
    heads = heads_of(ranks.rank, ranks.count, kv_heads)
    return Share(heads, queries_of(ranks.rank, ranks.count, kv_heads, query_heads), kv_heads, query_heads)


def _cut(module: Any, share: Share, ranks: Ranks) -> None:
    for name, heads in (("q_proj", share.queries), ("k_proj", share.heads), ("v_proj", share.heads)):
        linear, rows = getattr(module, name), slice(heads.start * module.head_dim, heads.stop * module.head_dim)
        linear.out_features = rows.stop - rows.start
        for parameter in linear.parameters():  # weight [heads · head_dim, hidden], bias [heads · head_dim]
            parameter.data = parameter.data[rows].clone()  # a view would keep the whole
    columns = slice(share.queries.start * module.head_dim, share.queries.stop * module.head_dim)
    module.o_proj = SumOverRanks(module.o_proj.weight.data[:, columns].clone(), module.o_proj.bias, ranks)
    if hasattr(module, "sinks"):
        module.sinks.data = module.sinks.data[share.queries.start : share.queries.stop].clone()
    module.num_key_value_groups = len(share.queries) // len(share.heads)
    for name, heads in (
        ("num_heads", share.queries), ("num_attention_heads", share.queries), ("num_key_value_heads", share.heads),
    ):  # fmt: skip
        if hasattr(module, name):
            setattr(module, name, len(heads))


def _tell_tokens(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Before each forward: the cache learns of the tokens, to compare them with the other ranks'."""
    cache = next((one for one in (*kwargs.values(), *args) if isinstance(one, ShardedCache)), None)
    ids = kwargs.get("input_ids", args[0] if args else None)
    if cache is not None and isinstance(ids, torch.Tensor):
        cache.tokens_digest = zlib.crc32(ids.cpu().numpy().tobytes())


class ShardedCache(PagedCache):
    """A PagedCache with one rank's heads. Its pages are those of every other rank, or RankError is raised on all.

    check() is collective, as is each step: every rank calls them.
    """

    part: Shard
    tokens_digest: int  # of the tokens given to the model for this step
    _compared: tuple[PageLog, int]  # that log, as far as the ranks have compared it
    _astray: str  # why the ranks' tables are no longer alike

    @classmethod
    def of(cls, part: Shard, cache: PagedCache) -> ShardedCache:
        """That cache, from now on one of several ranks': paged_cache knows best how to make it."""
        made: Any = cache
        made.__class__ = cls
        made.part, made.tokens_digest, made._compared, made._astray = part, 0, (cache.log, 0), ""
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> ShardedCache:
        memo[id(self.part)] = self.part  # the model stays where it is
        other: Any = super().__deepcopy__(memo)
        other.__class__ = type(self)
        return other

    @property
    def ranks(self) -> Ranks:
        return self.part.ranks

    def heads(self, group: Group) -> range:
        """This rank's KV heads in the layers of one type."""
        return self.part.layers[group.layers[0]].heads

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self._begins(layer_idx):
            return super().update(key_states, value_states, layer_idx, *args, **kwargs)
        self._must_be_alike()
        seen, error = None, None
        try:
            seen = super().update(key_states, value_states, layer_idx, *args, **kwargs)
        except Exception as raised:  # the others are told before this rank gives up
            error = raised
        try:
            self._agree(error)
        except RankError:
            if error is None:
                self._take_back(layer_idx, key_states.shape[2])
            raise
        assert seen is not None
        return seen

    def check(self) -> None:
        """PagedCache.check on every rank, and the ranks' logs alike. Raises CorruptCache, or RankError on the others."""
        self._must_be_alike()
        error = None
        try:
            super().check()
        except KvvizError as raised:
            error = raised
        self._agree(error)

    def _must_be_alike(self) -> None:
        if self._astray:  # every rank knows
            raise RankError(f"this cache cannot go on, make a new one: {self._astray}")

    def _begins(self, layer: int) -> bool:
        """Is this the first layer of its type that a step reaches?"""
        if self.ranks.count == 1 or not 0 <= layer < len(self.layers):
            return False
        cache, number = self.layers[layer].group.cache, self.layers[layer].number
        return cache is None or cache.seen_by(number) == cache.seen

    def _take_back(self, layer: int, tokens: int) -> None:
        """Another rank has not got this step: neither shall this one."""
        cache = self.layers[layer].group.cache
        if cache is not None and cache.seen >= tokens:
            cache.rollback(tokens)

    def _agree(self, error: Exception | None = None) -> None:
        """Raises this rank's error, or RankError where another failed or decided otherwise; else nothing happens."""
        log, done = self._compared if self._compared[0] is self.log else (self.log, 0)
        rows = log._rows[done * 7 :]
        sizes = repr([(pool.pages, pool.page_size, pool.window, pool.grows) for pool in log.pools])
        digest = zlib.crc32(sizes.encode(), zlib.crc32(rows.tobytes()))
        self._compared = log, len(log)
        each = self.ranks.numbers(error is not None, len(log), digest, self.tokens_digest)
        self.tokens_digest = 0
        whys = []
        for rank, (_, events, pages, tokens) in enumerate(each):
            wrong = ["was given other tokens than rank 0"] * (tokens != each[0][3])
            if events != each[0][1]:
                wrong.append(f"decided otherwise about pages: {events:,} events, rank 0 has {each[0][1]:,}")
            elif pages != each[0][2]:
                wrong.append(f"decided otherwise about pages than rank 0, in the last of {events:,} events")
            if wrong:
                whys.append(f"rank {rank} " + " and ".join(wrong))
        failed = [rank for rank, numbers in enumerate(each) if numbers[0]]
        if failed:
            messages = self.ranks.objects(told(error) if error else "")
            if len(failed) < len(each) or whys:  # else all failed alike, and changed nothing
                self._astray = "; ".join(f"rank {rank} failed: {messages[rank]}" for rank in failed)
        elif whys:
            self._astray = "; ".join(whys)
        if error is not None:
            raise error
        if failed or whys:
            raise RankError(self._astray)

    def _share_out(self, caches: Sequence[PagedKVCache]) -> None:
        """Bytes are turned into pages by the heads of the rank that has most, or ranks would come to different counts."""
        mine = [cache.spec.kv_heads for cache in caches]
        for group, cache in zip(self.groups, caches, strict=True):
            cache.spec.kv_heads = self.part.most_heads(group.layers[0])
        try:
            super()._share_out(caches)
        finally:
            for cache, heads in zip(caches, mine, strict=True):
                cache.spec.kv_heads = heads
