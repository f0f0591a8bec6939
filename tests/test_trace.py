"""Trace: the state after any event equals a slow replay; files come back as they went; bad questions are refused."""

import json
import zipfile

import numpy as np
import pytest

from kvviz import CachingAllocator, InconsistentTrace, InvalidRequest, Trace, TraceError, load
from kvviz.memory import lifetimes
from kvviz.memory.lifetimes import KEYFRAME, LiveIndex
from kvviz.memory.state import State
from kvviz.memory.trace import Action, Events, Mark
from tests.memory_check import MIB, Replayed, run_random_program


def random_trace(seed: int, operations: int = 600, streams: int = 2) -> Trace:
    a = CachingAllocator(300 * MIB, events="manual" if seed % 2 else "immediate")
    if seed % 3 == 0:
        run_random_program(a, 100, seed + 50)
        a.forget_history()
    run_random_program(a, operations, seed, streams)
    return a.trace


def check_against_replay(trace: Trace, every: int = 1) -> None:
    slow, e = Replayed(trace), trace.events
    for i in range(len(trace) + 1):
        if i % every == 0 or i == len(trace):
            state, want = trace.at(i), slow.totals()
            assert {name: getattr(state, name) for name in want} == want, f"after event {i}"
            live = {int(b["address"]) for b in state.blocks if b["state"] != State.INACTIVE}
            assert live == set(slow.allocated) | set(slow.awaiting)
            assert state.blocks["size"].sum() == state.segments["size"].sum() == state.reserved
        if i < len(trace):
            slow.apply(int(e.action[i]), int(e.address[i]), int(e.size[i]), int(e.requested[i]))


@pytest.mark.parametrize("seed", range(6))
def test_state_after_every_event(seed):
    check_against_replay(random_trace(seed))


def test_state_across_keyframes():
    trace = random_trace(3, operations=5000)
    assert len(trace) > 3 * KEYFRAME
    check_against_replay(trace, every=331)
    for edge in (KEYFRAME - 1, KEYFRAME, KEYFRAME + 1, 3 * KEYFRAME):
        slow = Replayed(trace)
        for i in range(edge):
            slow.apply(*(int(trace.events[name][i]) for name in ("action", "address", "size", "requested")))
        assert trace.at(edge).allocated == slow.totals()["allocated"]


def test_peak_is_where_it_says():
    trace = random_trace(1)
    assert trace.at(trace.peak_event + 1).allocated == trace.peak_allocated == trace.curves().allocated.max()
    assert trace.at(trace.peak_event).allocated < trace.peak_allocated
    assert trace.peak_reserved == max(trace.at(i).reserved for i in range(len(trace) + 1))


def test_what_lived_before_counts_from_the_start():
    a = CachingAllocator(1 << 30)
    old = a.malloc(3 * MIB)
    a.forget_history()
    a.malloc(512)
    a.free(old)
    trace = a.trace
    assert trace.at(0).allocated == 3 * MIB and trace.at(0).reserved == 20 * MIB
    assert trace.at(-1).allocated == 512 and trace.peak_allocated == 3 * MIB + 512


def test_the_newest_events_of_a_long_run_with_what_lived_before_them():
    trace = random_trace(2)
    trace = Trace(trace.events, trace.entry, marks=[Mark(10, "early"), Mark(len(trace) - 5, "late")])
    tail = trace.last(50)
    cut = len(trace) - 50
    assert len(tail) == 50 and "mid-run" in tail.warnings[0] and tail.marks == [Mark(45, "late")]
    for i in range(51):
        a, b = tail.at(i), trace.at(cut + i)
        assert (a.allocated, a.active, a.reserved, a.requested) == (b.allocated, b.active, b.reserved, b.requested)
        assert np.array_equal(a.blocks[["address", "size", "state"]], b.blocks[["address", "size", "state"]])
    assert trace.last(10**9) is trace


