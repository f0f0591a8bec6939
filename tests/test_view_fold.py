"""What never changes is folded into one bar, and the timeline's scale starts where something happens."""

import io
import json
import re
import struct

import numpy as np
import pytest
from PIL import Image

from kvviz.errors import ViewError
from kvviz.memory.trace import Action, Events, Trace
from kvviz.view import block_map, poster, theme, timeline
from kvviz.view.base import base_of
from kvviz.view.layout import FOLD_HEIGHT
from kvviz.view.scene import Scene
from tests.player.traces import BASE, MIB, SlowMemory, random_trace, settled

SEEDS = (1, 2, 4, 11, 13, 20, 22, 23, 26, 29, 37, 41)
HEAD = "5 segments that never change"


def meta_of(view):
    """What the player is told beside its columns."""
    (length,) = struct.unpack("<I", view.data[:4])
    return json.loads(view.data[4 : 4 + length])["meta"]


def picture(view):
    return np.asarray(Image.open(io.BytesIO(view.png)).convert("RGB"))


def count(pixels, color):
    return int((pixels == [int(color[k : k + 2], 16) for k in (1, 3, 5)]).all(-1).sum())


# -- what is folded --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_still_is_what_a_slow_look_at_every_state_calls_so(seed):
    trace, history = random_trace(seed, steps=6)
    scene = Scene(trace)
    ends = [(int(s), int(o) * scene.unit) for s, o in zip(scene.axis.starts, scene.axis.offsets, strict=True)]

    def real(place):  # bytes on the axis to an address
        start, offset = max((e for e in ends if e[1] <= place), key=lambda e: e[1])
        return start + place - offset

    def within(low, high, moment):
        ranges = sorted((max(low, a), min(high, a + s)) for a, s in moment.ranges if a < high and a + s > low)
        blocks = {block for block in moment.blocks if block[0] < high and block[0] + block[1] > low}
        return ranges, blocks

    expected = []
    cuts = (scene.axis.cuts * scene.unit).tolist()
    for a, b in zip(cuts, cuts[1:], strict=False):
        low, high = real(a), real(a) + b - a
        seen = [within(low, high, moment) for moment in history]
        expected.append(all(s == seen[0] for s in seen) and sum(e - s for s, e in seen[0][0]) == b - a)
    found = scene.fold.pieces.tolist() if scene.fold else [False] * len(expected)
    assert found == expected
    if scene.fold:
        inside = {b for k, (a, e) in enumerate(zip(cuts, cuts[1:], strict=False)) if expected[k]
                  for b in within(real(a), real(a) + e - a, history[0])[1]}  # fmt: skip
        held = {}
        for _, size, _, owner, _ in inside:
            held[owner] = held.get(owner, 0) + size
        shares = dict(scene.fold.shares)
        assert sum(shares.values()) == scene.fold.size == sum(np.diff(cuts)[expected])
        assert shares.pop(-1, 0) == scene.fold.size - sum(held.values()) and shares == held


def test_the_random_traces_do_have_something_still():
    found = [Scene(random_trace(seed, steps=6)[0]).fold for seed in SEEDS]
    assert sum(fold is not None for fold in found) >= 8


def test_only_segments_in_which_nothing_happens():
    fold = Scene(settled()).fold
    assert fold.pieces.tolist() == [True] * 5 + [False] * 4 and fold.head == HEAD
    assert fold.size == 100 * MIB and fold.shares == [(1, 88 * MIB), (3, 7 * MIB), (-1, 5 * MIB)]


def test_what_is_inactive_comes_last_unless_it_is_the_most():
    assert Scene(settled(9)).fold.shares == [(1, 164 * MIB), (3, 7 * MIB), (-1, 9 * MIB)]
    memory = SlowMemory()
    for k in range(2):
        memory.reserve(BASE + k * 20 * MIB, 20 * MIB)
    memory.alloc(BASE, 2 * MIB, 2 * MIB)
    memory.begin()
    memory.alloc(BASE + 20 * MIB, 2 * MIB, 2 * MIB)
    assert Scene(memory.trace()).fold.shares == [(-1, 18 * MIB), (0, 2 * MIB)]


