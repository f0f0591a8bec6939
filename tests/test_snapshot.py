"""load() of snapshots: every generation gives the trace it was made from; what cannot be so is said or refused."""

import gc
import pickle
import random
import resource
import struct
import subprocess
import sys
import time

import numpy as np
import pytest

import kvviz
from kvviz import CachingAllocator, InconsistentTrace, Trace, TraceError
from kvviz.memory.grammar import is_plain
from kvviz.memory.snapshot import from_snapshot
from kvviz.memory.trace import Action, Mark
from kvviz.memory.unpickle import _Machine, read_plain
from tests.memory_check import MIB, run_random_program
from tests.snapshot_check import GENERATIONS, STREAM, USER, snapshot_of

TOTALS = ("allocated", "active", "reserved", "requested", "largest_free", "releasable")
CONFS = (
    "", "max_split_size_mb:32", "roundup_power2_divisions:8", "expandable_segments:True",
    "roundup_power2_divisions:[1:2,4:4,>:8],max_split_size_mb:64",
)  # fmt: skip


def as_trace(snapshot: dict) -> Trace:
    return from_snapshot([snapshot], "test.pickle")


def some_allocator(seed: int, conf: str = "", streams: int = 1, operations: int = 250) -> CachingAllocator:
    a = CachingAllocator(400 * MIB, conf)
    run_random_program(a, operations, seed, streams)
    return a


