"""Two runs beside each other: which events belong together, one scale, one cursor, and the difference of their numbers."""

import re

import numpy as np
import pytest
import torch

import kvviz
from kvviz.memory.trace import Action, Events, Trace
from kvviz.view.align import align, requests
from kvviz.view.beside import side_by_side, signed
from kvviz.view.scene import SERIES, format_bytes
from tests.player.browser import opener

MIB = 1 << 20
BOTH = "[...document.querySelectorAll('.kvviz-player')].map((h) => h.kvviz)"


@pytest.fixture(scope="module")
def recorded() -> kvviz.Trace:
    """A program that leaves holes: what was freed does not serve what comes next."""
    model = kvviz.CachingAllocator(1 << 34)
    kept = []
    for k in range(30):
        kept.append(model.malloc((3 + k) * MIB))
        short = model.malloc((1 + k % 7) * MIB // 2)
        if k % 3 == 2:
            model.free(kept.pop(0))
        model.free(short)
    return model.trace


@pytest.fixture(scope="module")
def replayed(recorded) -> kvviz.Trace:
    return kvviz.replay(recorded, "expandable_segments:True")


@pytest.fixture
def open_page(chromium, tmp_path):
    yield from opener(chromium, tmp_path)


def marked(*steps: tuple[str, int]) -> kvviz.Trace:
    """A run that makes so many blocks of its own size in each step."""
    made = []
    with kvviz.record(device="cpu", stacks=None) as run:
        for name, count in steps:
            run.mark(name)
            made += [torch.empty(1000 * len(steps) + count) for _ in range(count)]
    return run.trace


# which events belong together


def test_a_replay_is_lined_up_request_by_request(recorded, replayed):
    pairs = align(recorded, replayed)
    assert len(recorded) != len(replayed)  # other segments
    (mine, acts, _), (theirs, same, _) = requests(recorded), requests(replayed)
    assert np.array_equal(acts, same)
    assert pairs.words == f"the same requests side by side, {len(acts):,} allocations and frees"
    for one, other in zip(mine.tolist(), theirs.tolist(), strict=True):
        assert pairs.beside(one + 1) == other + 1
        a, b = recorded.at(one + 1), replayed.at(other + 1)
        assert a.requested == b.requested
    assert (pairs.beside(0), pairs.beside(len(recorded))) == (0, len(replayed))
    places = [pairs.beside(i) for i in range(len(recorded) + 1)]
    assert places == sorted(places)  # also at a segment's event, which is between two requests


def test_a_free_that_is_one_event_here_and_two_there_is_over_in_both():
    with kvviz.record(device="cpu", stacks=None) as run:
        kept = []
        for k in range(9):
            kept.append(torch.ones(20_000 * (k + 1)))
            kept.append(kept[-1].sum())  # 4 B
            del kept[: k % 3]
    trace, again = run.trace, kvviz.replay(run.trace, "expandable_segments:True")
    steps = [int((t.events.action == Action.FREE_REQUESTED).sum()) for t in (trace, again)]
    assert steps[0] == 0 and steps[1] > 5
    for a, b in ((trace, again), (again, trace), (again, again), (again, kvviz.replay(again, "max_split_size_mb:20"))):
        pairs, one, other = align(a, b), a.curves(), b.curves()
        places = [pairs.beside(i) for i in range(len(a) + 1)]
        assert one.requested.tolist() == other.requested[places].tolist()
        if a is not again or b is not trace:  # there the one event is not over, when of two the first is
            assert one.allocated.tolist() == other.allocated[places].tolist()


def test_a_replay_that_runs_out_is_lined_up_as_far_as_it_goes(recorded):
    short = kvviz.replay(recorded, capacity=200 * MIB)
    assert "stopped_at" in short.about
    pairs = align(recorded, short)
    assert "the same requests side by side" in pairs.words
    assert "that only one run makes are passed over" in pairs.words
    assert pairs.beside(len(recorded)) == len(short)


def test_what_one_run_took_and_gave_back_at_once_is_passed_over():
    def run(extra: bool) -> kvviz.Trace:
        model = kvviz.CachingAllocator(1 << 34)
        first = model.malloc(5 * MIB)
        if extra:
            model.free(model.malloc(7 * MIB))
        second = model.malloc(9 * MIB)
        for address in (first, second):
            model.free(address)
        return model.trace

    for a, b in ((run(False), run(True)), (run(True), run(False))):
        pairs = align(a, b)
        assert pairs.words.startswith("the same requests side by side, 4 allocations and frees; 2 that only one")
        (mine, sizes, _), (theirs, others, _) = requests(a), requests(b)
        second = [int(events[found == 9 * MIB][0]) + 1 for events, found in ((mine, sizes), (theirs, others))]
        assert pairs.beside(second[0]) == second[1]


def test_other_runs_are_lined_up_at_marks_of_one_name():
    a, b = marked(("load", 3), ("step", 4), ("step", 5)), marked(("load", 9), ("warm", 1), ("step", 8), ("step", 2))
    pairs = align(a, b)
    assert pairs.words == "lined up at 3 marks of the same name, evenly between them"
    names = {mark.event: mark.name for mark in a.marks}
    for mark in a.marks:
        assert any(other.name == names[mark.event] and other.event == pairs.beside(mark.event) for other in b.marks)
    swapped = marked(("one", 2), ("two", 3)), marked(("two", 7), ("one", 8))
    assert align(*swapped).words.startswith("lined up at 1 mark ")  # not in order: one of them only
    strangers = marked(("one", 2)), marked(("two", 7))
    assert align(*strangers).words.startswith("lined up at their two ends")


def test_empty_runs():
    nothing = kvviz.CachingAllocator(1 << 30).trace
    assert align(nothing, nothing).beside(0) == 0
    assert "0 B" in side_by_side(nothing, nothing).html


# what is shown


def test_the_numbers_and_words_stand_in_the_page_without_a_script(recorded, replayed):
    view = side_by_side(recorded, replayed, titles=("recorded", "<expandable>"))
    i = recorded.peak_event + 1
    j = align(recorded, replayed).beside(i)
    for name in SERIES:
        x, y = (int(getattr(t.curves(), name)[k]) for t, k in ((recorded, i), (replayed, j)))
        row = re.search(rf'<tr data-series="{name}">(.*?)</tr>', view.html)[1]
        assert re.findall(r">([^<>]+)</td>", row) == [format_bytes(x, True), format_bytes(y, True), signed(y - x)]
    assert "&lt;expandable&gt;" in view.html and "<expandable>" not in view.html
    assert "The same requests side by side" in view.html
    assert view.html == side_by_side(recorded, replayed, titles=("recorded", "<expandable>")).html
    assert recorded.origin in view.words and replayed.origin in view.words
    assert view.png.startswith(b"\x89PNG")
    assert len(view._repr_mimebundle_()) == 3


@pytest.mark.parametrize(
    "bad",
    [
        {"titles": "ab"}, {"titles": ("a",)}, {"titles": (1, 2)}, {"titles": 5}, {"device": 3}, {"theme": "blue"}, {"fold": 1.5},
        {"start": -1},
    ],
)  # fmt: skip
def test_bad_options(recorded, bad):
    with pytest.raises(kvviz.ViewError):
        side_by_side(recorded, recorded, **bad)
    for pair in ((recorded, None), (None, recorded)):
        with pytest.raises(kvviz.InvalidRequest, match="takes a Trace, not a NoneType"):
            side_by_side(*pair)


@pytest.mark.browser
def test_two_runs_in_which_nothing_happened(open_page):
    page = open_page(side_by_side(Trace(Events.of(0)), Trace(Events.of(0))), ready=False)
    page.wait_for_selector(".kvviz-beside[data-ready='1']")
    assert page.troubles == [] and page.evaluate(f"{BOTH}.length") == 2


@pytest.mark.browser
def test_moving_either_moves_both(open_page, recorded, replayed):
    page = open_page(side_by_side(recorded, replayed, titles=("recorded", "expandable")), ready=False)
    page.wait_for_selector(".kvviz-beside[data-ready='1']")
    there, back = align(recorded, replayed), align(replayed, recorded)
    for k, pairs, n in ((0, there, len(recorded)), (1, back, len(replayed))):
        for i in (0, 1, n // 3, n // 2, n - 1, n):
            page.evaluate(f"([k, i]) => {BOTH}[k].seek(i)", [k, i])
            at = page.evaluate(f"{BOTH}.map((p) => p.model.pos)")
            assert at == ([i, pairs.beside(i)] if k == 0 else [pairs.beside(i), i])
            told = [page.locator(f"tr[data-series='{name}'] td").all_text_contents() for name in SERIES]
            for name, (x, y, difference) in zip(SERIES, told, strict=True):
                sizes = [int(getattr(t.curves(), name)[j]) for t, j in zip((recorded, replayed), at, strict=True)]
                assert (x, y) == tuple(format_bytes(size, True) for size in sizes)
                assert difference == signed(sizes[1] - sizes[0])
    page.locator(".kvviz-player").nth(1).locator(".box").focus()
    page.keyboard.press("Home")
    page.wait_for_function(f"() => {BOTH}.every((p) => p.model.pos === 0)")
    page.keyboard.press("Space")  # playing in one plays both
    page.wait_for_function(f"n => {BOTH}[0].model.pos > n / 2", arg=len(recorded))
    assert page.troubles == []


@pytest.mark.browser
@pytest.mark.parametrize("width", [1400, 700, 320])
def test_both_maps_have_one_byte_scale_at_every_width(open_page, recorded, replayed, width):
    page = open_page(side_by_side(recorded, replayed), ready=False, width=width)
    page.wait_for_selector(".kvviz-beside[data-ready='1']")
    scales = f"{BOTH}.map((p) => p.map.flow.scale / p.model.unit)"
    one, other = page.evaluate(scales)
    assert one == pytest.approx(other, rel=0.03)  # at the ends of rows a little may be lost
    page.set_viewport_size({"width": width + 150, "height": 1000})
    page.wait_for_function(f"old => ({scales})[0] > old", arg=one)
    one, other = page.evaluate(scales)
    assert one == pytest.approx(other, rel=0.03)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    tops = page.evaluate("[...document.querySelectorAll('.kvviz-player')].map((h) => h.getBoundingClientRect().top)")
    assert (tops[0] == tops[1]) == (width == 1400)  # above each other where it is narrow
    assert page.troubles == []
