"""record() on CPU: everything that the program holds is seen, from entry to end, and nothing stays switched on."""

import gc
import threading

import pytest
import torch
from torch.nn.modules import module as torch_module

import kvviz
from kvviz import InvalidRequest, RecordingError, record
from kvviz.memory.owners import tensors_of
from kvviz.memory.trace import Action

MIB = 1 << 20


def mebibytes(n: int) -> torch.Tensor:
    return torch.empty(n * MIB, dtype=torch.uint8)


def held_by(trace, owner: str, i: int = -1) -> int:
    """Bytes requested by the blocks of an owner after i events."""
    blocks = trace.at(i).blocks
    return int(blocks["requested"][blocks["owner"] == list(trace.owners).index(owner)].sum())


def nothing_is_on() -> bool:
    hooks = len(torch_module._global_forward_hooks) + len(torch_module._global_forward_pre_hooks)
    return not hooks and not torch.autograd._profiler_enabled() and torch._C._len_torch_function_stack() == 0


def test_allocations_and_frees_are_seen():
    with record() as run:
        a = mebibytes(3)
        b = mebibytes(5)
        del a
        c = mebibytes(7)
        del b
    trace = run.trace
    start = trace.at(0).allocated
    assert trace.at(-1).allocated - start == 7 * MIB
    assert trace.peak_allocated - start == 12 * MIB
    assert trace.origin == "model of PyTorch's CUDA allocator, fed by a CPU run"
    sizes = trace.events.requested[trace.events.action == Action.ALLOC].tolist()
    assert [s for s in sizes if s >= MIB] == [3 * MIB, 5 * MIB, 7 * MIB]
    del c


def test_what_lives_at_entry_counts_and_its_end_is_seen():
    old, view_owner = mebibytes(12), mebibytes(14)
    view = view_owner[: MIB // 2]
    del view_owner
    with record() as run:
        del old
        run.mark("old is gone")
        del view
    trace = run.trace
    at = {mark.name: mark.event for mark in trace.marks}
    before, middle, after = trace.at(0), trace.at(at["old is gone"]), trace.at(-1)
    assert before.allocated - middle.allocated == 12 * MIB
    assert middle.allocated - after.allocated == 14 * MIB  # half a MiB is seen, the whole storage was held


def test_storage_that_only_autograd_holds_is_freed_when_the_graph_goes():
    x = mebibytes(4).float().requires_grad_()
    y = (x * x).sum()
    del x
    with record() as run:
        run.mark("graph")
        del y
    assert run.trace.at(0).allocated - run.trace.at(-1).allocated >= 16 * MIB


def test_weights_are_known_in_the_order_of_their_making():
    model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.Linear(1024, 256))
    with record() as run:
        pass
    weights = list(run.trace.owners).index("weights")
    blocks = run.trace.entry[0].blocks
    mine = [p.numel() * 4 for p in model.parameters()]
    sizes = blocks.requested[blocks.owner == weights].tolist()
    assert any(sizes[k : k + 4] == mine for k in range(len(sizes)))


def test_owner_of_a_tensor_a_list_and_a_growing_cache():
    class Cache:
        def __init__(self):
            self.rows = torch.empty(0, 1024)

        def append(self, more):
            self.rows = torch.cat([self.rows, more])

    cache = Cache()
    with record() as run:
        single, several = mebibytes(1), [mebibytes(2), {"deep": mebibytes(3)}]
        run.own(single, "one")
        run.own(several, "some")
        run.own(cache, "grown")
        for n in range(1, 6):
            cache.append(torch.ones(256, 1024))
            run.mark(f"{n}")
    trace = run.trace
    assert held_by(trace, "one") == MIB and held_by(trace, "some") == 5 * MIB
    for mark in trace.marks:  # logical bytes: what each step left, neither the old rows nor the new ones twice
        assert held_by(trace, "grown", mark.event) == int(mark.name) * MIB
    assert "append" not in vars(cache)


def test_transformers_caches_are_followed_by_themselves():
    from transformers import DynamicCache

    update = DynamicCache.update
    cache = DynamicCache()
    with record() as run:
        for n in range(1, 4):
            cache.update(torch.zeros(1, 2, 64, 16), torch.zeros(1, 2, 64, 16), 0)
            run.mark(f"{n}")
    assert [held_by(run.trace, "kv cache", m.event) for m in run.trace.marks] == [
        n * 2 * 2 * 64 * 16 * 4 for n in (1, 2, 3)
    ]
    with record() as run:
        run.own(cache, "my cache")
        cache.update(torch.zeros(1, 2, 64, 16), torch.zeros(1, 2, 64, 16), 0)
    assert held_by(run.trace, "my cache") == 4 * 2 * 2 * 64 * 16 * 4
    assert DynamicCache.update is update and "update" not in vars(cache)


def test_recording_keeps_nothing_alive():
    class Holder:
        pass

    holder = Holder()
    holder.tensor = mebibytes(6)
    with record() as run:
        run.own(holder, "held")
        run.mark("before")
        del holder
        gc.collect()
        run.mark("after")
    before, after = (run.trace.at(m.event).allocated for m in run.trace.marks)
    assert before - after == 6 * MIB


