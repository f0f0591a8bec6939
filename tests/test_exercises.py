"""Exercises: right answers pass, each foreseen mistake gets its own sentence, unfinished ones raise nothing."""

import pytest
import torch

from kvviz import CachingAllocator, InvalidRequest, exercise
from kvviz.exercises import allocator, cache_grows, fragmentation, start_here


@pytest.fixture
def trace():
    a = CachingAllocator(1 << 30)
    held = a.malloc(30 << 20)
    a.free(a.malloc(12 << 20))
    a.malloc(3 << 20)
    a.free(held)
    return a.trace


def test_right_answers(trace, capsys):
    peak = trace.at(trace.peak_event + 1)
    assert exercise("00.1").check(377_487_360)
    assert exercise("00.2").check(23_040)
    assert exercise("00.3").check(peak.reserved - peak.active, trace)
    assert capsys.readouterr().out.count("right.") == 3


@pytest.mark.parametrize(
    ("number", "answer", "told"),
    [
        ("00.1", None, "no answer yet"),
        ("00.1", ..., "no answer yet"),
        ("00.1", 46_080, "one token"),
        ("00.1", 377_487_360 // 2, "half"),
        ("00.1", 377_487_360 * 3, "KV heads"),
        ("00.1", 1, "less"),
        ("00.1", "many", "could not use an answer of type str"),
        ("00.2", 46_080, "fp32"),
        ("00.2", 1, "less"),
    ],
)
def test_mistakes(number, answer, told, capsys):
    assert not exercise(number).check(answer)
    assert told in capsys.readouterr().out


def test_moments_beside_the_peak(trace, capsys):
    def cached(state):
        return state.reserved - state.active

    assert not exercise("00.3").check(cached(trace.at(-1)), trace)
    assert "end of the run" in capsys.readouterr().out
    assert not exercise("00.3").check(cached(trace.at(trace.peak_event + 1)) + 1, trace)


def test_hints_come_one_at_a_time_and_end(capsys):
    task = exercise("00.3")
    for _ in range(4):
        task.hint()
    out = capsys.readouterr().out
    assert "Hint 1 of 3" in out and "Hint 3 of 3" in out and "notebooks/solutions/00.ipynb" in out


def test_each_is_complete_and_shows_itself():
    for task in [*start_here.exercises(), *cache_grows.exercises(), *allocator.exercises(), *fragmentation.exercises()]:
        assert task.hints and 1 <= task.difficulty <= 3 and task.minutes > 0 and task.title in task._repr_html_()
        assert task.question.split("\n")[0] in repr(task)


def test_unknown():
    with pytest.raises(InvalidRequest, match=r"99\.9"):
        exercise("99.9")


def test_the_cache_grows(capsys):
    rows = torch.arange(2000.0).reshape(1, 1000, 2)
    assert exercise("01.1").check(2_147_483_648)
    assert exercise("01.2").check(6_275)
    assert exercise("01.3").check(rows[:, -100:].clone(), rows)
    assert not exercise("01.3").check(rows[:, -100:], rows)
    assert "8,000 bytes alive for 800" in capsys.readouterr().out
    assert not exercise("01.3").check(rows[:, :100].clone(), rows)
    assert not exercise("01.2").check(50)


def test_the_allocator_exercises_agree_with_the_allocator(capsys):
    a = CachingAllocator(1 << 30)
    for size in (700 << 10, 3 << 20, 12 << 20):
        a.malloc(size)
    assert exercise("02.1").check(a.reserved >> 20)
    b = CachingAllocator(1 << 30)
    b.free(b.malloc(30 << 20))  # one segment for all of them
    blocks = [b.malloc(size << 19) for size in (16, 3, 10, 3, 12, 3, 13)]  # 8, 5 and 6 MiB, walls between, a lid
    for k in (0, 2, 4):
        b.free(blocks[k])
    assert exercise("02.2").check({blocks[0]: 8, blocks[2]: 5, blocks[4]: 6}.get(b.malloc(11 << 19)))

    def pins(allocator):
        blocks = [allocator.malloc((1 << 20) + 512) for _ in range(95)]  # 19 to a segment of 20 MiB
        for k, block in enumerate(blocks):
            if k % 19:
                allocator.free(block)

    def keeps_too_much(allocator):
        allocator.malloc(200 << 20)

    def lets_go(allocator):
        allocator.free(allocator.malloc(200 << 20))

    assert exercise("02.3").check(pins)
    assert not exercise("02.3").check(keeps_too_much)
    assert "still allocated" in capsys.readouterr().out
    assert not exercise("02.3").check(lets_go)
    assert "gave 200 MiB back" in capsys.readouterr().out


def test_fragmentation(capsys):
    assert exercise("03.1").check(800)
    assert not exercise("03.1").check(798)
    assert not exercise("03.1").check(801)
    assert not exercise("03.1").check(800.9)
    assert exercise("03.2").check("expandable_segments:True")
    assert exercise("03.2").check("max_split_size_mb:300")
    assert not exercise("03.2").check("max_split_size_mb:20")
    assert not exercise("03.2").check("garbage_collection_threshold:0.5,per_process_memory_fraction:0.99")
    assert not exercise("03.2").check("nonsense:1")
    assert "refuses" in capsys.readouterr().out

    def large_last(allocator):
        blocks = [allocator.malloc(270 << 20) for _ in range(2)]
        for block in blocks:
            allocator.free(block)
        allocator.free(allocator.malloc(530 << 20))

    def as_before(allocator):
        allocator.free(allocator.malloc(530 << 20))
        allocator.malloc(270 << 20)
        allocator.malloc(270 << 20)

    assert exercise("03.3").check(large_last)
    assert not exercise("03.3").check(as_before)
    assert not exercise("03.3").check(lambda allocator: allocator.malloc(530 << 20))
