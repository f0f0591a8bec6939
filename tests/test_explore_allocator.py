"""AllocatorExplorer: its figures are the allocator's own counters, its sliders act at once, and it never invents data."""

import re

import numpy as np
import pytest

import kvviz
from kvviz import AllocatorExplorer, CachingAllocator, InvalidRequest, OutOfMemory
from kvviz.explore import allocator as module
from kvviz.explore.allocator import conf_of
from kvviz.explore.programs import PROGRAMS, Noted, growing_cache, kept_caches, pinned_segment, survivors
from kvviz.explore.workloads import MOST_EVENTS, Recording
from kvviz.memory.settings import parse
from kvviz.memory.state import State
from kvviz.memory.trace import Events, Trace
from kvviz.view.bundle import script
from tests.memory_check import MIB, SURVIVORS, run_random_program
from tests.player.browser import READY, opener

CONFS = ["", "expandable_segments:True", "max_split_size_mb:20", "max_split_size_mb:128,expandable_segments:True"]
PINNED, SURVIVED, GROWING, KEPT = PROGRAMS


@pytest.fixture(scope="module")
def recorded():
    return AllocatorExplorer().recorded()


@pytest.fixture
def open_page(chromium, tmp_path):
    yield from opener(chromium, tmp_path)


@pytest.fixture(scope="module")
def trace():
    """A run with streams and empty_cache(), as somebody might have recorded it."""
    allocator = CachingAllocator(1 << 30)
    run_random_program(allocator, 1500, seed=3, streams=2)
    return allocator.trace


def side(explorer: AllocatorExplorer, which: str) -> dict[str, int]:
    figures = explorer.outcome.figures
    assert all(type(value) is int for value in figures.values())
    return {name[2:]: value for name, value in figures.items() if name.startswith(f"{which}_")}


def test_the_smallest_case_as_pytorch_does_it():
    explorer = AllocatorExplorer()
    assert explorer.chosen["workload"] == PINNED
    a = side(explorer, "a")
    assert a == side(explorer, "b"), "B begins with the defaults, too"
    assert (a["reserved"], a["allocated"], a["pinned"]) == (800 * MIB, 540 * MIB, 260 * MIB)
    explorer.max_split_size_mb.value = 20
    assert (side(explorer, "b")["reserved"], side(explorer, "b")["free"]) == (540 * MIB, 0)
    explorer.max_split_size_mb.value, explorer.expandable_segments.value = 0, True
    assert (side(explorer, "b")["reserved"], side(explorer, "b")["peak_reserved"]) == (540 * MIB, 540 * MIB)
    assert side(explorer, "a") == a


@pytest.mark.parametrize(("conf", "stays", "reserved"), [row for row in SURVIVORS if row[1]])
def test_survivors_as_pytorch_does_them(conf, stays, reserved):
    settings = parse(conf)
    explorer = AllocatorExplorer(
        workload=SURVIVED, max_split_size_mb=128 * ("max_split" in conf), expandable_segments=settings.expandable
    )
    assert side(explorer, "b")["reserved"] == reserved * MIB


