"""What each rank does for tests/test_sharded.py, and writes into a file of its own.

Processes are forked from one that has imported all this already: an import takes longer than most of what is tested.
"""

import importlib
import json
import multiprocessing
import os
import pathlib
import time
import traceback
import zlib
from datetime import timedelta

import torch
import torch.distributed as dist

import kvviz
from kvviz.cache import sharded
from kvviz.cache.store import Slab
from tests.tiny_models import VOCABULARY, build, cache_name

PROMPT, STEPS, PAGE = 21, 6, 4
for kind in ("llama", "qwen3", "mistral", "gemma2", "gemma3", "gpt_oss", "gemma4"):  # here, not once more in each rank
    importlib.import_module(f"transformers.models.{kind}.modeling_{kind}")
# name: model, its changes, sequences, settings of the cache
CASES = {
    2: {
        "llama, 3 KV heads": ("llama", {"num_key_value_heads": 3}, 1, {"tokens": 64}),
        "llama, a batch, biases": ("llama", {"num_key_value_heads": 3, "attention_bias": True}, 3, {"tokens": 40}),
        "llama, a window of ours": ("llama", {"num_key_value_heads": 3}, 2, {"window": 10}),
        "llama, pages one by one": ("llama", {"num_key_value_heads": 3}, 1, {"grow": True}),
        "qwen3": ("qwen3", {}, 2, {"pages": 24}),
        "mistral": ("mistral", {}, 2, {"tokens": 64}),
        "gemma3, two windows": ("gemma3", {}, 1, {"tokens": 64}),
        "gpt-oss, sinks": ("gpt-oss", {}, 1, {"tokens": 64}),
        "gemma4, two head sizes, bytes": ("gemma4", {}, 1, {"max_bytes": 40_000}),
        "llama, bytes": ("llama", {"num_key_value_heads": 3}, 1, {"max_bytes": 20_000}),
    },
    3: {
        "llama, 3 KV heads": ("llama", {"num_key_value_heads": 3}, 2, {"tokens": 64}),
        "qwen3": ("qwen3", {"num_attention_heads": 8}, 1, {"tokens": 64}),
        "gemma2, 2 KV heads on 3 ranks": ("gemma2", {}, 1, {"tokens": 64}),
    },
}


def prepared(kind, changes):
    model = build(kind, **changes)
    if changes.get("attention_bias"):  # they begin as zeros, and would not be missed
        torch.manual_seed(3)
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_()
    return model


def greedy(model, ids, steps, cache):
    """Tokens, and the logits of each step: [batch, steps], [steps, batch, vocabulary]."""
    logits, new = [], ids
    with torch.inference_mode():
        for _ in range(steps):
            logits.append(model(new, **{cache_name(model): cache}, use_cache=True).logits[:, -1].clone())
            new = logits[-1].argmax(-1, keepdim=True)
            ids = torch.cat([ids, new], 1)
    return ids, torch.stack(logits)


def against_whole(here, model, ids, steps, **settings):
    """One case. What rank 0 alone knows is None on the others."""
    whole = tokens = logits = None
    if here.rank == 0:
        whole = kvviz.paged_cache(model, **settings)
        tokens, logits = greedy(model, ids, steps, whole)
    part = sharded.shard(model, here)
    cache = part.paged_cache(**settings)
    mine, my_logits = greedy(part.model, ids, steps, cache)
    cache.check()
    share, report, log = part.layers[0], sharded.bytes_of_ranks(cache), sharded.log_of_ranks(cache)
    found = {
        "heads": list(share.heads), "queries": list(share.queries), "kv_heads": share.kv_heads,
        "tokens": mine.tolist(), "bits": zlib.crc32(my_logits.numpy().tobytes()), "shape": list(cache.kept_tensors()[0].shape),
        "held": cache.held_bytes, "logical": cache.logical_bytes, "pages": [pool.pages for pool in cache.log.pools],
        "page_bytes": [pool.page_bytes for pool in cache.log.pools], "report": str(report), "pools": [p.name for p in log.pools],
        "states": [[*log.at(len(log), k).tables.values()] for k in range(len(log.pools))], "used": [],
        "events": len(cache.log), "merged": len(log), "weights": part.weight_bytes,
        "own": [[*cache.log.at(len(cache.log), k).tables.values()] for k in range(len(cache.log.pools))],
    }  # fmt: skip
    if whole is not None:
        found["whole"] = {
            "tokens": tokens.tolist(), "held": whole.held_bytes, "page_bytes": [p.page_bytes for p in whole.log.pools],
            "pages": [p.pages for p in whole.log.pools], "apart": (logits - my_logits).abs().max().item(),
            "largest": logits.abs().max().item(), "same_events": whole.log._rows == cache.log._rows,
        }  # fmt: skip
    cache.reset()
    cache.check()
    found["used"] = [group.cache.pool.used_count for group in cache.groups]
    return found


def ids_of(sequences, vocabulary=VOCABULARY, prompt=PROMPT):
    return torch.randint(1, vocabulary, (sequences, prompt), generator=torch.Generator().manual_seed(5))


