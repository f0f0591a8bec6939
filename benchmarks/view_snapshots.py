"""Makes memory-snapshot files of many events, on PyTorch's real CUDA allocator, for benchmarks/bench_player.py.

    tests/cuda_stub/run.sh -m benchmarks.view_snapshots FOLDER [EVENTS …]      (a machine with a GPU needs no run.sh)

Chats with a model of SmolLM2's shape (30 layers, bf16), one after the other, each with a cache of its own, until there are
as many events as asked for: FOLDER/EVENTS.pickle, with the Python frames of each event, as
torch.cuda.memory._record_memory_history(stacks="python") and _dump_snapshot() make them.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM
from transformers.initialization import no_init_weights

EVENTS = (101_000, 287_000, 1_000_000, 2_000_000, 4_900_000)


def model() -> LlamaForCausalLM:
    """Weights that take their memory and hold nothing."""
    torch.set_default_dtype(torch.bfloat16)
    shape = {"num_hidden_layers": 30, "hidden_size": 576, "intermediate_size": 1536, "vocab_size": 49152}
    with torch.device("cuda"), no_init_weights():
        return LlamaForCausalLM(LlamaConfig(**shape, num_attention_heads=9, num_key_value_heads=3)).eval()


def record(path: Path, events: int) -> None:
    """Write the snapshot of the newest `events` events of such a run."""
    began, memory = time.perf_counter(), torch.cuda.memory
    memory._record_memory_history(max_entries=events, context="all", stacks="python")
    llama, chat, kept = model(), 0, []
    with torch.inference_mode():
        while torch.cuda.memory_stats()["allocation.all.allocated"] * 2 < events:
            cache = DynamicCache(config=llama.config)
            ids = torch.zeros(1, 200 + 61 * chat % 700, dtype=torch.long, device="cuda")
            for _ in range(48):
                llama(ids, cache=cache, use_cache=True, logits_to_keep=1)
                ids = ids[:, :1]
            kept = [*kept[-3:], cache]  # a few chats stay
            chat += 1
    memory._dump_snapshot(str(path))
    took = time.perf_counter() - began
    print(f"{path}: {events:,} events, {chat} chats, {path.stat().st_size:,} B, {took:.0f} s", flush=True)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(exist_ok=True)
    for count in map(int, sys.argv[2:] or EVENTS):
        if os.fork() == 0:  # a process each: statistics begin at zero
            record(folder / f"{count}.pickle", count)
            os._exit(0)
        os.wait()
