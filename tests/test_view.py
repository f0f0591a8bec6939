"""Pictures as values: what a notebook, a file and a reader without scripts get; what is refused."""

import base64
import io
import json
import random
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import kvviz.view
from kvviz.errors import InconsistentTrace, KvvizError, ViewError
from kvviz.memory.trace import Events, Mark, Trace
from kvviz.view import View, block_map, charts, theme, timeline
from kvviz.view.bundle import player_source
from kvviz.view.html import PLOTLY_MIME
from kvviz.view.layout import Span
from kvviz.view.paper import Paper
from kvviz.view.scene import Scene, format_bytes
from tests.player.traces import BASE, MIB, SlowMemory, random_trace, showcase


@pytest.fixture(scope="module")
def trace():
    return showcase()


@pytest.mark.parametrize("make", [block_map, timeline])
@pytest.mark.parametrize("renderer", ["auto", "plotly"])
def test_the_same_trace_gives_the_same_bytes(make, renderer):
    one, other = (make(showcase(), renderer=renderer)._repr_mimebundle_() for _ in range(2))
    assert one == other


@pytest.mark.parametrize("make", [block_map, timeline])
def test_a_player_brings_its_still_and_fetches_nothing(make, trace):
    view = make(trace)
    bundle = view._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html", "image/png"}
    picture = Image.open(io.BytesIO(base64.b64decode(bundle["image/png"])))
    assert picture.width > 1500
    assert bundle["image/png"] in bundle["text/html"], "the still stands in the element that the player takes over"
    assert 'class="kvviz-player"' in view.html and trace.origin in view.html
    assert not re.findall("https?://", view.html)
    assert set(re.findall(r"https?://[^\"'` )]*", player_source(view.kind))) == {
        "http://www.w3.org/2000/svg"
    }  # a name, not an address
    assert repr(view) == bundle["text/plain"] and "0x" not in repr(view)


def test_a_still_names_the_largest_of_very_many_owners(monkeypatch):
    trace, _ = random_trace(7, 3_000)
    names = [f"layer {k}" for k in range(len(trace))]
    many = replace(trace, events=replace(trace.events, owner=np.arange(len(trace))), owners=names)
    written = []
    text = Paper.text
    monkeypatch.setattr(Paper, "text", lambda self, x, y, word, *a, **k: written.append(word) or text(self, x, y, word, *a, **k))
    picture = Image.open(io.BytesIO(block_map(many).png))
    shown = Scene(many, 0, None).shown_owners
    assert len(shown) > 200 and f"and {len(shown) - 24:,} owners more" in written
    assert picture.height < 1.3 * Image.open(io.BytesIO(block_map(trace).png)).height


def test_include_and_exclude_choose_forms(trace):
    assert set(block_map(trace)._repr_mimebundle_(include={"image/png"})) == {"image/png"}
    assert set(block_map(trace)._repr_mimebundle_(exclude=["text/html"])) == {"text/plain", "image/png"}


@pytest.mark.parametrize("make", [block_map, timeline])
def test_the_still_fits_a_notebook(make, trace):
    assert len(make(trace).png) <= 40_000
    for seed in range(3):
        assert len(make(random_trace(seed, 900)[0]).png) <= 40_000


def test_the_still_shows_every_owner_that_lives():
    trace = showcase()
    state = trace.at(len(trace))
    pixels = np.asarray(Image.open(io.BytesIO(block_map(trace, start=len(trace)).png)).convert("RGB"))
    for owner in np.unique(state.blocks["owner"][state.blocks["owner"] >= 0]):
        color = theme.owners(trace.owners)[owner].color
        wanted = [int(color[k : k + 2], 16) for k in (1, 3, 5)]
        assert (pixels == wanted).all(-1).any(), f"owner {trace.owners[owner]} is nowhere, not even as a hairline"


