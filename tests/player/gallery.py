"""States of the player that a person should look through, and that the tests look at: what is empty, full, long, odd."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import kvviz
from kvviz.cache.pagelog import PageLog, PoolInfo
from kvviz.memory.trace import Events, Mark, Trace
from kvviz.view import View, block_map, page_map, timeline
from kvviz.view.beside import side_by_side
from kvviz.view.bundle import script
from tests.player import pagelogs, traces
from tests.player.pagelogs import LogWriter
from tests.player.traces import BASE, KIB, MIB, SlowMemory

GIB = 1 << 30


class State(NamedTuple):
    """keys: pressed one after the other once the player stands. look: what a person should check."""

    name: str
    look: str
    make: Callable[[], View]
    keys: tuple[str, ...] = ()


def _one_block() -> Trace:
    memory = SlowMemory()
    memory.reserve(BASE, 2 * MIB)
    memory.alloc(BASE, 512, 4)
    return memory.trace(owners=["other"], origin="made up, one block of 512 bytes")


def out_of_memory() -> Trace:
    """530 MiB come and go, then 270 twice on a device of 700: the second finds 430 MiB free and no place."""
    allocator = kvviz.CachingAllocator(700 * MIB)
    allocator.free(allocator.malloc(530 * MIB))
    allocator.malloc(270 * MIB)
    with suppress(kvviz.OutOfMemory):
        allocator.malloc(270 * MIB)
    return allocator.trace


def _expandable() -> Trace:
    allocator = kvviz.CachingAllocator(GIB, "expandable_segments:True")
    held = [allocator.malloc(size * MIB) for size in (30, 90, 14, 200, 7, 60)]
    for address in held[1::2]:
        allocator.free(address)
    allocator.malloc(250 * MIB)
    return allocator.trace


def _two_streams() -> Trace:
    allocator = kvviz.CachingAllocator(GIB)
    held = [allocator.malloc((8 + 5 * k) * MIB, stream=k % 2) for k in range(12)]
    for address in held[::3]:
        allocator.free(address)
    return allocator.trace


def _waiting() -> Trace:
    """Blocks that another stream still reads when they are freed."""
    allocator = kvviz.CachingAllocator(GIB, events="manual")
    held = [allocator.malloc(40 * MIB) for _ in range(5)]
    for address in held[1:4]:
        allocator.record_stream(address, 1)
        allocator.free(address)
    return allocator.trace


def _segments(count: int) -> Trace:
    memory = SlowMemory()
    for k in range(count):
        memory.reserve(BASE + 4 * k * MIB, 2 * MIB)
        memory.alloc(BASE + 4 * k * MIB, (1 + k % 8) * 256 * KIB, 200 * KIB, owner=k % 3)
    return memory.trace(owners=["other", "weights", "KV cache"], origin=f"made up, {count:,} segments of 2 MiB")


def _long_names() -> Trace:
    memory = SlowMemory()
    memory.reserve(BASE, 20 * MIB)
    owners = [f"the key and value cache of the decoder of model number {k}, kept for a later turn" for k in range(14)]
    for k in range(14):
        memory.alloc(BASE + k * MIB, MIB, MIB - 100, owner=k, stack=0)
    place = " · ".join(f"model.decoder.layers.{k}.self_attention.key_projection" for k in range(8))
    return memory.trace(
        owners=owners, stacks=[f"torch.cat · {place} · /home/someone/with/a/long/path/to/train.py:1234"],
        marks=[Mark(k, f"a phase with a long name, number {k}") for k in range(1, 14)],
        warnings=["A warning that goes on for longer than one line of a narrow screen has room for, and then some. " * 3],
        origin="made up, " + "names that are longer than any room for them, " * 4,
    )  # fmt: skip


def _huge() -> Trace:
    memory = SlowMemory()
    for k in range(3):
        memory.reserve(BASE + (k << 44), 5 << 40)
        memory.alloc(BASE + (k << 44), 3 << 40, (3 << 40) - 1, owner=1)
    return memory.trace(owners=["other", "weights"], origin="made up, 15 TiB reserved")


def _pool(pages: int, tokens: int) -> PageLog:
    log = PageLog("made up")
    pool = LogWriter(log, PoolInfo("pool", pages, 16))
    if tokens:
        pool.append(pool.begin(), tokens)
    return log


def _full_pool() -> PageLog:
    log = PageLog("made up, a pool that has no room for the third prompt")
    pool = LogWriter(log, PoolInfo("pool", 12, 16, token_bytes=8192))
    for tokens in (90, 90, 40):
        pool.append(pool.begin(), tokens)
    return log


def sample() -> Trace:
    return kvviz.sample("7b_24gb")


def _windows() -> tuple[Trace, Trace]:
    return kvviz.sample("window_slice"), kvviz.sample("window_clone")


class _Live(View):
    """A page map as it stands while its run goes on: drawn from news, with the line that live pictures have."""

    @property
    def html(self) -> str:
        assert self.data is not None
        packed = base64.b64encode(gzip.compress(self.data, 9, mtime=0)).decode()
        news = json.dumps([packed, "Live: event 332"])
        return (
            f"<script>((globalThis.kvviz ??= {{}}).news ??= {{}}).gallery = {news}</script>"
            '<div class="kvviz-player" data-kvviz="gallery">Waiting.</div>'
            + script("gallery", "pages", json.dumps(["gallery", {"theme": "auto"}]), "live")
        )


def _live() -> View:
    view = page_map(pagelogs.showcase(), start=332)
    return _Live(view.title, view.words, b"", data=view.data, kind="pages")


STATES = {
    "empty": State("Nothing recorded", "no number is invented; controls do nothing", lambda: block_map(Trace(Events.of(0)))),
    "one-block": State("One block", "a block of 512 bytes can be seen", lambda: block_map(_one_block())),
    "everything": State("Everything a block map draws", "letters, hatch, tint, dashes", lambda: block_map(traces.showcase())),
    "oom": State("Out of memory with memory free", "the failed request is said", lambda: block_map(out_of_memory(), start=6)),
    "expandable": State("Expandable segments", "one range that grows", lambda: block_map(_expandable())),
    "streams": State("Two streams", "segments of both can be told apart", lambda: block_map(_two_streams())),
    "waiting": State("Freed, awaited by another stream", "not allocated, still active", lambda: block_map(_waiting(), start=13)),
    "folded": State("Folded", "the top bar names who is in it", lambda: block_map(traces.settled())),
    "unfolded": State("Show all", "the same without the fold", lambda: block_map(traces.settled(), fold=False)),
    "segments": State("1,000 segments", "readable, and quick to step", lambda: block_map(_segments(1000))),
    "long-names": State("Long names", "nothing runs out of its place", lambda: block_map(_long_names(), title="T" * 90)),
    "huge": State("Huge numbers", "TiB, exact", lambda: block_map(_huge())),
    "real": State("A real run: 7B on 24 GB, out of memory", "the course's own trace", lambda: block_map(sample())),
    "zoomed": State("Zoomed in time", "it says which events are shown", lambda: block_map(sample()), ("+", "+", "+")),
    "block-chosen": State(
        "A block chosen", "who, how large, how old, its line of code", lambda: block_map(traces.showcase()), ("Enter",)
    ),
    "filtered": State("Filter open", "owner, size, call site", lambda: block_map(traces.showcase()), ("/",)),
    "breakdown": State("Breakdown open", "what the peak is made of", lambda: block_map(traces.showcase()), ("d",)),
    "lifetimes": State("Lifetimes open", "bars from birth to death", lambda: block_map(traces.showcase()), ("l",)),
    "pinned": State("Pinned segments open", "what pins each", lambda: block_map(traces.showcase()), ("i",)),
    "by-age": State("Coloured by age", "the legend says the ages", lambda: block_map(traces.showcase()), ("c",)),
    "keys": State("The list of keys", "complete", lambda: block_map(traces.showcase()), ("?",)),
    "side-by-side": State(
        "Side by side", "one cursor, one scale", lambda: side_by_side(*_windows(), titles=("sliced", "copied"))
    ),
    "timeline": State("Timeline alone", "curves, marks, peak", lambda: timeline(traces.showcase())),
    "timeline-real": State("Timeline of the real run", "late scale, marks", lambda: timeline(sample())),
    "pages": State("Everything a page map draws", "shared, slid out, now", lambda: page_map(pagelogs.showcase())),
    "pages-none": State("A pool without a sequence", "all pages free", lambda: page_map(_pool(24, 0))),
    "pages-one": State("One page", "one slot in use", lambda: page_map(_pool(1, 1))),
    "pages-full": State("A pool that is full", "the refusal is said", lambda: page_map(_full_pool())),
    "pages-many": State("2,000 pages", "readable", lambda: page_map(pagelogs.served(120, 2000, limit=6000))),
    "pages-random": State("Several pools, a random history", "null page, windows", lambda: page_map(pagelogs.random_log(3))),
    "live": State("Live, while the run goes on", "a line says how far it is", _live),
    "explore-pages": State("PageExplorer without a kernel", "labels beside sliders", lambda: kvviz.PageExplorer().recorded()),
    "explore-windows": State("WindowExplorer", "labels beside sliders", lambda: kvviz.WindowExplorer().recorded()),
    "explore-allocator": State("AllocatorExplorer", "A and B side by side", lambda: kvviz.AllocatorExplorer().recorded()),
}  # fmt: skip
