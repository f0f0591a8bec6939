"""The allocator model: rules one can work out by hand, golden runs of the real allocator, and what must never happen."""

import itertools
import json
import pathlib
import zlib
from dataclasses import fields

import numpy as np
import pytest

import kvviz
from kvviz import CachingAllocator, InvalidRequest, OutOfMemory, UnknownAddress
from kvviz.memory.settings import parse
from kvviz.memory.state import State
from tests.cuda_stub.make_golden import digest
from tests.cuda_stub.workloads import COLUMNS, Workload, model_outcome
from tests.memory_check import MIB, SURVIVORS, run_random_program

GOLDEN = sorted((pathlib.Path(__file__).parent / "golden").glob("*.json.z"))


@pytest.mark.parametrize(
    ("asked", "block", "segment"),
    [  # request, the block it becomes, the segment it comes from; from real GPUs
        (1, 512, 2 * MIB),
        (4, 512, 2 * MIB),
        (512, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (2 * MIB, 2 * MIB, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (33_554_432, 33_554_432, 33_554_432),
        (200_000_000, 200_000_000, 201_326_592),
        (1_000_000_000, 1_000_341_504, 1_000_341_504),  # the rest is not worth a split: the block is the segment
        (2_000_000_000, 2_000_683_008, 2_000_683_008),
    ],
)
def test_request_block_segment(asked, block, segment):
    a = CachingAllocator(8 << 30)
    a.malloc(asked)
    assert (a.allocated, a.reserved, a.requested) == (block, segment, asked)


def test_a_large_block_pins_its_segment():
    """530 MiB freed, 270 taken from it: 260 are left, too few for the next 270, and nothing can be given back."""
    a = CachingAllocator(8 << 30)
    a.free(a.malloc(530 * MIB))
    a.malloc(270 * MIB)
    a.empty_cache()
    assert (a.reserved, a.trace.at(len(a.trace)).largest_free) == (530 * MIB, 260 * MIB)
    a.malloc(270 * MIB)
    assert a.reserved == 800 * MIB


def test_the_same_with_a_largest_split():
    """With max_split_size_mb:20 the 530 MiB are not split, so nothing pins them."""
    a = CachingAllocator(8 << 30, "max_split_size_mb:20")
    a.free(a.malloc(530 * MIB))
    a.malloc(270 * MIB)
    assert a.reserved == 800 * MIB
    a.empty_cache()
    assert a.reserved == 270 * MIB


@pytest.mark.parametrize(("conf", "survivor", "reserved"), SURVIVORS)
def test_survivors_pin_what_expandable_segments_would_reuse(conf, survivor, reserved):
    """100 cycles of 91 and 45.5 MiB that go and 2 MiB that stay: both options together lose memory (torch 2.14)."""
    a = CachingAllocator(24 << 30, conf)
    for _ in range(100):
        big, middle = a.malloc(91 * MIB), a.malloc(91 * MIB // 2)
        a.malloc(survivor * MIB)
        a.free(big)
        a.free(middle)
    assert a.reserved == reserved * MIB
    assert a.allocated == 100 * survivor * MIB


def test_settings_change_in_mid_run():
    a = CachingAllocator(4 << 30)
    a.malloc(30 * MIB)
    a.set_conf("expandable_segments:True")
    a.malloc(30 * MIB)
    assert [s.expandable for s in a.segments] == [False, True]
    a.set_conf("")
    a.malloc(30 * MIB)
    assert a.segment_count == 1  # expandable_segments stays as it was until it is named
    a.set_conf("expandable_segments:False")
    a.malloc(30 * MIB)
    assert a.segment_count == 2
    with pytest.raises(InvalidRequest, match="mid-run"):
        a.set_conf("max_split_size_mb:64")
    assert a.conf == "expandable_segments:False"


def test_out_of_memory_empties_the_cache_first_and_leaves_a_usable_allocator():
    a = CachingAllocator(100 * MIB)
    keep = a.malloc(40 * MIB)
    a.free(a.malloc(40 * MIB))
    big = a.malloc(60 * MIB)  # fits only once the cached 40 MiB are given back
    assert (a.retries, a.ooms, a.reserved) == (1, 0, 100 * MIB)
    before = (a.allocated, a.active, a.reserved, a.requested, a.segment_count)
    with pytest.raises(OutOfMemory, match=r"tried to allocate 2,097,153 B.*104,857,600 B.*reserved 104,857,600 B"):
        a.malloc(2 * MIB + 1)
    assert (a.allocated, a.active, a.reserved, a.requested, a.segment_count) == before
    assert a.ooms == 1 and isinstance(OutOfMemory(), MemoryError)
    a.free(big)
    a.free(keep)
    assert a.allocated == a.active == a.requested == 0


def test_a_block_used_by_another_stream_stays_active_until_that_stream_is_done():
    a = CachingAllocator(1 << 30, events="manual")
    block = a.malloc(4 * MIB)
    a.record_stream(block, 1)
    a.free(block)
    assert (a.allocated, a.active) == (0, 4 * MIB)
    assert [b.state for b in a.segments[0].blocks] == [State.AWAITING_FREE, State.INACTIVE]
    a.malloc(512)
    assert a.active == 4 * MIB + 512  # the stream has not finished
    a.synchronize()
    a.malloc(512)
    assert a.active == 1024


@pytest.mark.parametrize("size", [-1, -512])
def test_negative_size(size):
    a = CachingAllocator(1 << 30)
    a.malloc(1000)
    before = list(a._log), a.segments
    with pytest.raises(InvalidRequest, match=str(size)):
        a.malloc(size)
    assert (list(a._log), a.segments) == before


def test_free_of_an_unknown_address_changes_nothing():
    a = CachingAllocator(1 << 30)
    address = a.malloc(1000)
    for wrong in (address + 512, 1, -1):
        before = list(a._log), a.segments
        with pytest.raises(UnknownAddress, match=f"{wrong:#x}"):
            a.free(wrong)
        assert (list(a._log), a.segments) == before
    a.free(address)
    with pytest.raises(UnknownAddress):
        a.free(address)  # twice


def test_nothing_asked_nothing_given():
    a = CachingAllocator(1 << 30)
    assert a.malloc(0) == 0
    a.free(0)
    assert len(a.trace) == 0 and a.segments == []


@pytest.mark.parametrize(
    "make",
    [
        lambda: CachingAllocator(0),
        lambda: CachingAllocator(1 << 30, placement="best"),
        lambda: CachingAllocator(1 << 30, events="later"),
        lambda: CachingAllocator(1 << 30, "no_such_setting:1"),
        *(
            lambda conf=conf: CachingAllocator(1 << 30, conf)
            for conf in (
                "max_split_size_mb", "max_split_size_mb:many", "max_split_size_mb:19", ",", "max_split_size_mb:64,,",
                "large_segment_size_mb:10", "garbage_collection_threshold:1", "per_process_memory_fraction:0",
                "expandable_segments:true", "roundup_power2_divisions:3", "roundup_power2_divisions:[256:2",
                "backend:cudaMallocAsync", "throw_on_cudamalloc_oom:True,expandable_segments:True",
            )
        ),
        lambda: CachingAllocator(1 << 30).set_memory_fraction(1.5),
    ],
)  # fmt: skip
def test_bad_settings(make):
    with pytest.raises(InvalidRequest):
        make()


def test_rounding_in_power_of_two_divisions():
    four = parse("roundup_power2_divisions:4")
    assert [four.round_size(s) for s in (1200, 2048, 2049, 1 << 20, (1 << 20) + 1)] == [
        1536,
        2048,
        2560,
        1 << 20,
        1310720,
    ]
    by_size = parse("roundup_power2_divisions:[32:1,128:2,>:8]")
    assert by_size.roundup_divisions[4:10] == (1, 1, 0, 2, 8, 8)


def test_segments_tile_and_counters_add_up():
    """After each of many operations: blocks tile segments, neighbours are never both free, counters are sums."""
    for seed in range(6):
        a = CachingAllocator(400 * MIB, events="manual" if seed % 2 else "immediate")
        for step in range(40):
            run_random_program(a, 20, seed * 1000 + step, streams=1 + seed % 3)
            blocks = [b for s in a.segments for b in s.blocks]
            for s in a.segments:
                assert [b.address for b in s.blocks] == [
                    s.address + sum(c.size for c in s.blocks[:k]) for k in range(len(s.blocks))
                ]
                free = [b.state == State.INACTIVE for b in s.blocks]
                assert not any(x and y for x, y in itertools.pairwise(free))
            by_state = {state: sum(b.size for b in blocks if b.state == state) for state in State}
            assert a.allocated == by_state[State.ALLOCATED]
            assert a.active == a.allocated + by_state[State.AWAITING_FREE]
            assert a.reserved == sum(s.size for s in a.segments) <= a.capacity
            assert a.requested == sum(b.requested for b in blocks)


@pytest.mark.parametrize("placement", ["first-fit", "bump", "down"])
def test_segments_never_overlap(placement):
    a = CachingAllocator(1 << 30, placement=placement)
    run_random_program(a, 400, 5)
    ends = [(s.address, s.address + s.size) for s in a.segments]
    assert all(high <= low for (_, high), (low, _) in itertools.pairwise(ends))


@pytest.mark.parametrize("path", GOLDEN, ids=lambda p: p.name.split(".")[0])
def test_agrees_with_the_real_allocator(path):
    """Workloads that PyTorch's own allocator ran: address and counters after every operation, and how it ended."""
    golden = json.loads(zlib.decompress(path.read_bytes()))
    names = {f.name for f in fields(Workload)}
    workload = Workload(**{name: value for name, value in golden.items() if name in names})
    outcome = model_outcome(workload)
    want = np.cumsum(np.array(golden["steps"]), axis=0)
    for k in np.flatnonzero((outcome.rows != want).any(axis=1)).tolist():
        pytest.fail(f"operation {k}, {workload.operations[k]}: {COLUMNS} are {outcome.rows[k]}, not {want[k]}")
    assert digest(outcome) == golden["digest"], "segments or trace differ; make test-cuda tells where"


def test_there_are_golden_runs():
    assert len(GOLDEN) >= 9
    assert kvviz.__version__