def test_opens_at_the_peak_or_where_told(trace):
    allocated = format_bytes(trace.peak_allocated)
    assert f"after event {trace.peak_event + 1} of {len(trace)}" in repr(block_map(trace)) and allocated in repr(
        block_map(trace)
    )
    for start in (0, 7, len(trace), np.int64(3)):
        assert f"after event {start} of" in repr(block_map(trace, start=start))
        assert format_bytes(trace.at(int(start)).reserved) in repr(timeline(trace, start=start))


def test_refusals_say_what_is_known(trace):
    for make in (block_map, timeline):
        for wrong, told in (
            ({"renderer": "svg"}, "unknown renderer 'svg'; known: auto, player, plotly"),
            ({"theme": "blue"}, "unknown theme 'blue'; known: auto, light, dark"),
            ({"device": 3}, "no device 3 in this trace; it has 0"),
            ({"start": len(trace) + 1}, f"start {len(trace) + 1} is outside this trace's events, 0 … {len(trace)}"),
            ({"start": -1}, f"start -1 is outside this trace's events, 0 … {len(trace)}"),
            ({"start": 1.5}, "start must be a number of events, not 1.5"),
            ({"start": True}, "start must be a number of events, not True"),
        ):
            with pytest.raises(ViewError) as caught:
                make(trace, **wrong)
            assert str(caught.value) == told and isinstance(caught.value, (KvvizError, ValueError))


def test_contradictions_are_not_drawn():
    outside = SlowMemory()
    outside.reserve(BASE, 2 * MIB)
    outside.alloc(BASE + 2 * MIB, 512, 512)
    twice = SlowMemory()
    twice.reserve(BASE, 2 * MIB)
    twice.alloc(BASE, 1024, 1024)
    twice.alloc(BASE, 512, 512)
    overlap = SlowMemory()
    overlap.reserve(BASE, 2 * MIB)
    overlap.alloc(BASE, 1024, 1024)
    overlap.alloc(BASE + 512, 1024, 1024)
    twice.free(BASE)
    for memory in (outside, twice, overlap):
        for start in (0, None, len(memory.rows)):  # also where the contradiction is not in the opening state
            with pytest.raises(InconsistentTrace, match="inconsistent"):
                block_map(memory.trace(), start=start)
        for renderer in ("player", "plotly"):
            assert isinstance(timeline(memory.trace(), renderer=renderer), View)  # its totals are still totals


@pytest.mark.parametrize("make", [block_map, timeline])
@pytest.mark.parametrize("renderer", ["player", "plotly"])
def test_nothing_at_all_draws(make, renderer):
    view = make(Trace(Events.of(0)), renderer=renderer)
    assert "after event 0 of 0" in repr(view) and view.png


def test_hostile_names_stay_text(tmp_path):
    bad = "</script><script>alert(1)</script>"
    trace = replace(showcase(), owners=["other", bad, "b", "c", "d"], origin=bad, warnings=[bad], marks=[Mark(3, bad)])
    for view in (block_map(trace, title=bad), timeline(trace, title=bad)):
        assert "<script>alert" not in view.html
        page = view.save_html(tmp_path / "page.html").read_text(encoding="utf-8")
        assert "<script>alert" not in page
        assert "<title>&lt;/script&gt;&lt;script&gt;alert(1)&lt;/script&gt;</title>" in page


def test_save_html_gives_a_whole_page(trace, tmp_path):
    for view in (block_map(trace), block_map(trace, renderer="plotly"), charts.bars(["a"], {"b": [1]}, "T", "x", "y")):
        page = view.save_html(tmp_path / "page.html").read_text(encoding="utf-8")
        assert page.startswith("<!doctype html>") and f"<title>{view.title}</title>" in page
        assert not re.search(r"<(script|link|img)[^>]+(src|href)=[\"']https?:", page)


# -- plotly ----------------------------------------------------------------------------------------------------------