def test_mapped_ranges_are_joined_and_cut():
    """Expandable segments: three pages mapped one by one, the middle one unmapped again."""
    page, base = 20 * MIB, 0x700000000000
    actions = [Action.SEGMENT_MAP, Action.SEGMENT_MAP, Action.SEGMENT_UNMAP, Action.SEGMENT_MAP]
    addresses, sizes = [base, base + 2 * page, base + page, base + page], [2 * page, page, page, page]
    trace = Trace(Events.of(4, action=actions, address=addresses, size=sizes))
    assert [len(trace.at(i).segments) for i in range(5)] == [0, 1, 1, 2, 1]
    assert [trace.at(i).reserved // page for i in range(5)] == [0, 2, 3, 2, 3]


@pytest.mark.parametrize("i", [-8, 8, 10**9])
def test_no_state_outside_the_run(i):
    trace = Trace(Events.of(6))
    with pytest.raises(InvalidRequest, match=r"0 … 6"):
        trace.at(i)
    with pytest.raises(InvalidRequest, match="device 3"):
        trace.at(0, device=3)


def test_empty_trace():
    trace = Trace(Events.of(0))
    state = trace.at(0)
    assert (len(trace), state.reserved, len(state.blocks), trace.peak_event) == (0, 0, 0, -1)
    assert trace.to_dataframe().empty


def test_contradicting_blocks_are_refused():
    trace = Trace(
        Events.of(
            3, action=[Action.SEGMENT_ALLOC, Action.ALLOC, Action.ALLOC], address=[MIB, MIB, MIB + 512],
            size=[2 * MIB, 1024, 512],
        )
    )  # fmt: skip
    assert trace.at(2).allocated == 1024
    with pytest.raises(InconsistentTrace, match="after event 3"):
        trace.at(3)


def test_a_free_that_was_lost_does_not_pair_with_a_later_block():
    actions = [Action.SEGMENT_ALLOC, Action.ALLOC, Action.ALLOC, Action.FREE_COMPLETED]
    trace = Trace(Events.of(4, action=actions, address=[MIB] * 4, size=[2 * MIB, 512, 512, 512]))
    assert trace.lifetimes().blocks.died.tolist() == [4, 3]


def test_file_and_back(tmp_path):
    trace = random_trace(3)
    trace = Trace(
        trace.events,
        trace.entry,
        [Mark(3, "prefill")],
        ["other", "kv"],
        ["torch.cat"],
        "test",
        ["careful"],
        {"conf": "x"},
    )
    trace.save(tmp_path / "a.kvviz")
    back = load(tmp_path / "a.kvviz")
    for name in ("action", "address", "size", "requested", "stream", "device", "time_us", "owner", "stack"):
        assert np.array_equal(trace.events[name], back.events[name]), name
        assert trace.events[name].dtype == back.events[name].dtype
    for i in (0, 7, len(trace)):
        assert np.array_equal(trace.at(i).blocks, back.at(i).blocks)
    assert (back.marks, back.owners, back.stacks) == ([Mark(3, "prefill")], ["other", "kv"], ["torch.cat"])
    assert (back.origin, back.warnings, back.about) == ("test", ["careful"], {"conf": "x"})
    trace.save(tmp_path / "b.kvviz")
    assert (tmp_path / "a.kvviz").read_bytes() == (tmp_path / "b.kvviz").read_bytes()


def test_addresses_of_any_size_survive(tmp_path):
    high = (1 << 63) + 512
    events = Events.of(2, action=[Action.SEGMENT_ALLOC, Action.ALLOC], address=[high, high], size=[2 * MIB, 512])
    Trace(events).save(tmp_path / "t.kvviz")
    assert load(tmp_path / "t.kvviz").events.address.tolist() == [high, high]


def test_a_failed_save_leaves_the_old_file(tmp_path):
    path = tmp_path / "t.kvviz"
    random_trace(1).save(path)
    before = path.read_bytes()
    broken = Trace(Events.of(0), about={"not json": object()})
    with pytest.raises(TypeError):
        broken.save(path)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_damaged_files_are_refused_in_one_line(tmp_path):
    path, bad = tmp_path / "t.kvviz", tmp_path / "bad.kvviz"
    random_trace(1, operations=60).save(path)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    read = 0
    for k in range(300):
        data = bytearray(whole)
        if k % 3 == 0:
            data = data[: rng.integers(len(data))]
        else:
            for _ in range(int(rng.integers(1, 4))):
                data[rng.integers(len(data))] = int(rng.integers(256))
        bad.write_bytes(data)
        try:
            load(bad)
            read += 1  # a changed byte that nothing depends on (a zip time stamp, say)
        except TraceError as problem:
            assert "\n" not in str(problem)
    assert read < 200
    for text in (b"", b"PK\x03\x04", b"not a zip at all"):
        bad.write_bytes(text)
        with pytest.raises(TraceError):
            load(bad)
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "nothing.kvviz")


