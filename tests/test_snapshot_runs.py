"""Events read straight from a pickle's bytes are those that the long way finds, whatever lies between them."""

import pickle
import random
from dataclasses import fields

import numpy as np
import pytest

import kvviz
from kvviz.errors import TraceError
from kvviz.memory import snapshot as reader
from kvviz.memory import snapshot_runs
from tests.snapshot_check import CPP, LIBRARY, USER, snapshot_of


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(snapshot_runs, "FEWEST", 20)
    monkeypatch.setattr(snapshot_runs, "WINDOW", 9000)
    monkeypatch.setattr(snapshot_runs, "CHUNK", 7)


def recorded(seed: int, frames: str = "all", events: int = 700) -> dict:
    """A snapshot as torch 2.14 writes it: keys in its order, new lists and texts at each event, one list for a request to
    free and what completes it, and a few events of other kinds."""
    chance, allocator, held = random.Random(seed), kvviz.CachingAllocator(8 << 30), []
    while allocator.events_so_far < events:
        if held and chance.random() < 0.48:
            allocator.free(held.pop(chance.randrange(len(held))))
        else:
            held.append(allocator.malloc(chance.choice([1, 700, 5000, 70_000, 3 << 20, 30 << 20]), chance.randrange(2)))
    snapshot = snapshot_of(allocator)
    files = [{"name": f"f{k}", "filename": f"project/run{k}.py", "line": 3 * k} for k in range(40)]
    out: list[dict] = []
    for k, event in enumerate(snapshot["device_traces"][0]):
        told = {name: event[name] for name in ("action", "addr", "size", "stream", "time_us")}
        told |= {"compile_context": "".join(("N/", "A")), "user_metadata": "", "pool_id": (0, k % 3)}
        if frames == "all" or (frames == "alloc" and event["action"] == "alloc"):
            same = event["action"] == "free_completed" and out and out[-1].get("addr") == event["addr"]
            stack = [CPP, *chance.sample(files[: 3 + k // 40], 3), LIBRARY, USER][: chance.randrange(7)]
            told["frames"] = out[-1]["frames"] if same and "frames" in out[-1] else stack
        out.append(told)
        if chance.random() < 0.01:
            out.append({"action": "oom", "device_free": 1 << 20, "size": 1 << 40, "stream": 0, "time_us": told["time_us"],
                        "frames": told.get("frames", [])})  # fmt: skip
        if chance.random() < 0.01:
            out.append({**told, "action": "annotate", "user_metadata": f"mark {k}"})
        if chance.random() < 0.01:
            out.append({**told, "action": "from_the_future"})
    snapshot["device_traces"] = [out]
    return snapshot


def both_ways(data: bytes, folder, monkeypatch) -> tuple:
    """The trace, and that of the long way; and how many events the short one took."""
    file, taken = folder / "snapshot.pickle", []
    file.write_bytes(data)
    with monkeypatch.context() as patch:
        patch.setattr(reader, "find", lambda opened: taken.append(snapshot_runs.find(opened)) or taken[-1])
        pickles, whole = [], reader.read_plain
        patch.setattr(reader, "read_plain", lambda data: pickles.append(data) or whole(data))
        fast = kvviz.load(file)
        ways = len(pickles)
        patch.setattr(reader, "find", lambda opened: None)
        slow = kvviz.load(file)
    return fast, slow, taken[0].starts[-1] if taken[0] is not None and ways == 1 else 0


def assert_same(fast, slow):
    for name in (f.name for f in fields(fast.events)):
        one, other = fast.events[name], slow.events[name]
        if name == "stack":  # numbered in another order
            one, other = ([t.stacks[k] if k >= 0 else "" for k in t.events.stack.tolist()] for t in (fast, slow))
        assert np.array_equal(one, other), name
    assert sorted(fast.stacks) == sorted(slow.stacks)
    for name in ("warnings", "marks", "about", "origin", "owners", "devices"):
        assert getattr(fast, name) == getattr(slow, name), name
    for i in (0, len(fast) // 2, len(fast)):
        assert (fast.at(i).blocks["address"] == slow.at(i).blocks["address"]).all()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("frames", ["all", "alloc", "none"])
def test_the_same_as_the_long_way(seed, frames, tmp_path, monkeypatch):
    snapshot = recorded(seed, frames)
    fast, slow, taken = both_ways(pickle.dumps(snapshot, 4), tmp_path, monkeypatch)
    assert_same(fast, slow)
    others = sum(e["action"] in ("oom", "annotate", "from_the_future") for e in snapshot["device_traces"][0])
    if frames == "none":
        assert taken > 0.6 * len(fast)
    assert others and taken >= (200 if frames == "all" else 100), "it has to be worth something"


def test_several_devices(tmp_path, monkeypatch):
    one, other = recorded(1), recorded(2)
    one["device_traces"].append(other["device_traces"][0])
    for segment in other["segments"]:
        one["segments"].append({**segment, "device": 1})
    fast, slow, taken = both_ways(pickle.dumps(one, 5), tmp_path, monkeypatch)
    assert taken and fast.devices == [0, 1]
    assert_same(fast, slow)


@pytest.mark.parametrize("protocol", [2, 3])
def test_older_pickles_are_read_the_long_way(protocol, tmp_path, monkeypatch):
    fast, slow, taken = both_ways(pickle.dumps(recorded(3), protocol), tmp_path, monkeypatch)
    assert taken == 0
    assert_same(fast, slow)


def test_other_orders_of_keys_are_read_the_long_way(tmp_path, monkeypatch):
    snapshot = recorded(4)
    snapshot["device_traces"] = [[dict(reversed(event.items())) for event in snapshot["device_traces"][0]]]
    fast, slow, taken = both_ways(pickle.dumps(snapshot, 4), tmp_path, monkeypatch)
    assert taken == 0
    assert_same(fast, slow)


def test_a_text_that_looks_like_an_event_takes_no_one_in(tmp_path, monkeypatch):
    snapshot = recorded(5)
    plain = pickle.dumps(snapshot, 4)
    at = plain.index(b"}\x94(", len(plain) // 2)
    snapshot["device_traces"][0][300]["compile_context"] = plain[at : at + 200].decode("latin1")
    snapshot["allocator_settings"]["run 0\0"] = "run 1\0"
    fast, slow, _ = both_ways(pickle.dumps(snapshot, 4), tmp_path, monkeypatch)
    assert_same(fast, slow)


def test_damaged_bytes_end_alike(tmp_path, monkeypatch):
    """Both ways give the same trace, or refuse. The short one does not look at values that no trace has: damage in those
    alone it may pass over."""
    data, chance, file = bytearray(pickle.dumps(recorded(6, events=250), 4)), random.Random(0), tmp_path / "damaged.pickle"
    outcomes = set()
    file.write_bytes(data)
    whole = kvviz.load(file)
    for _ in range(40):
        bad = bytearray(data)
        for _ in range(chance.randrange(1, 3)):
            bad[chance.randrange(len(bad) // 8, len(bad))] = chance.choice([0, 0x75, 0x65, 0x94, 0x68, 0x4B, 0xFF])
        file.write_bytes(bad)
        results = []
        for find in (snapshot_runs.find, lambda opened: None):
            monkeypatch.setattr(reader, "find", find)
            try:
                results.append(kvviz.load(file))
            except TraceError:
                results.append(None)
        outcomes.add(results[1] is None)
        if results[1] is None:
            if results[0] is not None:
                changed = [results[0].events[f.name] != whole.events[f.name] for f in fields(whole.events)]
                assert np.count_nonzero(np.any(changed, axis=0)) <= 1, "the other damage is in a value that is not read"
            continue
        assert results[0] is not None
        if not results[0].about.get("inconsistent"):
            assert_same(*results)
    assert outcomes == {True, False}
