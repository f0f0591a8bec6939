"""Colours that everyone can tell apart: contrast as WCAG counts it, and owners' colours as colour-blind eyes see them."""

import itertools

import numpy as np
import pytest

from kvviz.view.theme import COLORS, DARK, GREEN, LIGHT, contrast, ink_on, owners, sequence

TEXT, PART = 4.5, 3.0  # WCAG 2.2 AA: text, and what tells the parts of a control or a picture apart
PALETTE = (GREEN, *COLORS)

# how each kind of cone's absence is simulated: Machado, Oliveira and Fernandes 2009, full severity, linear RGB
SIGHT = {
    "normal": np.eye(3),
    "protan": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deutan": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritan": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}


def linear(color):
    channels = np.array([int(color[k : k + 2], 16) / 255 for k in (1, 3, 5)])
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    """CIE L*a*b* of linear RGB, under D65."""
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ np.clip(rgb, 0, 1)
    f = np.array([t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in xyz / (0.9505, 1, 1.089)])
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def difference(one, other):
    """ΔE as CIE defined it in 2000."""
    (l1, a1, b1), (l2, a2, b2) = one, other
    chroma = (np.hypot(a1, b1) + np.hypot(a2, b2)) / 2
    g = 0.5 * (1 - np.sqrt(chroma**7 / (chroma**7 + 25**7)))
    a1, a2 = a1 * (1 + g), a2 * (1 + g)
    c1, c2 = np.hypot(a1, b1), np.hypot(a2, b2)
    h1, h2 = np.degrees(np.arctan2(b1, a1)) % 360, np.degrees(np.arctan2(b2, a2)) % 360
    turn = (h2 - h1 + 180) % 360 - 180 if c1 * c2 else 0
    dh, lm, cm = 2 * np.sqrt(c1 * c2) * np.sin(np.radians(turn / 2)), (l1 + l2) / 2, (c1 + c2) / 2
    hm = (h1 + turn / 2) % 360 if c1 * c2 else h1 + h2
    t = 1 - 0.17 * np.cos(np.radians(hm - 30)) + 0.24 * np.cos(np.radians(2 * hm))
    t += 0.32 * np.cos(np.radians(3 * hm + 6)) - 0.2 * np.cos(np.radians(4 * hm - 63))
    sl = 1 + 0.015 * (lm - 50) ** 2 / np.sqrt(20 + (lm - 50) ** 2)
    sc, sh = 1 + 0.045 * cm, 1 + 0.015 * cm * t
    rt = -2 * np.sqrt(cm**7 / (cm**7 + 25**7)) * np.sin(np.radians(60 * np.exp(-(((hm - 275) / 25) ** 2))))
    parts = (l2 - l1) / sl, (c2 - c1) / sc, dh / sh
    return float(np.sqrt(sum(p**2 for p in parts) + rt * parts[1] * parts[2]))


def test_the_difference_is_cies():
    """Three pairs of the published test data."""
    for one, other, wanted in (
        ((50, 2.6772, -79.7751), (50, 0, -82.7485), 2.0425),
        ((50, 2.49, -0.001), (50, -2.49, 0.0011), 7.2195),
        ((2.0776, 0.0795, -1.135), (0.9033, -0.0636, -0.5514), 0.9082),
    ):
        assert difference(one, other) == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize("sight", SIGHT)
def test_owners_are_told_apart(sight):
    seen = {color: lab(SIGHT[sight] @ linear(color)) for color in PALETTE}
    nearest = min(((difference(seen[a], seen[b]), a, b) for a, b in itertools.combinations(PALETTE, 2)))
    print(sight, nearest)
    assert nearest[0] >= 10, nearest


@pytest.mark.parametrize("inks", [LIGHT, DARK], ids=lambda inks: inks["scheme"])
def test_text_can_be_read(inks):
    for ink in ("text", "muted"):
        for ground in ("paper", "panel", "scrim"):
            assert contrast(inks[ink], inks[ground]) >= TEXT, (ink, ground)
    assert contrast(inks["paper"], inks["text"]) >= TEXT, "a tip is paper on text"


@pytest.mark.parametrize("inks", [LIGHT, DARK], ids=lambda inks: inks["scheme"])
def test_parts_can_be_seen(inks):
    for part in ("focus", "line", "text", "muted"):
        for ground in ("paper", "panel"):
            assert contrast(inks[part], inks[ground]) >= PART, (part, ground)
    for part, ground in (("line", "front"), ("line", "back"), ("text", "front"), ("text", "back")):
        assert contrast(inks[part], inks[ground]) >= PART, (part, ground)


def test_the_ink_on_an_owners_colour_can_be_read():
    looks = owners([f"owner {k}" for k in range(9)]) + [sequence(k) for k in range(9)]
    assert {look.color for look in looks} == set(PALETTE)
    for look in looks:
        assert look.ink == ink_on(look.color) and contrast(look.ink, look.color) >= TEXT, look


def test_each_owner_has_a_letter_of_its_own():
    letters = [look.letter for look in owners(["weights", "weights too", "w", "KV cache", "", "w"] * 9)]
    assert len(set(letters)) == len(letters)
