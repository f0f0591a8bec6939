"""A 7B model on 24 GiB that keeps every second cache: where it ends, on PyTorch's own allocator and in replays; and why."""

from bisect import bisect_right

import pytest

import kvviz
from tests.cuda_stub.oracle import in_child
from tests.cuda_stub.seven_b import generations_until_out_of_memory

CAPACITY = 24 << 30
PER_TOKEN = 2 * 32 * 32 * 128 * 2  # bytes
ENDS = {"": 23, "expandable_segments:True": 29, "max_split_size_mb:64": 23}


@pytest.fixture(scope="module")
def recorded_on_a_large_card():
    return kvviz.sample("7b_80gb")


@pytest.mark.parametrize("conf", ENDS)
def test_a_replay_ends_where_the_real_allocator_does(conf, recorded_on_a_large_card):
    """A run recorded on 80 GB, where all 40 generations fit, is replayed on 24 GiB."""
    real, allocated, reserved = in_child(generations_until_out_of_memory, PYTORCH_CUDA_ALLOC_CONF=conf)
    again = kvviz.replay(recorded_on_a_large_card, conf, CAPACITY)
    marks = [mark.event for mark in recorded_on_a_large_card.marks]
    assert bisect_right(marks, again.about["stopped_at"]) == real == ENDS[conf]
    if not conf:
        assert (allocated, reserved) == (22_576_503_808, 25_740_443_648)  # 2.8 GiB reserved and free


def test_a_recording_that_ended_there_is_diagnosed():
    """What is kept comes first, to the byte; expandable segments serve the request that failed, max_split_size does not."""
    confs = ["expandable_segments:True", "max_split_size_mb:64"]
    report = kvviz.diagnose(kvviz.sample("7b_24gb"), settings=confs)
    kept, fragmented = report.findings
    tokens = [900 + 37 * generation + 24 for generation in range(0, 23, 2)]
    assert (kept.kind, kept.what, kept.bytes) == ("kept", "kept caches", PER_TOKEN * sum(tokens))
    assert "12 of 23 steps (generation 0, generation 2, generation 4, …)" in kept.text
    assert fragmented.kind == "fragmentation" and fragmented.bytes > 2.8 * 2**30
    assert "36.8 MiB were refused while 2.82 GiB of what PyTorch had reserved were free" in fragmented.text
    tried = {t["conf"]: t for t in report.figures["tried"] if t["conf"] is not None}
    assert [tried[conf]["helps"] for conf in confs] == [True, False]
    assert "the request that failed fits" in tried[confs[0]]["text"]
    assert "what the program would have done then is not in the trace" in tried[confs[0]]["text"]
    assert tried[confs[1]]["text"].startswith("no help: the request fails")
    assert "helps: “kv cache” let go when its step ends: the request that failed fits" in report.text
