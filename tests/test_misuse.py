"""Wrong questions: each gets one line of kvviz's own, and nothing is changed by it."""

import collections
import os

import pytest
import torch

import kvviz
from kvviz import CachingAllocator, InvalidRequest, KvvizError, RecordingError

MIB = 1 << 20


def used_allocator() -> CachingAllocator:
    a = CachingAllocator(1 << 30)
    a.malloc(5 * MIB)
    return a


@pytest.mark.parametrize("bad", [1.5, 2**63, 2**64, "many", None, float("nan"), float("inf"), -1])
def test_sizes_that_are_none(bad):
    a = used_allocator()
    before = len(a.trace), a.segments, a.requested, a.retries, a.ooms
    with pytest.raises(InvalidRequest):
        a.malloc(bad)
    with pytest.raises(InvalidRequest):
        a.malloc(512, bad if bad != -1 else "s1")
    assert (len(a.trace), a.segments, a.requested, a.retries, a.ooms) == before


def test_whole_floats_and_numpy_integers_are_numbers_too():
    import numpy as np

    a = used_allocator()
    a.malloc(9 * MIB / 2)
    a.malloc(np.int64(5 * MIB))
    assert a.requested == 5 * MIB + 9 * MIB // 2 + 5 * MIB


ASK = {
    "capacity": lambda: CachingAllocator("8GB"),
    "capacity none": lambda: CachingAllocator(None),
    "conf": lambda: CachingAllocator(1 << 30, 5),
    "set_conf": lambda: used_allocator().set_conf(None),
    "free": lambda: used_allocator().free("x"),
    "map of an allocator": lambda: kvviz.block_map(used_allocator()),
    "timeline of a number": lambda: kvviz.timeline(5),
    "replay of an allocator": lambda: kvviz.replay(used_allocator()),
    "compare": lambda: kvviz.compare(used_allocator().trace, None),
    "capacity 0": lambda: kvviz.replay(used_allocator().trace, capacity=0),
    "at": lambda: used_allocator().trace.at(None),
    "at half": lambda: used_allocator().trace.at(1.5),
    "last": lambda: used_allocator().trace.last(-1),
    "holders of None": lambda: kvviz.holders(None),
    "holders of nothing": lambda: kvviz.holders(()),
    "delta device": lambda: kvviz.delta("gpu"),
    "delta cuda": lambda: kvviz.delta("cuda"),
    "max_events": lambda: kvviz.record(max_events="x"),
    "device": lambda: kvviz.record("tpu"),
    "exercise": lambda: kvviz.exercise("nothing"),
    "sample": lambda: kvviz.sample("nothing"),
}


@pytest.mark.parametrize("ask", ASK.values(), ids=ASK.keys())
def test_one_clear_line(ask):
    with pytest.raises(KvvizError) as caught:
        ask()
    assert "\n" not in str(caught.value) and len(str(caught.value)) > 10


def test_an_allocator_or_a_recording_has_its_trace_as_an_attribute():
    with pytest.raises(InvalidRequest, match=r"as \.trace"):
        kvviz.block_map(used_allocator())


def test_another_profiler_inside_is_said_and_not_an_empty_trace():
    with kvviz.record() as run:
        kept = torch.zeros(100_000)
        with torch.profiler.profile():
            torch.zeros(10)
    with pytest.raises(RecordingError, match="another profiler"):
        _ = run.trace
    assert kept.numel() and not torch.autograd._profiler_enabled()
    with kvviz.record() as run:
        pass
    assert run.trace is not None


def test_ending_what_never_began():
    with pytest.raises(RecordingError, match="nothing to end"):
        kvviz.record().__exit__(None, None, None)
    with kvviz.record() as outer:
        with pytest.raises(RecordingError):
            kvviz.record().__exit__(None, None, None)
        with pytest.raises(RecordingError, match="already running"), kvviz.record():
            pass  # the lock of the running one was not given away
    with pytest.raises(RecordingError, match="nothing to end"):
        outer.__exit__(None, None, None)


def test_generators_views_and_deques_are_owned_and_nothing_is_refused():
    model = torch.nn.Linear(100, 50)
    things = [
        lambda: model.parameters(),
        lambda: dict(model.named_parameters()).values(),
        lambda: collections.deque(model.parameters()),
    ]
    for thing in things:
        with kvviz.record() as run:
            run.own(thing(), "mine")
        blocks = run.trace.at(-1).blocks
        mine = blocks["requested"][blocks["owner"] == list(run.trace.owners).index("mine")].sum()
        assert mine == (100 * 50 + 50) * 4
    with kvviz.record() as run:
        for nothing in ("text", [], {}, 5, None, os):
            with pytest.raises(InvalidRequest, match="nothing to own"):
                run.own(nothing, "x")
    assert "x" not in run.trace.owners


def test_a_delta_runs_once():
    d = kvviz.delta("cpu")
    with d:
        pass
    with pytest.raises(RecordingError, match="once"), d:
        pass
