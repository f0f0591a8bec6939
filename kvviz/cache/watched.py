"""Watched: what keeps a log of its pages can show them while they change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvviz.cache.pagelog import PageLog
    from kvviz.view.live import Live


class Watched:
    log: PageLog

    def live(self, title: str | None = None, theme: str = "auto", tokens: Any = None, tokenizer: Any = None) -> Live:
        """Show the pages and the numbers held, in use and logical on the notebook's page while they change.

            with cache.live():                        # or cache.live() alone, until the end of the cell
                model.generate(**inputs, cache=cache)

        A picture is drawn between two steps, at most four times a second and in at most 5 % of the run's time; it shows
        all that came so far. In the end the page map of the whole stands in its place. title, theme, tokens and
        tokenizer: as for kvviz.page_map. Where there is no notebook, nothing is drawn before the end.

        Raises ViewError for an unknown theme or title.
        """
        from kvviz.view.live.pages import live

        return live(self, title, theme, tokens=tokens, tokenizer=tokenizer)
