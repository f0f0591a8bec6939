"""Workloads, request traces, and what memory they waste."""

import random
import statistics

import pytest

from kvviz import CorruptCache, InvalidRequest, PoolExhausted
from kvviz.serve.waste import CAPACITY, Arena, Doubling, Paged, Reserved, compare, simulate
from kvviz.serve.workload import MIXES, Job, read_trace, shared_prefixes, workload

# --- workloads --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("seed", [0, 1])
def test_means_are_the_published_ones_and_none_is_too_long(mix, seed):
    jobs = workload(mix, 300, seed=seed)
    assert jobs == workload(mix, 300, seed=seed) != workload(mix, 300, seed=seed + 1)
    assert abs(statistics.fmean(job.prompt for job in jobs) - MIXES[mix].prompt) < 0.05
    assert abs(statistics.fmean(job.output for job in jobs) - MIXES[mix].output) < 0.05
    assert all(job.prompt >= 1 and job.output >= 1 and job.prompt + job.output <= 2048 for job in jobs)
    logs = statistics.median(job.output for job in jobs) / MIXES[mix].output
    assert 0.45 < logs < 0.85, "long tails: the median of a lognormal lies below its mean"


def test_jobs_come_at_a_rate():
    jobs = workload("alpaca", 2000, rate=5.0)
    gaps = [b.at - a.at for a, b in zip(jobs, jobs[1:], strict=False)]
    assert jobs[0].at == 0 and min(gaps) >= 0 and abs(statistics.fmean(gaps) - 0.2) < 0.02
    assert {job.at for job in workload("alpaca", 20)} == {0.0}


def test_prompts_share_beginnings():
    prompts = shared_prefixes(40, 96, prefixes=3, prefix_tokens=10, tokens=(2, 5))
    assert len({tuple(prompt[:10]) for prompt in prompts}) == 3 and {len(prompt) for prompt in prompts} == {
        12,
        13,
        14,
        15,
    }
    assert len({tuple(prompt) for prompt in prompts}) > 35 and prompts == shared_prefixes(40, 96, 3, 10, (2, 5))


def test_workloads_that_make_no_sense():
    with pytest.raises(InvalidRequest, match="sharegpt, alpaca, got 'orca'"):
        workload("orca")
    with pytest.raises(InvalidRequest, match=r"a mean of 161.31 tokens .* raise longest"):
        workload("sharegpt", longest=100)
    with pytest.raises(InvalidRequest, match="not be negative"):
        workload(rate=-1)
    with pytest.raises(InvalidRequest, match="5 to 4 tokens"):
        shared_prefixes(3, 96, tokens=(5, 4))


