"""Record the traces that kvviz ships (kvviz/samples), on PyTorch's real CUDA allocator with no GPU: `make samples`.

Runs in the environment of tests/cuda_stub, one process a sample, because each has a device of its own size.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM
from transformers.initialization import no_init_weights

import kvviz

HOME = Path(kvviz.__file__).parent / "samples"
MIB_OF = {"7b_24gb": 24576, "7b_80gb": 81920, "3b_12gb": 12288, "3b_24gb": 24576}
WINDOW, LAYERS = 512, 16


def llama(**shape: int) -> LlamaForCausalLM:
    """A model with weights that take their memory and hold nothing."""
    torch.set_default_dtype(torch.float16)
    with torch.device("cuda"), no_init_weights():
        return LlamaForCausalLM(LlamaConfig(max_position_embeddings=16384, **shape)).eval()


def seven_b(run) -> None:
    model = llama(num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=32, hidden_size=4096,
                  intermediate_size=11008, vocab_size=32000)  # fmt: skip
    kept = []
    with run:
        for generation in range(40):
            cache = DynamicCache(config=model.config)
            prompt = torch.zeros(1, 900 + 37 * generation, dtype=torch.long, device="cuda")
            kvviz.decode(model, prompt, 25, cache)
            if generation % 2 == 0:
                kept.append(cache)
            run.mark(f"generation {generation}")


def three_b(run) -> None:
    model = llama(num_hidden_layers=26, num_attention_heads=32, num_key_value_heads=32, hidden_size=3200,
                  intermediate_size=8640, vocab_size=32000)  # fmt: skip
    cache = DynamicCache(config=model.config)
    with run, torch.inference_mode():
        for tokens in range(64, 16384, 64):  # in pieces of 64 tokens: the same growth in fewer events than one by one
            model(torch.zeros(8, 64, dtype=torch.long, device="cuda"), cache=cache, use_cache=True, logits_to_keep=1)
            if tokens % 512 == 0:
                run.mark(f"{tokens} tokens")


def window(how: str):
    """A window over tensors of [1, 8, tokens, 128], as a cache of 16 layers would keep it, activations in between."""

    def slide(run) -> None:
        def tensor(tokens: int) -> torch.Tensor:
            return torch.zeros(1, 8, tokens, 128, dtype=torch.float16, device="cuda")

        kept = [tensor(WINDOW) for _ in range(2 * LAYERS)]
        with run:
            for generation in range(100):
                new = 40 + 53 * generation % 300
                run.own(kept, "kv cache")
                for k in range(2 * LAYERS):
                    activation = torch.zeros(1, new, 4096, dtype=torch.float16, device="cuda")
                    rows = tensor(new)
                    if how == "shift":
                        tail = WINDOW - new
                        kept[k][:, :, :tail] = kept[k][:, :, -tail:].clone()  # the two overlap: the tail is copied first
                        kept[k][:, :, tail:] = rows
                    else:
                        cut = torch.cat([kept[k], rows], dim=2)[:, :, -WINDOW:]
                        kept[k] = cut if how == "slice" else cut.clone()
                    del activation, rows
                run.own(kept, "kv cache")
                if generation % 10 == 0:
                    run.mark(f"generation {generation}")

    return slide


RUNS = {
    "7b_24gb": seven_b, "7b_80gb": seven_b, "3b_12gb": three_b, "3b_24gb": three_b,
    "window_shift": window("shift"), "window_slice": window("slice"), "window_clone": window("clone"),
}  # fmt: skip


def without_times(trace: kvviz.Trace) -> kvviz.Trace:
    """Nothing was computed, so the times mean nothing; and they are most of a file."""
    columns = {column: trace.events[column] for column in trace.events.__dataclass_fields__}
    columns["time_us"] = np.zeros_like(columns["time_us"])
    return replace(trace, events=type(trace.events)(**columns))


def record(name: str) -> None:
    run = kvviz.record("cuda", max_events=8_000_000, stacks=None)
    try:
        RUNS[name](run)
    except torch.OutOfMemoryError as error:
        print(f"{name}: {str(error).splitlines()[0][:240]}")
    trace = without_times(run.trace)
    trace.save(HOME / f"{name}.kvviz")
    size = (HOME / f"{name}.kvviz").stat().st_size
    print(f"{name}: {len(trace):,} events, {size:,} B, peak reserved {trace.peak_reserved:,} B", flush=True)


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--one":
        record(sys.argv[2])
        os._exit(0)  # the stand-in driver has no orderly end
    for sample in sys.argv[1:] or RUNS:
        command = [sys.executable, __file__, "--one", sample]
        environment = os.environ | {"STUBCUDA_TOTAL_MIB": str(MIB_OF.get(sample, 24576))}
        if code := os.spawnve(os.P_WAIT, sys.executable, command, environment):
            sys.exit(f"{sample}: failed with {code}")
