"""Paper: what Pillow draws on. Text, rectangles, hatching in the light theme's inks, and a small PNG of them.

The font comes with Pillow, so that the same data gives the same picture on every machine.
"""

from __future__ import annotations

import io
import unicodedata
from bisect import bisect_right
from functools import cache

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from kvviz.view.layout import Span
from kvviz.view.theme import LIGHT

_SHADES = 10
_SPELLED = str.maketrans({"×": "x", "–": "-", "—": "-", "→": "to", "≤": "<=", "≥": ">=", "⚠": "!"})


@cache
def _font(pixels: float) -> ImageFont.FreeTypeFont:
    font = ImageFont.load_default(pixels)
    assert isinstance(font, ImageFont.FreeTypeFont), "Pillow without FreeType cannot draw text at a size"
    return font.font_variant(layout_engine=ImageFont.Layout.BASIC)  # the other engine is not on every machine


@cache
def _drawable(text: str) -> str:
    """The text in characters that the font has: accents fall off, the unknown becomes a question mark."""
    plain = unicodedata.normalize("NFKD", text.translate(_SPELLED))
    return "".join(c if c.isascii() or c in "·…’" else "?" for c in plain if not unicodedata.combining(c))


class Paper:
    """A sheet measured in CSS px, with `scale` pixels to each."""

    def __init__(self, width: float, height: float, scale: float = 2):
        self.width, self.height, self.scale = width, height, scale
        self.image = Image.new("RGB", (round(width * scale), round(height * scale)), LIGHT["paper"])
        self.pen = ImageDraw.Draw(self.image)
        self._inks = {_ink("paper"), _ink("rule")}

    def text(
        self, x: float, y: float, text: str, size: float = 12, ink: str = "text", anchor: str = "ls", bold: bool = False
    ) -> float:
        """Put text with its baseline at y; returns its width. ink: a name of the theme's, or a colour."""
        # on whole pixels equal letters are equal pixels, which the PNG packs better
        place, stroke = (round(x * self.scale), round(y * self.scale)), self.scale / 4 if bold else 0
        self.pen.text(place, _drawable(text), self._ink(ink), _font(size * self.scale), anchor, stroke_width=stroke)
        return self.measure(text, size)

    def measure(self, text: str, size: float = 12) -> float:
        """Width of a text in px."""
        return _font(size * self.scale).getlength(_drawable(text)) / self.scale

    def fit(self, text: str, size: float, width: float) -> str:
        """The text, cut short with an ellipsis where it is wider."""
        if not text or self.measure(text, size) <= width:
            return text
        shorter = bisect_right(range(len(text)), width, key=lambda n: self.measure(text[:n] + "…", size))
        return text[: max(0, shorter - 1)].rstrip() + "…"

    def rect(self, x: float, y: float, w: float, h: float, ink: str) -> None:
        """A filled rectangle, at least one pixel wide, so that nothing vanishes."""
        left, top = round(x * self.scale), round(y * self.scale)
        right = max(left, round((x + w) * self.scale) - 1)
        bottom = max(top, round((y + h) * self.scale) - 1)
        self.pen.rectangle((left, top, right, bottom), self._ink(ink))

    def area(self, x: float, bottom: float, heights: np.ndarray, ink: str) -> None:
        """Columns one pixel wide, standing on `bottom`; heights in px."""
        self._columns(x, bottom, heights, np.zeros(len(heights)), ink)

    def steps(self, x: float, bottom: float, heights: np.ndarray, ink: str) -> None:
        """The upper edge of such columns, one px thick, upright where it jumps."""
        before = np.concatenate([heights[:1], heights[:-1]])
        hair = 1 / self.scale
        self._columns(x, bottom, np.maximum(heights, before) + hair, np.minimum(heights, before) - hair, ink)

    def _columns(self, x: float, bottom: float, upper: np.ndarray, lower: np.ndarray, ink: str) -> None:
        foot, left = round(bottom * self.scale), round(x * self.scale)
        high = foot - np.round(upper * self.scale)
        low = foot - np.round(np.maximum(lower, 0) * self.scale)
        rows = np.arange(self.image.height)[:, None]
        mask = Image.fromarray((rows >= high) & (rows < np.maximum(low, high + 1)))
        self.image.paste(Image.new("RGB", mask.size, self._ink(ink)), (left, 0), mask)

    def polygon(self, points: list[tuple[float, float]], ink: str) -> None:
        self.pen.polygon([(x * self.scale, y * self.scale) for x, y in points], self._ink(ink))

    def line(self, points: list[tuple[float, float]], ink: str, width: float = 1) -> None:
        pixels = [(x * self.scale, y * self.scale) for x, y in points]
        self.pen.line(pixels, self._ink(ink), round(width * self.scale), joint="curve")

    def dot(self, x: float, y: float, radius: float, ink: str) -> None:
        """A disc with a rim of paper."""
        box = tuple(round(c * self.scale) for c in (x - radius, y - radius, x + radius, y + radius))
        self.pen.ellipse(box, self._ink(ink), self._ink("paper"), round(self.scale))

    def card(self) -> None:
        """The frame around everything."""
        box = (0, 0, self.image.width - 1, self.image.height - 1)
        self.pen.rounded_rectangle(box, 12 * self.scale, None, LIGHT["rule"], round(self.scale))

    def frame(self, span: Span, height: float, ink: str | None = "edge", fill: str | None = None) -> None:
        """A rectangle, rounded where the thing really begins and ends. None: no outline, no filling."""
        self._rounded(self.pen, span, height, ink and self._ink(ink), fill and self._ink(fill))

    def hatch(
        self, spans: list[Span], height: float, ink: str = "hatch", under: str = "free", falling: bool = False
    ) -> None:
        """Fill rectangles with diagonal lines; falling: the other way, and heavier."""
        if not spans:
            return
        mask = Image.new("1", self.image.size)
        pen = ImageDraw.Draw(mask)
        for span in spans:
            self._rounded(pen, span, height, None, 1)
        tile, weight = round(6 * self.scale), max(1, round(self.scale * (1.6 if falling else 0.8)))
        rows, columns = np.indices((tile, self.image.width))
        stripe = (columns - rows if falling else columns + rows) % tile < weight
        colors = np.where(stripe[..., None], _rgb(self._ink(ink)), _rgb(self._ink(under))).astype("u1")
        whole = np.tile(colors, (-(-self.image.height // tile), 1, 1))[: self.image.height]
        self.image.paste(Image.fromarray(whole), mask=mask)

    def paste(self, other: Paper, x: float, y: float, radius: float = 4) -> None:
        """Put a smaller sheet of the same scale here, with its corners rounded."""
        size = other.image.size
        mask = Image.new("1", size)
        ImageDraw.Draw(mask).rounded_rectangle((0, 0, size[0] - 1, size[1] - 1), radius * self.scale, 1)
        self.image.paste(other.image, (round(x * self.scale), round(y * self.scale)), mask)
        self._inks |= other._inks

    def empty(self, x: float, y: float, ink: str = "muted") -> None:
        """The sign of the empty set, which the font lacks, around this point."""
        k, color = self.scale, self._ink(ink)
        self.pen.ellipse([round(c * k) for c in (x - 3, y - 3, x + 3, y + 3)], None, color, round(k))
        self.pen.line([round(c * k) for c in (x - 3.5, y + 4.5, x + 3.5, y - 4.5)], color, round(k))

    def dashes(self, span: Span, height: float) -> None:
        """A dashed outline."""
        hair = 1 / self.scale
        for x in np.arange(span.x, span.x + span.w - hair, 6).tolist():
            for y in (span.y, span.y + height - hair):
                self.rect(x, y, min(3, span.x + span.w - x), hair, "dash")
        for y in np.arange(span.y, span.y + height - 2, 6).tolist():
            for x in (span.x, span.x + span.w - hair):
                self.rect(x, y, hair, 3, "dash")

    def _rounded(
        self, pen: ImageDraw.ImageDraw, span: Span, height: float, outline: str | None, fill: str | int | None
    ) -> None:
        k = self.scale
        x, y = span.x * k, span.y * k
        box = (x, y, max(x, (span.x + max(span.w, 1)) * k - 1), max(y, (span.y + height) * k - 1))
        corners = (span.first, span.last, span.last, span.first)
        if min(box[2] - x, box[3] - y) < 4:  # too small to be round; pillow fails where some corners are not
            pen.rectangle(box, fill, outline, 1)
        else:
            pen.rounded_rectangle(box, min(4, span.w / 2) * k, fill, outline, 1, corners=corners)

    def png(self, soon: bool = False) -> bytes:
        """The picture as a PNG of its inks and the most frequent shades between them; all else goes to the nearest.

        soon: in a quarter of the time, and a tenth larger."""
        red, green, blue = np.moveaxis(np.asarray(self.image).astype("u4"), 2, 0)
        code = (red >> 3) << 11 | (green >> 2) << 5 | blue >> 3
        count = np.bincount(code.ravel(), minlength=1 << 16)
        used = np.flatnonzero(count)
        inks = np.array([_rgb(color) for color in sorted(self._inks)], "i4")
        shades = _spread(used[np.argsort(-count[used], kind="stable")])
        shades = shades[_distance(shades, inks).min(1) > 300][:_SHADES]
        palette = np.concatenate([inks, shades])
        nearest = np.zeros(1 << 16, "u1")
        nearest[used] = _distance(_spread(used), palette).argmin(1)
        few = Image.fromarray(nearest[code])
        few.putpalette(palette.astype("u1").tobytes())
        out = io.BytesIO()
        few.save(out, "PNG", compress_level=7 if soon else 9)
        return out.getvalue()

    def _ink(self, name: str) -> str:
        self._inks.add(color := _ink(name))
        return color


def mix(color: str, share: float, paper: str = "paper") -> str:
    """A colour thinned with paper."""
    mixed = (round(share * c + (1 - share) * p) for c, p in zip(_rgb(color), _rgb(_ink(paper)), strict=True))
    return "#" + "".join(f"{c:02x}" for c in mixed)


def _ink(name: str) -> str:
    return str(LIGHT.get(name, name))


def _rgb(color: str) -> list[int]:
    return [int(color[k : k + 2], 16) for k in (1, 3, 5)]


def _spread(code: np.ndarray) -> np.ndarray:
    """5-6-5 bits back to red, green and blue of 0 to 255."""
    return np.stack([(code >> 11) * 255 // 31, (code >> 5 & 63) * 255 // 63, (code & 31) * 255 // 31], -1).astype("i4")


def _distance(colors: np.ndarray, palette: np.ndarray) -> np.ndarray:
    return ((colors[:, None] - palette[None]) ** 2).sum(-1)
