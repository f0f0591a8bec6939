"""A part of a run: the same states as in the whole, and a picture that says what it is."""

import re

import numpy as np
import pytest

import kvviz
from kvviz.errors import InvalidRequest, ViewError
from kvviz.memory.trace import Mark
from kvviz.view import block_map, excerpt, timeline
from kvviz.view.scene import Scene
from tests.player.traces import BASE, MIB, SlowMemory, random_trace, showcase


@pytest.mark.parametrize("seed", range(6))
def test_the_states_of_a_part_are_those_of_the_whole(seed):
    trace, _ = random_trace(seed, 160)
    chance = np.random.default_rng(seed)
    for _ in range(6):
        i, j = sorted(chance.integers(0, len(trace) + 1, 2).tolist())
        part = trace.range(i, j)
        assert len(part) == j - i
        for k in range(i, j + 1, 7):
            whole, here = trace.at(k), part.at(k - i)
            for name in ("allocated", "reserved", "active", "requested", "largest_free", "releasable"):
                assert getattr(whole, name) == getattr(here, name), (name, i, j, k)
            for column in ("address", "size", "requested", "state", "owner", "stack", "stream"):
                assert (whole.blocks[column] == here.blocks[column]).all()
            assert (whole.segments["address"] == here.segments["address"]).all()


def test_marks_failures_and_peak_are_of_the_part():
    trace = showcase()
    part = trace.range(10, 50)
    assert part.marks == [Mark(m.event - 10, m.name) for m in trace.marks if 10 <= m.event <= 50]
    assert part.peak_allocated == int(trace.curves().allocated[10:51].max())
    assert part.warnings[-1] == f"a part: 10 to 50 of {len(trace)} events"
    assert trace.range(0, len(trace)) is trace
    assert len(trace.last(5)) == 5 and trace.last(5).at(5).allocated == trace.at(len(trace)).allocated
    for i, j in ((-1, 5), (5, 4), (0, len(trace) + 1)):
        with pytest.raises(InvalidRequest, match=f"events {i} to {j} are not within 0 … {len(trace)}"):
            trace.range(i, j)


def test_a_failed_request_is_in_its_part_only():
    with pytest.raises(kvviz.OutOfMemory):
        allocator = kvviz.CachingAllocator(64 * MIB)
        allocator.malloc(40 * MIB)
        allocator.malloc(1 * MIB)
        allocator.malloc(40 * MIB)
    trace = allocator.trace
    event = next(e for e, _ in Scene(trace).failures)
    assert Scene(trace.range(event, len(trace))).failures == [(0, 40 * MIB)]
    assert Scene(trace.range(0, event)).failures == []


@pytest.mark.parametrize("make", [block_map, timeline])
def test_the_picture_says_what_it_shows(make):
    trace = showcase()
    view = make(trace, events=(10, 50))
    told = f"Showing 10 to 50 of {len(trace)} events: event 0 here is event 10 there"
    assert told in view.words and "of 40" in view.words
    assert told in repr(make(trace, events=(10, 50), renderer="plotly")) or make is timeline
    for wrong in ((5, 5), (-1, 5), (0, len(trace) + 1), (1.5, 4), "ab", 7, (1, 2, 3), (True, 5)):
        with pytest.raises(ViewError, match=re.escape("events must be two numbers (i, j), 0 ≤ i < j ≤")):
            make(trace, events=wrong)
    assert make(trace, events=(0, len(trace))).words == make(trace).words  # all of it is no part
    assert "after event 20 of 40" in make(trace, events=(10, 50), start=30).words
    with pytest.raises(ViewError, match="start 60 is outside the part that is shown, 10 … 50"):
        make(trace, events=(10, 50), start=60)


@pytest.mark.parametrize("make", [block_map, timeline])
def test_of_a_long_run_a_notebook_gets_a_part_and_a_file_all(make, monkeypatch, tmp_path):
    trace, n = showcase(), len(showcase())
    whole = make(trace)
    monkeypatch.setattr(excerpt, "MOST", 40)
    view = make(trace)
    low = max(0, min(trace.peak_event + 1 - 30, n - 40))
    assert f"Showing {low} to {low + 40} of {n} events" in view.words and "save_html(path) shows all" in view.words
    assert set(view._repr_mimebundle_()) == {"text/plain", "text/html", "image/png"}
    assert view.html != whole.html and view.whole_html == whole.html
    assert view.save_html(tmp_path / "page.html").read_text() == whole.page
    assert view.words == repr(view)[len(f"<View: {view.title}. ") : -1]
    assert make(trace, start=3).words.startswith("State after event 3 of 40")
    assert make(trace, renderer="plotly").figure is not None


def test_of_a_long_run_too_a_contradiction_is_said_at_once(monkeypatch):
    memory = SlowMemory()
    memory.reserve(BASE, 2 * MIB)
    memory.alloc(BASE + 2 * MIB, 512, 512)
    monkeypatch.setattr(excerpt, "MOST", 1)
    with pytest.raises(kvviz.InconsistentTrace):
        block_map(memory.trace())
