"""A 7B model's shapes in fp16 on a 24 GB card, on PyTorch's own allocator without a GPU, every second cache kept.

    tests/cuda_stub/run.sh tests/cuda_stub/seven_b.py          (PYTORCH_CUDA_ALLOC_CONF as usual)

Prints the generation that runs out of memory, and the bytes that are then allocated and reserved.
"""

import os

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM
from transformers.initialization import no_init_weights

CONFIG = LlamaConfig(
    num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=32, hidden_size=4096, intermediate_size=11008,
    vocab_size=32000, max_position_embeddings=4096,
)  # fmt: skip


def generations_until_out_of_memory(limit: int = 40) -> tuple[int, int, int]:
    """Each generation has a longer prompt than the last; (generation, allocated, reserved)."""
    torch.set_default_dtype(torch.float16)
    with torch.device("cuda"), no_init_weights():
        model = LlamaForCausalLM(CONFIG).eval()
    kept = []
    generation = 0
    try:
        with torch.inference_mode():
            for generation in range(limit):
                cache = DynamicCache(config=model.config)
                for tokens in (900 + 37 * generation, *(1,) * 24):
                    ids = torch.zeros(1, tokens, dtype=torch.long, device="cuda")
                    model(ids, cache=cache, use_cache=True, logits_to_keep=1)
                if generation % 2 == 0:
                    kept.append(cache)
    except torch.OutOfMemoryError:
        pass
    return generation, torch.cuda.memory_allocated(), torch.cuda.memory_reserved()


if __name__ == "__main__":
    print(*generations_until_out_of_memory(), flush=True)
    os._exit(0)  # CUDA's own tidying up waits for a device
