"""Still pictures of traces: what shows before the player starts, where scripts do not run, and on code hosts."""

from __future__ import annotations

import numpy as np

from kvviz.view.layout import FOLD_HEIGHT, Flow, Span, bar
from kvviz.view.paper import Paper, mix
from kvviz.view.scene import Scene, format_bytes
from kvviz.view.sheet import (
    INNER,
    LIMIT,
    PAD,
    PLOT_FOOT,
    PLOT_HEIGHT,
    PLOT_TOP,
    TOP,
    WIDTH,
    footer,
    header,
    plot,
    series_keys,
)
from kvviz.view.theme import Owner

# scale, and px from which a block gets a label: what is tried until the file is small enough
_ATTEMPTS = ((2, 11), (1.75, 11), (1.75, 60), (1.5, 90), (1, 10_000))
_LONG = 250_000  # events: there the reader has waited already
_OWNERS = 24  # that the legend names: those with the most bytes
_MANY = (150, 500, 2_000, 10_000)  # living blocks, beyond each of which one attempt more is known to be in vain


def block_map(scene: Scene, title: str, subtitle: str) -> bytes:
    """The block map as it opens: map, legend, timeline, figures, origin. PNG bytes, at most LIMIT where possible."""
    laid = scene.flow(INNER)
    legend_top = TOP + laid.height + 18
    live = int(np.count_nonzero((scene.blocks.born < scene.start) & (scene.start <= scene.blocks.died)))
    png = b""
    for scale, label_from in _ATTEMPTS[sum(live > many for many in _MANY) :]:
        lines = _legend(Paper(1, 1, scale), scene, legend_top)  # a trial, to know its height
        plot_top = legend_top + 24 * lines + 6
        paper = Paper(WIDTH, plot_top + PLOT_TOP + PLOT_HEIGHT + PLOT_FOOT + 34, scale)
        header(paper, scene, title, subtitle)
        _map(paper, scene, laid, label_from)
        _legend(paper, scene, legend_top)
        plot(paper, scene, plot_top)
        footer(paper, scene)
        png = paper.png(soon=scene.events > _LONG)
        if len(png) <= LIMIT:
            break
    return png


def timeline(scene: Scene, title: str, subtitle: str) -> bytes:
    """The totals over all events. PNG bytes."""
    paper = Paper(WIDTH, TOP + 24 + PLOT_TOP + PLOT_HEIGHT + PLOT_FOOT + 34)
    header(paper, scene, title, subtitle)
    series_keys(paper, scene, TOP + 12)
    plot(paper, scene, TOP + 24)
    footer(paper, scene)
    return paper.png()


