"""Still pictures of page logs: grids, page tables, legend, timeline as the player shows them when it opens."""

from __future__ import annotations

from kvviz.cache.pagelog import PoolState
from kvviz.view.layout import Span
from kvviz.view.pagelayout import BOX, HEAD, HIDDEN, LINE, NULL, Placed, Section, fit, items, place, share_lines
from kvviz.view.pagescene import PageScene
from kvviz.view.paper import Paper, mix
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
from kvviz.view.theme import Owner, sequence

_ATTEMPTS = (2, 1.75, 1.5, 1.25, 1)  # pixels to a px: what is tried until the file is small enough
_SLOTS, _IDS, _LETTERS, _ROUND, _BANDS = 32, 24, 13, 12, 4  # as in player/pagegrid.js
_TINT = 0.22


def page_map(scene: PageScene, title: str, subtitle: str) -> bytes:
    """The page map as it opens. PNG bytes, at most LIMIT where possible."""
    laid = scene.layout(INNER)
    legend_top = TOP + max(24, laid.height) + 18
    png = b""
    for scale in _ATTEMPTS:
        paper = Paper(WIDTH, legend_top + 30 + PLOT_TOP + PLOT_HEIGHT + PLOT_FOOT + 34, scale)
        header(paper, scene, title, subtitle)
        if not laid.sections:
            paper.text(PAD, TOP + 16, "No pool yet: a cache takes its pages when the first tokens come.", 13, "muted")
        for k, state, section in zip(scene.shown, scene.states(scene.start), laid.sections, strict=True):
            if len(laid.sections) > 1:
                paper.text(PAD, TOP + section.top + 7, scene.heading(k), 12, anchor="lm", bold=True)
            _grid(paper, state, section)
            _tables(paper, state, section)
        _legend(paper, scene, legend_top)
        plot(paper, scene, legend_top + 30)
        footer(paper, scene)
        png = paper.png()
        if len(png) <= LIMIT:
            break
    return png


def _holders(state: PoolState) -> dict[int, list[int]]:
    """Page -> the sequences that have it, in order."""
    found: dict[int, list[int]] = {}
    for number in sorted(state.tables):
        for page in state.tables[number]:
            if page != NULL:
                found.setdefault(page, []).append(number)
    return found


def _grid(paper: Paper, state: PoolState, section: Section) -> None:
    grid, holders = section.grid, _holders(state)
    step = grid.size + grid.gap
    for page in range(len(state.references)):
        line, column = divmod(page, grid.columns)
        x, y = PAD + column * step, TOP + section.grid_top + line * step
        looks = [sequence(number) for number in holders.get(page, [])]
        if grid.size < _ROUND:
            _plain(paper, state, page, looks, x, y, grid.size)
        else:
            _cell(paper, state, page, looks, x, y, grid.size)


def _filled(state: PoolState, page: int, y: float, size: float) -> tuple[float, float]:
    """Top and bottom of what a page's slots hold, from the bottom up."""
    low, high = (int(column[page]) / state.pool.page_size for column in (state.low, state.high))
    return y + size * (1 - high), y + size * (1 - low)


def _plain(paper: Paper, state: PoolState, page: int, looks: list[Owner], x: float, y: float, size: float) -> None:
    paper.rect(x, y, size, size, "grid")
    top, bottom = _filled(state, page, y, size)
    for k, look in enumerate(looks[:_BANDS]):
        count = min(_BANDS, len(looks))
        left, right = x + round(size * k / count), x + round(size * (k + 1) / count)
        if right > left:
            paper.rect(left, y, right - left, size, mix(look.color, _TINT))
            if bottom > top:
                paper.rect(left, top, right - left, bottom - top, look.color)


def _cell(paper: Paper, state: PoolState, page: int, looks: list[Owner], x: float, y: float, size: float) -> None:
    span, number = Span(x, y, size, True, True), str(page)
    if not looks:
        paper.frame(span, size, None if state.pool.grows else "rule", "paper" if state.pool.grows else "free")
        if state.pool.grows:
            paper.dashes(span, size)
    else:
        paper.paste(_bands(paper.scale, state, page, looks, size), x, y)
        paper.frame(span, size, "edge" if len(looks) > 1 else looks[0].color)
    top, bottom = _filled(state, page, y, size)

    def ink(look: Owner, middle: float) -> str:
        return look.ink if top <= middle < bottom else "text"

    if size >= _IDS and len(number) * 6 <= size - 6:
        paper.text(x + 4, y + 12, number, 9.5, ink(looks[0], y + 8.5) if looks else "muted")
    if size >= _LETTERS and len(looks) <= 3:
        room, middle = size / max(1, len(looks)), y + size / 2 + (2.5 if size >= 36 and len(looks) < 2 else 0.5)
        for k, look in enumerate(looks):
            tall = round(min(14, (0.64 if size < _IDS else 0.38) * size, 1.1 * room / len(look.letter)))
            if tall >= 7:
                paper.text(x + room * (k + 0.5), middle, look.letter, tall, ink(look, middle), "mm", bold=True)
    if size >= _IDS and len(looks) > 1:
        text = f"×{len(looks)}"
        width = 5.5 * len(text) + 5
        paper.frame(Span(x + size - width - 2, y + size - 14, width, True, True), 12, None, "text")
        paper.text(x + size - width / 2 - 2, y + size - 7.5, text, 9, "paper", "mm")


