"""PageExplorer: what page size does to waste, tables and time, for some sequences of different lengths."""

from __future__ import annotations

from functools import lru_cache
from typing import ClassVar

from kvviz.cache.pagelog import PageLog, PoolState
from kvviz.cache.pages import PagePool
from kvviz.explore.explorer import Explorer, Outcome
from kvviz.explore.panels import Panel
from kvviz.explore.setting import Setting, Settings
from kvviz.explore.timing import read_times
from kvviz.view.pages import page_map

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
ENTRY = 4  # bytes of a page id in a table


def lengths(prompt: int, sequences: int) -> list[int]:
    """Prompts of different lengths, evenly from half to one and a half times `prompt`."""
    if sequences == 1:
        return [prompt]
    return [max(1, round(prompt * (0.5 + k / (sequences - 1)))) for k in range(sequences)]


def serve(page_size: int, prompt: int, new_tokens: int, sequences: int) -> PageLog:
    """Page bookkeeping of some sequences: all prompts first, then one token of each in turn."""
    longest = max(lengths(prompt, sequences)) + new_tokens
    pool = PagePool(sequences * -(-longest // page_size), page_size)
    pool.log.origin = "kvviz's page pool, without tensors"
    tables = [pool.table() for _ in range(sequences)]
    for table, tokens in zip(tables, lengths(prompt, sequences), strict=True):
        table.append(tokens)
    pool.log.mark("decode")
    for _ in range(new_tokens):
        for table in tables:
            table.append(1)
    return pool.log


def figures(state: PoolState) -> dict[str, float]:
    """Waste in per cent of the slots of used pages, pages in use, bytes of page tables."""
    entries = sum(len(table) for table in state.tables.values())
    return {"waste": 100 * state.waste, "pages": state.used, "table_bytes": ENTRY * entries}


@lru_cache(maxsize=256)
def compared(prompt: int, new_tokens: int, sequences: int) -> dict[int, dict[str, float]]:
    """Figures of every page size, counted, and how long reading the longest sequence takes, in microseconds."""
    longest = max(lengths(prompt, sequences)) + new_tokens
    found = {}
    for size, (row, scattered) in read_times(SIZES, longest).items():
        log = serve(size, prompt, new_tokens, sequences)
        found[size] = figures(log.at(len(log))) | {"row": 1e6 * row, "scattered": 1e6 * scattered}
    return found


class PageExplorer(Explorer):
    """Sliders for page size, prompt, new tokens and number of sequences; the page map plays what they give.

        explorer = kvviz.PageExplorer()
        explorer.page_size.value = 64            # as if a reader moved the slider
        explorer.outcome.figures["waste"]        # per cent

    Waste, pages and table bytes are counted, time is measured: one query's attention over the longest sequence, in one
    layer of SmolLM2's shape on one thread of this CPU, with the pages in a row and scattered.
    """

    title = "What page size does"
    settings: ClassVar[Settings] = {
        "page_size": Setting("page size", SIZES, 16, (1, 4, 16, 64, 256)),
        "prompt": Setting("prompt tokens", (10, 20, 40, 80, 160, 320), 80, (20, 80)),
        "new_tokens": Setting("new tokens", (0, 8, 16, 32, 64, 128), 32, ()),
        "sequences": Setting("sequences", (1, 2, 3, 4, 6, 8), 3, (1, 3, 8)),
    }

    def measure(self, page_size: int, prompt: int, new_tokens: int, sequences: int) -> Outcome:
        log = serve(page_size, prompt, new_tokens, sequences)
        by_size = compared(prompt, new_tokens, sequences)
        now = dict(by_size[page_size])
        words = (
            f"<b>{now['waste']:.1f} %</b> of the slots in use are empty · <b>{now['pages']:,.0f}</b> pages · "
            f"<b>{now['table_bytes']:,.0f} bytes</b> of tables · reading one layer: <b>{now['row']:.0f} µs</b> in a row, "
            f"<b>{now['scattered']:.0f} µs</b> scattered"
        )

        def chart(title: str, **series: str) -> Panel:
            lines = {name: [by_size[size][key] for size in SIZES] for name, key in series.items()}
            return Panel(title, "tokens a page", SIZES, lines, at=page_size)

        charts = [
            chart("Waste, % of slots in use", waste="waste"),
            chart("Pages in use", pages="pages"),
            chart("Page tables, bytes", bytes="table_bytes"),
            chart("Reading one layer, microseconds", **{"in a row": "row", "scattered": "scattered"}),
        ]
        many = f"{sequences} sequences" if sequences > 1 else "1 sequence"
        sized = f"{page_size} tokens" if page_size > 1 else "1 token"
        view = page_map(log, title=f"{many} in pages of {sized}", start=len(log))
        note = (
            "counted by kvviz's page pool; times measured on one thread of this CPU, for one layer of SmolLM2's shape"
        )
        return Outcome(view, charts, note, now, words)