def _map(paper: Paper, scene: Scene, laid: Flow, label_from: float) -> None:
    if not len(scene.axis.cuts):
        paper.text(PAD, TOP + 16, "Nothing was ever reserved here.", 13, "muted")
        return

    if laid.top:
        _bar(paper, scene)

    def spans(start: float, units: float, apart: bool = False) -> list[Span]:
        return [s._replace(x=s.x + PAD, y=s.y + TOP) for s in laid.spans(start, units, apart)]

    places, i, unit, h = scene.places, scene.start, scene.unit, laid.row_height
    segments = scene.trace.at(i, scene.device).segments
    starts = scene.axis.places(segments["address"], segments["size"]).tolist()
    ranges = list(zip(starts, (segments["size"] // unit).tolist(), strict=True))
    cursor = 0
    for start, units in [*ranges, (int(scene.axis.cuts[-1]), 0)]:
        for span in spans(cursor, start - cursor, apart=True) if start > cursor else []:
            paper.dashes(span, h)
        cursor = max(cursor, start + units)
    outlines = [span for start, units in ranges for span in spans(start, units)]
    paper.hatch(outlines, h)

    b = scene.blocks
    labels: list[tuple[Span, Span | None, Owner, int]] = []  # the block, its over-reserved part, owner, bytes
    waiting: dict[str, list[Span]] = {}
    thin: list[tuple[Span, str]] = []
    for row in _seen(scene, laid.scale * paper.scale).tolist():
        owner, size, asked = scene.owners[int(b.owner[row])], int(b.size[row]), int(b.requested[row])
        start, over = int(places[row]), (size - asked) / unit
        tints = spans(start + asked / unit, over) if over * laid.scale >= 2 else []
        for span in spans(start, size / unit):
            if span.w < 1:
                thin.append((span, owner.color))
            elif b.freed[row] < i:
                waiting.setdefault(owner.color, []).append(span)
            else:
                paper.rect(span.x, span.y, span.w, h, owner.color)
                tint = next((t for t in tints if t.y == span.y), None)
                if tint:
                    paper.rect(tint.x, tint.y, tint.w, h, mix(owner.color, 0.3))
                labels.append((span, tint, owner, size))
    for color, stripes in waiting.items():
        paper.hatch(stripes, h, color, "paper", falling=True)
    for span, *_ in labels:
        if span.w > 4:
            paper.rect(span.x + span.w - 1, span.y, 1, h, "paper")
    for span, color in thin:
        paper.rect(span.x, span.y, 0.5, h, color)
    for span in outlines:
        paper.frame(span, h)
    for span, tint, owner, size in labels:
        if span.w >= label_from:
            _label(paper, span, tint, owner, size, h)


def _seen(scene: Scene, scale: float) -> np.ndarray:
    """Rows of the living blocks; of those within one pixel, one of each owner. scale: pixels per unit."""
    b, i = scene.blocks, scene.start
    living = np.flatnonzero((b.born < i) & (i <= b.died))
    small = b.size[living] // scene.unit * scale < 1
    pixel = (scene.places[living[small]] * scale).astype("i8")
    _, first = np.unique(pixel * len(scene.owners) + b.owner[living[small]], return_index=True)
    return np.sort(np.concatenate([living[~small], living[small][first]]))


def _bar(paper: Paper, scene: Scene) -> None:
    """What is folded: the owners' shares of it, and what it is."""
    assert scene.fold is not None
    x: float = PAD
    pieces = []
    for (owner, _), width in zip(scene.fold.shares, bar([s for _, s in scene.fold.shares], INNER), strict=True):
        pieces.append((Span(x, TOP, width, x == PAD, False), scene.owners[owner] if owner >= 0 else None))
        x += width
    pieces[-1] = (pieces[-1][0]._replace(last=True), pieces[-1][1])
    for span, look in pieces:
        paper.frame(span, FOLD_HEIGHT, None, look.color if look else "free")
    for span, _ in pieces[1:]:
        paper.rect(span.x - 0.5, TOP, 0.5, FOLD_HEIGHT, "paper")
    paper.frame(Span(PAD, TOP, INNER, True, True), FOLD_HEIGHT)
    first, look = pieces[0]
    room = next(span.x for span, _ in [*pieces[1:], (Span(PAD + INNER, 0, 0, True, True), None)])
    text = next((t for t in scene.fold_labels if paper.measure(t, 11) + 14 <= room - PAD), "")
    paper.text(first.x + 7, TOP + FOLD_HEIGHT / 2, text, 11, look.ink if look else "text", "lm", bold=True)


def _label(paper: Paper, span: Span, tint: Span | None, owner: Owner, size: int, h: float) -> None:
    """The most that fits: name and size, name, size, letter, nothing."""
    short, width = format_bytes(size), tint.x - span.x if tint and tint.x - span.x > 11 else span.w
    for text in (f"{owner.name}  {short}", owner.name, short, owner.letter):
        taken, letter = paper.measure(text, 11.5), text is owner.letter
        if taken + (4 if letter else 12) <= width:
            ink = "text" if tint and tint.x == span.x else owner.ink
            x = span.x + ((width - taken) / 2 if letter else 6)
            paper.text(x, span.y + h / 2, text, 11.5, ink, "lm", bold=True)
            return


def _legend(paper: Paper, scene: Scene, top: float) -> int:
    """Owners with their bytes, then what the drawing's marks mean. Returns how many lines it took."""
    b, i = scene.blocks, scene.start
    live = (b.born < i) & (i <= b.died)
    held = np.bincount(b.owner[live], b.size[live], minlength=len(scene.owners))
    shown = scene.shown_owners
    named = np.sort(shown[np.argsort(-held[shown], kind="stable")[:_OWNERS]])
    entries: list[tuple[Owner | str, str, str]] = [
        (scene.owners[k], scene.owners[k].name, format_bytes(int(held[k]))) for k in named.tolist()
    ]
    if more := len(shown) - len(named):
        entries.append(("more", f"and {more:,} owners more", ""))
    entries += [(kind, name, "") for kind, name in scene.keys]
    x: float = PAD
    line = 0
    for what, name, size in entries:
        width = 42 + paper.measure(name) + (paper.measure(size) + 6 if size else 0)
        if x > PAD and x + width > WIDTH - PAD - (290 if line == 0 else 0):
            x, line = PAD, line + 1
        y = top + 24 * line
        spot = Span(x, y, 16, True, True)
        if isinstance(what, Owner):
            paper.frame(spot, 16, None, what.color)
            paper.text(x + 8, y + 8, what.letter, 12.5 - 2 * len(what.letter), what.ink, "mm", bold=True)
        else:
            _swatch(paper, what, spot)
        taken = paper.text(x + 22, y + 12, name, 12, "muted")
        paper.text(x + 28 + taken, y + 12, size)
        x += width
    series_keys(paper, scene, top + 12)
    return line + 1


def _swatch(paper: Paper, kind: str, spot: Span) -> None:
    if kind == "more":
        return  # words only
    if kind == "dash":
        paper.dashes(spot, 16)
    elif kind == "rest":
        paper.rect(spot.x, spot.y, 16, 16, "muted")
        for y in range(3, 16, 4):
            paper.rect(spot.x, spot.y + y, 16, 1, "paper")
    elif kind == "tint":
        paper.rect(spot.x, spot.y, 8, 16, "muted")
        paper.frame(spot, 16, "muted")
    else:
        paper.hatch([spot], 16, *(("muted", "paper", True) if kind == "wait" else ()))
        paper.frame(spot, 16)