def test_a_file_that_cannot_be_written_is_said_in_one_line(trace, tmp_path):
    (tmp_path / "file").touch()
    cases = (
        ("missing/page.html", "No such file"),
        (".", "Is a directory"),
        ("file/page.html", "Not a directory"),
        ("a\0b", "null"),
    )
    for bad, why in cases:
        with pytest.raises(ViewError, match=f"cannot be written to {re.escape(str(tmp_path / bad))}: .*{why}") as told:
            timeline(trace).save_html(tmp_path / bad)
        assert "\n" not in str(told.value)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_plotly_objects_come_with_a_still(trace):
    for view in (block_map(trace, renderer="plotly"), timeline(trace, renderer="plotly")):
        bundle = view._repr_mimebundle_()
        # with image/png beside it JupyterLab's plotly shows that, far too large, until a mouse comes by
        assert set(bundle) == {"text/plain", "text/html", PLOTLY_MIME}
        assert base64.b64encode(view.png).decode() in bundle["text/html"] and "<script" not in bundle["text/html"]
        assert "bdata" not in json.dumps(bundle[PLOTLY_MIME]), "packed arrays are unknown to older plotly readers"
        assert trace.origin in json.dumps(bundle[PLOTLY_MIME])


def test_in_colab_plotly_comes_as_html(trace, monkeypatch):
    monkeypatch.setitem(sys.modules, "google.colab", object())
    bundle = block_map(trace, renderer="plotly")._repr_mimebundle_()
    assert PLOTLY_MIME not in bundle and "cdn" in bundle["text/html"]
    assert "kvviz-player" in block_map(trace)._repr_mimebundle_()["text/html"], "the player needs no other form"


@pytest.mark.parametrize("seed", [2, 5])
def test_plotly_map_steps_are_true_states(seed):
    trace, history = random_trace(seed, 700)
    figure = block_map(trace, renderer="plotly").figure
    assert len(figure.frames) == len(figure.layout.sliders[0].steps) <= 100
    static = [bar for bar in figure.data if not bar.showlegend]
    wide = kvviz.view.layout.flow(kvviz.view.scene.Scene(trace).axis.cuts, 512, 1000)
    for frame, step in zip(figure.frames, figure.layout.sliders[0].steps, strict=True):
        truth = history[int(frame.name)]
        assert format_bytes(truth.reserved) in step.label and format_bytes(truth.allocated) in step.label
        drawn = sum(sum(bar.x) for bar in [*frame.data[1:], *static])
        expected = truth.active / 512 * wide.scale
        assert abs(drawn - expected) <= 0.55 * (len(truth.blocks) + 30) and (drawn > 0) == (truth.active > 0)
    assert int(figure.frames[figure.layout.sliders[0].active].name) == trace.peak_event + 1


def test_plotly_timeline_keeps_extremes():
    trace, _ = random_trace(1, 3000)
    figure = timeline(trace, renderer="plotly").figure
    unit = {"MiB": 2**20, "GiB": 2**30}[figure.layout.yaxis.title.text]
    for line in figure.data:
        values = getattr(trace.curves(), line.name) / unit
        assert len(line.x) <= 2000 < len(values)
        assert max(line.y) == pytest.approx(max(values), rel=1e-6) and min(line.y) == pytest.approx(
            min(values), abs=1e-6
        )
        assert all(line.y[k] == pytest.approx(values[x], rel=1e-6) for k, x in enumerate(line.x))


def test_thin_keeps_one_needle_in_a_million():
    values = np.zeros(1_000_000)
    values[654_321], values[111_500] = 5, -7
    kept = charts.thin(values, 2000)
    assert len(kept) <= 2000 and {0, 999_999, 654_321, 111_500} <= set(kept.tolist())
    assert (np.diff(kept) > 0).all()


