"""replay(), sweep(), compare(): the same settings give the same run, other settings what the allocator itself gives."""

import numpy as np
import pytest

from kvviz import CachingAllocator, InvalidRequest, OutOfMemory, Trace, record
from kvviz.memory.compare import compare
from kvviz.memory.replay import replay, sweep
from kvviz.memory.trace import Action, Mark
from tests.memory_check import MIB, run_random_program

CONFS = [
    "",
    "max_split_size_mb:32",
    "roundup_power2_divisions:4",
    "garbage_collection_threshold:0.6,per_process_memory_fraction:0.9",
    "expandable_segments:True",
    "expandable_segments:True,max_split_size_mb:32",
]


def program(conf: str, capacity: int, seed: int, streams: int = 2, events: str = "immediate", empties=True) -> Trace:
    a = CachingAllocator(capacity, conf, events=events)
    run_random_program(a, 500, seed, streams, empties)
    return a.trace


def same(a: Trace, b: Trace) -> None:
    assert len(a) == len(b)
    for name in ("action", "address", "size", "requested", "stream"):
        assert np.array_equal(a.events[name], b.events[name]), name
    assert np.array_equal(a.segments, b.segments)
    assert (a.peak_allocated, a.peak_reserved) == (b.peak_allocated, b.peak_reserved)


@pytest.mark.parametrize("conf", CONFS)
@pytest.mark.parametrize("seed", range(3))
def test_the_same_settings_give_the_same_run(conf, seed):
    """On a large device: every event, the frees that waited for another stream and the calls of empty_cache included."""
    trace = program(conf, 8 << 30, seed, events="manual" if seed else "immediate")
    same(trace, replay(trace, conf))


@pytest.mark.parametrize("conf", CONFS[1:])
def test_other_settings_give_what_the_allocator_gives(conf):
    """The program run under `conf` itself, against its recording under the defaults replayed under `conf`.

    Without empty_cache(): a call that gives nothing back leaves no event, so a recording cannot know of it.
    """
    trace = program("", 8 << 30, 7, streams=1, empties=False)
    direct = program(conf, 8 << 30, 7, streams=1, empties=False)
    again = replay(trace, conf)
    assert np.array_equal(again.segments, direct.segments)
    assert (again.peak_allocated, again.peak_reserved) == (direct.peak_allocated, direct.peak_reserved)


def fragmenting(capacity: int, conf: str = "") -> CachingAllocator:
    """530 MiB freed, then 270 MiB twice."""
    a = CachingAllocator(capacity, conf)
    a.free(a.malloc(530 * MIB))
    a.malloc(270 * MIB)
    a.malloc(270 * MIB)
    return a


def test_a_smaller_device_ends_the_replay_where_the_request_fails():
    trace = fragmenting(2 << 30).trace
    again = replay(trace, capacity=700 * MIB)
    stopped = again.about["stopped_at"]
    assert trace.events.requested[stopped] == 270 * MIB and trace.events.action[stopped] == Action.ALLOC
    assert again.events.action[-1] == Action.OOM and "out of memory" in again.warnings[-1]
    with pytest.raises(OutOfMemory):
        fragmenting(700 * MIB)
    assert replay(trace, "expandable_segments:True", 700 * MIB).about["stopped_at"] is None


def test_a_request_that_failed_is_tried_again():
    a = CachingAllocator(700 * MIB)
    a.free(a.malloc(530 * MIB))
    a.malloc(270 * MIB)
    with pytest.raises(OutOfMemory):
        a.malloc(270 * MIB)
    failed = int(np.flatnonzero(a.trace.events.action == Action.OOM)[0])
    assert replay(a.trace).about["served"] == []
    again = replay(a.trace, "expandable_segments:True")
    assert again.about["served"] == [failed] and again.at(-1).allocated == 270 * MIB


