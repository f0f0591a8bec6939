"""Exercises: right answers pass, each foreseen mistake gets its own sentence, unfinished ones raise nothing."""

import pytest

from kvviz import CachingAllocator, InvalidRequest, exercise
from kvviz.exercises import start_here


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
        ("00.1", "many", "could not use"),
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
    for task in start_here.exercises():
        assert task.hints and 1 <= task.difficulty <= 3 and task.minutes > 0 and task.title in task._repr_html_()
        assert task.question.split("\n")[0] in repr(task)


def test_unknown():
    with pytest.raises(InvalidRequest, match=r"99\.9"):
        exercise("99.9")
