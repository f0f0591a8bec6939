"""load() on real snapshot files, in the folder that KVVIZ_SNAPSHOTS names (or ../shared/snapshots beside the project)."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

import kvviz
from kvviz.memory.trace import Mark

FOLDER = Path(os.environ.get("KVVIZ_SNAPSHOTS") or Path(__file__).parents[2] / "shared" / "snapshots")
NAMES = (
    "complete_small", "midrun_forward", "kv_compression_llm", "inference_at_oom", "inference_history",
    "two_devices_fragmented",
)  # fmt: skip
pytestmark = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="no snapshot files here (set KVVIZ_SNAPSHOTS=/folder/of/them)"
)


def load(name: str) -> kvviz.Trace:
    path = FOLDER / f"{name}.pickle"
    return kvviz.load(path) if path.exists() else pytest.skip(f"no {path.name}")


def segments_of(name: str) -> list[dict]:
    return pickle.loads((FOLDER / f"{name}.pickle").read_bytes())["segments"]


@pytest.mark.parametrize("name", NAMES)
def test_the_end_is_what_the_file_says(name):
    trace, segments = load(name), segments_of(name)
    state = trace.at(len(trace))
    blocks = [b for s in segments for b in s["blocks"]]
    active = [b for b in blocks if b["state"] != "inactive"]
    assert state.reserved == sum(s["total_size"] for s in segments)
    assert state.allocated == sum(s["allocated_size"] for s in segments)
    assert state.active == sum(s["active_size"] for s in segments) == sum(b["size"] for b in active)
    assert state.requested == sum(b["requested_size"] for b in active)
    assert state.largest_free == max((b["size"] for b in blocks if b["state"] == "inactive"), default=0)
    assert state.releasable == sum(s["total_size"] for s in segments if not s["active_size"])
    assert (len(state.segments), len(state.blocks)) == (len(segments), len(blocks))
    assert state.blocks["size"].tolist() == [
        b["size"] for s in sorted(segments, key=lambda s: s["address"]) for b in s["blocks"]
    ]
    assert trace.origin == f"file {name}.pickle"


@pytest.mark.parametrize("name", NAMES)
def test_no_moment_is_impossible(name):
    trace = load(name)
    curves = trace.curves()
    assert (
        curves.allocated.min() >= 0
        and np.all(curves.allocated <= curves.active)
        and np.all(curves.active <= curves.reserved)
    )
    for i in range(0, len(trace) + 1, 1 + len(trace) // 100):
        state = trace.at(i)
        assert state.blocks["size"].sum() == state.reserved


def test_a_run_from_an_empty_start():
    trace = load("complete_small")
    assert (len(trace), trace.peak_allocated, trace.peak_event) == (97, 3_249_144_832, 52)
    end = trace.at(-1)
    assert (end.reserved, end.allocated, len(end.segments), len(end.blocks)) == (3_781_165_056, 31_719_936, 9, 20)
    assert trace.about["exact"] and trace.about["conf"] == "" and trace.at(0).reserved == 0
    assert trace.stacks[0] == "main · trace_peak_memory.py:46"


def test_a_run_from_its_middle():
    trace = load("midrun_forward")
    assert len(trace) == 2043 and not trace.about["exact"]
    assert (trace.at(-1).reserved, trace.at(-1).allocated) == (610_271_232, 525_286_400)
    assert (
        "history starts mid-run (recording began late): 137 blocks and 29 segments are older than it" in trace.warnings
    )
    assert len(trace.entry[0].blocks) == 137 and trace.at(0).allocated == 525_286_400
    zero_grad = "Optimizer.zero_grad#AdamW.zero_grad"
    assert trace.marks == [Mark(0, zero_grad), Mark(0, f"end of {zero_grad}")]
    assert trace.stacks[0] == "forward · embedding.py:14"


def test_a_history_of_one_free():
    trace = load("kv_compression_llm")
    assert (len(trace), trace.at(-1).reserved, len(trace.at(-1).segments)) == (1, 17_133_731_840, 259)
    assert len(trace.entry[0].blocks) == 839 and len(trace.at(-1).blocks) == 868
    assert "1 frees of unknown blocks were ignored" in trace.warnings
    assert "29 cached blocks still carry the size of an older request, which does not count" in trace.warnings


def test_the_oldest_form_has_no_addresses_of_blocks():
    at_oom, history = load("inference_at_oom"), load("inference_history")
    assert (at_oom.at(-1).reserved, at_oom.at(-1).largest_free) == (11_844_714_496, 2_080_768)
    assert (len(history.at(-1).segments), len(history.at(-1).blocks)) == (257, 948)
    for trace in (at_oom, history):
        assert trace.about["torch"] == "2.0" and trace.about["conf"] is None
        assert "blocks have no addresses (torch 2.0): laid one after the other in their segments" in trace.warnings
    assert "allocate · pytorch_backend.py:190" in at_oom.stacks


def test_no_history_on_two_devices():
    trace = load("two_devices_fragmented")
    end = trace.at(-1)
    assert (len(trace), end.reserved, end.allocated) == (0, 16_236_150_784, 8_548_367_872)
    assert (end.reserved - end.active, end.releasable) == (7_687_782_912, 6_308_233_216)
    assert (len(end.segments), len(end.blocks)) == (499, 2974)


def test_what_contradicts_itself_is_not_drawn():
    trace = load("synthetic_inconsistent")
    assert len(trace) == 1040 and trace.warnings[0] == "inconsistent: blocks do not tile their segments"
    for show in (lambda: trace.at(0), lambda: trace.at(-1), lambda: trace.segments, lambda: kvviz.block_map(trace)):
        with pytest.raises(kvviz.InconsistentTrace, match="inconsistent"):
            show()
    assert [mark.name for mark in trace.marks].count("Annotation3") == 2