def test_what_lived_before_is_there_and_marks_owners_and_call_sites_stay():
    a = CachingAllocator(1 << 30)
    old = a.malloc(5 * MIB)
    a.forget_history()
    new = a.malloc(3 * MIB)
    a.free(old)
    a.free(new)
    bare = a.trace
    events = bare.events
    events.owner[:], events.stack[:] = 1, 0
    trace = Trace(
        events, bare.entry, [Mark(0, "start"), Mark(3, "end")], ["other", "kv"], ["f · a.py:1"], about=bare.about
    )
    again = replay(trace, "expandable_segments:True")
    assert again.at(0).allocated == 5 * MIB and again.at(-1).allocated == 0
    assert [mark.name for mark in again.marks] == ["start", "end"]
    made = again.at(2).blocks if again.events.action[1] == Action.ALLOC else again.at(1).blocks
    assert {again.owners[b["owner"]] for b in made if b["state"] and b["born"] >= 0} == {"kv"}
    assert again.stacks == ["f · a.py:1"] and "replay of" in again.origin
    with pytest.raises(InvalidRequest, match="lived before"):
        replay(trace, capacity=4 * MIB)


def test_a_recorded_run_replays_to_its_own_peaks():
    import torch

    with record() as run:
        held = [torch.empty(n * 300_000, dtype=torch.uint8) for n in range(1, 30)]
        del held[::2]
        held.append(torch.empty(9 * MIB, dtype=torch.uint8))
    again = replay(run.trace)
    assert (again.peak_allocated, again.peak_reserved) == (run.trace.peak_allocated, run.trace.peak_reserved)
    assert np.array_equal(again.segments, run.trace.segments)


@pytest.mark.parametrize("bad", [{"conf": "nonsense:1"}, {"capacity": -1}, {"device": 3}])
def test_bad_questions(bad):
    with pytest.raises(InvalidRequest):
        replay(program("", 1 << 30, 1), **bad)


def test_sweep_ranks_and_says_why():
    trace = fragmenting(2 << 30).trace
    trials = sweep(trace, ["", "expandable_segments:True", "max_split_size_mb:20"], capacity=700 * MIB)
    assert [t.conf for t in trials][-1] == "" and trials[-1].stopped_at is not None
    assert "out of memory" in trials[-1].why and "260 MiB" in trials[-1].why
    assert all("fits" in t.why for t in trials[:2])
    roomy = {t.conf: t for t in sweep(trace, ["", "expandable_segments:True"], capacity=2 << 30)}
    best = roomy["expandable_segments:True"]
    assert best.peak_reserved == 540 * MIB and "falls by 260.0" in best.why


def test_two_runs_of_one_program_do_not_differ():
    one, two = (CachingAllocator(4 << 30, placement=p) for p in ("first-fit", "down"))
    for a in (one, two):
        run_random_program(a, 300, 3)
    report = compare(one.trace, two.trace)
    assert not report and "No difference" in report.text


def test_differences_are_told_in_both_directions():
    one, two = CachingAllocator(1 << 30), CachingAllocator(1 << 30)
    one.malloc(3 * MIB)
    two.malloc(3 * MIB)
    two.malloc(5 * MIB)
    there, back = compare(one.trace, two.trace), compare(two.trace, one.trace)
    assert "peak allocated: 3.0 MiB → 8.0 MiB (+5.0 MiB)" in there.text
    assert "peak allocated: 8.0 MiB → 3.0 MiB (−5.0 MiB)" in back.text
    assert "block size 5,242,880 B: 0 B → 5.0 MiB" in there.text and "only in the second: 1 requests" in there.text
    assert "only in the first" in back.text and "<b>only in the second</b>" in there._repr_html_()


def test_a_sweep_of_a_recording_that_ran_out_of_memory():
    """The request that failed is tried again: where it fails, the run does not fit."""
    a = CachingAllocator(700 * MIB)
    a.free(a.malloc(530 * MIB))
    a.malloc(270 * MIB)
    with pytest.raises(OutOfMemory):
        a.malloc(270 * MIB)
    assert (a.trace.events.action == Action.OOM).sum() == 1
    trials = {t.conf: t for t in sweep(a.trace, ["", "expandable_segments:True", "max_split_size_mb:600"])}
    at = int(np.flatnonzero(a.trace.events.action == Action.OOM)[0])
    assert [trials[c].stopped_at for c in ("", "expandable_segments:True", "max_split_size_mb:600")] == [at, None, at]
    assert f"out of memory at event {at:,}" in trials[""].why and "the run fits" in trials["expandable_segments:True"].why
    assert next(iter(trials)) == "expandable_segments:True"