def test_function_module_and_line_are_named():
    class Outer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(300, 700)

        def forward(self, x):
            return torch.relu(self.inner(x))

    model = Outer()
    with record() as run:
        y = model(torch.ones(1000, 300))
        z = torch.cat([y, y])
    events, stacks = run.trace.events, run.trace.stacks
    where = {
        int(r): stacks[s]
        for r, s, a in zip(events.requested, events.stack, events.action, strict=True)
        if a == Action.ALLOC
    }
    assert "inner" in where[1000 * 700 * 4] or "relu" in where[1000 * 700 * 4]
    assert where[z.numel() * 4].startswith("torch.cat · test_record.py:")
    assert any("linear · inner · test_record.py:" in text for text in stacks)
    with record(stacks=None) as run:
        torch.ones(1000)
    assert set(run.trace.events.stack.tolist()) <= {-1}


@pytest.mark.parametrize("problem", [ValueError("mine"), KeyboardInterrupt()])
def test_nothing_stays_on_after_an_exception(problem):
    with pytest.raises(type(problem)), record() as run:
        kept = mebibytes(2)
        raise problem
    assert nothing_is_on()
    assert run.trace.at(-1).allocated - run.trace.at(0).allocated >= kept.nbytes
    with record() as again:
        pass
    assert again.trace is not None and nothing_is_on()


def test_nothing_stays_on_when_the_start_fails(monkeypatch):
    monkeypatch.setattr("kvviz.memory.cpu._start_profiler", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError), record():
        pass
    monkeypatch.undo()
    assert nothing_is_on()
    with record() as run:
        pass
    assert len(run.trace.entry[0].blocks) >= 0


def test_one_recording_at_a_time():
    with record() as outer:
        with pytest.raises(RecordingError, match="already running"), record():
            pass
        kept = mebibytes(9)
    assert outer.trace.at(-1).allocated - outer.trace.at(0).allocated == kept.nbytes
    assert nothing_is_on()
    with pytest.raises(RecordingError, match="runs once"), outer:
        pass


def test_another_profiler_is_not_disturbed():
    with torch.autograd.profiler.profile(use_kineto=True) as profile:
        with pytest.raises(RecordingError, match="another profiler"), record():
            pass
        torch.ones(10)
    assert any("ones" in event.name for event in profile.function_events)


def test_what_only_works_inside_or_after():
    run = record()
    with pytest.raises(RecordingError, match="not started"):
        run.mark("x")
    with run, pytest.raises(RecordingError, match="with block is over"):
        run.trace  # noqa: B018
    with pytest.raises(RecordingError, match="done"):
        run.own(torch.ones(1), "x")


@pytest.mark.parametrize("bad", [{"device": "tpu"}, {"stacks": "all"}, {"max_events": 0}])
def test_bad_arguments(bad):
    with pytest.raises(InvalidRequest):
        record(**bad)


def test_a_long_run_keeps_its_newest_events():
    with record(max_events=40) as run:
        kept = [mebibytes(1) for _ in range(100)]
    assert len(run.trace) == 40 and "mid-run" in run.trace.warnings[0]
    assert run.trace.at(-1).allocated >= len(kept) * MIB


def test_other_threads_do_not_disturb():
    with record() as run:
        thread = threading.Thread(target=lambda: torch.nn.Linear(8, 8)(torch.ones(4, 8)))
        thread.start()
        thread.join()
        kept = mebibytes(2)
    assert run.trace.at(-1).allocated - run.trace.at(0).allocated >= kept.nbytes


def test_gradients():
    model = torch.nn.Linear(512, 512)
    with record() as run:
        model(torch.ones(64, 512)).sum().backward()
        run.own(list(tensors_of([p.grad for p in model.parameters()])), "gradients")
    assert held_by(run.trace, "gradients") == 512 * 512 * 4 + 512 * 4


def test_nothing_but_storages_of_the_cpu():
    """Meta tensors, sparse tensors and empty ones at entry are passed over."""
    odd = [torch.empty(1000, device="meta"), torch.eye(3).to_sparse(), torch.empty(0)]
    with record() as run:
        pass
    assert len(odd) == 3 and run.trace.at(0).allocated == run.trace.at(-1).allocated


@pytest.mark.parametrize("attached", [False, True])
def test_a_pool_of_pages_is_the_kv_cache(attached):
    """Also where an attached model is handed the new tokens only."""
    model, tokenizer = kvviz.load_model("tiny")
    if attached:
        kvviz.attach(model)
    ids = tokenizer("pages of a pool", return_tensors="pt").input_ids
    cache = kvviz.paged_cache(model, tokens=256)
    with kvviz.record(device="cpu") as run:
        kvviz.decode(model, ids, 5, cache)
    blocks = run.trace.at(len(run.trace)).blocks
    mine = blocks["owner"] == run.trace.owners.index("kv cache")
    assert blocks["requested"][mine].tolist() == [cache.held_bytes]
