"""What the AllocatorExplorer says: one sentence of what the setting changed, and the three numbers of A and B as bars."""

from __future__ import annotations

import html
from collections.abc import Mapping

from kvviz.explore.workloads import Run
from kvviz.view.scene import format_bytes as size

Figures = Mapping[str, int]
NEEDS_A_LIMIT = (
    "garbage_collection_threshold works only under a limit, so per_process_memory_fraction:0.99 is set with it."
)

# colour is never alone: each part has its name and its number
_PARTS = {
    "allocated": ("allocated", "#0072B2"),
    "releasable": ("free, releasable", "#56B4E9"),
    "pinned": ("free, pinned", "#D55E00"),
}


def name(conf: str) -> str:
    """Settings as a reader knows them."""
    return conf or "the defaults"


def sentence(a: Run, b: Run) -> str:
    """What B's settings changed, from the figures."""
    x, y = a.figures, b.figures
    if a.conf == b.conf:
        return f"A and B have the same settings, so they do the same.{_failures(x, y)}"
    if x == y:
        return f"{name(b.conf)} changes nothing here: both reserve {size(x['peak_reserved'])} at most.{_failures(x, y)}"
    moment = b.when if a.when == b.when else "when each is looked at"
    return (
        f"The peak of reserved memory {_moves(x['peak_reserved'], y['peak_reserved'])}; {moment}, what is reserved but "
        f"free {_moves(x['free'], y['free'])}, and its pinned part {_moves(x['pinned'], y['pinned'])}.{_failures(x, y)}"
    )


def words(a: Run, b: Run) -> str:
    """The sentence as HTML, with what a reader must know of the settings."""
    note = f" {NEEDS_A_LIMIT}" if "garbage_collection_threshold" in a.conf + b.conf else ""
    return html.escape(sentence(a, b) + note)


def numbers(a: Run, b: Run) -> str:
    """Reserved and its three parts, of A and of B, on one scale. HTML, in columns as the maps under it."""
    widest = max(a.figures["reserved"], b.figures["reserved"], 1)
    blocks = "".join(_block(which, run, widest) for which, run in (("A", a), ("B", b)))
    return f'<div style="display:flex;flex-wrap:wrap;gap:2px 10px;margin:6px 0;line-height:1.5">{blocks}</div>'


def _moves(before: int, after: int) -> str:
    if before == after:
        return f"stays at {size(before)}"
    return f"{'falls' if after < before else 'rises'} from {size(before)} to {size(after)}"


def _failures(x: Figures, y: Figures) -> str:
    """Who ran out of memory; begins with a space, or is empty."""
    if x["ran_out"] and y["ran_out"]:
        if x == y:
            return f" Both run out of memory: {_failure(x)}."
        return f" Both run out of memory. A: {_failure(x)}. B: {_failure(y)}."
    if x["ran_out"] or y["ran_out"]:
        out, fits, f = ("A", "B", x) if x["ran_out"] else ("B", "A", y)
        return f" {out} runs out of memory, {fits} does not. {out}: {_failure(f)}."
    return ""


def _failure(f: Figures) -> str:
    return (
        f"after {f['served']:,} requests it asks for {size(f['refused_request'])}, and the largest free block has "
        f"{size(f['refused_largest_free'])}"
    )


def _block(which: str, run: Run, widest: int) -> str:
    f = run.figures
    bar = "".join(
        f'<div style="width:{100 * f[key] / widest:.1f}%;background:{color}"></div>'
        for key, (_, color) in _PARTS.items()
        if f[key]
    )
    parts = "".join(
        f'<span style="white-space:nowrap"><b style="color:{color}">■</b> {label} <b>{size(f[key])}</b></span> '
        for key, (label, color) in _PARTS.items()
    )
    return (
        f'<div style="flex:1 1 420px;min-width:0">{which}, {run.when}: <b>{size(f["reserved"])}</b> reserved'
        f'<div style="display:flex;height:9px">{bar}</div>{parts}</div>'
    )
