"""What the ranks of a sharded cache have together: bytes in a table, and one PageLog with the pools of all of them."""

from __future__ import annotations

import json
import os
import zipfile
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kvviz.cache.pagelog import PageLog, PoolInfo
from kvviz.cache.ranks import RankError, named
from kvviz.errors import InvalidRequest, TraceError

if TYPE_CHECKING:
    from kvviz.cache.sharded import ShardedCache


class RankBytes(NamedTuple):
    """One rank. heads: its KV heads of `kv_heads` (first layer). Bytes: held and logical of its cache, of a page (all its
    layers of the first type), and of the attention weights that were divided."""

    rank: int
    heads: range
    kv_heads: int
    held: int
    logical: int
    page: int
    weights: int


@dataclass(frozen=True)
class BytesOfRanks:
    """rows: one a rank. str() is a small table."""

    rows: list[RankBytes]

    @property
    def held(self) -> int:
        """Of all ranks together."""
        return sum(row.held for row in self.rows)

    def __str__(self) -> str:
        return "\n".join(
            f"rank {row.rank}: {named(row.heads)}, {len(row.heads)} of {row.kv_heads}: {row.held:,} B held "
            f"({100 * row.held / max(1, self.held):.1f} %), {row.logical:,} B logical, {row.page:,} B a page, "
            f"{row.weights:,} B of attention weights"
            for row in self.rows
        )

    __repr__ = __str__


def bytes_of_ranks(cache: ShardedCache) -> BytesOfRanks:
    """Collective; the same on every rank."""
    _must_be_sharded(cache)
    share = cache.part.layers[0]
    page = cache.log.pools[0].page_bytes if cache.log.pools else 0
    bytes_here = cache.held_bytes, cache.logical_bytes, page, cache.part.weight_bytes
    mine = RankBytes(cache.ranks.rank, share.heads, share.kv_heads, *bytes_here)
    return BytesOfRanks(cache.ranks.objects(mine))


def log_of_ranks(cache: ShardedCache) -> PageLog:
    """One log with the pools of all ranks, "rank 0: heads 0–1" and so on, for kvviz.page_map. Collective.

    What one rank did, each other did: event by event, one after the other. Raises RankError where that is not so.
    """
    _must_be_sharded(cache)
    several = len(cache.log.pools) > 1
    pools = []
    for info, group in zip(cache.log.pools, cache.groups, strict=False):
        name = f"rank {cache.ranks.rank}: {named(cache.heads(group))}" + f", {info.name}" * several
        pools.append(asdict(info) | {"name": name})
    each = cache.ranks.objects((pools, cache.log._rows.tobytes()))
    for rank, (_, rows) in enumerate(each):
        if rows != each[0][1]:
            raise RankError(f"rank {rank} decided otherwise about pages than rank 0: there is no one log of both")
    count = len(each)
    merged = PageLog(cache.log.origin + (f", {count} ranks" if count > 1 else ""))
    for infos, _ in each:
        for info in infos:
            merged.add_pool(PoolInfo(**info))
    rows = np.repeat(_rows(cache.log), count, axis=0)  # every event, once for each rank
    rows[:, 1] += np.tile(np.arange(count, dtype="i4"), len(cache.log)) * len(pools)
    merged._rows.frombytes(rows.tobytes())
    merged.marks = [(event * count, name) for event, name in cache.log.marks]
    return merged


def save_log(log: PageLog, path: str | os.PathLike[str]) -> None:
    """A small file (.npz), for another process to draw. Raises TraceError where that cannot be written."""
    about = {"origin": log.origin, "marks": log.marks, "pools": [asdict(pool) for pool in log.pools]}
    try:
        with open(path, "wb") as file:
            np.savez_compressed(file, about=np.array(json.dumps(about)), rows=_rows(log))
    except OSError as problem:
        raise TraceError(f"the log cannot be written to {path}: {problem.strerror}") from problem


def load_log(path: str | os.PathLike[str]) -> PageLog:
    """What save_log wrote. Raises TraceError for another file."""
    try:
        with np.load(path, allow_pickle=False) as file:
            about: dict[str, Any] = json.loads(str(file["about"]))
            rows = np.ascontiguousarray(file["rows"], "i4").reshape(-1, 7)
        log = PageLog(about["origin"])
        for info in about["pools"]:
            log.add_pool(PoolInfo(**info))
        log.marks = [(int(event), str(name)) for event, name in about["marks"]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        raise TraceError(f"{path} is no page log of kvviz: {str(error) or type(error).__name__}") from error
    log._rows.frombytes(rows.tobytes())
    return log


def _rows(log: PageLog) -> np.ndarray:
    return np.array(log._rows, "i4").reshape(-1, 7)


def _must_be_sharded(cache: Any) -> None:
    from kvviz.cache.sharded import ShardedCache

    if not isinstance(cache, ShardedCache):
        raise InvalidRequest(f"a cache from shard(model).paged_cache() is needed, got {type(cache).__name__}")