# --- traces -----------------------------------------------------------------------------------------------------------

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:17:46.6805900,879,55
"""


@pytest.fixture
def trace(tmp_path):
    def write(text, **kwargs):
        path = tmp_path / "trace.csv"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return read_trace(path, **kwargs)

    return write


def test_azures_trace_is_read(trace):
    jobs = trace(AZURE)
    assert [job[:2] for job in jobs] == [(374, 44), (396, 109), (879, 55)]
    assert [job.at for job in jobs] == pytest.approx([0, 4.314579, 120], abs=1e-6)
    assert trace(AZURE, limit=2) == jobs[:2]
    assert trace("\ufeff" + AZURE.replace("\n", "\r\n") + "\r\n") == jobs


def test_other_traces_are_read_by_their_column_names(trace):
    text = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,x\n45.5,GPT-4,1,0,1,x\n"
    with pytest.raises(InvalidRequest, match="skip_empty=True"):
        trace(text)
    assert trace(text, skip_empty=True) == [Job(472, 18, 0)]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", r"trace.csv, row 1: no column is called timestamp"),
        ("TIMESTAMP,ContextTokens\n1,2\n", "row 1: no column is called generatedtokens"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "no row of a request"),
        (AZURE + "2023-11-16 18:18:00,x,3\n", "row 5: tokens must be a whole number from 1 up, got 'x'"),
        (AZURE + "2023-11-16 18:18:00,5,-3\n", "row 5: .* got '-3'"),
        (AZURE + "2023-11-16 18:18:00,5\n", "row 5: 2 columns, not the 3"),
        (AZURE + "yesterday,5,3\n", "row 5: the time must be seconds or a date, got 'yesterday'"),
        (AZURE + "nan,5,3\n", "row 5: the time"),
        (AZURE + "2023-11-16 18:15:00,5,3\n", "row 5: 2023-11-16 18:15:00 is earlier"),
        (b"\xff\xfe\x00", "cannot be read"),
    ],
)
def test_a_bad_row_is_named(trace, text, told):
    with pytest.raises(InvalidRequest, match=told) as caught:
        trace(text)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_told(tmp_path):
    with pytest.raises(InvalidRequest, match=r"none\.csv cannot be read"):
        read_trace(tmp_path / "none.csv")


# --- waste ------------------------------------------------------------------------------------------------------------


def test_the_paper_s_figure():
    """Tokens 20 to 38 % where the longest length is reserved, waste below 4 % with 16 tokens a page."""
    ways = {shares.way: shares for shares in compare(workload("sharegpt", 120), page_sizes=(1, 16, 256))}
    reserved, doubling = ways["reserved"], ways["doubling"]
    assert 0.204 <= reserved.tokens <= 0.382 and reserved.in_flight == 7 == CAPACITY // 2048
    assert reserved.external == pytest.approx(1 - 7 * 2048 / CAPACITY)
    paged = ways["16 a page"]
    assert paged.tokens > 0.96 and paged.waste < 0.04 and paged.in_flight > 4 * reserved.in_flight
    assert reserved.tokens < doubling.tokens < paged.tokens < ways["1 a page"].tokens
    assert ways["1 a page"].waste == 0 and ways["256 a page"].waste > 0.1
    for shares in ways.values():
        assert shares.tokens + shares.reservation + shares.internal + shares.external == pytest.approx(1)
    assert paged.steps < doubling.steps < reserved.steps


def test_shares_by_hand():
    """One job of 3 + 4 tokens at a time in 10 slots, each stored 3, 4, 5, 6 tokens long; counted while one waits."""
    jobs = [Job(3, 4)] * 2
    reserved = simulate(jobs, Reserved(10, 8), 10)
    assert reserved[1:] == pytest.approx((0.45, 0.15, 0.2, 0.2, 1, 4, 0))
    assert reserved.waste == pytest.approx(0.35 / 0.8), "of the slots that are given out"
    doubling = simulate(jobs, Doubling(12, 8), 12)  # 4 and 4, then the second gives way to the first's 8
    assert doubling.preempted == 1
    paged = simulate(jobs, Paged(8, 2), 8)
    assert paged.preempted == 1 and paged.internal == 0


def test_a_slab_of_twice_the_size_is_taken_before_the_old_one_goes():
    memory = Doubling(12, 8)
    flight = memory.admit(Job(3, 4), 3)
    memory.grow(flight)
    assert (flight.slots, flight.handle, memory.arena.holes) == (4, 0, [(4, 8)])
    memory.grow(flight)
    assert (flight.length, flight.slots, flight.handle, memory.arena.holes) == (5, 8, 4, [(0, 4)])


def test_nobody_is_let_in_on_pages_that_this_step_takes():
    memory = Paged(8, 2)
    full = memory.admit(Job(4, 4), 4)
    assert not memory.can_admit(4, [full]) and memory.can_admit(2, [full])
    memory.grow(full)
    assert not memory.can_admit(4, [full]) and memory.can_admit(2, [full])


def test_the_youngest_gives_way_and_comes_back_with_its_tokens():
    shares = simulate([Job(4, 20)] * 6, Paged(40, 4), 40)
    assert (shares.steps, shares.preempted) == (35, 9), "51 and 21 if each began anew with its prompt"
    with pytest.raises(PoolExhausted, match="41 tokens do not fit into 40 slots"):
        simulate([Job(4, 60)] * 2, Paged(40, 4), 40)
    with pytest.raises(PoolExhausted, match="50 tokens do not fit into 40 slots"):
        simulate([Job(50, 1)], Paged(40, 4), 40)
    with pytest.raises(InvalidRequest, match="400 slots hold all jobs at once"):
        simulate([Job(4, 20)], Paged(400, 4), 400)


def test_an_arena_gives_out_the_first_hole_that_is_large_enough():
    """Held against a map of single slots."""
    draw, arena, taken, slots = random.Random(0), Arena(100), {}, [False] * 100
    for _ in range(2000):
        size = draw.randint(1, 30)
        fits = [at for at in range(101 - size) if not any(slots[at : at + size])]
        assert arena.can_take(size) == bool(fits)
        if fits and draw.random() < 0.7:
            start = arena.take(size)
            assert start == fits[0]
            taken[start] = size
            slots[start : start + size] = [True] * size
        elif taken:
            start = draw.choice(list(taken))
            size = taken.pop(start)
            arena.give(start, size)
            slots[start : start + size] = [False] * size
        assert sum(size for _, size in arena.holes) == slots.count(False)
    with pytest.raises(PoolExhausted, match="no hole of 101 slots"):
        arena.take(101)
    for start, size in taken.items():
        arena.give(start, size)
    assert arena.holes == [(0, 100)]
    with pytest.raises(CorruptCache, match="twice"):
        arena.give(5, 5)
