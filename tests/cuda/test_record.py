"""record() on CUDA, over PyTorch's own allocator: its trace says what PyTorch's own counters say."""

import pytest

from tests.cuda_stub.oracle import in_child

MIB = 1 << 20


def totals(trace, i=-1, device=0):
    state = trace.at(i, device)
    return state.allocated, state.reserved, state.active, state.requested


def counters(torch, device=0):
    stats = torch.cuda.memory_stats(device)
    return tuple(stats[f"{name}_bytes.all.current"] for name in ("allocated", "reserved", "active", "requested"))


def nothing_is_on(torch) -> bool:
    return not torch._C._cuda_isHistoryEnabled()


def empty(size, device="cuda"):
    import torch

    return torch.empty(size, dtype=torch.uint8, device=device)


def smollm2(attention):
    """A decode loop on SmolLM2's shapes, recorded; the figures of the trace and of PyTorch."""
    import torch
    from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM
    from transformers.initialization import no_init_weights

    import kvviz

    torch.set_default_dtype(torch.bfloat16)
    config = LlamaConfig(
        hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3,
        vocab_size=49152, tie_word_embeddings=True, attn_implementation=attention,
    )  # fmt: skip
    with torch.device("cuda"), no_init_weights():
        model = LlamaForCausalLM(config).eval()
    model.tie_weights()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    cache = DynamicCache(config=config)
    with kvviz.record() as run:
        ids = kvviz.decode(model, torch.zeros(1, 300, dtype=torch.long, device="cuda"), 1, cache)
        run.mark("prefill")
        kvviz.decode(model, ids, 64, cache)
    trace = run.trace
    kv = list(trace.owners).index("kv cache")
    held = []
    for i in (trace.marks[0].event, -1):
        blocks = trace.at(i).blocks
        held.append(int(blocks["requested"][blocks["owner"] == kv].sum()))
    weights = trace.entry[0].blocks
    return {
        "peaks": (trace.peak_allocated, trace.peak_reserved),
        "real peaks": (torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()),
        "end": totals(trace),
        "real end": counters(torch),
        "held": held,
        "weights": int(weights.requested[weights.owner == list(trace.owners).index("weights")].sum()),
        "origin": trace.origin,
        "warnings": list(trace.warnings),
        "stacks": [trace.stacks[s] for s in set(trace.events.stack.tolist()) if s >= 0],
        "off": nothing_is_on(torch),
    }


@pytest.mark.parametrize(("attention", "allocated"), [("eager", 295_734_784), ("sdpa", 288_715_264)])
def test_a_real_models_decode_loop(attention, allocated):
    got = in_child(smollm2, attention)
    assert got["peaks"][1] == got["real peaks"][1] == 314_572_800
    assert got["peaks"][0] == got["real peaks"][0]
    assert abs(got["peaks"][0] - allocated) < 4096  # the ids of decode() lie in one tensor, not in one for each step
    assert got["end"] == got["real end"]
    assert got["held"] == [30 * 2 * tokens * 3 * 64 * 2 for tokens in (300, 364)]
    assert got["weights"] == 269_030_016
    assert got["origin"] == "PyTorch's allocator, no GPU" and got["off"]
    assert got["warnings"] == []
    assert got["stacks"]
    assert all("test_record.py:" in text for text in got["stacks"])  # the user's own line, not the library's


def entry_owners_and_ends():
    import torch

    import kvviz

    old, view_of = empty(12 * MIB), empty(14 * MIB)
    view = view_of[:MIB]
    del view_of
    with kvviz.record() as run:
        del old
        run.mark("old gone")
        mine = [empty(3 * MIB), {"deep": empty(4 * MIB)}]
        run.own(mine, "mine")
        del view
        run.mark("end")
        late = empty(5 * MIB)
    trace = run.trace
    blocks = trace.at(-1).blocks
    owned = int(blocks["requested"][blocks["owner"] == list(trace.owners).index("mine")].sum())
    seen = totals(trace)
    return [trace.at(m.event).allocated for m in trace.marks], trace.at(0).allocated, owned, counters(torch), seen, late.numel()


def test_what_lived_before_owners_and_ends():
    marks, first, owned, real, mine, _ = in_child(entry_owners_and_ends)
    assert first == 26 * MIB
    assert marks == [14 * MIB, 7 * MIB]
    assert owned == 7 * MIB and mine == real


