"""Tiny random models, one of each kind of attention, always the same: what paged caches are held against."""

import functools
import inspect

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

import kvviz

WINDOW = 9
VOCABULARY = 96
SHAPE = {
    "vocab_size": VOCABULARY, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 8,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 1024, "bos_token_id": None,
    "eos_token_id": None, "pad_token_id": 0, "tie_word_embeddings": False,
    "initializer_range": 0.3,  # with the usual 0.02 all tokens are attended to alike, and mixed-up ones go unnoticed
}  # fmt: skip
SLIDING, FULL = {"sliding_window": WINDOW}, "full_attention"
IN_TURN = {"layer_types": ["sliding_attention", FULL]}
SETTINGS = {
    "llama": ("llama", {"num_attention_heads": 6}),
    "qwen3": ("qwen3", {"num_key_value_heads": 4}),
    "gpt2": ("gpt2", {"n_inner": 64}),
    "mistral": ("mistral", SLIDING),
    "gemma2": ("gemma2", SLIDING | IN_TURN | {"query_pre_attn_scalar": 8, "attn_logit_softcapping": 5.0}),
    "gemma3": (
        "gemma3_text",
        SLIDING
        | {"num_hidden_layers": 3, "layer_types": [*["sliding_attention"] * 2, FULL], "query_pre_attn_scalar": 8},
    ),
    "gpt-oss": (  # sinks
        "gpt_oss",
        SLIDING
        | IN_TURN
        | {"num_local_experts": 1, "num_experts_per_tok": 1}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0}},
    ),
    "gemma4": (  # heads of another size in the layers of the other type
        "gemma4_text",
        SLIDING | IN_TURN | {"global_head_dim": 16, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 96},
    ),
    "llama4": (  # chunks
        "llama4_text",
        {"layer_types": ["chunked_attention", FULL], "attention_chunk_size": WINDOW}
        | {"no_rope_layers": [1, 0], "num_local_experts": 1, "num_experts_per_tok": 1, "intermediate_size_mlp": 64},
    ),
}
FULL_ONLY = ("llama", "qwen3", "gpt2")
HYBRID = ("gemma2", "gemma3", "gpt-oss", "gemma4", "llama4")
MODELS = tuple(SETTINGS)
EAGER = ("gemma2", "gpt-oss")  # SDPA knows neither a soft cap nor sinks


def build(name: str, seed: int = 7, **changes):
    """A model of its own, for a test that changes it."""
    kind, settings = SETTINGS[name]
    config = CONFIG_MAPPING[kind](**(SHAPE | settings | changes))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        made = AutoModelForCausalLM.from_config(config, attn_implementation="eager" if name in EAGER else "sdpa")
    return made.eval().requires_grad_(False)


@functools.cache
def model(name: str, attached: bool = False):
    """One for all tests: not to be changed."""
    made = build(name)
    if attached:
        kvviz.attach(made)
    return made


@functools.cache
def assistant():
    """Guesses what the llama says, and is right now and then."""
    made = build("llama")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(8)
        for parameter in made.parameters():
            parameter += 0.03 * torch.randn_like(parameter)
    return made


def cache_name(model) -> str:
    """What forward() and generate() call a cache: renamed in transformers 5.24."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
