"""MemoryState: one moment of a device's memory, every byte of it accounted for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from kvviz.errors import InconsistentTrace
from kvviz.memory.lifetimes import BlockSpans, SegmentSpans

SMALL_PAGE = 2 << 20  # bytes by which expandable segments of the small pool are mapped


class State(IntEnum):
    """What a block is doing."""

    INACTIVE = 0  # cached by the allocator, free to be used again
    ALLOCATED = 1
    AWAITING_FREE = 2  # freed by the program, but another stream may still be using it
    UNMAPPED = 3  # addresses of an expandable segment without memory behind them; only the allocator model sees these


SEGMENT = np.dtype([("address", "u8"), ("size", "i8"), ("stream", "i4"), ("small", "?"), ("expandable", "?")])
BLOCK = np.dtype(
    [
        ("address", "u8"), ("size", "i8"), ("requested", "i8"), ("state", "u1"),
        ("stream", "i4"), ("owner", "i4"), ("stack", "i4"), ("born", "i8"),
    ]
)  # fmt: skip


@dataclass(frozen=True)
class MemoryState:
    """The device after `event` events. Sizes in bytes; arrays in address order.

    segments: array of SEGMENT, touching ranges of an expandable segment joined.
    blocks: array of BLOCK; they tile the segments, cached ones (state INACTIVE, owner and stack -1) included.
    allocated <= active <= reserved: allocated does not count blocks that await their free, active does.
    requested: what the program asked for, before rounding. largest_free: the largest cached block.
    releasable: what torch.cuda.empty_cache() would give back: segments without an active block, and of expandable ones
    every page that is free from end to end.
    """

    event: int
    segments: np.ndarray
    blocks: np.ndarray
    allocated: int
    reserved: int
    active: int
    requested: int
    largest_free: int
    releasable: int


def state_of(
    event: int, segments: SegmentSpans, blocks: BlockSpans, totals: tuple[int, int, int, int], page: int
) -> MemoryState:
    """Lay living segments and blocks out in address order and fill the gaps with what is cached.

    page: bytes by which expandable segments of the large pool are mapped.
    """
    places = _joined(segments)
    start, stop = places["address"], places["address"] + places["size"].astype("u8")
    order = np.argsort(blocks.address, kind="stable")
    live = np.zeros(len(order), BLOCK)
    for name in ("address", "size", "requested", "stream", "owner", "stack", "born"):
        live[name] = getattr(blocks, name)[order]
    live["state"] = np.where(blocks.freed[order] >= event, State.ALLOCATED, State.AWAITING_FREE)

    home = np.searchsorted(start, live["address"], side="right") - 1
    end = live["address"] + live["size"].astype("u8")
    if len(live) and (home.min() < 0 or np.any(end > stop[home]) or np.any(live["address"][1:] < end[:-1])):
        raise InconsistentTrace(
            f"after event {event} blocks overlap or lie outside the segments: the trace is inconsistent"
        )

    # a free range begins where a segment begins or a block ends, and reaches to the next block or the segment's end
    opens = np.concatenate([start, end])
    owner_segment = np.concatenate([np.arange(len(start)), home])
    # equal addresses: the segment's start sorts before the end of a block only if it is that very address's segment
    rank = np.lexsort((opens, owner_segment))
    opens, owner_segment = opens[rank], owner_segment[rank]
    following = np.searchsorted(live["address"], opens, side="left")
    closes = stop[owner_segment].copy()
    inside = following < len(live)
    closes[inside] = np.minimum(closes[inside], live["address"][following[inside]])
    gap = (closes - opens).astype("i8")
    free = np.zeros(int(np.count_nonzero(gap)), BLOCK)
    free["address"], free["size"] = opens[gap > 0], gap[gap > 0]
    free["stream"] = places["stream"][owner_segment[gap > 0]]
    free["owner"] = free["stack"] = free["born"] = -1

    tiles = np.concatenate([live, free])
    tiles = tiles[np.argsort(tiles["address"], kind="stable")]
    allocated, reserved, active, requested = totals
    return MemoryState(
        event, places, tiles, allocated, reserved, active, requested,
        largest_free=int(free["size"].max(initial=0)),
        releasable=int(given_back(free, places[owner_segment[gap > 0]], page).sum()),
    )  # fmt: skip


def given_back(free: np.ndarray, home: np.ndarray, page: int) -> np.ndarray:
    """Bytes of each free block that empty_cache() would give back. home: the segment of each.

    A mapped stretch of an expandable segment begins where a page begins.
    """
    start = (free["address"] - home["address"]).astype("i8")
    pages = np.where(home["small"], SMALL_PAGE, page)
    whole = np.maximum((start + free["size"]) // pages - -(-start // pages), 0) * pages
    return np.where(home["expandable"], whole, np.where(free["size"] == home["size"], free["size"], 0))


def _joined(segments: SegmentSpans) -> np.ndarray:
    """Segments in address order; touching ranges of one expandable segment become one."""
    order = np.argsort(segments.address, kind="stable")
    out = np.zeros(len(order), SEGMENT)
    for name in SEGMENT.names or ():
        out[name] = getattr(segments, name)[order]
    if not out["expandable"].any():
        return out
    end = out["address"] + out["size"].astype("u8")
    touches = out["expandable"][1:] & out["expandable"][:-1] & (out["address"][1:] == end[:-1])
    touches &= out["stream"][1:] == out["stream"][:-1]
    first = np.flatnonzero(np.concatenate([[True], ~touches]))
    merged = out[first]
    merged["size"] = np.add.reduceat(out["size"], first)
    return merged