def _bands(scale: float, state: PoolState, page: int, looks: list[Owner], size: float) -> Paper:
    """A page's colours, on a sheet of its own."""
    sheet = Paper(size, size, scale)
    top, bottom = _filled(state, page, 0, size)
    count = min(_BANDS, len(looks))
    for k, look in enumerate(looks[:_BANDS]):
        left, right = round(size * k / count), round(size * (k + 1) / count)
        tint = mix(look.color, _TINT)
        sheet.rect(left, 0, right - left, size, tint)
        if bottom < size:
            sheet.hatch([Span(left, bottom, right - left, False, False)], size - bottom, look.color, tint)
        if bottom > top:
            sheet.rect(left, top, right - left, bottom - top, look.color)
        slots = state.pool.page_size
        step = slots if size < _SLOTS else 1
        while step < slots and size * step / slots < 7:
            step *= 2
        for slot in range(step, int(state.high[page]), step):
            if slot > state.low[page]:
                sheet.rect(left, size * (1 - slot / slots) - 0.25, right - left, 0.5, mix(look.color, 0.65))
        if k:
            sheet.rect(left - 0.5, 0, 1, size, "paper")
    return sheet


def _tables(paper: Paper, state: PoolState, section: Section) -> None:
    x, y = PAD + section.x, TOP + section.head
    paper.rect(x - 24, TOP + section.top, 0.5, max(section.grid_top + section.grid.height - section.top,
               HEAD + section.lines * LINE - LINE + BOX), "rule")  # fmt: skip
    paper.text(x, y + 7, "PAGE TABLES IN LOGICAL ORDER", 10.5, "muted", "lm", bold=True)
    living = sorted(state.tables)
    if not living:
        paper.text(x, y + HEAD + BOX / 2, "No sequence is there now.", 12, "muted", "lm")
    lists = [
        items([(k, page) for k, page in enumerate(state.tables[number]) if page != NULL]) if row < section.lines else []
        for row, number in enumerate(living)
    ]
    needs = [place(boxes, section.per_line)[-1].line + 1 if boxes else 1 for boxes in lists]
    line = 0
    given = share_lines(needs, section.lines)
    for number, boxes, count in zip(living, lists, given, strict=False):
        _table(paper, state, section, number, fit(boxes, section.per_line, count), y + HEAD + line * LINE)
        line += count
    if len(given) < len(living):
        text = f"and {len(living) - len(given):,} more"
        paper.text(x, y + HEAD + line * LINE + BOX / 2, text, 12, "muted", "lm")


def _table(paper: Paper, state: PoolState, section: Section, number: int, boxes: list[Placed], y: float) -> None:
    x, look, size = PAD + section.x, sequence(number), state.pool.page_size
    seen, first = state.lengths[number], state.visible_from(number)
    chip = Span(x, y, section.boxes - 8, True, True)
    paper.frame(chip, BOX, None, look.color)
    paper.text(x + chip.w / 2, y + BOX / 2, look.letter, 11, look.ink, "mm", bold=True)
    paper.text(x + section.width, y + (4 if first else BOX / 2), f"{seen - first:,} tok", 10.5, "text", "rm")
    if first:
        paper.text(x + section.width, y + 15, f"seen {seen:,}", 10.5, "muted", "rm")
    for item, line, at in boxes:
        box = Span(x + section.boxes + at * section.unit, y + line * LINE, item.units * section.unit - 3, True, True)
        middle = box.y + BOX / 2
        if item.page == HIDDEN:
            paper.text(box.x + box.w / 2, middle, f"… {item.count:,} more …", 10.5, "muted", "mm")
        elif item.page == NULL:
            paper.dashes(box, BOX)
            paper.empty(box.x + (box.w / 2 if item.count == 1 else 14), middle)
            if item.count > 1:
                paper.text(box.x + 23, middle, f"×{item.count}", 10.5, "muted", "lm")
        else:
            start = item.index * size
            low, high = max(0, first - start), min(size, seen - start)
            if high > low:
                paper.rect(box.x, box.y, box.w * high / size, BOX, mix(look.color, 0.42))
                paper.rect(box.x, box.y, box.w * low / size, BOX, "paper")
            paper.frame(box, BOX, look.color)
            paper.text(box.x + box.w / 2, middle, str(item.page), 10, "text", "mm")
            if state.references[item.page] > 1:
                paper.rect(box.x + 5, box.y + BOX + 1, box.w - 10, 1.5, "text")


def _legend(paper: Paper, scene: PageScene, top: float) -> None:
    x: float = PAD
    for kind, name in scene.keys:
        if kind == "now":  # the still picture shows a state, not a change
            continue
        spot = Span(x, top, 16, True, True)
        if kind == "shared":
            for k in (0, 1):
                paper.frame(Span(x + 8 * k, top, 8, k == 0, k == 1), 16, None, sequence(k).color)
        elif kind in ("dash", "null"):
            paper.dashes(spot, 16)
            if kind == "null":
                paper.empty(x + 8, top + 8)
        elif kind == "hatch":
            paper.hatch([spot], 16)
            paper.frame(spot, 16)
        else:
            paper.frame(spot, 16, "rule" if kind == "free" else "muted", "free" if kind == "free" else "muted")
            if kind == "fill":
                paper.rect(x + 1, top + 1, 14, 6, "free")
        x += 42 + paper.text(x + 22, top + 12, name, 12, "muted")
    series_keys(paper, scene, top + 12)
