"""Shapes of well-known models: the values of their published config.json that memory depends on, so no network is needed.

Each is a dict that kv_bytes_per_token, plan and transformers take. `source`: the repository on huggingface.co whose
config.json has these values.
"""

from __future__ import annotations

from typing import Any


def _shape(source: str, model_type: str, layers: int, hidden: int, inner: int, heads: int, kv_heads: int, vocabulary: int,
           context: int, **more: Any) -> dict[str, Any]:  # fmt: skip
    return {
        "source": f"https://huggingface.co/{source}/blob/main/config.json",
        "model_type": model_type,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocabulary,
        "max_position_embeddings": context,
        **more,
    }


_UNTIED: dict[str, Any] = {"tie_word_embeddings": False}
_TIED: dict[str, Any] = {"tie_word_embeddings": True}
_EVERY_OTHER = ["sliding_attention", "full_attention"]
_MLA: dict[str, Any] = {
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "tie_word_embeddings": False,
}

KNOWN: dict[str, dict[str, Any]] = {
    "smollm2-135m": _shape("HuggingFaceTB/SmolLM2-135M", "llama", 30, 576, 1536, 9, 3, 49_152, 8192, **_TIED),
    "gpt2": {
        "source": "https://huggingface.co/openai-community/gpt2/blob/main/config.json",
        "model_type": "gpt2",
        "n_layer": 12,
        "n_embd": 768,
        "n_head": 12,
        "n_positions": 1024,
        "vocab_size": 50_257,
    },
    "llama-2-7b": _shape("meta-llama/Llama-2-7b-hf", "llama", 32, 4096, 11_008, 32, 32, 32_000, 4096, **_UNTIED),
    "llama-2-13b": _shape("meta-llama/Llama-2-13b-hf", "llama", 40, 5120, 13_824, 40, 40, 32_000, 4096, **_UNTIED),
    "llama-2-70b": _shape("meta-llama/Llama-2-70b-hf", "llama", 80, 8192, 28_672, 64, 8, 32_000, 4096, **_UNTIED),
    "llama-3-8b": _shape("meta-llama/Meta-Llama-3-8B", "llama", 32, 4096, 14_336, 32, 8, 128_256, 8192, **_UNTIED),
    "llama-3-70b": _shape("meta-llama/Meta-Llama-3-70B", "llama", 80, 8192, 28_672, 64, 8, 128_256, 8192, **_UNTIED),
    "mistral-7b-v0.1": _shape(
        "mistralai/Mistral-7B-v0.1", "mistral", 32, 4096, 14_336, 32, 8, 32_000, 32_768, sliding_window=4096, **_UNTIED
    ),
    "qwen2.5-7b": _shape(
        "Qwen/Qwen2.5-7B", "qwen2", 28, 3584, 18_944, 28, 4, 152_064, 131_072, use_sliding_window=False, **_UNTIED
    ),
    "gemma-2-9b": _shape(
        "google/gemma-2-9b", "gemma2", 42, 3584, 14_336, 16, 8, 256_000, 8192, head_dim=256, sliding_window=4096, **_TIED
    ),
    "gpt-oss-20b": _shape(
        "openai/gpt-oss-20b", "gpt_oss", 24, 2880, 2880, 64, 8, 201_088, 131_072,
        head_dim=64, sliding_window=128, num_local_experts=32, num_experts_per_tok=4, layer_types=_EVERY_OTHER * 12,
        **_UNTIED,
    ),
    "deepseek-v2": _shape(
        "deepseek-ai/DeepSeek-V2", "deepseek_v2", 60, 5120, 12_288, 128, 128, 102_400, 163_840,
        moe_intermediate_size=1536, n_routed_experts=160, n_shared_experts=2, num_experts_per_tok=6,
        first_k_dense_replace=1, **_MLA,
    ),
    "deepseek-v3": _shape(
        "deepseek-ai/DeepSeek-V3", "deepseek_v3", 61, 7168, 18_432, 128, 128, 129_280, 163_840,
        moe_intermediate_size=2048, n_routed_experts=256, n_shared_experts=1, num_experts_per_tok=8,
        first_k_dense_replace=3, **_MLA,
    ),
}  # fmt: skip