def same_states(got: Trace, want: Trace, cut: int = 0, names: tuple[str, ...] = TOTALS, device: int = 0) -> None:
    assert len(got) == len(want) - cut
    handles = got.about.get("streams")
    streams = None if handles is None else np.array([h // STREAM for h in handles])
    for i in range(len(got) + 1):
        a, b = got.at(i, device), want.at(cut + i)
        for name in names:
            assert getattr(a, name) == getattr(b, name), f"{name} after event {i}"
        if names == TOTALS:
            for one, other in ((a.blocks, b.blocks), (a.segments, b.segments)):
                fields = [
                    f for f in one.dtype.names if f in ("address", "size", "requested", "state", "small", "expandable")
                ]
                assert np.array_equal(one[fields], other[fields]), f"after event {i}"
                if streams is not None:
                    assert np.array_equal(streams[one["stream"]], other["stream"]), f"after event {i}"


def file_of(tmp_path, thing: object, protocol: int = 4):
    path = tmp_path / "a.pickle"
    path.write_bytes(thing if isinstance(thing, bytes) else pickle.dumps(thing, protocol))
    return path


# -- what a history tells ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("generation", GENERATIONS)
def test_every_generation_from_an_empty_start(generation, tmp_path):
    a = some_allocator(1, streams=2)
    trace = kvviz.load(file_of(tmp_path, snapshot_of(a, generation)))
    same_states(trace, a.trace)
    assert trace.about["exact"] and trace.about["torch"].startswith(generation)
    assert trace.origin == "file a.pickle" and trace.about["capacity"] is None
    assert trace.peak_allocated == a.trace.peak_allocated and trace.peak_event == a.trace.peak_event
    assert ("events have no time stamps" in trace.warnings) == (generation in ("2.0", "2.1"))
    assert any("no addresses" in w for w in trace.warnings) == (generation == "2.0")
    assert not any("mid-run" in w for w in trace.warnings)


@pytest.mark.parametrize("conf", CONFS)
@pytest.mark.parametrize("seed", range(3))
def test_block_sizes_from_requests_under_every_setting(conf, seed):
    a = some_allocator(seed, conf)
    trace = as_trace(snapshot_of(a))
    same_states(trace, a.trace)
    assert trace.about["exact"] and trace.about["conf"] == conf


@pytest.mark.parametrize("conf", CONFS)
@pytest.mark.parametrize("seed", range(4))
def test_a_history_that_begins_mid_run(conf, seed):
    a = some_allocator(seed + 10, conf)
    action = a.trace.events.action
    for cut in (len(action) // 5, len(action) // 2, len(action) - 3):
        while action[cut] == Action.FREE_COMPLETED:  # its request would be cut off: see the next test
            cut += 1
        trace = as_trace(snapshot_of(a, cut=cut))
        same_states(trace, a.trace, cut)
        assert not trace.about["exact"]
        older = len(trace.entry[0].blocks), len(trace.entry[0].segments)
        told = next(w for w in trace.warnings if w.startswith("history starts mid-run"))
        assert f"{older[0]:,} blocks and {older[1]:,} segments" in told


def test_the_size_of_an_older_block_shows_at_any_time_of_its_life():
    """It took half a mebibyte more than it asked for: seen by its neighbour, which is gone when its own free comes."""
    a = CachingAllocator(400 * MIB)
    first, neighbour, _ = a.malloc(5 * MIB), a.malloc(3 * MIB), a.malloc(2 * MIB)
    a.free(first)
    second = a.malloc(4 * MIB + MIB // 2)
    cut = len(a.trace)
    a.free(neighbour)
    a.free(second)
    trace = as_trace(snapshot_of(a, cut=cut))
    assert trace.entry[0].blocks.size.tolist() == [5 * MIB, 3 * MIB, 2 * MIB]
    same_states(trace, a.trace, cut)


def test_blocks_that_await_their_free():
    """Work on other streams holds blocks; also those whose request to be freed is older than the history."""
    a = CachingAllocator(400 * MIB, events="manual")
    run_random_program(a, 400, 5, streams=3)
    same_states(as_trace(snapshot_of(a)), a.trace)
    end = a.trace.at(-1)
    assert end.active > end.allocated
    for generation in ("2.0", "2.14"):  # two spellings of the state
        alone = as_trace(snapshot_of(a, generation, cut=len(a.trace)))
        same_states(alone, a.trace, len(a.trace))
    cut = len(a.trace) // 2
    same_states(as_trace(snapshot_of(a, cut=cut)), a.trace, cut, names=("allocated", "reserved"))


def test_no_history_gives_the_final_state():
    a = some_allocator(3)
    snapshot = snapshot_of(a)
    snapshot["device_traces"] = []
    trace = as_trace(snapshot)
    same_states(trace, a.trace, len(a.trace))
    assert len(trace) == 0 and "no history was recorded: only the final state is known" in trace.warnings


def test_nothing_at_all():
    trace = as_trace({"segments": [], "device_traces": [[]]})
    assert (len(trace), trace.at(0).reserved, trace.peak_allocated) == (0, 0, 0)


def test_frees_of_what_was_never_there_count_for_nothing():
    a = some_allocator(4)
    snapshot = snapshot_of(a, cut=len(a.trace))
    free = next(b for s in snapshot["segments"] for b in s["blocks"] if b["state"] == "inactive")
    lone = {"action": "free_completed", "addr": free["address"], "size": 512, "stream": 0, "time_us": 1}
    snapshot["device_traces"] = [[lone, {**lone, "addr": 512}, lone]]
    trace = as_trace(snapshot)
    assert "3 frees of unknown blocks were ignored" in trace.warnings
    for i in range(4):
        assert [getattr(trace.at(i), n) for n in TOTALS] == [getattr(a.trace.at(-1), n) for n in TOTALS]
        assert np.array_equal(trace.at(i).blocks["size"], a.trace.at(-1).blocks["size"])
    assert trace.curves().allocated.min() >= 0 and trace.curves().active.min() >= 0


def test_a_snapshot_event_and_an_oom_are_no_allocations():
    a = CachingAllocator(40 * MIB)
    a.malloc(20 * MIB)
    with pytest.raises(kvviz.OutOfMemory):
        a.malloc(30 * MIB)
    snapshot = snapshot_of(a)
    snapshot["device_traces"][0].append(
        {"action": "snapshot", "addr": 0, "size": 20 * MIB, "stream": 0, "time_us": 1 << 50}
    )
    trace = as_trace(snapshot)
    assert [int(x) for x in trace.events.action] == [3, 0, 8, 7]
    assert trace.at(-1).allocated == trace.peak_allocated == 20 * MIB


def test_unknown_keys_and_actions_are_ignored_and_counted(tmp_path):
    a = some_allocator(6)
    snapshot = snapshot_of(a)
    snapshot["device_traces"][0].insert(5, {"action": "teleport", "where": ("a", {"b": [1.5, None]})})
    snapshot["device_traces"][0].insert(9, {"action": "teleport"})
    snapshot["news"] = {"x": ("y", (1, ("z",)))}
    snapshot["segments"][0]["colour"] = "red"
    snapshot["segments"][0]["blocks"][0]["colour"] = [True]
    trace = kvviz.load(file_of(tmp_path, snapshot))
    same_states(trace, a.trace)
    assert "2 events of 1 unknown kinds were ignored: teleport" in trace.warnings
    assert "1 unknown parts of the file were ignored: news" in trace.warnings


def test_annotations_become_marks():
    a = CachingAllocator(400 * MIB)
    for _ in range(4):
        a.malloc(1000)
    snapshot = snapshot_of(a)
    events = snapshot["device_traces"][0]
    began = events[0]["time_us"]
    events.insert(
        3, {"action": "annotate", "addr": 1, "size": 0, "stream": 0, "time_us": began + 7, "user_metadata": "kv"}
    )
    snapshot["external_annotations"] = [
        {"stage": "START", "name": "step", "device": 0, "time_us": began + 1},
        {"stage": "START", "name": "forward", "device": 0, "time_us": began + 4},
        {"stage": "END", "name": "forward", "device": 0, "time_us": began + 7},
        {"stage": "START", "name": "never over", "device": 0, "time_us": began + 8},
        {"stage": "END", "name": "step", "device": 0, "time_us": began + 900},
        {"stage": "END", "name": "never begun", "device": 0, "time_us": began + 901},
    ]
    trace = as_trace(snapshot)
    assert trace.marks == [
        Mark(1, "step"), Mark(2, "forward"), Mark(3, "kv"), Mark(3, "end of forward"), Mark(3, "never over"),
        Mark(5, "end of step"), Mark(5, "end of never begun"),
    ]  # fmt: skip
    assert {"1 annotations have a start without an end", "1 annotations have an end without a start"} <= set(
        trace.warnings
    )
    for event in events:
        event.pop("time_us", None)
    assert as_trace(snapshot).marks == [Mark(3, "kv")]


@pytest.mark.parametrize(("key", "value"), [("trace_alloc_overflowed", True), ("trace_alloc_max_entries", 7)])
def test_a_full_history_is_said_to_start_mid_run(key, value):
    a = CachingAllocator(400 * MIB)
    for k in range(30):
        a.free(a.malloc(1000 + k))
    snapshot = snapshot_of(a, cut=len(a.trace) - 7)
    snapshot["allocator_settings"][key] = value
    trace = as_trace(snapshot)
    assert any("as long as it could get" in w for w in trace.warnings) and not trace.about["exact"]
    assert trace.about["max_entries"] == (7 if key == "trace_alloc_max_entries" else None)


def test_several_devices_in_order_of_time():
    first, second = some_allocator(7), some_allocator(8)
    one, two = snapshot_of(first), snapshot_of(second, device=1)
    one["segments"] += two["segments"]
    one["device_traces"] += two["device_traces"][1:]
    for event in one["device_traces"][1]:
        event["time_us"] += 1
    trace = as_trace(one)
    assert trace.devices == [0, 1] and "2 devices: 0, 1" in trace.warnings
    assert np.all(np.diff(trace.events.time_us) >= 0)
    for device, a in enumerate((first, second)):
        mine = np.flatnonzero(trace.events.device == device)
        for k in range(0, len(mine), 7):
            got, want = trace.at(int(mine[k]) + 1, device), a.trace.at(k + 1)
            assert [getattr(got, n) for n in TOTALS] == [getattr(want, n) for n in TOTALS]


def test_streams_and_private_pools_in_small_numbers():
    a = some_allocator(9, streams=3)
    snapshot = snapshot_of(a)
    snapshot["segments"][0]["segment_pool_id"] = [0, 3]
    trace = as_trace(snapshot)
    assert trace.about["streams"][0] == 0 and set(trace.about["streams"][1:]) == {STREAM, 2 * STREAM}
    handles = np.array(trace.about["streams"])[trace.events.stream]
    assert handles.tolist() == [event["stream"] for event in snapshot["device_traces"][0]]
    assert "1 segments belong to 1 private pools" in trace.warnings and trace.about["private_pools"] == 1


def test_stacks_are_lines_each_kept_once():
    a = some_allocator(2)
    snapshot = snapshot_of(a)
    events = snapshot["device_traces"][0]
    only_cpp = [{"name": "x", "filename": "", "line": 0}]
    library = {"name": "cat", "filename": "/x/dist-packages/torch/a.py", "line": 3}
    events[0]["frames"], events[1]["frames"] = only_cpp, [library, {**library, "name": "later"}]
    events[2]["frames"] = [library, {"name": "<module>", "filename": "C:\\me\\my run.py", "line": 7}, USER]
    trace = as_trace(snapshot)
    lines = [trace.stacks[k] if k >= 0 else None for k in trace.events.stack.tolist()]
    assert lines[:3] == [None, "cat · a.py:3", "<module> · my run.py:7"]
    assert lines[3:] == ["decode · run.py:12" if k % 3 else None for k in range(3, len(events))]
    assert len(set(trace.stacks)) == len(trace.stacks) == 3
    lives = trace.lifetimes().blocks
    assert np.array_equal(lives.stack, trace.events.stack[lives.born])
    for event in events:
        event["frames"] = []
    assert "no frames were recorded" in as_trace(snapshot).warnings


def test_settings_that_the_program_set_itself_count():
    a = CachingAllocator(400 * MIB, "max_split_size_mb:32,roundup_power2_divisions:4")
    snapshot = snapshot_of(a)
    snapshot["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"] = ""
    assert as_trace(snapshot).about["conf"] == "max_split_size_mb:32,roundup_power2_divisions:4"
    del snapshot["allocator_settings"]
    assert as_trace(snapshot).about["conf"] is None


def test_segments_alone(tmp_path):
    """What torch.cuda.memory_snapshot() returns is a list of segments, and nothing else."""
    a = some_allocator(3)
    same_states(kvviz.load(file_of(tmp_path, snapshot_of(a)["segments"])), a.trace, len(a.trace))


def test_many_segments_take_no_longer_each():
    """100,000 segments that come and go: each is found without a look at all the others."""
    count, events = 50_000, []
    for action in ("segment_alloc", "segment_free"):
        events += [event(action=action, addr=(1 << 40) + (k << 21), size=2 << 20) for k in range(count)]
    began = time.perf_counter()
    trace = as_trace(whole((), [events]))
    assert trace.at(count).reserved == trace.peak_reserved == count * (2 << 20) and trace.at(-1).reserved == 0
    assert time.perf_counter() - began < 10


def test_addresses_beyond_63_bits(tmp_path):
    a = some_allocator(11)
    snapshot, up = snapshot_of(a), (1 << 64) - (1 << 47)
    for segment in snapshot["segments"]:
        segment["address"] += up
        for block in segment["blocks"]:
            block["address"] += up
    for event in snapshot["device_traces"][0]:
        if "addr" in event:
            event["addr"] += up
    trace = kvviz.load(file_of(tmp_path, snapshot))
    for i in (0, len(trace) // 2, len(trace)):
        assert [getattr(trace.at(i), n) for n in TOTALS] == [getattr(a.trace.at(i), n) for n in TOTALS]
    assert trace.about["exact"] and int(trace.events.address.max()) > 1 << 63


def test_a_loaded_trace_is_saved_and_loaded_again(tmp_path):
    a = some_allocator(12)
    trace = as_trace(snapshot_of(a, cut=len(a.trace) // 2))
    trace.save(tmp_path / "t.kvviz")
    back = kvviz.load(tmp_path / "t.kvviz")
    assert (back.about, back.warnings, back.stacks) == (trace.about, list(trace.warnings), trace.stacks)
    same_states(back, trace)


# -- what contradicts itself -------------------------------------------------------------------------------------------


def grown(segment: dict) -> None:
    segment["blocks"][0]["size"] += 512


def later(snapshot: dict, action: str, size: int) -> None:
    snapshot["device_traces"][0].append({"action": action, "addr": 1 << 40, "size": size, "stream": 0})


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda s: grown(s["segments"][0]), "do not tile"),
        (lambda s: s["segments"].append(s["segments"][0]), "do not tile"),
        (lambda s: s["segments"][0]["blocks"].pop(), "do not tile"),
        (lambda s: s["device_traces"][0].pop(), "leave alive|freed|await"),
        (lambda s: later(s, "alloc", 512), "leave alive"),
        (lambda s: later(s, "segment_alloc", 2 << 20), "segments"),
    ],
)  # fmt: skip
def test_contradictions_load_with_a_warning_and_are_not_shown(change, what, tmp_path):
    a = CachingAllocator(400 * MIB)
    kept = [a.malloc(3 * MIB), a.malloc(5000)]
    a.free(kept[0])
    snapshot = snapshot_of(a)
    change(snapshot)
    trace = kvviz.load(file_of(tmp_path, snapshot))
    assert trace.warnings[0].startswith("inconsistent")
    for i in (0, len(trace)):
        with pytest.raises(InconsistentTrace, match=what):
            trace.at(i)
    with pytest.raises(InconsistentTrace):
        kvviz.block_map(trace)


# -- hostile files -----------------------------------------------------------------------------------------------------


class Runs:
    def __reduce__(self):
        return (print, ("this must never be seen",))


def nested(opening: bytes, count: int) -> bytes:
    return b"\x80\x04" + opening * count


def doubled(step: bytes, after: bytes = b"\x94") -> bytes:
    """Tuples of twice the one before, 60 times."""
    return (b")\x94" if after == b"\x94" else b"") + b"".join(step % (k, k) + after for k in range(60))


def shared(depth: int, inner: object) -> object:
    for _ in range(depth):
        inner = [inner] * 10
    return inner


def event(**changes: object) -> dict:
    base = {"action": "alloc", "addr": 4096, "size": 512, "stream": 0, "time_us": 1}
    return {key: value for key, value in {**base, **changes}.items() if value != "absent"}


def segment(**changes: object) -> dict:
    block = {"address": 4096, "size": 2 << 20, "requested_size": 1, "state": "active_allocated"}
    changed = {key[6:]: value for key, value in changes.items() if key.startswith("block_")}
    base = {"device": 0, "address": 4096, "total_size": 2 << 20, "stream": 0, "blocks": [{**block, **changed}]}
    return {**base, **{key: value for key, value in changes.items() if not key.startswith("block_")}}


def whole(segments: object = (), traces: object = (), **more: object) -> dict:
    return {"segments": list(segments) if isinstance(segments, tuple) else segments,
            "device_traces": list(traces) if isinstance(traces, tuple) else traces, **more}  # fmt: skip


ROUND = [{"name": "f", "filename": "f.py", "line": 1}] * 900
MANY = [event()] * 900
BAD_NUMBERS = (-1, 1 << 64, 1 << 70, 1 << 9000, 1.5, "5", None, [], {})
HOSTILE = {
    "empty": b"",
    "text": b"hello",
    "runs code": pickle.dumps(whole(x=Runs())),
    "runs code, large": pickle.dumps([Runs(), "x" * (17 << 20)]),
    "an old protocol that runs code": b"cos\nsystem\n(S'true'\ntR.",
    "a class": pickle.dumps(whole(x=Trace)),
    "an outside object": b"\x80\x02X\x01\x00\x00\x00aQ.",
    "bytes": pickle.dumps(b"x"),
    "a set": pickle.dumps({1}),
    "a memo index of 2 to the 31": b"\x80\x02]r\xff\xff\xff\x7f.",
    "a memo index of 2 to the 24": b"\x80\x02]r\xff\xff\xff\x00.",
    "text of 2 to the 63 bytes": b"\x80\x04\x8d" + struct.pack("<Q", (1 << 63) - 1) + b"x.",
    "text of 2 to the 31 bytes": b"\x80\x04X" + struct.pack("<I", (1 << 31) - 1) + b"x.",
    "an array of 2 to the 40 bytes": b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b"x.",
    "a frame of 2 to the 62 bytes": b"\x80\x04\x95" + struct.pack("<Q", 1 << 62) + b"]N.",
    "a number of 2 GB": b"\x80\x02\x8b" + struct.pack("<i", (1 << 31) - 1) + b"x.",
    "a number of 900 kB": b"\x80\x02\x8b" + struct.pack("<i", 900_000) + b"\x7f" * 900_000 + b".",
    "a key that takes 2 to the 60 steps": b"\x80\x04})" + b"2\x86" * 60 + b"Ns.",
    "the same with the memo": b"\x80\x04](" + doubled(b"h%ch%c\x86") + b"}h\x3cNse.",
    "the same one by one": b"\x80\x04])\x94a" + doubled(b"h%ch%c\x86", b"\x94a") + b"}h\x3cNsa.",
    "the same with marks": b"\x80\x04](" + doubled(b"(h%ch%ct") + b"}h\x3cNse.",
    "a key nested 900,000 deep": b"\x80\x04})" + b"\x85" * 900_000 + b"Ns.",
    "lists nested 900,000 deep": nested(b"]", 900_000) + b"a" * 899_999 + b".",
    "marks": nested(b"(", 900_000) + b".",
    "tuples": nested(b")", 900_000) + b".",
    "keys that collide": pickle.dumps({k * ((1 << 61) - 1): 0 for k in range(20_000)}),
    "takes from nothing": b"\x80\x04e.",
    "recalls nothing": b"\x80\x04h\x05.",
    "no end": b"\x80\x04]",
    "not a snapshot": pickle.dumps([1, 2]),
    "no segments": pickle.dumps({"device_traces": []}),
    "shared lists": whole(shared(9, [])),
    "shared events": whole((), [MANY] * 900),
    "shared segments": whole([segment(blocks=segment()["blocks"] * 900)] * 900),
    "shared frames": whole((), [[event(frames=shared(6, ROUND))]]),
    "segments of text": whole("abc"),
    "events of text": whole((), ["abc"]),
    "events that are none": whole((), [[1, 2]]),
    "traces of a number": whole((), 5),
    "a thousand devices": whole((), [[]] * 1000),
    "blocks of a number": whole([segment(blocks=7)]),
    "an unknown state": whole([segment(block_state="flying")]),
    "a state that is a list": whole([segment(block_state=[])]),
    "a device far off": whole([segment(device=1 << 40)]),
    "a long pool that many share": whole([segment(segment_pool_id=[1] * 99_000)] * 9_000),
    "blocks that many share": whole([segment(blocks=[{}] * 99_000)] * 9_000),
    "a pool of text": whole([segment(segment_pool_id="ab")]),
    "an action that is a number": whole((), [[event(action=3)]]),
    "an action that is a list": whole((), [[event(action=[])]]),
    "no action": whole((), [[event(action="absent")]]),
    "no address": whole((), [[event(addr="absent")]]),
    "no size": whole((), [[event(size="absent")]]),
    "a range beyond the end": whole((), [[event(addr=(1 << 64) - 100)]]),
    "a segment beyond the end": whole([segment(address=(1 << 64) - 100)]),
    "sizes that add up to 2 to the 64": whole((), [[event(addr=k << 9, size=1 << 61) for k in range(1, 9)]]),
    "a frame of text": whole((), [[event(frames=["x"])]]),
    "frames of text": whole((), [[event(frames="xyz")]]),
    "a frame with a list for a name": whole((), [[event(frames=[{"name": [], "filename": "a.py", "line": 1}])]]),
    "annotations of a number": whole(external_annotations=3),
    "an annotation without a name": whole(external_annotations=[{"stage": "END"}]),
    **{f"an event with {n} {str(v)[:9]}": whole((), [[event(**{n: v})]])
       for n in ("addr", "size") for v in BAD_NUMBERS},
    **{f"an event with time {str(v)[:9]}": whole((), [[event(time_us=v)]]) for v in BAD_NUMBERS[1:]},
    **{f"a segment with {n} {str(v)[:9]}": whole([segment(**{n: v})])
       for n in ("address", "total_size", "block_address", "block_size", "block_requested_size") for v in BAD_NUMBERS},
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_in_one_line_and_at_once(name, tmp_path, capsys):
    path = file_of(tmp_path, HOSTILE[name])
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(TraceError) as problem:
        kvviz.load(path)
    assert "\n" not in str(problem.value) and len(str(problem.value)) < 500 and "a.pickle" in str(problem.value)
    # a device file of a megabyte may take its own length many times over, but no more
    assert time.perf_counter() - began < 5 and resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400_000
    assert not capsys.readouterr().out and gc.isenabled()


@pytest.mark.parametrize(
    "snapshot",
    [
        whole((), [[{"action": "annotate", "user_metadata": shared(30, "x")}]]),
        whole(news=shared(40, "x")),
        whole(allocator_settings={"PYTORCH_CUDA_ALLOC_CONF": "[," * 500_000}),
        whole(allocator_settings={"PYTORCH_CUDA_ALLOC_CONF": shared(40, "x"), "max_split_size": shared(40, 1)}),
        whole([segment(stream=0, colour=shared(40, 1), block_history=shared(40, {}))]),
    ],
)
def test_what_nobody_reads_may_be_anything(snapshot, tmp_path):
    """Lists of lists of lists, each named ten times, are short as long as nobody writes them out."""
    began = time.perf_counter()
    assert len(kvviz.load(file_of(tmp_path, snapshot))) == 0
    assert time.perf_counter() - began < 5


def test_a_list_that_holds_itself_is_refused(tmp_path):
    loop: list = []
    loop.append(loop)
    for snapshot in (whole(loop), whole((), loop), whole((), [loop]), whole([segment(blocks=loop)])):
        with pytest.raises(TraceError):
            kvviz.load(file_of(tmp_path, snapshot))


def test_a_deep_key_does_not_end_the_process(tmp_path):
    """Were such a key hashed, the interpreter would run out of its stack: seen from outside."""
    path = file_of(tmp_path, HOSTILE["a key nested 900,000 deep"])
    code = f"import kvviz\ntry:\n    kvviz.load({str(path)!r})\nexcept kvviz.TraceError:\n    print('refused')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "refused", done.stderr[-300:]


def test_garbage_collection_stays_as_it_was(tmp_path):
    path = file_of(tmp_path, snapshot_of(some_allocator(1)))
    gc.disable()
    try:
        kvviz.load(path)
        assert not gc.isenabled()
    finally:
        gc.enable()
    kvviz.load(path)
    assert gc.isenabled()


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_both_readers_agree(protocol):
    """What torch writes takes the fast way, and the careful one reads the same."""
    for generation in GENERATIONS:
        snapshot = snapshot_of(some_allocator(14), generation)
        snapshot["external_annotations"] = [
            {"stage": "START", "name": "x" * n, "time_us": 1 << min(n, 60)} for n in (1, 60, 300)
        ]
        snapshot["floats"] = [[0.5], [], {}, {"one": 1}, [True, None, False], [(1, 2), (1, 2, 3), ()], [[1], [[2]]]]
        data = pickle.dumps(snapshot, protocol)
        assert is_plain(data)
        assert read_plain(data) == _Machine().run(data) == snapshot
    unusual = {"a": ("b", {"c": (1, "d")}), "e": {1: 2, None: 3, (1, "x"): 4}}
    data = pickle.dumps(unusual, protocol)
    assert not is_plain(data) and read_plain(data) == unusual


def test_keys_cannot_be_made_to_collide():
    """A number from the memo, a number, a tuple of other things: none may be a key where the fast way is taken."""
    for data in (
        b"](K\x05\x94}h\x00Nse.",
        b"}K\x05Ns.",
        b"}(K\x05Nu.",
        b"}NNs.",
        b"}K\x01\x85\x85Ns.",
        b"}](NeNs.",
        b"]K\x05\x94a}h\x00Nsa.",
    ):
        assert not is_plain(b"\x80\x04" + data)


def mutated(data: bytes, r: random.Random) -> bytes:
    out = bytearray(data)
    kind = r.randrange(5)
    if kind == 0:
        return bytes(out[: r.randrange(len(out))])
    for _ in range(r.randint(1, 6)):
        at = r.randrange(len(out))
        if kind == 1:
            out[at] = r.randrange(256)
        elif kind == 2:
            out[at : at + r.randint(1, 40)] = b""
        elif kind == 3:
            other = r.randrange(len(out))
            out[at:at] = out[other : other + r.randint(1, 60)]
        else:
            out[at] = r.choice(b"(]})tuseab012hjqr\x85\x86\x87\x94\x95\x8a\x8b\x8c\x8dRcQ\x93\x81\x82.")
        if not out:
            return b""
    return bytes(out)


def warped(data: bytes, r: random.Random) -> bytes:
    """A whole pickle whose content is off: values exchanged, lost, doubled, or of another kind."""
    snapshot = pickle.loads(data)
    rows = [
        *snapshot["device_traces"][0],
        *snapshot["segments"],
        *(b for s in snapshot["segments"] for b in s["blocks"]),
    ]
    for _ in range(r.randint(1, 3)):
        one, other = r.choice(rows), r.choice(rows)
        key = r.choice(list(one))
        kind = r.randrange(4)
        if kind == 0:
            one[key] = other.get(key, 0)
        elif kind == 1:
            del one[key]
        elif kind == 2 and type(one[key]) is int:
            one[key] += r.choice([-512, -1, 1, 512, 1 << 20, -one[key], 1 << 63])
        elif kind == 3:
            events = snapshot["device_traces"][0]
            events.insert(r.randrange(len(events) + 1), events.pop(r.randrange(len(events))))
        if not one:
            one["size"] = 1
    return pickle.dumps(snapshot, 4)


def test_mutated_files_load_or_are_refused(tmp_path):
    seed = random.SystemRandom().randrange(1 << 32)
    print("seed", seed)  # pytest shows it when the test fails
    r, path = random.Random(seed), tmp_path / "m.pickle"
    wholes = []
    for generation in GENERATIONS:
        a = some_allocator(r.randrange(1000), streams=2, operations=40)
        snapshot = snapshot_of(a, generation, cut=r.choice([0, 10]))
        wholes += [pickle.dumps(snapshot, protocol) for protocol in (2, 4)]
    outcomes = {"loaded": 0, "refused": 0}
    for _ in range(600):
        path.write_bytes(r.choice([mutated, warped])(r.choice(wholes), r))
        try:
            trace = kvviz.load(path)
            outcomes["loaded"] += 1
        except TraceError as problem:
            assert "\n" not in str(problem)
            outcomes["refused"] += 1
            continue
        for i in (0, len(trace) // 2, len(trace)):
            try:
                state = trace.at(i, trace.devices[0])
                assert 0 <= state.allocated <= state.active <= state.reserved
            except InconsistentTrace:
                pass
    assert outcomes["loaded"] > 20 and outcomes["refused"] > 100, outcomes