def test_charts_scale_bytes_and_label_units():
    view = charts.lines(
        [1, 2, 4], {"paged": [MIB, 3 * MIB, 2 * MIB], "grown": [0, 0, MIB]}, "T", "tokens", "held", note="n"
    )
    assert list(view.figure.data[0].y) == [1, 3, 2] and view.figure.layout.yaxis.title.text == "held (MiB)"
    assert "paged from 1 to 3 MiB" in repr(view)
    view = charts.bars(["16", "32"], {"used": [3, 4], "wasted": [1, 2]}, "T", "page size", "share", unit="%")
    assert [bar.name for bar in view.figure.data] == ["used", "wasted"] and view.figure.layout.barmode == "stack"
    assert view.figure.layout.yaxis.title.text == "share (%)"
    for shown in (view, charts.lines([], {"a": []}, "T", "x", "y"), charts.bars([], {}, "T", "x", "y")):
        assert Image.open(io.BytesIO(shown.png)).width == 1800


def test_charts_refuse_unequal_lengths():
    with pytest.raises(ViewError, match="'b' has shape"):
        charts.lines([1, 2], {"a": [1, 2], "b": [1]}, "T", "x", "y")
    with pytest.raises(ViewError, match="'a' has shape"):
        charts.bars(["x"], {"a": [1, 2]}, "T", "x", "y")


# -- colours ---------------------------------------------------------------------------------------------------------


def test_text_is_readable_on_everything_it_stands_on():
    for owner in theme.owners([str(k) for k in range(9)]):
        assert theme.contrast(owner.ink, owner.color) >= 4.5
    for inks in (theme.LIGHT, theme.DARK):
        for ink in ("text", "muted"):
            for paper in ("paper", "panel"):
                assert theme.contrast(inks[ink], inks[paper]) >= 4.5
        for ink in ("text", "focus", "edge"):  # what outlines a thing
            assert theme.contrast(inks[ink], inks["paper"]) >= (3 if ink != "edge" else 2)


def test_every_owner_has_a_letter_of_its_own():
    names = ["other", "KV cache", "keys", "kernel", "", "日本", *(f"o{k}" for k in range(80))]
    looks = theme.owners(names)
    assert len({o.letter for o in looks}) == len(names)
    assert looks[1].letter == "K" and looks[2].letter == "E"
    assert len({o.color for o in looks[:8]}) == 8


def test_pictures_know_nothing_of_torch():
    for file in Path(kvviz.view.__file__).parent.glob("*.py"):
        assert not re.search(r"^\s*(import|from) torch", file.read_text(encoding="utf-8"), re.MULTILINE), file


@pytest.mark.parametrize("scale", [0.5, 0.75, 1, 1.3, 2])
def test_the_smallest_pieces_can_be_drawn(scale):
    """A piece less than a pixel wide, of which only some corners are round."""
    paper = Paper(100, 100, scale)
    for width in (0.1, 0.5, 1, 1.5, 2, 3):
        for x in (10, 10.25, 10.5, 10.8):
            for first in (False, True):
                for height in (1, 4, 20):
                    paper.frame(Span(x, 10, width, first, not first), height, "text")
    assert np.asarray(paper.image).std() > 0


def test_a_text_is_cut_where_letter_by_letter_would_cut_it():
    def letter_by_letter(paper, text, width):
        whole = text
        while text and paper.measure(text if text is whole else text + "…", 12) > width:
            text = text[:-1]
        return text if text is whole else text.rstrip() + "…"

    paper, chance = Paper(1, 1), random.Random(3)
    for _ in range(300):
        text = "".join(chance.choices("AVTWiljm .,é…×̈ﬁ漢-—", k=chance.randrange(40)))
        width = chance.uniform(-5, 250)
        assert paper.fit(text, 12, width) == letter_by_letter(paper, text, width)


def test_a_long_title_is_measured_a_few_times(monkeypatch):
    asked, measure = [], Paper.measure
    monkeypatch.setattr(Paper, "measure", lambda self, text, size=12: asked.append(text) or measure(self, text, size))
    assert Paper(1, 1).fit("m" * 5_000, 17, 300).endswith("m…")
    assert len(asked) <= 15