@pytest.mark.parametrize("conf", CONFS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_figures_are_the_allocators_counters(name, conf):
    plain = CachingAllocator(24 << 30, conf)
    PROGRAMS[name](plain)
    counters = plain.allocated, plain.reserved, plain.reserved - plain.active
    a = side(AllocatorExplorer(workload=name, against=conf), "a")
    assert (a["allocated"], a["reserved"], a["free"]) == counters
    assert a["free"] == a["releasable"] + a["pinned"]
    trace = plain.trace
    assert (a["peak_reserved"], a["peak_allocated"]) == (trace.peak_reserved, trace.peak_allocated)
    plain.empty_cache()
    assert counters[1] - plain.reserved == a["releasable"]


@pytest.mark.parametrize("conf", [*CONFS, "expandable_segments:True,large_segment_size_mb:32"])
def test_releasable_is_what_empty_cache_gives_back(conf):
    for seed in range(12):
        allocator = CachingAllocator(4 << 30, conf)
        run_random_program(allocator, 300, seed, streams=1)
        before, state = allocator.reserved, allocator.trace.at(-1)
        allocator.empty_cache()
        assert state.releasable == before - allocator.reserved


def test_out_of_memory_is_told_with_its_numbers():
    explorer = AllocatorExplorer(capacity=700)
    assert "Both run out of memory" in explorer.outcome.words
    explorer.expandable_segments.value = True
    a, b = side(explorer, "a"), side(explorer, "b")
    assert (a["ran_out"], a["refused_request"], a["refused_largest_free"]) == (1, 270 * MIB, 260 * MIB)
    assert a["served"] == 2 and b["served"] == 3 and b["ran_out"] == 0
    assert "A runs out of memory, B does not. A: after 2 requests it asks for 270 MiB" in explorer.outcome.words
    assert "the largest free block has 260 MiB" in explorer.outcome.words
    with pytest.raises(OutOfMemory, match="the largest free block 272,629,760 B"):
        pinned_segment(CachingAllocator(700 * MIB))
    (chart,) = explorer.outcome.charts
    assert chart.ends == {"A": "A: out of memory"}
    # act by act: 530 come, go, 270 come, and the last is refused
    assert chart.series["A"] == [530, 530] * 3 + [530, 530]
    assert chart.series["B"] == [540, 540] * 4
    assert chart.series["asked for"] == [530, 530, 0, 0, 270, 270, 540, 540]


def test_a_slider_plays_b_and_leaves_a():
    explorer = AllocatorExplorer()
    a, b = explorer._against.outputs, explorer._map.outputs
    explorer.max_split_size_mb.value = 64
    assert explorer._against.outputs is a and explorer._map.outputs != b
    assert "A · the defaults" in a[0]["data"]["text/plain"]
    assert "B · max_split_size_mb:64" in explorer._map.outputs[0]["data"]["text/plain"]
    assert explorer._words.value.startswith(explorer.outcome.words) and "pinned" in explorer.outcome.below
    explorer.against.value = "expandable_segments:True"
    assert explorer._against.outputs is not a and explorer._against.layout.display is None


def test_what_the_settings_become():
    assert conf_of(False, 0, 0, 0) == ""
    assert conf_of(True, 128, 4, 0.8) == (
        "max_split_size_mb:128,expandable_segments:True,roundup_power2_divisions:4,"
        "garbage_collection_threshold:0.8,per_process_memory_fraction:0.99"
    )
    explorer = AllocatorExplorer(workload=KEPT, garbage_collection_threshold=0.6, capacity=700)
    assert "per_process_memory_fraction:0.99 is set with it" in explorer.outcome.words
    assert side(explorer, "b")["peak_reserved"] <= int(0.99 * 700 * MIB) < side(explorer, "a")["peak_reserved"]
    assert "per_process" not in AllocatorExplorer(roundup_power2_divisions=8).outcome.words


def test_words_say_what_changed():
    words = AllocatorExplorer(expandable_segments=True).outcome.words
    assert words.startswith("The peak of reserved memory falls from 800 MiB to 540 MiB; at the end, ")
    assert "pinned part falls from 260 MiB to 0 B" in words
    assert AllocatorExplorer().outcome.words.startswith("A and B have the same settings")
    same = AllocatorExplorer(workload=SURVIVED, max_split_size_mb=64).outcome.words
    assert same == "max_split_size_mb:64 changes nothing here: both reserve 338 MiB at most."


@pytest.mark.parametrize("conf", CONFS)
def test_a_recorded_run_is_replayed(trace, conf):
    explorer = AllocatorExplorer(trace)
    assert explorer.chosen["against"] == "as recorded"
    again = kvviz.replay(trace, conf)
    settings = parse(conf)
    explorer.max_split_size_mb.value = settings.max_split // MIB if "max_split" in conf else 0
    explorer.expandable_segments.value = settings.expandable
    b, peak = side(explorer, "b"), int(again.curves().allocated.max())
    assert (b["peak_reserved"], b["peak_allocated"], b["allocated"]) == (again.peak_reserved, peak, peak)
    assert "a replay" in explorer.outcome.note and "replay of" in explorer.outcome.view.words


def test_as_recorded_is_the_recorded_settings():
    source = CachingAllocator(1 << 30, "max_split_size_mb:20")
    pinned_segment(source)
    explorer = AllocatorExplorer(source.trace)
    assert side(explorer, "a")["reserved"] == 540 * MIB and side(explorer, "b")["reserved"] == 800 * MIB
    explorer.against.value = ""
    assert side(explorer, "a")["reserved"] == 800 * MIB
    explorer.capacity.value = 512
    assert side(explorer, "a")["refused_request"] == 530 * MIB


def test_many_workloads(trace):
    many = AllocatorExplorer({"mine": trace, "yours": lambda allocator: allocator.malloc(3 * MIB)})
    assert many.workload.options == (("mine", "mine"), ("yours", "yours"))
    many.workload.value = "yours"
    assert side(many, "b")["reserved"] == 20 * MIB and "driven by a program: yours" in many.outcome.view.words
    listed = AllocatorExplorer([survivors, trace])
    assert listed.offered["workload"].values == ("survivors 1", "the recorded run 2")


def test_a_long_run_shows_the_events_around_its_moment(trace, monkeypatch):
    whole = AllocatorExplorer(trace)
    monkeypatch.setattr(module, "MAPPED", 500)
    part = AllocatorExplorer(trace)
    assert part.outcome.figures == whole.outcome.figures
    told = re.search(
        r"events ([\d,]+) to ([\d,]+) of ([\d,]+)", module._around(part._run("the recorded run", "", 0).trace, 900)[2]
    )
    first, last, count = (int(n.replace(",", "")) for n in told.groups())
    run = part._run("the recorded run", "", 0)
    assert last - first == 499 and first <= 900 <= last <= count == len(run.trace)
    cut, moment, _ = module._around(run.trace, 900)
    assert len(cut) == 500
    here, there = cut.at(moment), run.trace.at(900)
    assert (here.reserved, here.allocated, here.blocks["address"].tolist()) == (
        there.reserved, there.allocated, there.blocks["address"].tolist(),
    )  # fmt: skip


def spike(allocator):
    """Many small acts, and among them a large one of which nothing stays."""
    for k in range(2001):
        allocator.free(allocator.malloc((300 if k == 1003 else 1) * MIB))
        if k == 1003:
            allocator.empty_cache()


@pytest.mark.parametrize("given", [None, spike])
def test_a_chart_holds_the_extremes(given):
    explorer = AllocatorExplorer(given, max_split_size_mb=20)
    explorer.workload.value = KEPT if given is None else "spike"
    (chart,) = explorer.outcome.charts
    figures = explorer.outcome.figures
    for which in "AB":
        assert max(chart.series[which]) == figures[f"{which.lower()}_peak_reserved"] / MIB
        assert chart.series[which][-1] == figures[f"{which.lower()}_reserved"] / MIB
        assert len(chart.series[which]) == len(chart.x) < 1000


def test_misuse(trace):
    with pytest.raises(InvalidRequest, match=r"against is a string such as .* not 64"):
        AllocatorExplorer(against=64)
    with pytest.raises(InvalidRequest, match="max_split_size_mb is one of 0, 20, 64, 128, 256, 512, got 10"):
        AllocatorExplorer(max_split_size_mb=10)
    with pytest.raises(InvalidRequest, match=r"not a CachingAllocator; its \.trace is one"):
        AllocatorExplorer(CachingAllocator(MIB))
    for nothing in ([], {}):
        with pytest.raises(InvalidRequest, match="no workload: give a Trace"):
            AllocatorExplorer(nothing)
    count = MOST_EVENTS + 1
    long = Trace(Events.of(count, address=np.arange(count)))
    with pytest.raises(InvalidRequest, match=r"500,001 events.* 500,000 are the most.* trace\.last\(500_000\)"):
        AllocatorExplorer([trace, long])
    Recording(long.last(MOST_EVENTS), "as long as may be")


def test_settings_that_pytorch_refuses_are_told(recorded):
    explorer = AllocatorExplorer(against="max_split_size_mb:10")
    assert explorer.outcome is None
    assert "max_split_size_mb is 10, but must be at least large_segment_size_mb, 20" in explorer._words.value
    assert explorer._map.outputs == explorer._against.outputs == ()
    assert "must be at least" in explorer._repr_mimebundle_()["text/html"]
    explorer.against.value = ""
    assert side(explorer, "a")["reserved"] == 800 * MIB and len(explorer._map.outputs) == 1


def test_programs_have_the_shapes_they_say():
    tokens, batch, heads, dim, fp32 = 408, 8, 3, 64, 4
    allocator = CachingAllocator(24 << 30)
    growing_cache(allocator)
    assert allocator.requested == 30 * 2 * batch * heads * dim * fp32 * tokens
    allocator = CachingAllocator(24 << 30)
    kept_caches(allocator)
    kept = sum(300 + 37 * g + 1 for g in range(0, 8, 2))
    assert allocator.requested == 30 * 2 * batch * heads * dim * fp32 * kept


@pytest.mark.parametrize("name", PROGRAMS)
def test_whose_the_blocks_are(name):
    """Owners and marks are noted beside the allocator's own trace, and change nothing of it."""
    noted, plain = Noted(24 << 30), CachingAllocator(24 << 30)
    PROGRAMS[name](noted)
    PROGRAMS[name](plain)
    one, other = noted.trace, plain.trace
    for column in ("action", "address", "size", "requested"):
        assert (one.events[column] == other.events[column]).all()
    blocks = one.at(-1).blocks
    left = {one.owners[k] for k in blocks["owner"][blocks["state"] == State.ALLOCATED]}
    assert left == {"kv cache"}, "activations have gone"
    assert set(one.owners) == {"other", "activations", "kv cache"}


def test_recorded(recorded, tmp_path):
    explorer = AllocatorExplorer()
    opens = recorded._states[recorded._place]
    assert (opens.view.data, opens.against.data) == (explorer.outcome.view.data, explorer.outcome.against.data)
    assert opens.words.startswith("A and B have the same settings")
    text = recorded.save_html(tmp_path / "page.html").read_text()
    assert len(text) < 1_000_000
    assert not re.findall("https?://", text)
    assert len(script("a", "blocks", "{}", "choices")) < 50_000
    assert all("PyTorch's allocator, modelled" in view.words for s in recorded._states for view in s.maps)


def test_a_long_recorded_run_has_few_states(trace, monkeypatch):
    assert len(AllocatorExplorer(trace).recorded()._states) == 2 * 2 * 2
    monkeypatch.setattr(module, "MANY", 100)
    made = AllocatorExplorer(trace, max_split_size_mb=64).recorded()
    assert len(made._states) == 2 and "B: max_split_size_mb: 64" in made._states[0].words


@pytest.mark.browser
def test_the_recorded_page(open_page, recorded):
    page = open_page(recorded, width=1200)
    root = page.locator(".kvviz-choices")
    boxes = [page.locator(".kvviz-player").nth(k).bounding_box() for k in range(2)]
    assert boxes[0]["y"] == boxes[1]["y"] and boxes[0]["x"] + boxes[0]["width"] <= boxes[1]["x"]
    page.evaluate("document.querySelectorAll('.kvviz-player')[0].kvviz.seek(2)")
    page.locator("input[aria-label='B: max_split_size_mb']").focus()
    page.keyboard.press("End")
    place = next(k for k, s in enumerate(recorded._states) if s.view.title == "B · max_split_size_mb:20")
    page.wait_for_selector(f".kvviz-choices[data-ready='{place}'] {READY}")
    canvases = page.locator("canvas.map")
    assert "after event 2 of 7" in canvases.nth(0).get_attribute("aria-label"), "A stays where it was"
    assert "after event 9 of 9" in canvases.nth(1).get_attribute("aria-label")
    assert "540 MiB" in root.inner_text() and "260 MiB" in root.inner_text()
    page.locator("select[aria-label='workload']").select_option(label=SURVIVED)
    page.wait_for_selector(f".kvviz-choices[data-ready='{place + 16}'] {READY}")
    assert "changes nothing here" in root.inner_text()
    assert "of 712" in canvases.nth(0).get_attribute("aria-label")
    assert page.troubles == [] and all(url.startswith(("file:", "data:")) for url in page.requests)


@pytest.mark.browser
def test_one_column_on_a_narrow_screen(open_page, recorded):
    page = open_page(recorded, width=400)
    boxes = [page.locator(".kvviz-player").nth(k).bounding_box() for k in range(2)]
    assert boxes[0]["x"] == boxes[1]["x"] and boxes[1]["y"] >= boxes[0]["y"] + boxes[0]["height"]
    assert page.evaluate("document.documentElement.scrollWidth") <= 400


def test_what_does_nothing_is_refused():
    with pytest.raises(InvalidRequest, match="makes no request and frees nothing"):
        AllocatorExplorer(Trace(Events.of(0)))
    explorer = AllocatorExplorer({"idle": lambda allocator: None})
    assert explorer.outcome is None and "idle makes no request" in explorer._words.value
