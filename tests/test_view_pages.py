"""Page maps as values: words and figures, the still picture, plotly, what is refused."""

import base64
import io
import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from kvviz.cache.pagelog import NULL, PageAction, PageLog, PoolInfo
from kvviz.errors import KvvizError, ViewError
from kvviz.view import page_map, theme
from kvviz.view.html import PLOTLY_MIME
from kvviz.view.pagescene import PageScene
from kvviz.view.pagetext import texts
from tests.player.pagelogs import LogWriter, random_log, served, showcase


@pytest.fixture(scope="module")
def log():
    return showcase()


def small(token_bytes=10, **info):
    """8 pages of 4 tokens: A has 7 tokens in 2 pages, B is its fork with 2 more, so shares the first alone."""
    log = PageLog("by hand")
    pool = LogWriter(log, PoolInfo("pool", 8, 4, token_bytes, **info))
    one = pool.begin()
    pool.append(one, 7)
    two = pool.begin(parent=one)
    pool.append(two, 2)
    return log


# -- words and figures -----------------------------------------------------------------------------------------------


def test_figures_by_hand():
    view = page_map(small(), start=len(small()))
    # pages 0 (A and B), 1 (A: 3 of 4), 2 (B: 4 of 4), 3 (B: 1 of 4): 12 slots of 16 in use, 7 + 9 tokens visible
    assert view.words == (
        "State after event 13 of 13: held 320 B, in use 160 B, logical 160 B, page waste 25.0 %; 4 of 8 pages in use by "
        "2 sequences, 1 shared. Numbers from: by hand"
    )
    assert repr(view) == f"<View: Pages · 8 pages × 4 tokens. {view.words}>"


def test_without_tensors_slots_and_tokens_are_counted():
    words = page_map(small(0), start=3).words
    assert (
        "held 32 slots, in use 4 slots, logical 4 tokens, page waste 0.0 %; 1 of 8 pages in use by 1 sequence" in words
    )
    assert "in use 0 slots, logical 0 tokens, page waste –; 0 of 8 pages" in page_map(small(0), start=0).words


def test_a_pool_that_grows_holds_what_is_in_use():
    assert "held 160 B, in use 160 B" in page_map(small(grows=True), start=13).words


def test_a_window_hides_what_came_before():
    log = small(window=3)
    assert "logical 60 B" in page_map(log, start=len(log)).words, "3 tokens of each"


def test_sharing_may_make_logical_more_than_in_use():
    log = PageLog()
    pool = LogWriter(log, PoolInfo("pool", 4, 4, 1))
    one = pool.begin()
    pool.append(one, 4)
    pool.begin(parent=one)
    assert "in use 4 B, logical 8 B, page waste 0.0 %; 1 of 4 pages in use by 2 sequences, 1 shared" in repr(
        page_map(log)
    )


def test_opens_at_the_peak_or_where_told(log):
    scene = PageScene(log)
    used, logical = scene.series[1].values, scene.series[2].values
    best = max(range(len(log) + 1), key=lambda i: (used[i], logical[i], -i))
    assert f"after event {best} of {len(log)}:" in repr(page_map(log)) and scene.peak == best
    for start in (0, 7, len(log), np.int64(3)):
        assert f"after event {start} of" in repr(page_map(log, start=start))


def test_a_cache_with_a_log_will_do(log):
    cache = SimpleNamespace(log=log)
    assert page_map(cache)._repr_mimebundle_() == page_map(log)._repr_mimebundle_()


def test_titles(log):
    assert page_map(log).title == "Pages · 64 pages × 16 tokens"
    assert page_map(random_log(1)).title == "Pages · 2 pools"
    assert page_map(random_log(3), pools="sliding").title == "Pages · 24 pages × 4 tokens"
    assert page_map(log, title="Mine").title == "Mine"
    assert b"64 pages \xc3\x97 16 tokens; window of 96; one colour" in page_map(log, title="Mine").data


