"""The page map: every page of a cache's pools, the sequences that hold it, and their page tables, after any event."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvviz.view import pageposter
from kvviz.view.html import View
from kvviz.view.pagescene import PageScene
from kvviz.view.scene import refuse_options

if TYPE_CHECKING:
    from kvviz.cache.pagelog import PageLog


def page_map(
    log: PageLog | Any,
    title: str | None = None,
    renderer: str = "auto",
    start: int | None = None,
    autoplay: bool = False,
    theme: str = "auto",
    tokens: Any = None,
    tokenizer: Any = None,
    pools: Any = None,
) -> View:
    """A moving map of a cache's pages. log: a PageLog, or a cache, which has one at `.log`.

    start: the number of events after which it opens, 0 … len(log); None: where most pages are in use, and among those
    states where most tokens are visible.
    tokens: what the tokens say, for the tips. A dict of a sequence's number to strings, one a token; or ids, as such a
    dict or an integer tensor [sequences, positions], with `tokenizer`, anything with decode or convert_ids_to_tokens.
    pools: numbers or names of the pools to show, None for all.
    renderer: "player" (also "auto") moves through every event; "plotly" makes plotly objects, at most 100 steps.
    autoplay: begin playing, unless the reader asked for less motion. theme: "auto" follows the page, "light", "dark".

    Held is whole pools (of one that takes its pages one by one, those in use), in use the pages in tables, logical the
    visible tokens, a shared one counted for each sequence; in bytes, or in slots and tokens where no tensors are behind.
    Page waste is the share of the slots in used pages that hold no visible token.

    Raises ViewError for an unknown start, renderer, theme or pool, and for tokens of which no text can be had.
    """
    refuse_options(renderer, theme, title)
    scene = PageScene(log, start, pools, tokens, tokenizer)
    title, subtitle = _headings(scene, title)
    words = scene.words()

    def png() -> bytes:
        return pageposter.page_map(scene, title, subtitle)

    if renderer == "plotly":
        from kvviz.view.plotly_pages import figure

        return View(title, words, png, figure=figure(scene, title, "light" if theme == "auto" else theme))
    options = {"autoplay": bool(autoplay), "theme": theme}
    return View(title, words, png, data=scene.pack(title, subtitle), kind="pages", options=options)


def _headings(scene: PageScene, title: str | None) -> tuple[str, str]:
    """Title and subtitle; what the one does not say of a single pool, the other does."""
    told = []
    if len(scene.pools) == 1:
        told = [scene.sizes(scene.shown[0])] * (title is not None)
        told += [f"window of {p.window:,}" for p in scene.pools if p.window is not None]
    sized = f"{len(scene.pools)} pools" if len(scene.pools) > 1 else "".join(scene.sizes(k) for k in scene.shown)
    told.append("one colour and letter per sequence, fill height = share of slots in use")
    subtitle = "; ".join(told)
    default = f"Pages · {sized}" if sized else "Pages"
    return default if title is None else title, subtitle[0].upper() + subtitle[1:]
