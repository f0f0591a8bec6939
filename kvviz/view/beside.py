"""Two runs beside each other: both block maps on one byte scale, one cursor, and what differs at it."""

from __future__ import annotations

import html
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from PIL import Image

from kvviz.errors import ViewError
from kvviz.memory.check import traced
from kvviz.view import poster
from kvviz.view.align import Alignment, align
from kvviz.view.base import base_of
from kvviz.view.bundle import script
from kvviz.view.html import View, named, packed, row
from kvviz.view.pack import Column, pack
from kvviz.view.scene import SERIES, Scene, format_bytes, refuse_options
from kvviz.view.sheet import INNER, WIDTH

if TYPE_CHECKING:
    from kvviz.memory.trace import Trace

SUBTITLE = "Both runs on one byte scale; colour = owner, hatch = reserved but inactive"


def side_by_side(
    a: Trace,
    b: Trace,
    titles: Sequence[str] = ("the first run", "the second run"),
    device: int = 0,
    start: int | None = None,
    fold: bool | None = None,
    theme: str = "auto",
) -> View:
    """Two block maps with one cursor: moving either moves both. Above them stand the three numbers and how they differ.

        kvviz.side_by_side(trace, kvviz.replay(trace, "expandable_segments:True"), titles=("as recorded", "expandable"))

    Where both runs make the same requests, as a recording and its replay do, the k-th request stands beside the k-th;
    otherwise they are lined up at marks of the same name, and evenly between them. The picture says which it is.

    titles: one for each run. start: the number of a's events after which it opens, None: the peak of its allocated bytes.
    fold: see block_map; None: where block_map would fold both.

    Raises ViewError for an unknown device, start or theme, and unless there are two titles; InvalidRequest for what is
    no trace; InconsistentTrace where no true picture exists.
    """
    if not isinstance(titles, (tuple, list)) or [type(title) for title in titles] != [str, str]:
        raise ViewError(f"titles are two strings, one for each run, not {titles!r}")
    refuse_options("auto", theme, fold=fold)
    first = Scene(a, device, start, fold)
    pairs = align(a, traced(b), device)
    second = Scene(b, device, pairs.beside(first.start), fold)
    if fold is None and first.folded != second.folded:
        first.folded = second.folded = False
    return Beside((first, second), tuple(titles), pairs, theme)


class Beside(View):
    """scenes: as they open."""

    def __init__(self, scenes: tuple[Scene, Scene], titles: tuple[str, ...], pairs: Alignment, theme: str):
        self._scenes, self._titles, self._pairs, self._theme = scenes, titles, pairs, theme
        words = " ".join(f"{title}: {scene.words(mapped=True)}." for title, scene in zip(titles, scenes, strict=True))
        super().__init__(" and ".join(titles), f"{words} {pairs.words[0].upper()}{pairs.words[1:]}.", self._both)
        least = min(scene.flow(INNER).scale / scene.unit for scene in scenes)
        allocated, lowest, highest = zip(*(scene.extent for scene in scenes), strict=True)
        self._highest = max(highest)
        base = base_of(min(allocated), min(lowest), self._highest)
        for scene in scenes:
            scene.most, scene.base = least * scene.unit, base
        self._stills = [poster.block_map(s, title, SUBTITLE) for s, title in zip(scenes, titles, strict=True)]

    @property
    def html(self) -> str:
        runs = [
            packed(s.pack("blocks", t, SUBTITLE, SUBTITLE)) for s, t in zip(self._scenes, self._titles, strict=True)
        ]
        columns = {"first": Column(self._pairs.first, alike=True), "second": Column(self._pairs.second, alike=True)}
        told, name = named({
            "runs": runs, "pairs": packed(pack({}, columns)), "most": self._highest, "options": {"theme": self._theme}
        })  # fmt: skip
        words = [scene.words(mapped=True) for scene in self._scenes]
        return (
            f'<div class="kvviz-beside" data-kvviz="{name}">{self._table()}'
            f"{row(zip(self._stills, words, strict=True), 460)}</div>\n"
            f"{script(name, 'blocks', told, 'beside')}"
        )

    def _table(self) -> str:
        """The three numbers of both at the cursor; beside.js keeps them up to date."""
        cell = 'style="text-align:right;padding:1px 0 1px 12px;white-space:nowrap;font-variant-numeric:tabular-nums"'
        heads = "".join(f'<th scope="col" {cell}>{html.escape(t)}</th>' for t in (*self._titles, "difference"))
        rows = ""
        for name in SERIES:
            x, y = (int(getattr(scene.curves, name)[scene.start]) for scene in self._scenes)
            cells = "".join(
                f"<td {cell}>{text}</td>" for text in (format_bytes(x, True), format_bytes(y, True), signed(y - x))
            )
            rows += f'<tr data-series="{name}"><th scope="row" style="text-align:left">{name}</th>{cells}</tr>'
        how = html.escape(self._pairs.words[0].upper() + self._pairs.words[1:])
        return (
            f'<div style="font:12px/1.5 system-ui,sans-serif;margin:4px 0 8px"><p style="margin:0 0 4px">{how}</p>'
            '<div style="overflow-x:auto" tabindex="0" role="group" aria-label="The numbers at the cursor">'
            '<table style="border-collapse:collapse"><thead><tr><th scope="col" style="text-align:left">at the cursor</th>'
            f"{heads}</tr></thead><tbody>{rows}</tbody></table></div></div>"
        )

    def _both(self) -> bytes:
        """Both stills, one below the other."""
        pictures = [Image.open(io.BytesIO(still)).convert("RGB") for still in self._stills]
        # at the size at which it is read: stills come at different scales, and a notebook holds many of these
        pictures = [p.resize((WIDTH, round(p.height * WIDTH / p.width)), Image.Resampling.BOX) for p in pictures]
        sheet = Image.new("RGB", (WIDTH, sum(p.height for p in pictures)), "white")
        top = 0
        for picture in pictures:
            sheet.paste(picture, (0, top))
            top += picture.height
        out = io.BytesIO()
        sheet.quantize(32, dither=Image.Dither.NONE).save(out, "PNG", optimize=True)
        return out.getvalue()


def signed(size: int) -> str:
    """A difference: with its sign, or "the same". The twin of `differs` in player/beside.js."""
    return "the same" if size == 0 else f"{'+' if size > 0 else '−'}{format_bytes(abs(size), True)}"
