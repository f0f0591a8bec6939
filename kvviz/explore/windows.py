"""WindowExplorer: what a sliding window keeps, page by page, while tokens come."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch

from kvviz.cache.capacity import most_pages
from kvviz.cache.paged import PagedKVCache
from kvviz.cache.pagelog import PageAction, PageLog
from kvviz.explore.explorer import Explorer, Outcome
from kvviz.explore.panels import Panel
from kvviz.explore.setting import Setting, Settings
from kvviz.explore.timing import read_times
from kvviz.view.pages import page_map

SIZES = (1, 2, 4, 8, 16, 32, 64)


def slide(window: int, page_size: int, prompt: int, new_tokens: int) -> PageLog:
    """A small PagedKVCache with real tensors: the prompt at once, then token after token."""
    cache = PagedKVCache(1, 1, 8, page_size=page_size, window=window, name="window")
    for tokens in [prompt] * (prompt > 0) + [1] * new_tokens:
        states = torch.zeros(1, 1, tokens, 8)
        cache.append(0, states, states)
        if tokens == prompt and cache.seen == prompt:
            cache.log.mark("decode")
    return cache.log


class WindowExplorer(Explorer):
    """Sliders for window, page size, prompt and new tokens; the page map plays how pages fill, slide out and are used
    again.

    A query sees `window` tokens, itself included. Pages are let go of when all their tokens have slid out, so a little
    more than the window stays stored: that is the price of whole pages. The curves compare page sizes.
    """

    title = "What a window keeps"
    settings: ClassVar[Settings] = {
        "window": Setting("window", (1, 2, 4, 8, 16, 32, 64, 128), 32, (8, 32, 128)),
        "page_size": Setting("page size", SIZES, 8, (1, 4, 8, 32)),
        "prompt": Setting("prompt tokens", (0, 8, 16, 32, 64, 128), 16, (16,)),
        "new_tokens": Setting("new tokens", (16, 32, 64, 128, 256), 128, ()),
    }

    def measure(self, window: int, page_size: int, prompt: int, new_tokens: int) -> Outcome:
        log = slide(window, page_size, prompt, new_tokens)
        events, last = log.events, log.at(len(log))
        taken = events.action == PageAction.ALLOCATE
        gone = np.isin(events.action, (PageAction.SLIDE, PageAction.RELEASE))
        used = (taken.cumsum() - gone.cumsum()) * page_size
        writes = events.action == PageAction.WRITE
        seen = events.tokens[writes].astype(float).tolist()
        visible, slots = last.logical, last.used * page_size
        whole = -(-last.lengths[0] // page_size) * page_size
        at_most = {size: float(most_pages(window, size) * size) for size in SIZES}
        times = read_times(SIZES, window)
        words = (
            f"<b>{last.lengths[0]:,}</b> tokens seen · <b>{visible:,}</b> visible · <b>{last.used}</b> pages in use = "
            f"<b>{slots:,}</b> slots, never more than {at_most[page_size]:,.0f} · without a window: {whole:,}"
        )
        charts = [
            Panel(
                "Tokens while the run goes on",
                "tokens seen",
                seen,
                {
                    "seen": seen,
                    "slots in use": used[writes].astype(float).tolist(),
                    "visible": np.minimum(seen, window).tolist(),
                },
                choices=False,
            ),
            Panel("Slots at most", "tokens a page", SIZES, {"slots": list(at_most.values())}, at=page_size),
            Panel(
                "Reading one layer, microseconds",
                "tokens a page",
                SIZES,
                {"in a row": [1e6 * t[0] for t in times.values()], "scattered": [1e6 * t[1] for t in times.values()]},
                at=page_size,
            ),
        ]
        note = "a PagedKVCache run on the CPU; times measured on one thread, for one layer of SmolLM2's shape over one window"
        found = {
            "seen": last.lengths[0],
            "visible": visible,
            "pages": last.used,
            "slots": slots,
            "most_slots": int(used.max()),
            "waste": 100 * last.waste,
        }
        view = page_map(
            log, title=f"A window of {window} in pages of {page_size} token{'s' * (page_size > 1)}", start=len(log)
        )
        return Outcome(view, charts, note, found, words)