def test_a_block_that_waits_at_the_end_is_not_still():
    memory = SlowMemory()
    for k in range(2):
        memory.reserve(BASE + k * 20 * MIB, 20 * MIB)
        memory.alloc(BASE + k * 20 * MIB, 9 * MIB, 9 * MIB)
    memory.begin()
    memory.free(BASE, completes=False)
    assert Scene(memory.trace()).fold.pieces.tolist() == [False, True]


def test_folds_by_itself_above_a_third():
    for still, folds in ((1, False), (2, True), (9, True)):  # beside them 60 MiB and the cache's 2
        assert Scene(settled(still)).folded is (still * 20 * 3 > still * 20 + 62) is folds
    assert not Scene(settled(9), fold=False).folded and Scene(settled(1), fold=True).folded


def test_without_events_or_without_anything_still_nothing_is_folded():
    still = SlowMemory()
    still.reserve(BASE, 20 * MIB)
    still.alloc(BASE, 19 * MIB, 19 * MIB, owner=1)
    still.begin()
    for trace in (still.trace(owners=["other", "weights"]), Trace(Events.of(0)), settled(0)):
        assert Scene(trace, fold=True).fold is None and not Scene(trace, fold=True).folded
        assert block_map(trace).png == block_map(trace, fold=True).png


def test_what_is_still_all_over_is_folded_only_on_demand():
    elsewhere = Events.of(
        2, device=[1, 1], action=[Action.SEGMENT_ALLOC, Action.ALLOC], address=[BASE] * 2, size=[512] * 2
    )
    trace = Trace(elsewhere, entry={0: settled().entry[0]}, owners=settled().owners)
    assert Scene(trace).fold.everything and not Scene(trace).folded
    assert Scene(trace, fold=True).flow(800).height == FOLD_HEIGHT
    for renderer in ("player", "plotly"):
        assert "8 segments that never change" in block_map(trace, fold=True, renderer=renderer).words


def test_refuses_other_wishes():
    with pytest.raises(ViewError, match="fold must be True, False or None, not 'yes'"):
        block_map(settled(), fold="yes")


# -- how it is shown -------------------------------------------------------------------------------------------------


def test_the_still_picture_shows_the_bar_and_gives_the_rest_its_room():
    trace = settled()
    color = {o.name: o.color for o in theme.owners(trace.owners)}
    folded, full = (picture(block_map(trace, fold=fold)) for fold in (True, False))
    assert (picture(block_map(trace)) == folded).all(), "more than a third, so folded by itself"
    assert count(folded, color["KV cache"]) > 3 * count(full, color["KV cache"])
    scale = folded.shape[1] / poster.WIDTH
    bar = folded[round((poster.TOP + 2) * scale) : round((poster.TOP + FOLD_HEIGHT - 2) * scale)]
    width, height = poster.INNER * scale, bar.shape[0]
    for name, share in (("weights", 0.88), ("index", 0.07)):
        covered = count(bar, color[name]) / width / height
        assert share - 0.15 < covered < share + 0.02, f"{name}: {covered:.3f}"  # the label covers some of the first
    assert count(bar, theme.LIGHT["hatch"]) == 0


def test_words_tell_what_is_folded():
    view = block_map(settled())
    told = f"{HEAD} (weights 88 MiB, index 7 MiB, inactive 5 MiB) folded into one bar, on another scale than the rest"
    assert told in view.words and told in view.html
    meta = meta_of(view)
    assert meta["fold"]["labels"][0] == f"weights, index · {HEAD} · 100 MiB"
    assert "on another" in meta["fold"]["subtitle"] and "folded" not in meta["subtitle"]
    whole = block_map(settled(), fold=False)
    assert HEAD not in whole.words and meta_of(whole)["fold"] == {**meta["fold"], "folded": False}
    assert "fold" not in meta_of(block_map(settled(0))) and "fold" not in meta_of(timeline(settled()))