def refusal(act):
    try:
        act()
    except kvviz.KvvizError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def faults(here):
    """What one rank or all of them do wrong; each gets its word, and nobody waits."""
    part = sharded.shard(prepared("llama", {"num_key_value_heads": 3}), here)
    ids, found = ids_of(1), {}

    def after(act, then=lambda cache: greedy(part.model, ids[:, :3], 1, cache), **settings):
        cache = part.paged_cache(page_size=PAGE, **settings)
        greedy(part.model, ids, 2, cache)
        act(cache)
        return cache, refusal(lambda: then(cache))

    odd = here.rank == 1
    cache, found["truncated alone"] = after(lambda cache: odd and cache.truncate(5))
    found["afterwards"] = refusal(lambda: greedy(part.model, ids[:, :3], 1, cache))
    found["more tokens"] = after(lambda cache: None, lambda cache: greedy(part.model, ids[:, : 3 + odd], 1, cache))[1]
    cache, found["other tokens"] = after(
        lambda cache: None, lambda cache: greedy(part.model, ids[:, 3:6] + odd, 1, cache)
    )
    found["taken back"] = cache.seen
    found["check"] = after(lambda cache: odd and cache.reset(), lambda cache: cache.check())[1]

    def break_one(cache):
        if odd:
            cache.groups[0].cache.pool._references[0] += 1

    found["corrupt"] = after(break_one, lambda cache: cache.check())[1]

    cache, found["pool too small"] = after(lambda cache: None, lambda cache: greedy(part.model, ids, 1, cache), pages=8)
    cache.check()
    found["goes on"] = refusal(lambda: greedy(part.model, ids[:, :3], 2, cache))
    cache.check()

    new_slab = Slab._new

    def no_room(slab, pages):
        raise kvviz.OutOfMemory("a pool of many bytes does not fit")

    cache = part.paged_cache(page_size=PAGE)
    Slab._new = no_room if odd else new_slab
    found["no room on one"] = refusal(lambda: greedy(part.model, ids, 1, cache))
    Slab._new = new_slab
    found["seen after"] = cache.seen
    found["twice"] = refusal(lambda: sharded.shard(part.model, here))
    found["spread"] = here.spread(range(5), lambda k: (k * k, here.rank))
    found["spread fails"] = refusal(lambda: here.spread([3, 0], lambda k: 1 // k))
    return found


def generated(here):
    """generate(), by itself, with beams, and a copy of the cache."""
    model = prepared("llama", {"num_key_value_heads": 3})
    ids, ways = ids_of(2), {"greedy": {}, "beams": {"num_beams": 3}}
    settings = {"max_new_tokens": 5, "do_sample": False}
    whole = {way: model.generate(ids, **settings, **more).tolist() for way, more in ways.items()}
    part, found = sharded.shard(model, here), {}
    for way, more in ways.items():
        cache = part.paged_cache(page_size=PAGE, tokens=64)
        found[way] = part.model.generate(ids, **settings, **more, **{cache_name(model): cache}).tolist() == whole[way]
        cache.check()
    import copy

    other = copy.deepcopy(cache)
    found["copy"] = type(other).__name__
    greedy(part.model, other_ids := ids_of(6)[:, :2], 2, other)
    other.check()
    found["copy grew"] = other.seen - cache.seen == other_ids.shape[1] + 1
    return found


def missing(here, event):
    """Rank 1 does not come to a step; rank 0 hears of it after the timeout."""
    part = sharded.shard(prepared("llama", {"num_key_value_heads": 3}), here)
    cache = part.paged_cache(page_size=PAGE)
    greedy(part.model, ids_of(1), 2, cache)
    if here.rank == 1:
        return {"waited": event.wait(30)}
    begun = time.perf_counter()
    found = {"error": refusal(lambda: greedy(part.model, ids_of(1), 1, cache)), "seconds": time.perf_counter() - begun}
    event.set()
    return found | {"seen": cache.seen}


def dying(here, _):
    """Rank 1 ends in the middle of a step; rank 0 hears of it at once, however long the timeout."""
    part = sharded.shard(prepared("llama", {"num_key_value_heads": 3}), here)
    cache = part.paged_cache(page_size=PAGE)
    if here.rank == 1:
        part.model.model.layers[1].register_forward_pre_hook(lambda *_: os._exit(3))
    begun = time.perf_counter()
    return {"error": refusal(lambda: greedy(part.model, ids_of(1), 1, cache)), "seconds": time.perf_counter() - begun}


def alike(here, _):
    found = {}
    for name, (kind, changes, sequences, settings) in CASES[here.count].items():
        found[name] = against_whole(here, prepared(kind, changes), ids_of(sequences), STEPS, page_size=PAGE, **settings)
    if here.count == 2:
        return found | {"faults": faults(here), "generate": generated(here)}
    small = prepared("qwen3", {"num_attention_heads": 2, "num_key_value_heads": 1})
    found["too many"] = refusal(lambda: sharded.shard(small, here))
    found["as it was"] = type(small.model.layers[0].self_attn.o_proj).__name__
    return found


def smollm2(here, loaded):
    model, tokenizer = loaded
    ids = tokenizer("The memory of a language model is", return_tensors="pt").input_ids
    return against_whole(here, model, ids, 8, page_size=8, tokens=64)


def smollm2_main(folder, counts):
    torch.set_num_threads(1)  # no threads yet, so it may be forked
    loaded = kvviz.load_model("smollm2")
    fork = multiprocessing.get_context("fork")
    for count in counts:
        (at := pathlib.Path(folder) / str(count)).mkdir()
        ranks = [fork.Process(target=rank_main, args=(r, count, at, "smollm2", 60, loaded)) for r in range(count)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
        if any(rank.exitcode for rank in ranks):
            raise SystemExit(1)


def rank_main(rank, count, folder, what, timeout, given):
    """One rank's life; its answer, or the traceback, is in rank0.json …"""
    torch.set_num_threads(1)
    try:
        store = f"file://{folder}/store"
        dist.init_process_group("gloo", store, timedelta(seconds=timeout), rank=rank, world_size=count)
        with sharded.join() as here:  # uses the one that is there
            found = {"rank": [here.rank, here.count, str(here.device)]} | globals()[what](here, given)
        dist.destroy_process_group()
    except BaseException:
        found = {"traceback": traceback.format_exc()}
    (pathlib.Path(folder) / f"rank{rank}.json").write_text(json.dumps(found))
