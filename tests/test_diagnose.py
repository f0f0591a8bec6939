"""diagnose(): planted faults are named, first and with their bytes; what has no fault gets no finding."""

import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import DynamicCache

import kvviz
from kvviz import CachingAllocator, InvalidRequest, OutOfMemory, diagnose
from kvviz.memory.diagnosis.moment import Moment
from kvviz.memory.trace import Action
from tests.memory_check import MIB, SURVIVORS, run_random_program
from tests.tiny_models import build

SNAPSHOTS = Path(os.environ.get("KVVIZ_SNAPSHOTS") or Path(__file__).parents[2] / "shared" / "snapshots")
BLOCK = 512


def up(size: int) -> int:
    """Bytes of a block for a small request."""
    return -(-size // BLOCK) * BLOCK


def prompt(tokens: int) -> torch.Tensor:
    return torch.arange(tokens).remainder(90)[None] + 1


def storages(tensors) -> dict[int, int]:
    return {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}


def tensors_of(cache) -> list[torch.Tensor]:
    return [t for layer in cache.layers for t in (layer.keys, layer.values)]


@pytest.fixture(scope="module")
def model():
    return build("llama").requires_grad_(True)


def survivors(conf: str, capacity: int = 24 << 30) -> CachingAllocator:
    """100 cycles of 91 and 45.5 MiB that go and 2 MiB that stay."""
    a = CachingAllocator(capacity, conf)
    for _ in range(100):
        big, half = a.malloc(91 * MIB), a.malloc(91 * MIB // 2)
        a.malloc(2 * MIB)
        a.free(big)
        a.free(half)
    return a


# planted faults


def test_survivors_that_pin_segments():
    conf, _, reserved = SURVIVORS[0]
    trace = survivors(conf).trace
    report = diagnose(trace)
    first = report.findings[0]
    active = 2 * 100 * MIB + 91 * MIB + 91 * MIB // 2
    assert (first.kind, first.what) == ("fragmentation", "fragmentation by survivors")
    assert first.bytes == reserved * MIB - active
    assert "13.34 GiB are free in pieces between blocks that stay, the largest 136.5 MiB" in first.text
    assert "1.89 GiB are free but pinned: 1.89 GiB in 1 segment by 100 blocks of other (200.0 MiB)" in first.text
    assert (report.findings[1].kind, report.findings[1].bytes) == ("kept", 188 * MIB)  # those of the last step may go
    tried = {t["conf"]: t for t in report.figures["tried"] if t["conf"] is not None}
    for setting in ("expandable_segments:True", "max_split_size_mb:64", ""):
        assert tried[setting]["peak_reserved"] == survivors(setting).trace.peak_reserved < reserved * MIB
        assert tried[setting]["helps"]
    assert "helps: expandable_segments:True: peak reserved falls from 13.54 GiB to 340.0 MiB" in report.text


@pytest.mark.parametrize("marked", [True, False])
def test_kept_caches(model, marked):
    """Every second generation's cache is appended to a list."""
    kept = []
    with kvviz.record("cpu", stacks=None) as run:
        for generation in range(12):
            cache = DynamicCache(config=model.config)
            kvviz.decode(model, prompt(40 + generation), 8, cache)
            if generation % 2 == 0:
                kept.append(cache)
            if marked:
                run.mark(f"generation {generation}")
        del cache
    report = diagnose(run.trace)
    first = report.findings[0]
    assert (first.kind, first.what) == ("kept", "kept caches")
    truth = sum(up(size) for cache in kept for size in storages(tensors_of(cache)).values())
    last = sum(up(size) for size in storages(tensors_of(kept[-1])).values())
    assert first.bytes == truth if marked else truth - last <= first.bytes <= truth
    if marked:
        assert "6 of 12 steps (generation 0, generation 2, generation 4, …)" in first.text
    tried = [t for t in report.figures["tried"] if t["conf"] is None]
    assert [t["name"] for t in tried] == ["“kv cache” let go when its step ends"]


def test_a_mark_at_the_very_end_ends_the_last_step(model):
    kept = []
    with kvviz.record("cpu") as run:
        for turn in range(8):
            kept.append(DynamicCache(config=model.config))
            kvviz.decode(model, prompt(40 + turn), 8, kept[-1])
            run.mark(f"turn {turn}")
    assert run.trace.marks[-1].event == len(run.trace)
    report = diagnose(run.trace)
    first = report.findings[0]
    assert first.bytes == sum(up(size) for cache in kept for size in storages(tensors_of(cache)).values())
    assert "8 of 8 steps" in first.text and "Asked for at torch.cat · model.layers.*.self_attn" in first.text
    assert "model.layers.0" not in report.text  # a line for each layer helps nobody


def test_kept_logits(model):
    """Without an owner the call site names them."""
    kept = []
    with kvviz.record("cpu") as run, torch.inference_mode():
        for _ in range(24):
            kept.append(model(prompt(60), use_cache=False).logits)
    first = diagnose(run.trace).findings[0]
    assert (first.kind, first.what) == ("kept", "kept memory")
    assert "lm_head" in first.text and "test_diagnose.py" in first.text
    assert first.bytes in {n * up(60 * 96 * 4) for n in (22, 23, 24)}


def test_a_window_that_is_sliced_and_not_cloned():
    kept = [torch.zeros(1, 2, 64, 32) for _ in range(8)]
    with kvviz.record("cpu") as run:
        run.own(kept, "kv cache")
        for _ in range(30):
            kept = [torch.cat([t, torch.zeros(1, 2, 48, 32)], dim=2)[:, :, -64:] for t in kept]
    report = diagnose(run.trace)
    first = report.findings[0]
    assert (first.kind, first.what) == ("views", "sliced, not cloned")
    assert first.bytes == 8 * 2 * 48 * 32 * 4 == sum(storages(kept).values()) - sum(t.nbytes for t in kept)
    assert "8 storages of 224.0 KiB in all" in first.text and "torch.cat" in first.text
    with kvviz.record("cpu") as run:
        for _ in range(30):
            kept = [torch.cat([t, torch.zeros(1, 2, 48, 32)], dim=2)[:, :, -64:].clone() for t in kept]
    assert diagnose(run.trace).findings == []


def test_slice_cache_and_ring_cache():
    found = {}
    for cls in (kvviz.SliceCache, kvviz.RingCache):
        cache = cls(2, 2, 32, window=64)
        with kvviz.record("cpu") as run:
            for _ in range(20):
                for layer in range(2):
                    cache.append(layer, torch.zeros(1, 2, 48, 32), torch.zeros(1, 2, 48, 32))
        found[cls.__name__] = diagnose(run.trace).findings
        if cls is kvviz.SliceCache:
            assert found["SliceCache"][0].kind == "views"
            assert found["SliceCache"][0].bytes == cache.held_bytes - cache.logical_bytes
    assert found["RingCache"] == []


@pytest.mark.parametrize("steps", [10, 40])
def test_a_cache_that_autograd_keeps_alive(model, steps):
    """The same run with and without a graph: what is more in the end, autograd keeps."""

    def allocated(graph: bool) -> tuple[int, kvviz.Trace, DynamicCache]:
        cache = DynamicCache(config=model.config)
        with kvviz.record("cpu") as run, torch.set_grad_enabled(graph):
            ids = prompt(30)
            for _ in range(steps):
                ids = model(ids, cache=cache, use_cache=True).logits[:, -1:].argmax(-1)
        return run.trace.at(-1).allocated - run.trace.at(0).allocated, run.trace, cache

    bare, healthy, _ = allocated(False)
    more, trace, cache = allocated(True)
    report = diagnose(trace)
    first = report.findings[0]
    assert (first.kind, first.what) == ("autograd", "kept by autograd")
    assert first.bytes == more - bare
    assert "earlier states of the cache" in first.text and "4 tensors with a grad_fn" in first.text
    assert all(f.kind in ("autograd", "fragmentation") for f in report.findings)
    assert [t["name"] for t in report.figures["tried"] if t["conf"] is None] == ["no graph beyond a step"]
    assert tensors_of(cache)[0].grad_fn is not None and diagnose(healthy).findings == []


# no fault


@pytest.mark.parametrize("marks", [0, 1, 5])
@pytest.mark.parametrize("make", [DynamicCache, kvviz.paged_cache, lambda m: kvviz.paged_cache(m, grow=True, page_size=4)])
def test_a_healthy_run_has_no_finding(model, make, marks):
    cache = make(model) if make is not DynamicCache else make(config=model.config)
    with kvviz.record("cpu") as run:
        ids = prompt(30)
        for step in range(40):
            ids = kvviz.decode(model, ids, 1, cache)
            if marks and step % marks == 0 and marks > 1:
                run.mark(f"step {step}")
        if marks == 1:
            run.mark("end")
    if not (marks == 5 and cache.__class__.__name__ == "PagedCache" and cache.log.pools[0].grows):
        report = diagnose(run.trace)
        assert report.findings == [] and not report, report.text
        assert "No fault found." in report.text and report.figures["tried"] == []


def test_generations_whose_caches_are_dropped(model):
    with kvviz.record("cpu") as run:
        for generation in range(12):
            kvviz.decode(model, prompt(40 + generation), 8, DynamicCache(config=model.config))
            run.mark(f"generation {generation}")
    assert diagnose(run.trace).findings == []


def test_what_is_made_once_is_no_growth():
    with kvviz.record("cpu") as run:
        pool = torch.zeros(4 << 20)
        for k in range(20):
            torch.zeros(1 << 18)
            run.mark(f"step {k}")
    assert diagnose(run.trace).findings == [] and pool.nbytes == 16 << 20


# out of memory


def test_fragmentation_at_an_out_of_memory():
    a = CachingAllocator(700 * MIB)
    a.free(a.malloc(530 * MIB))
    a.malloc(270 * MIB)
    with pytest.raises(OutOfMemory):
        a.malloc(270 * MIB)
    report = diagnose(a.trace)
    first = report.findings[0]
    assert (first.kind, first.what, first.bytes) == ("fragmentation", "fragmentation at the out of memory", 260 * MIB)
    # 260 MiB in one piece do not serve 270: with the 170 that the device has left they would
    assert "270.0 MiB were refused while 260.0 MiB of what PyTorch had reserved were free and the device had" in first.text
    assert "170.0 MiB left: the largest free block is 260.0 MiB" in first.text
    assert "helps: expandable_segments:True: the request that failed fits, with at most 540.0 MiB reserved" in report.text
    assert "max_split_size_mb:64: the request that failed fits" in report.text
    assert "the device had 170.0 MiB left" in report.text


def test_small_requests_have_a_pool_of_their_own():
    a = CachingAllocator(22 * MIB)
    a.malloc(2 * MIB)  # in a segment of 20
    for _ in range(2):
        a.malloc(MIB)
    with pytest.raises(OutOfMemory):
        a.malloc(MIB)
    report = diagnose(a.trace)
    assert "1.0 MiB were refused while 18.0 MiB of what PyTorch had reserved were free" in report.findings[0].text
    assert "the largest free block of the pool for requests up to 1 MiB is 0 B" in report.findings[0].text
    assert report.text.count("the largest free block of the pool for requests up to 1 MiB 0 B") >= 2


def test_more_than_the_device_has():
    a = CachingAllocator(100 * MIB)
    a.malloc(60 * MIB)
    with pytest.raises(OutOfMemory):
        a.malloc(50 * MIB)
    report = diagnose(a.trace)
    assert [f.kind for f in report.findings] == ["does not fit"] and report.findings[0].bytes == 50 * MIB
    assert "50.0 MiB were refused with 60.0 MiB in use and 0 B free of 100.0 MiB" in report.findings[0].text
    assert not any(t["helps"] for t in report.figures["tried"])
    assert "helps:" not in report.text


def test_a_kept_cache_is_named_before_the_out_of_memory_that_it_makes():
    a = CachingAllocator(400 * MIB)
    kept = []
    with pytest.raises(OutOfMemory):
        for _ in range(40):
            for _ in range(4):
                a.free(a.malloc(30 * MIB))
            kept.append(a.malloc(12 * MIB))
    report = diagnose(a.trace)
    assert report.findings[0].kind == "kept"
    helps = {t["name"]: t["helps"] for t in report.figures["tried"]}
    assert helps["“other” let go when its step ends"]


def test_a_run_that_went_on_after_an_out_of_memory():
    a = CachingAllocator(100 * MIB)
    for _ in range(3):
        with pytest.raises(OutOfMemory):
            a.malloc(200 * MIB)
    text = diagnose(a.trace).text
    assert "it happened 3 times in this trace" in text and "200.0 MiB were refused" in text


# what a report is made of


def test_the_figures_are_those_of_the_trace():
    trace = survivors("").trace
    figures = diagnose(trace).figures
    assert figures["peak_reserved"] == trace.peak_reserved and figures["peak_allocated"] == trace.peak_allocated
    state = trace.at(figures["moment"]["event"])
    assert figures["moment"]["free"] == state.reserved - state.active
    assert figures["moment"]["pinned"] + figures["moment"]["releasable"] == figures["moment"]["free"]


def test_a_segment_of_several_owners_says_so():
    a = CachingAllocator(2 * MIB)
    for _ in range(3):
        a.malloc(MIB // 2)  # one segment of 2 MiB, a quarter of it free
    with pytest.raises(OutOfMemory):
        a.malloc(MIB)
    trace = a.trace
    owner = np.cumsum(trace.events.action == Action.ALLOC) - 1
    for names, told in ((["weights"] * 3, "weights"), (["weights", "weights", "kv cache"], "weights and others")):
        owned = replace(trace, events=replace(trace.events, owner=np.maximum(owner, 0)), owners=names)
        (pin,) = Moment(owned, len(owned), 0).pins
        assert (pin.by, pin.blocks, pin.alone, pin.whose) == ("weights", 3, told == "weights", told)
        assert f"512.0 KiB in 1 segment, by 3 blocks (1.5 MiB) of {told}" in diagnose(owned).text


@pytest.mark.parametrize("conf", ["", "expandable_segments:True", "max_split_size_mb:64"])
def test_pins_together_are_what_is_pinned(conf):
    a = CachingAllocator(4 << 30, conf)
    run_random_program(a, 400, 3, streams=1)
    moment, reserved = Moment(a.trace, len(a.trace), 0), a.reserved
    a.empty_cache()
    assert reserved - a.reserved == moment.state.releasable
    assert sum(pin.free for pin in moment.pins) == moment.pinned == a.reserved - a.active > 0


def test_settings_and_progress_are_the_callers():
    told = []
    report = diagnose(survivors(SURVIVORS[0][0]).trace, settings=["max_split_size_mb:32"], progress=told.append)
    assert {t["conf"] for t in report.figures["tried"]} == {SURVIVORS[0][0], "max_split_size_mb:32", None}
    assert told[0] == "replay 1 of 3: the recorded settings" and len(told) == 3


def test_a_report_reads_everywhere():
    report = diagnose(survivors(SURVIVORS[0][0]).trace)
    for heading in ("The peak", "Reserved against allocated", "Growth", "Remedies, each tried by a replay of this trace"):
        assert heading in report.text and heading in report._repr_html_()
    import json

    again = json.loads(json.dumps(report.to_json()))
    assert again["findings"][0]["kind"] == "fragmentation" and again["figures"]["tried"]
    assert [section["heading"] for section in again["sections"]] == [s.heading for s in report.sections]


@pytest.mark.parametrize("wrong", [None, 3, "file.pickle", CachingAllocator(1 << 30)])
def test_what_is_no_trace(wrong):
    with pytest.raises(InvalidRequest, match="this takes a Trace, not a "):
        diagnose(wrong)


@pytest.mark.parametrize("wrong", [7, -1, "0", 0.5])
def test_a_device_that_is_not_in_the_trace(wrong):
    with pytest.raises(InvalidRequest, match="no device "):
        diagnose(survivors("").trace, device=wrong)


def test_an_empty_trace():
    report = diagnose(CachingAllocator(1 << 30).trace)
    assert report.findings == [] and "No fault found." in report.text


@pytest.mark.skipif(not SNAPSHOTS.is_dir(), reason="no snapshot files here (set KVVIZ_SNAPSHOTS=/folder/of/them)")
def test_real_snapshot_files():
    """A report for each in under 3 s; a run against itself has no difference."""
    kinds = {}
    for path in sorted(SNAPSHOTS.glob("*.pickle")):
        began = time.perf_counter()
        trace = kvviz.load(path)
        report = diagnose(trace)
        assert time.perf_counter() - began < 3, path.name
        kinds[path.stem] = [f.kind for f in report.findings]
        assert len(report.text) > 200 and "What this trace cannot say" in report.text
        if "inconsistent" not in path.stem:
            assert kvviz.compare(trace, trace).findings == []
    assert kinds["synthetic_inconsistent"] == ["inconsistent"]
    assert kinds["two_devices_fragmented"] == ["idle"]
    assert kinds["complete_small"] == kinds["midrun_forward"] == []


def test_an_out_of_memory_in_a_file_says_how_much_the_device_had(tmp_path):
    """PyTorch writes device_free where other events have their address."""
    import pickle

    segment = {
        "address": 1 << 40, "total_size": 20 * MIB, "allocated_size": 2 * MIB, "active_size": 2 * MIB, "stream": 0,
        "device": 0, "segment_type": "large", "is_expandable": False, "segment_pool_id": (0, 0),
        "blocks": [{"address": 1 << 40, "size": 2 * MIB, "requested_size": 2 * MIB, "state": "active_allocated", "frames": []},
                   {"address": (1 << 40) + 2 * MIB, "size": 18 * MIB, "requested_size": 0, "state": "inactive", "frames": []}],
    }  # fmt: skip
    events = [
        {"action": "segment_alloc", "addr": 1 << 40, "size": 20 * MIB, "stream": 0, "time_us": 1, "frames": []},
        {"action": "alloc", "addr": 1 << 40, "size": 2 * MIB, "stream": 0, "time_us": 2, "frames": []},
        {"action": "oom", "device_free": 5 * MIB, "size": 30 * MIB, "stream": 0, "time_us": 3, "frames": []},
    ]
    path = tmp_path / "oom.pickle"
    path.write_bytes(pickle.dumps({"segments": [segment], "device_traces": [events]}))
    trace = kvviz.load(path)
    oom = np.flatnonzero(trace.events.action == Action.OOM)
    assert trace.events.address[oom].tolist() == [5 * MIB]
    report = diagnose(trace)
    assert "the device had 5.0 MiB left" in report.text and report.findings[0].kind == "does not fit"
    assert "of 25.0 MiB" in report.findings[0].text


def test_two_runs_of_one_program_compare_to_nothing(model):
    """Every address differs, no size does; and a run that keeps more is told in both directions."""

    def run(kept: bool) -> kvviz.Trace:
        caches = []
        with kvviz.record("cpu") as recording:
            for _ in range(3):
                caches.append(DynamicCache(config=model.config))
                kvviz.decode(model, prompt(40), 6, caches[-1])
                if not kept:
                    caches.clear()
        return recording.trace

    first, second, more = run(False), run(False), run(True)
    assert kvviz.compare(first, second).findings == [] and not kvviz.compare(first, second)
    there, back = kvviz.compare(first, more), kvviz.compare(more, first)
    owner = "at the peak, owner kv cache"
    assert {f.what: f.bytes for f in there.findings}[owner] == -{f.what: f.bytes for f in back.findings}[owner] > 0
    assert any(f.what.startswith("at the peak, call site torch.cat · model.layers.*.self_attn") for f in there.findings)


# what a newcomer found


def test_training_keeps_gradients_and_that_is_no_fault(model):
    """A gradient hangs on its parameter; no Python object stands for it until somebody asks."""
    net = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(6)])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with kvviz.record("cpu") as run:
        for _ in range(8):
            optimizer.zero_grad()
            loss = net(torch.randn(8, 64)).pow(2).mean()
            loss.backward()
            optimizer.step()
    assert loss.grad_fn is not None and diagnose(run.trace).findings == []
    held = []  # but a sum that keeps every graph is one
    with kvviz.record("cpu") as run:
        for _ in range(24):
            held.append(net(torch.randn(256, 64)).pow(2).mean())
    first = diagnose(run.trace).findings[0]
    assert first.kind == "autograd" and "Without backward() no graph is needed" in first.text


@pytest.mark.parametrize("new", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("prompts", [1, 2])
def test_few_steps_without_marks_are_no_growth(model, new, prompts):
    """A window of the run may be a part of one step: the one cache that lives is not kept."""
    with kvviz.record("cpu") as run:
        for _ in range(prompts):
            cache = DynamicCache(config=model.config)
            kvviz.decode(model, prompt(200), new, cache)
    assert diagnose(run.trace).findings == [] and cache.get_seq_length() > 0


@pytest.mark.parametrize("count", [2_000, 6_000, 20_000])
@pytest.mark.parametrize("name", ["3b_12gb", "3b_24gb", "window_clone", "window_shift"])
def test_the_end_of_a_run_has_no_fault_that_the_run_does_not_have(name, count):
    trace = kvviz.sample(name)
    whole = {f.kind for f in diagnose(trace, settings=[]).findings}
    assert {f.kind for f in diagnose(trace.last(count), settings=[]).findings} <= whole


def test_no_remedy_is_judged_by_a_replay_that_ends_elsewhere():
    report = diagnose(kvviz.sample("3b_12gb").last(20_000))
    base = report.figures["tried"][0]
    assert "no remedy is judged" in base["text"] and not any(t["helps"] for t in report.figures["tried"])
    assert "helps:" not in report.text


def test_what_many_call_sites_keep_is_added_up(model):
    kept = []
    with kvviz.record("cpu") as run, torch.inference_mode():
        for _ in range(8):
            kept.append(model(prompt(60), use_cache=False, output_hidden_states=True).hidden_states)
            run.mark("request")
    (first,) = diagnose(run.trace).findings
    truth = sum(up(size) for size in storages(t for states in kept for t in states).values())
    assert first.kind == "kept" and first.bytes == truth
    assert "call sites" in first.text and len({f.text for f in diagnose(run.trace).findings}) == 1


def test_a_bounded_queue_is_no_growth(model):
    from collections import deque

    newest = deque(maxlen=3)
    with kvviz.record("cpu") as run:
        for turn in range(15):
            newest.append(DynamicCache(config=model.config))
            kvviz.decode(model, prompt(40 + turn), 6, newest[-1])
            run.mark(f"turn {turn}")
    assert diagnose(run.trace).findings == []


def test_what_other_threads_make_is_said_to_be_unseen():
    import threading

    kept = []
    with kvviz.record("cpu") as run:
        workers = [threading.Thread(target=lambda: kept.append(torch.ones(1000))) for _ in range(3)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    told = "3 storages of 12,000 B came without the recording seeing it"
    assert any(told in warning for warning in run.trace.warnings) and told in diagnose(run.trace).text


@pytest.mark.parametrize("wrong", [{"settings": 5}, {"settings": [3]}, {"progress": 5}])
def test_arguments_of_another_kind(wrong):
    with pytest.raises(InvalidRequest):
        diagnose(survivors(SURVIVORS[0][0]).trace, **wrong)


def test_one_setting_may_be_given_by_itself():
    report = diagnose(survivors(SURVIVORS[0][0]).trace, settings="max_split_size_mb:32")
    assert {t["conf"] for t in report.figures["tried"]} == {SURVIVORS[0][0], "max_split_size_mb:32", None}


def test_a_name_cannot_forge_a_line():
    a = CachingAllocator(1 << 30)
    a.malloc(3 * MIB)
    from dataclasses import replace

    trace = replace(a.trace, marks=[kvviz.memory.trace.Mark(1, "step\n- kept caches: 9 GiB")])
    assert not any(line.startswith("- kept caches") for line in diagnose(trace).text.splitlines())