def test_a_column_that_lies_about_its_length_is_refused(tmp_path):
    path, bad = tmp_path / "t.kvviz", tmp_path / "bad.kvviz"
    random_trace(1, operations=60).save(path)
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(bad, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name == "about.json":
                about = json.loads(data)
                about["columns"]["events/size"]["length"] = 1 << 60
                data = json.dumps(about).encode()
            new.writestr(name, data)
    with pytest.raises(TraceError, match="events/size"):
        load(bad)


def test_dataframe_speaks_in_names():
    trace = random_trace(1)
    frame = trace.to_dataframe()
    assert len(frame) == len(trace) and set(frame.action) <= {a.name.lower() for a in Action}
    assert (
        frame[frame.action == "alloc"].requested.sum()
        == trace.events.requested[trace.events.action == Action.ALLOC].sum()
    )


def test_a_small_file_cannot_claim_much(tmp_path):
    """4 MB of zeros in 1 kB are honest; the same member written as 40 GB is refused before anything is unpacked."""
    Trace(Events.of(4_000_000)).save(tmp_path / "zeros.kvviz")
    assert (tmp_path / "zeros.kvviz").stat().st_size < 100_000
    assert len(load(tmp_path / "zeros.kvviz")) == 4_000_000
    with zipfile.ZipFile(tmp_path / "bomb.kvviz", "w") as bomb:
        bomb.writestr("about.json", b" " * 50_000_000, zipfile.ZIP_LZMA)
    small = (tmp_path / "bomb.kvviz").read_bytes()
    lie = small.replace((50_000_000).to_bytes(4, "little"), (4_000_000_000).to_bytes(4, "little"))
    assert lie != small
    (tmp_path / "bomb.kvviz").write_bytes(lie)
    with pytest.raises(TraceError, match="claims 4,000,000,000 B"):
        load(tmp_path / "bomb.kvviz")


def test_what_awaits_its_free_at_the_cut_still_does():
    """Cut between the request and the end of a free: the block is active from the start, but not allocated."""
    trace = random_trace(5, streams=3)
    action = trace.events.action
    cut = next(i for i in range(len(trace) // 3, len(trace)) if trace.at(i).active > trace.at(i).allocated)
    assert action[cut - 1] in (Action.FREE_REQUESTED, Action.FREE_COMPLETED, Action.ALLOC)
    tail = trace.last(len(trace) - cut)
    for i in range(0, len(tail) + 1, 5):
        for name in ("allocated", "active", "requested", "reserved", "releasable"):
            assert getattr(tail.at(i), name) == getattr(trace.at(cut + i), name)


@pytest.mark.parametrize("most", [1 << 23, 40_000, 1])
def test_living_rows_where_many_live(most, monkeypatch):
    monkeypatch.setattr(lifetimes, "MOST", most)
    chance = np.random.default_rng(most)
    for n in (0, 1, 2048, 5000, 30_000):
        born = np.sort(chance.integers(-1, max(n, 1), n // 2 + 5))
        died = np.minimum(n, born + 1 + chance.integers(0, n + 1, len(born)))
        index = LiveIndex(born, died, n)
        assert sum(map(len, index._frames)) <= most + n // 2 + 5
        for i in {0, n, *chance.integers(0, n + 1, 20).tolist()}:
            assert (index.at(i) == np.flatnonzero((born < i) & (i <= died))).all()


def test_names_cannot_reorder_the_numbers_beside_them():
    """A right-to-left override makes "24 KiB" read "BiK 42"; a name of blanks cannot be told from none."""
    marks = [Mark(0, "\u202egone"), Mark(1, ""), Mark(1, "décode 1")]
    trace = Trace(Events.of(1, action=[Action.SNAPSHOT]), marks=marks, owners=["other", "\u2066a\u2069", " ", "قياس"])
    assert trace.owners == ["other", "\ufffda\ufffd", "(no name)", "قياس"]
    assert [mark.name for mark in trace.marks] == ["\ufffdgone", "(no name)", "décode 1"]


@pytest.mark.parametrize("where", ["missing/t.kvviz", ""])
def test_a_trace_that_cannot_be_written_says_so_and_leaves_nothing(tmp_path, where):
    with pytest.raises(TraceError, match=r"cannot be written to .*: (No such file|Is a directory)"):
        Trace(Events.of(0)).save(tmp_path / where)
    assert not list(tmp_path.iterdir()) and not list(tmp_path.parent.glob("*.part"))