def two_devices_and_streams():
    import torch

    import kvviz

    with kvviz.record() as run:
        a, b = empty(3 * MIB), empty(5 * MIB, "cuda:1")
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            c = empty(2 * MIB)
        c.record_stream(torch.cuda.current_stream())
        del c
        a = empty(1000)
    trace = run.trace
    return trace.devices, [totals(trace, -1, d) for d in (0, 1)], [counters(torch, d) for d in (0, 1)], a.numel() + b.numel()


def test_several_devices_and_streams():
    devices, mine, real, _ = in_child(two_devices_and_streams, STUBCUDA_DEVICES=2)
    assert devices == [0, 1] and mine == real


def overflow():
    import torch

    import kvviz

    with kvviz.record(max_events=100) as run:
        kept = [empty(MIB) for _ in range(300)]
    return len(run.trace), list(run.trace.warnings), totals(run.trace), counters(torch), len(kept)


def test_a_bounded_history_says_that_it_overflowed():
    events, warnings, mine, real, _ = in_child(overflow)
    assert events <= 100 and any("mid-run" in w or "overflow" in w for w in warnings) and mine == real


def out_of_memory():
    import torch

    import kvviz

    kept = []
    try:
        with kvviz.record() as run:
            while True:
                kept.append(empty(300 * MIB))
    except torch.OutOfMemoryError:
        pass
    trace = run.trace
    from kvviz.memory.trace import Action

    failed = int((trace.events.action == Action.OOM).argmax())
    again = kvviz.replay(trace, capacity=2 << 30)
    return trace.events.action[failed] == Action.OOM, len(kept), again.about["served"], nothing_is_on(torch)


def test_out_of_memory_is_in_the_trace():
    seen, kept, served, off = in_child(out_of_memory, STUBCUDA_TOTAL_MIB=1000)
    assert seen and kept == 3 and len(served) == 1 and off


def refusals():
    import torch

    import kvviz

    told = []
    with kvviz.record():
        try:
            with kvviz.record():
                pass
        except kvviz.RecordingError as error:
            told.append(str(error))
    torch.cuda.memory._record_memory_history()
    try:
        with kvviz.record():
            pass
    except kvviz.RecordingError as error:
        told.append(str(error))
    still = torch._C._cuda_isHistoryEnabled()
    torch.cuda.memory._record_memory_history(enabled=None)
    try:
        with kvviz.record():
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        told.append("off" if nothing_is_on(torch) else "on")
    return told, still


def test_one_at_a_time_and_nothing_left_on():
    told, still = in_child(refusals)
    assert "already running" in told[0] and "already being recorded" in told[1] and told[2] == "off"
    assert still  # somebody else's history is not switched off


CONFS = [
    "",
    "expandable_segments:True",
    "max_split_size_mb:64",
    "roundup_power2_divisions:4",
    "garbage_collection_threshold:0.6,per_process_memory_fraction:0.9",
]


def random_program(seed):
    """Tensors of many sizes that come and go, recorded from an empty start. Returns peaks and segments, and the trace."""
    import random

    import kvviz

    r, live = random.Random(seed), []
    with kvviz.record(stacks=None) as run:
        for _ in range(800):
            if live and r.random() < 0.47:
                live.pop(r.randrange(len(live)))
            else:
                live.append(empty(r.choice([r.randint(1, MIB), r.randint(MIB, 12 * MIB), r.randint(10 * MIB, 90 * MIB)])))
    trace = run.trace
    return (trace.peak_allocated, trace.peak_reserved, trace.segments.tolist()), trace


@pytest.mark.parametrize("conf", CONFS)
def test_replay_gives_what_the_real_allocator_gives(conf):
    """Recorded under the defaults and replayed under `conf`, against the same program run under `conf` itself."""
    import kvviz

    seed = 11
    _, trace = in_child(random_program, seed)
    environment = {"PYTORCH_CUDA_ALLOC_CONF": conf} if conf else {}
    real, _ = in_child(random_program, seed, **environment)
    again = kvviz.replay(trace, conf)
    segments = [list(s) for s in again.segments.tolist()]
    assert (again.peak_allocated, again.peak_reserved) == real[:2]
    assert [s[:2] for s in segments] == [list(s)[:2] for s in real[2]]