def test_running_out_is_a_mark():
    log = small()
    log.mark("prefill")
    log.add(PageAction.REFUSE, 0, tokens=3)
    log.mark("end")
    assert PageScene(log).marks == [(13, "prefill"), (14, "end"), (14, "pool exhausted")]
    for _ in range(5000):
        log.add(PageAction.REFUSE, 0, tokens=3)
    assert len(PageScene(log).marks) <= 203


def test_pools_are_chosen_by_name_or_number():
    log = random_log(1)
    assert PageScene(log).shown == [0, 1] and PageScene(log, pools="sliding").shown == [1]
    assert PageScene(log, pools=0).shown == [0] and PageScene(log, pools=["sliding", 0]).shown == [0, 1]


# -- what a notebook gets --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("renderer", ["auto", "plotly"])
def test_the_same_log_gives_the_same_bytes(renderer):
    one, other = (page_map(showcase(), renderer=renderer)._repr_mimebundle_() for _ in range(2))
    assert one == other


def test_a_player_brings_its_still_and_fetches_nothing(log):
    view = page_map(log)
    bundle = view._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html", "image/png"}
    assert bundle["image/png"] in bundle["text/html"]
    assert 'class="kvviz-player"' in view.html and f'alt="{view.words}"' in view.html
    assert not re.findall("https?://", view.html)


def test_the_still_fits_a_notebook(log):
    for shown in (log, PageLog(), small(), *map(random_log, range(5)), served(10**6, 4096, limit=30_000)):
        assert len(page_map(shown).png) <= 40_000


def test_sizes_of_the_page():
    assert len(page_map(served(10**6, 1024, limit=2000)).html) < 120_000
    long = served(10**6, 1024, limit=200_000)
    assert len(long) >= 200_000 and len(page_map(long).html) < 1_000_000


def test_the_still_shows_whose_a_page_is_and_how_full():
    log = small()
    view = page_map(log, start=len(log))
    picture = Image.open(io.BytesIO(view.png)).convert("RGB")
    scale = picture.width / 1100
    blue, orange = theme.sequence(0), theme.sequence(1)

    def at(page, share, right=40):  # a point of a page, so far from its bottom up, so many px from its left
        pixel = picture.getpixel((round((18 + page * 50 + right) * scale), round((78 + 46 * (1 - share)) * scale)))
        return "#{:02X}{:02X}{:02X}".format(*pixel)

    assert at(1, 0.6) == blue.color and at(1, 0.85) not in (blue.color, orange.color, "#FFFFFF"), "3 of 4 slots"
    assert at(2, 0.6) == orange.color == at(2, 0.85) and at(3, 0.1) == orange.color != at(3, 0.6)
    assert at(4, 0.6) == theme.LIGHT["free"].upper()
    assert at(0, 0.4, 5) == blue.color and at(0, 0.6) == orange.color, "a shared page is split"


def test_the_still_shows_every_sequence(log):
    pixels = np.asarray(Image.open(io.BytesIO(page_map(log).png)).convert("RGB"))
    for number in log.at(PageScene(log).peak).tables:
        color = theme.sequence(number).color
        assert (pixels == [int(color[k : k + 2], 16) for k in (1, 3, 5)]).all(-1).any()