def test_plotly_shows_the_bar():
    trace = settled()
    figure = block_map(trace, renderer="plotly").figure
    bar = [b for b in figure.data if list(b.y) == [-1]]
    assert [b.name for b in bar] == ["weights", "index", "cached, inactive"]
    assert [round(b.x[0] / 10) for b in bar] == [88, 7, 5] and HEAD in bar[0].text[0]
    assert bar[1].customdata[0] == f"7 MiB in {HEAD}"
    touched = {k for frame in figure.frames for k in frame.traces}
    assert not any(figure.data[k] in bar for k in touched)
    assert all(list(b.y) != [-1] for b in block_map(trace, renderer="plotly", fold=False).figure.data)


def test_folding_is_the_same_bytes_every_time():
    assert block_map(settled()).html == block_map(settled()).html


# -- the timeline's scale --------------------------------------------------------------------------------------------


def test_the_scale_starts_late_only_where_most_never_changes():
    assert base_of(513 * MIB, 513 * MIB, 560 * MIB) == (510 * MIB, "510 MiB")
    assert base_of(280 * MIB, 280 * MIB, 560 * MIB) == (0, ""), "half is not more than half"
    assert base_of(100, 100, 100) == (0, ""), "nothing moves"
    assert base_of(600, 0, 900) == (0, ""), "a curve at zero is shown"
    assert base_of(int(13.9 * 1024**3), int(13.9 * 1024**3), 14 * 1024**3)[1] == "13.89 GiB"


@pytest.mark.parametrize("seed", range(200))
def test_the_scale_starts_just_below_the_lowest(seed):
    rng = np.random.default_rng(seed)
    highest = int(2 ** rng.uniform(8, 44))
    lowest = int(highest * (1 - 0.49 * rng.random() ** 4)) - 1
    base, text = base_of(lowest, lowest, highest)
    if not base:
        assert highest - lowest < 4 or lowest < 0.2 * (highest - lowest)
        return
    assert 0 < base <= lowest and lowest - base <= 0.2 * (highest - lowest) + 1
    number, unit = text.replace(",", "").split()
    size = float(number) * 1024 ** ("B", "KiB", "MiB", "GiB", "TiB").index(unit)
    assert abs(size - base) <= 1 + base * 1e-9, "what is written is where it starts"


def test_still_pictures_start_the_scale_there():
    trace = settled()
    curves, base = trace.curves(), Scene(trace).base
    assert base.size > 100 * MIB and base.size <= curves.allocated.min()
    view = timeline(trace, start=len(trace))
    pixels = picture(view)
    scale = pixels.shape[1] / poster.WIDTH
    foot = round((poster.TOP + 24 + poster.PLOT_TOP + poster.PLOT_HEIGHT) * scale)
    inks = [theme.LIGHT[name] for name in ("front", "line")]
    for event in (len(trace) // 2, len(trace) // 2 + 1, len(trace) // 2 + 2, len(trace) // 2 + 3):
        column = round((poster.PAD + (event + 0.5) / (len(trace) + 1) * poster.INNER) * scale)
        drawn = sum(count(pixels[:foot, column : column + 1], ink) for ink in inks) / scale
        height = (curves.allocated[event] - base.size) / (curves.reserved.max() - base.size) * poster.PLOT_HEIGHT
        assert drawn == pytest.approx(height, abs=2)
    assert f"scale starts at {base.text}" in view.words and base.text in view.html
    flat = timeline(random_trace(0)[0])
    assert "scale starts" not in flat.words and meta_of(flat)["base"] == [0, ""]


def test_plotly_starts_its_axis_there():
    trace = settled()
    view = timeline(trace, renderer="plotly")
    low, high = view.figure.layout.yaxis.range
    assert low == Scene(trace).base.size / MIB and high > trace.peak_reserved / MIB
    assert re.fullmatch(r"MiB, axis from [\d.]+", view.figure.layout.yaxis.title.text)
    assert timeline(random_trace(0)[0], renderer="plotly").figure.layout.yaxis.range is None
