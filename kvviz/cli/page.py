"""One self-contained page: a report, and under it the pictures of the trace."""

from __future__ import annotations

import html
from collections.abc import Iterable

from kvviz.errors import InconsistentTrace
from kvviz.memory.report import Report
from kvviz.memory.trace import Trace
from kvviz.view import block_map, side_by_side, timeline
from kvviz.view.html import View, _page
from kvviz.view.theme import DARK, LIGHT, SANS


def _style() -> str:
    def inks(theme: dict) -> str:
        return "; ".join(f"--{name}: {theme[name]}" for name in ("paper", "text", "muted", "rule"))

    return f"""<style>
:root {{ {inks(LIGHT)} }}
@media (prefers-color-scheme: dark) {{ :root {{ {inks(DARK)} }} }}
.report {{ background: var(--paper); color: var(--text); border: 1px solid var(--rule); border-radius: 8px;
  padding: 0.4em 1.2em; margin-bottom: 16px; font: 15px/1.5 {SANS}; overflow-wrap: anywhere }}
.report table {{ border-collapse: collapse }}
.report td {{ padding: 0.4em 1.2em 0.4em 0; vertical-align: top; border-top: 1px solid var(--rule) }}
.report td:first-child {{ font-weight: 600; min-width: 9em; overflow-wrap: normal }}
.report ul {{ padding-left: 1.3em }}
.picture {{ margin-bottom: 16px }}
</style>"""


def page(report: Report, pictures: Iterable[View | str]) -> str:
    """The page's text. A picture that cannot be drawn is a sentence that says why."""
    parts = [_style(), f'<div class="report">{report._repr_html_()}</div>']
    for picture in pictures:
        if isinstance(picture, str):
            parts.append(f'<div class="report"><p>{html.escape(picture)}</p></div>')
        else:
            parts.append(f'<div class="picture">{picture.whole_html}</div>')
    return _page(report.title, "\n".join(parts))


def pictures(trace: Trace, device: int, start: int | None = None) -> list[View | str]:
    """The moving block map and the timeline; where no true picture exists, why."""
    try:
        return [block_map(trace, device, start=start), timeline(trace, device, start=start)]
    except InconsistentTrace as problem:
        return [f"No picture: {problem}"]


def beside(names: tuple[str, str], traces: tuple[Trace, Trace], device: int) -> list[View | str]:
    """Both runs with one cursor; where no true picture exists, why."""
    try:
        return [side_by_side(*traces, titles=names, device=device)]
    except InconsistentTrace as problem:
        return [f"No picture: {problem}"]