def test_hostile_names_stay_text(tmp_path):
    bad = "</script><script>alert(1)</script>"
    log = PageLog(bad)
    pool = LogWriter(log, PoolInfo(bad, 4, 4))
    log.mark(bad)
    pool.append(pool.begin(), 3)
    view = page_map(log, title=bad, tokens={0: [bad]})
    assert "<script>alert" not in view.html
    assert "<script>alert" not in view.save_html(tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("renderer", ["player", "plotly"])
def test_no_pool_yet(renderer):
    view = page_map(PageLog("nothing"), renderer=renderer)
    assert view.words == "State after event 0 of 0: no pool yet. Numbers from: nothing" and view.png
    with_pool = PageLog()
    with_pool.add_pool(PoolInfo("pool", 4, 16))
    assert "held 64 slots, in use 0 slots" in page_map(with_pool, renderer=renderer).words


# -- plotly ----------------------------------------------------------------------------------------------------------


COLOR = {theme.sequence(k).letter: 1 + k % 7 for k in range(60)}  # whole part of a page's z


@pytest.mark.parametrize("seed", [2, 5])
def test_plotly_steps_are_true_states(seed):
    log = random_log(seed, 120)
    scene = PageScene(log)
    view = page_map(log, renderer="plotly")
    figure = view.figure
    assert len(figure.frames) == len(figure.layout.sliders[0].steps) <= 100 < len(log)
    for frame, step in zip(figure.frames, figure.layout.sliders[0].steps, strict=True):
        i = int(frame.name)
        for name, text in scene.figures(i):
            assert f"{name} {text}" in step.label
        for k, heat in enumerate(frame.data):
            z = np.array([cell for row in heat.z for cell in row if cell is not None])
            truth = log.at(i, k)
            assert len(z) == len(truth.references) and ((z >= 1) == (truth.references > 0)).all()
            tips = [tip for row in heat.customdata for tip in row if tip is not None]
            for page, tip in enumerate(tips):
                holders = [theme.sequence(n).letter for n, table in sorted(truth.tables.items()) if page in table]
                assert all(letter in tip for letter in holders) and ("free" in tip) == (not holders)
                assert int(z[page]) == (0 if not holders else COLOR[holders[0]] if len(holders) == 1 else 8)
                full = (truth.high[page] - truth.low[page]) / truth.pool.page_size
                assert z[page] - int(z[page]) == pytest.approx(0.98 * full, abs=0.006)
    assert int(figure.frames[figure.layout.sliders[0].active].name) == scene.peak
    bundle = view._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html", PLOTLY_MIME}
    assert "bdata" not in json.dumps(bundle[PLOTLY_MIME]) and log.origin in json.dumps(bundle[PLOTLY_MIME])
    assert base64.b64encode(view.png).decode() in bundle["text/html"]


# -- the tokens' text ------------------------------------------------------------------------------------------------


class Tensor:
    """As much of a tensor as is asked for."""

    def __init__(self, rows):
        self.rows, self.shape = rows, np.array(rows).shape

    def tolist(self):
        return self.rows


class Bytewise:
    def decode(self, ids):
        return {1: " the", 2: "cat", 3: ""}[ids[0]]

    def convert_ids_to_tokens(self, ids):
        return [{1: "Ġthe", 2: "cat", 3: "<s>"}[ids[0]]]


class Sentencewise(Bytewise):
    def decode(self, ids):
        return {1: "the", 2: "cat", 3: ""}[ids[0]]

    def convert_ids_to_tokens(self, ids):
        return [{1: "▁the", 2: "cat", 3: "<s>"}[ids[0]]]


def test_texts_of_tokens():
    read = {0: ["<s>", " the", "cat"], 1: ["cat", "cat", " the"]}
    rows = [[3, 1, 2], [2, 2, 1]]
    for tokenizer in (
        Bytewise(),
        Sentencewise(),
        SimpleNamespace(convert_ids_to_tokens=Bytewise().convert_ids_to_tokens),
    ):
        for tokens in (Tensor(rows), np.array(rows), dict(enumerate(rows)), dict(enumerate(np.array(rows)))):
            assert texts(tokens, tokenizer) == read
    assert texts(Tensor([[1]]), SimpleNamespace(decode=Bytewise().decode)) == {0: [" the"]}
    assert texts({3: ["a", "b"]}) == {3: ["a", "b"]} and texts(None) == {}


def test_texts_reach_the_player_once_each(log):
    view = page_map(log, tokens={0: ["again"] * 75, 2: ["and", "again"]})
    head = json.loads(view.data[4 : 4 + int.from_bytes(view.data[:4], "little")])["meta"]
    assert head["vocabulary"] == ["again", "and"] and head["texts"] == [[0, 75], [2, 2]]


# -- what is refused -------------------------------------------------------------------------------------------------


def test_refusals_say_what_is_known(log):
    ids = np.array([[1, 2]])
    for wrong, told in (
        ({"renderer": "svg"}, "unknown renderer 'svg'; known: auto, player, plotly"),
        ({"theme": "blue"}, "unknown theme 'blue'; known: auto, light, dark"),
        ({"start": len(log) + 1}, f"start {len(log) + 1} is outside this log's events, 0 … {len(log)}"),
        ({"start": -1}, f"start -1 is outside this log's events, 0 … {len(log)}"),
        ({"start": 1.5}, "start must be a number of events, not 1.5"),
        ({"start": True}, "start must be a number of events, not True"),
        ({"pools": "sliding"}, "no pool 'sliding' in this log; it has 0 (pool)"),
        ({"pools": [0, 1]}, "no pool 1 in this log; it has 0 (pool)"),
        ({"pools": 0.5}, "no pool 0.5 in this log; it has 0 (pool)"),
        ({"pools": []}, "pools names no pool to show; None shows all"),
        ({"tokens": ids}, "tokens are ids, so a tokenizer is needed: pass tokenizer=, with decode or convert_ids_to_tokens"),
        ({"tokens": ids, "tokenizer": 3}, "3 cannot read ids: pass tokenizer=, with decode or convert_ids_to_tokens"),
        ({"tokens": ids[0], "tokenizer": Bytewise()}, "tokens must be [sequences, positions], got shape [2]"),
        ({"tokens": ids * 0.5, "tokenizer": Bytewise()}, "tokens must be integers: the tokens' ids"),
        ({"tokens": [1, 2]}, "tokens must be a dict of sequence -> list of strings, or an integer tensor "
                             "[sequences, positions], not list"),
        ({"tokens": {"A": ["a"]}}, "tokens must be keyed by sequences' numbers, not 'A'"),
        ({"tokens": {0: "abc"}}, "tokens of sequence 0 must be a list, one entry a token, not 'abc'"),
        ({"tokens": {0: ["a", None]}}, "tokens of sequence 0 must be strings or ids, not None"),
        ({"tokens": {0: [1, -1]}, "tokenizer": Bytewise()}, "tokens of sequence 0 must be ids from 0 up, not -1"),
        ({"title": 3}, "title must be a string or None, not 3"),
    ):  # fmt: skip
        with pytest.raises(ViewError) as caught:
            page_map(log, **wrong)
        assert str(caught.value) == told and isinstance(caught.value, (KvvizError, ValueError))


def test_other_things_are_no_logs(log):
    for other in (None, 3, [log], SimpleNamespace(log=3)):
        with pytest.raises(ViewError, match=r"page_map draws a PageLog, or what has one at \.log, not "):
            page_map(other)


def test_contradictions_are_not_drawn():
    unborn = PageLog()
    unborn.add_pool(PoolInfo("pool", 4, 4))
    unborn.add(PageAction.ALLOCATE, 0, page=1, sequence=0, index=0)
    twice = small()
    twice.add(PageAction.RELEASE, 0, page=3, sequence=1, index=2)
    twice.add(PageAction.RELEASE, 0, page=3, sequence=1, index=2)
    for log in (unborn, twice):
        for renderer in ("player", "plotly"):
            with pytest.raises(ViewError, match="this log contradicts itself"):
                page_map(log, start=0, renderer=renderer)


def test_a_log_may_grow_after_it_was_drawn():
    log = PageLog()
    pool = LogWriter(log, PoolInfo("pool", 4, 4))
    one = pool.begin()
    pool.append(one, 3)
    before = page_map(log).words
    pool.append(one, 3)
    assert log.at(len(log)).tables == {0: (0, 1)} and page_map(log).words != before
    assert NULL not in log.at(len(log)).tables[0]
