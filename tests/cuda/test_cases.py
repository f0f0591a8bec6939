"""Known stories of fragmentation, told by PyTorch's own allocator; the model tells the same."""

import pytest

from kvviz import InvalidRequest
from tests.cuda_stub.oracle import real_outcome
from tests.cuda_stub.workloads import COLUMNS, MIB, Outcome, Workload, first_difference, model_outcome
from tests.memory_check import SURVIVORS


def run(operations: list[tuple], **how) -> Outcome:
    workload = Workload(operations=operations, **{"capacity": 24 << 30, **how})
    real = real_outcome(workload)
    assert first_difference(real, model_outcome(workload)) is None
    return real


def column(outcome: Outcome, name: str) -> list[int]:
    return [value // MIB for value in outcome.rows[:, COLUMNS.index(name)].tolist()]


@pytest.mark.parametrize(
    ("conf", "reserved"),
    [  # after: 530 MiB, its free, 270, empty_cache, 270 more
        ("", [530, 530, 530, 530, 800]),  # the 530 are split, and the 260 that are left serve nobody
        ("max_split_size_mb:20", [530, 530, 800, 270, 540]),
        ("max_split_size_mb:512", [530, 530, 800, 270, 540]),
        ("max_split_size_mb:531", [530, 530, 530, 530, 800]),  # too large to help
        ("max_split_size_mb:20,max_non_split_rounding_mb:300", [530, 530, 530, 530, 800]),  # 530 whole for 270
        ("garbage_collection_threshold:0.1", [530, 530, 530, 530, 800]),  # does nothing without a fraction
        ("roundup_power2_divisions:4", [640, 640, 640, 640, 640]),  # 320 and 320: it fits
        ("expandable_segments:True", [540, 540, 540, 280, 540]),  # pages of 20 MiB
        ("large_segment_size_mb:50,expandable_segments:True", [550, 550, 550, 300, 550]),
    ],
)
def test_a_large_block_pins_its_segment(conf, reserved):
    story = [
        ("alloc", 0, 530 * MIB, 0),
        ("free", 0),
        ("alloc", 1, 270 * MIB, 0),
        ("empty_cache",),
        ("alloc", 2, 270 * MIB, 0),
    ]
    assert column(run(story, conf=conf), "reserved") == reserved


@pytest.mark.parametrize(("conf", "survivor", "reserved"), SURVIVORS)
def test_survivors_pin_what_expandable_segments_would_reuse(conf, survivor, reserved):
    """100 cycles of 91 and 45.5 MiB that go and 2 MiB that stay: both options together lose memory (torch 2.14)."""
    story: list[tuple] = []
    for k in range(0, 300, 3):
        story += [("alloc", k, 91 * MIB, 0), ("alloc", k + 1, 91 * MIB // 2, 0), ("alloc", k + 2, survivor * MIB, 0)]
        story += [("free", k), ("free", k + 1)]
    outcome = run(story, conf=conf)
    assert column(outcome, "reserved")[-1] == reserved
    assert column(outcome, "allocated")[-1] == 100 * survivor


def test_an_out_of_memory_entry_tells_how_much_was_free():
    outcome = run([("alloc", 0, 60 * MIB, 0), ("alloc", 1, 50 * MIB + 1, 0)], capacity=100 * MIB)
    assert column(outcome, "retries")[-1] * MIB + outcome.rows[-1, COLUMNS.index("ooms")] == 1
    assert outcome.trace[-1] == ("oom", 40 * MIB, 50 * MIB + 512, 0)


@pytest.mark.parametrize("conf", ["throw_on_cudamalloc_oom:True", "release_lock_on_cudamalloc:True"])
def test_rarer_settings(conf):
    operations = [("alloc", 0, 60 * MIB, 0), ("free", 0), ("alloc", 1, 70 * MIB, 0), ("alloc", 2, 20 * MIB, 0)]
    outcome = run(operations, capacity=100 * MIB, conf=conf)
    assert (outcome.rows[2, 0] == -1) == conf.startswith("throw")


def test_streams_are_visited_in_the_order_that_the_model_knows():
    """Blocks used on another stream, freed in every order: the default stream's first, then the latest made."""
    for order in ([0, 1, 2, 3, 4], [4, 2, 0, 3, 1], [3, 4, 1, 2, 0]):
        story: list[tuple] = []
        for k, stream in enumerate(order):
            story += [("alloc", k, 1000 + stream, (stream + 1) % 5), ("record_stream", k, stream)]
        story += [("free", k) for k in range(5)] + [("alloc", 5, 1, 0)]
        done = [size - 1000 for action, _, size, _ in run(story, streams=5).trace if action == "free_completed"]
        assert done == [0, 4, 3, 2, 1]


def test_with_many_streams_only_the_order_of_trace_entries_is_unknown():
    story: list[tuple] = []
    for k in range(8):
        story += [("alloc", k, 1000 + k, (k + 1) % 8), ("record_stream", k, k)]
    story += [("free", k) for k in range(8)] + [("alloc", 8, 1, 0)]
    workload = Workload(1 << 30, streams=8, operations=story)
    real, model = real_outcome(workload), model_outcome(workload)
    assert first_difference(real._replace(trace=[]), model._replace(trace=[])) is None
    assert sorted(real.trace) == sorted(model.trace)


def test_why_max_split_cannot_be_set_lower_in_mid_run():
    """The 50 MiB that are left of a split segment then count as oversize, and PyTorch gives them back as a segment."""
    story = [("alloc", 0, 80 * MIB, 0), ("free", 0), ("alloc", 1, 30 * MIB, 0)]
    story += [("settings", "max_split_size_mb:40"), ("alloc", 2, 60 * MIB, 0)]
    workload = Workload(100 * MIB, operations=story)
    with pytest.raises(RuntimeError, match="CUDA error"):
        real_outcome(workload)
    with pytest.raises(InvalidRequest, match="cannot be set lower"):
        model_outcome(workload)
