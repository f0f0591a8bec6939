"""Sizes that are computed, against bytes that are held: real caches, real tensors, published numbers."""

import json
import math
import re
from types import SimpleNamespace

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, DynamicCache

import kvviz
from kvviz import sizing
from kvviz.errors import InvalidRequest
from kvviz.sizing import KNOWN, KVLayer, kv_bytes_per_token, plan
from kvviz.sizing.plan import memory_bytes
from kvviz.sizing.terms import count_parameters
from tests.tiny_models import MODELS, SHAPE, WINDOW, build, cache_name

GIB = 1 << 30
TOKENS = 5  # fewer than any window here
MLA = {
    "num_key_value_heads": 4, "head_dim": 4, "kv_lora_rank": 16, "q_lora_rank": 8, "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8, "v_head_dim": 12, "moe_intermediate_size": 16, "n_routed_experts": 4,
    "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1,
}  # fmt: skip
SHARED = {
    "num_hidden_layers": 4, "num_kv_shared_layers": 2, "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": WINDOW, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 96,
}  # fmt: skip
BY_HEADS = {"head_dim": 12, "v_head_dim": 8, "n_routed_experts": 4, "num_experts_per_tok": 2, "sliding_window": WINDOW}
OTHERS = {  # kind of model and what is changed of SHAPE
    "MLA, V2": ("deepseek_v2", MLA | {"topk_method": "greedy"}),
    "MLA, V3": ("deepseek_v3", MLA),
    "MQA": ("gpt_bigcode", {"n_embd": 48, "n_head": 4, "n_layer": 2, "n_inner": 64, "multi_query": True}),
    "no MQA": ("gpt_bigcode", {"n_embd": 48, "n_head": 4, "n_layer": 2, "n_inner": 64, "multi_query": False}),
    "MQA, Falcon": (
        "falcon",
        {"head_dim": ..., "num_kv_heads": 4, "multi_query": True, "new_decoder_architecture": False},
    ),
    "shared layers, gemma3n": (
        "gemma3n_text",
        SHARED
        | {"intermediate_size": [64] * 4, "activation_sparsity_pattern": [0.0] * 4}
        | {"altup_num_inputs": 2, "laurel_rank": 4},
    ),
    "shared layers, gemma4": (
        "gemma4_text",
        SHARED | {"global_head_dim": 16, "num_global_key_value_heads": 1, "attention_k_eq_v": True},
    ),
    "global heads do not count, gemma4": ("gemma4_text", SHARED | {"num_global_key_value_heads": 1}),
    "values of another size": ("mimo_v2_flash", BY_HEADS | {"moe_intermediate_size": 16}),
    "convolutions": ("lfm2", {"head_dim": 12, "layer_types": ["conv", "full_attention"]}),
    "mamba in turn": (
        "jamba",
        {"head_dim": 12, "attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 1, "num_experts_per_tok": 1}
        | {"mamba_dt_rank": 4},
    ),
    "mamba beside": ("falcon_h1", {"head_dim": 12, "mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16}),
    "window under another name": (
        "recurrent_gemma",
        {"head_dim": 12, "lru_width": 48, "attention_window_size": WINDOW, "num_hidden_layers": 3},
    ),
}
LLAMA = {
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 64,
    "vocab_size": 99,
}


def tiny(kind, settings):
    values = {name: value for name, value in (SHAPE | settings).items() if value is not ...}
    config = CONFIG_MAPPING[kind](**values)
    return AutoModelForCausalLM.from_config(config).eval()


def held(model, tokens=TOKENS):
    """Bytes of transformers' own cache, for each token."""
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(torch.arange(tokens)[None], **{cache_name(model): cache})
    layers = [layer for layer in cache.layers if getattr(layer, "keys", None) is not None]
    assert layers
    return sum(states.untyped_storage().nbytes() for layer in layers for states in (layer.keys, layer.values)) / tokens


def check_against_cache(model):
    wanted = held(model)
    assert kv_bytes_per_token(model, torch.float32) == wanted
    assert kv_bytes_per_token(model.config, "fp32") == wanted
    assert kv_bytes_per_token(json.loads(json.dumps(model.config.to_dict())), "fp32") == wanted
    assert kv_bytes_per_token(model, "bf16") == wanted / 2


# bytes of a token, against what is held


@pytest.mark.parametrize("name", MODELS)
def test_what_transformers_holds(name):
    check_against_cache(build(name))


@pytest.mark.parametrize("kind", OTHERS)
def test_what_transformers_holds_of_other_kinds(kind):
    check_against_cache(tiny(*OTHERS[kind]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dtypes_of_torch(dtype):
    model = build("llama").to(dtype)
    assert kv_bytes_per_token(model, dtype) == held(model)
    assert kv_bytes_per_token(model, torch.float8_e4m3fn) == kv_bytes_per_token(model, "fp8") == 64


def test_the_expanded_keys_and_values_of_a_latent():
    model = tiny("deepseek_v3", MLA)
    latent, shared = torch.zeros(1, 1, 1, MLA["kv_lora_rank"]), torch.zeros(1, 1, 1, MLA["qk_rope_head_dim"])
    expanded = [layer.self_attn.expand_kv(latent, shared) for layer in model.model.layers]
    wanted = sum(keys.nbytes + values.nbytes for keys, values in expanded)
    assert kv_bytes_per_token(model, "fp32", mla="expanded") == wanted
    assert kv_bytes_per_token(model, "fp32", mla="latent") == sum(2 * (latent.nbytes + shared.nbytes) for _ in "1")
    with pytest.raises(InvalidRequest, match="mla"):
        kv_bytes_per_token(model, "fp32", mla="compressed")


@pytest.mark.parametrize(
    ("name", "dtype", "wanted"),
    [  # 2 × layers × KV heads × head size × bytes, from the config.json that KNOWN names as its source
        ("llama-2-7b", "fp16", 2 * 32 * 32 * 128 * 2),
        ("llama-2-7b", "fp16", 524_288),
        ("llama-2-13b", "fp16", 819_200),
        ("llama-2-70b", "fp16", 327_680),
        ("llama-3-8b", "bf16", 131_072),
        ("llama-3-70b", "bf16", 327_680),
        ("mistral-7b-v0.1", "bf16", 131_072),
        ("qwen2.5-7b", "bf16", 2 * 28 * 4 * 128 * 2),
        ("smollm2-135m", "bf16", 23_040),
        ("gpt2", "fp32", 2 * 12 * 768 * 4),
        ("gemma-2-9b", "bf16", 2 * 42 * 8 * 256 * 2),
        ("gpt-oss-20b", "bf16", 2 * 24 * 8 * 64 * 2),
        ("deepseek-v2", "bf16", (512 + 64) * 60 * 2),
        ("deepseek-v3", "bf16", (512 + 64) * 61 * 2),
    ],
)
def test_published_numbers(name, dtype, wanted):
    assert kv_bytes_per_token(KNOWN[name], dtype) == kv_bytes_per_token(name, dtype) == wanted


@pytest.mark.parametrize(
    ("name", "wanted"),
    [  # as the model cards count them
        ("smollm2-135m", 134_515_008),
        ("gpt2", 124_439_808),
        ("llama-2-7b", 6_738_415_616),
        ("llama-2-13b", 13_015_864_320),
        ("llama-3-8b", 8_030_261_248),
        ("llama-3-70b", 70_553_706_496),
        ("mistral-7b-v0.1", 7_241_732_096),
        ("qwen2.5-7b", 7_615_616_512),
        ("gemma-2-9b", 9_241_705_984),
        ("gpt-oss-20b", 20_914_757_184),
        ("deepseek-v3", 671_026_404_352),
    ],
)
def test_parameters(name, wanted):
    assert sum(count_parameters(KNOWN[name])) == wanted


def quantized_nbytes(states, group_dim, group, page):
    """[heads, tokens, dim] in 4 bits, with a scale and a zero point for each group along group_dim, page by page."""
    total = 0
    for tokens in states.split(page, 1):
        packed = torch.empty(tokens.numel() // 2, dtype=torch.uint8)
        scales = [part.amax(group_dim).half() for part in tokens.split(group, group_dim)]
        total += packed.nbytes + sum(2 * scale.nbytes for scale in scales)  # zero points are as many
    return total


@pytest.mark.parametrize("page", [16, 32, 48, 96])
@pytest.mark.parametrize("dim", [64, 80])
def test_int4_against_tensors(dim, page):
    states = torch.zeros(3, 96, dim)
    wanted = quantized_nbytes(states, 1, 32, page) + quantized_nbytes(states, 2, 32, page)
    layer, scheme = KVLayer(3, dim, dim), sizing.KV_SCHEMES["int4"]
    assert 96 * layer.token_bits(scheme, page) / 8 == wanted
    if page % 32 == 0:
        config = {"num_hidden_layers": 1, "num_attention_heads": 3, "head_dim": dim, "hidden_size": 96, "vocab_size": 9}
        assert kv_bytes_per_token(config, "int4") == math.ceil(wanted / 96)


def test_bytes_are_rounded_up():
    """5 bits of a key, 4 of a value and 32 of its own scale and zero point: 41."""
    config = {"num_hidden_layers": 1, "num_attention_heads": 1, "head_dim": 1, "hidden_size": 1}
    assert kv_bytes_per_token(config, "int4") == 6


def test_int8_against_tensors():
    numbers = torch.empty(2, 40, 128, 128, dtype=torch.int8)  # keys and values of 128 tokens in one layer
    scales = torch.empty(2, 40, 128, dtype=torch.float16)
    assert kv_bytes_per_token("llama-2-13b", "int8") == 40 * (numbers.nbytes + scales.nbytes) // 128


# where a config comes from


def test_a_dict_of_a_model_that_transformers_does_not_know():
    grouped = {"num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 64}
    assert kv_bytes_per_token(grouped, "fp16") == 2 * 3 * 2 * 8 * 2
    assert kv_bytes_per_token({"model_type": "new", "text_config": grouped}, "fp16") == 2 * 3 * 2 * 8 * 2
    assert kv_bytes_per_token({"n_layer": 3, "n_head": 8, "n_embd": 64}, "fp16") == 2 * 3 * 64 * 2
    assert kv_bytes_per_token(grouped | {"num_key_value_heads": None}, "fp16") == 2 * 3 * 64 * 2
    two = grouped | {"layer_types": ["full_attention", "mamba", "full_attention"], "num_kv_shared_layers": 1}
    assert kv_bytes_per_token(two, "fp16") == 2 * 2 * 8 * 2
    assert [layer.window for layer in sizing.kv_layers(grouped | {"sliding_window": 9})] == [9] * 3
    off = grouped | {"sliding_window": 9, "use_sliding_window": False}
    assert [layer.window for layer in sizing.kv_layers(off)] == [None] * 3


def test_gemma4_by_its_values_alone():
    """As transformers before 5.17 gives them: no config for each layer."""
    values = SHARED | LLAMA | {"num_hidden_layers": 4, "head_dim": 8, "global_head_dim": 16}
    assert sizing.kv_layers(values) == [KVLayer(2, 8, 8, WINDOW), KVLayer(2, 16, 16)]
    assert sizing.kv_layers(values | {"num_global_key_value_heads": 1}) == [
        KVLayer(2, 8, 8, WINDOW),
        KVLayer(2, 16, 16),
    ]
    equal = values | {"num_global_key_value_heads": 1, "attention_k_eq_v": True}
    assert sizing.kv_layers(equal) == [KVLayer(2, 8, 8, WINDOW), KVLayer(1, 16, 16)]


def test_files(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(KNOWN["llama-3-8b"]))
    for path in (tmp_path, tmp_path / "config.json", str(tmp_path)):
        assert kv_bytes_per_token(path, "bf16") == 131_072


def test_the_text_part_of_a_multimodal_config():
    text = {**LLAMA, "model_type": "llama", "num_hidden_layers": 5}
    assert kv_bytes_per_token({"model_type": "llava", "text_config": text}, "fp16") == 2 * 5 * 2 * 16 * 2


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (None, "NoneType"),
        (7, "int"),
        (torch.nn.Linear(1, 1), "Linear"),
        ({}, "num_hidden_layers"),
        (LLAMA | {"num_hidden_layers": 0}, "num_hidden_layers"),
        (LLAMA | {"num_hidden_layers": "2"}, "num_hidden_layers"),
        (LLAMA | {"num_key_value_heads": 3}, "3 key-value heads"),
        (LLAMA | {"layer_types": ["full_attention"]}, "layer_types"),
        (LLAMA | {"layer_types": ["full_attention", "magic"]}, "layer 1 is of type magic"),
        (LLAMA | {"layer_types": ["sliding_attention"] * 2}, "sliding_window is None"),
        ({"model_type": "llama", "hidden_size": "wide"}, "llama"),
        ({"model_type": "t5"}, "encoder-decoder"),
        ({"model_type": "bert"}, "encoder"),
        ({"model_type": "deepseek_v4"}, "compressed"),
        ("/no/such/folder", "llama-2-13b"),
    ],
)
def test_what_is_no_decoder_is_told_in_one_line(source, says):
    with pytest.raises(InvalidRequest, match=re.escape(says)) as error:
        kv_bytes_per_token(source, "fp16")
    assert "\n" not in str(error.value) and len(str(error.value)) < 400


ABSURD = (-1, 0, True, 1.5, math.inf, 10**9, 10**400, 10**5000, "x", [1])


@pytest.mark.parametrize("kind", ["", "mystery"])
@pytest.mark.parametrize("name", ["gpt2", "gpt-oss-20b", "deepseek-v2"])
def test_absurd_values_of_a_config_are_told_or_counted(name, kind):
    """Never an OverflowError or a TypeError, lists of a billion layers, or a line of hundreds of digits."""
    shape, told = KNOWN[name] | ({"model_type": kind} if kind else {}), 0
    for field in shape.keys() - {"source", "model_type"}:
        for value in ABSURD:
            try:
                made = plan(shape | {field: value}, "24GiB", 2048, parameters=10**9)
                assert kv_bytes_per_token(shape | {field: value}, "int4") > 0 and made.bytes > 0 and made.text
            except InvalidRequest as error:
                told += 1
                assert "\n" not in str(error) and len(str(error)) < 300
    assert told > 30


@pytest.mark.parametrize("layers", [2**16 + 1, 10**12, 10**400])
def test_too_many_layers_are_told_by_their_number(layers):
    for shape in (KNOWN["llama-2-7b"], {**LLAMA, "model_type": "mystery"}):
        with pytest.raises(InvalidRequest, match=r"num_hidden_layers must be .* 1 to 65,536, got more"):
            kv_bytes_per_token(shape | {"num_hidden_layers": layers}, "fp16")


def test_files_that_are_none(tmp_path):
    file = tmp_path / "config.json"
    for text, says in (("{", "no JSON"), ("[1]", "list"), ("\xff", "no JSON")):
        file.write_bytes(text.encode("latin-1"))
        with pytest.raises(InvalidRequest, match=says):
            kv_bytes_per_token(file, "fp16")


@pytest.mark.parametrize("dtype", [None, "int2", "float16", torch.int8, torch.float64, 16, torch.complex64])
def test_dtypes_that_are_none(dtype):
    with pytest.raises(InvalidRequest, match="'int8'"):
        kv_bytes_per_token(LLAMA, dtype)


# the plan


def value(equation):
    """What an equation comes to: of each factor the first number, ranks and bits divided by."""
    plain = re.sub(r"\([^()]*\)", "", equation)
    product = 1.0
    for sign, factor in re.findall(r"(^|[×÷])\s*([\d,.]+)", plain):
        number = float(factor.replace(",", ""))
        product = product / number if sign == "÷" else product * number
    return product


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize(("dtype", "kv"), [("bf16", None), ("int4", "int8"), ("int8", "int4")])
def test_every_equation_gives_its_bytes(name, dtype, kv):
    for shards in (1, 2, 3, 16):
        made = plan(KNOWN[name], "80GiB", 5000, 3, dtype, kv, shards=shards)
        for term in made.terms:
            assert abs(value(term.equation) - term.bytes) < 1, term
    assert made.bytes == sum(term.bytes for term in made.terms)
    assert {term.name.split(":")[0] for term in made.terms} == {
        "weights", "cache", "CUDA context", "logits of the prefill chunk", "activations of the prefill chunk",
    }  # fmt: skip


def pooled(config, page_size, tokens, batch=1):
    """Bytes that kvviz's own pools hold, of tensors without memory."""
    cache = kvviz.paged_cache(SimpleNamespace(config=config), page_size, tokens=tokens, dtype=torch.bfloat16)
    for layer in range(config.num_hidden_layers):
        new = torch.zeros(batch, 2, tokens, 8, dtype=torch.bfloat16, device="meta")
        cache.update(new, new, layer)
    return cache.held_bytes


@pytest.mark.parametrize("page_size", [1, 16, 100, 256])
@pytest.mark.parametrize("kinds", [["full_attention"] * 2, ["sliding_attention", "full_attention"]])
@pytest.mark.parametrize("tokens", [5, 400])
def test_the_cache_is_what_a_paged_cache_holds(page_size, kinds, tokens):
    window = {"sliding_window": 128} if kinds[0] == "sliding_attention" else {}
    config = CONFIG_MAPPING["gemma2"](**(SHAPE | {"layer_types": kinds} | window))
    made = plan(config, tokens=tokens, page_size=page_size)
    assert made.bytes_of("cache") == pooled(config, page_size, tokens)
    made = plan(config, tokens=tokens, page_size=page_size, batch=3)
    assert made.bytes_of("cache") == pooled(config, page_size, tokens, batch=3)
    made = plan(config, tokens=tokens, page_size=page_size, window=33)
    sliding = {"layer_types": ["sliding_attention"] * 2, "sliding_window": 33}
    assert made.bytes_of("cache") == pooled(CONFIG_MAPPING["gemma2"](**(SHAPE | sliding)), page_size, tokens)


def test_a_window_that_is_wider_than_the_models_own_changes_nothing_there():
    own, wide = plan(KNOWN["mistral-7b-v0.1"], tokens=9000), plan(KNOWN["mistral-7b-v0.1"], tokens=9000, window=8192)
    assert own.bytes == wide.bytes and not any("answers change" in note for note in wide.notes)


def test_the_cache_of_gpt_oss():
    """tests/test_paged_sizes.py holds the pools to the same figure."""
    assert plan(KNOWN["gpt-oss-20b"], tokens=4096).bytes_of("cache") == 99.375 * (1 << 20)


def test_weights_of_a_tiny_model_and_their_bits():
    model = build("llama")
    count = sum(parameter.numel() for parameter in model.parameters())
    apart = 2 * 96 * 48 + sum(p.numel() for p in model.parameters() if p.dim() == 1)
    for source in (model, model.config):
        assert count_parameters(source) == (count - apart, apart)
        assert plan(source, tokens=1, dtype="fp32").bytes_of("weights") == 4 * count
        assert plan(source, tokens=1, dtype="int4").bytes_of("weights") == (count - apart) * 4.25 / 8 + 2 * apart
    assert plan(LLAMA, tokens=1, parameters=1000).bytes_of("weights") == 2000
    with pytest.raises(InvalidRequest, match="parameters="):
        plan(LLAMA, tokens=1)


def test_13b_at_32k_on_24_gb():
    """Row 14 of the article: which precisions fit, with the figures."""
    whole = plan(KNOWN["llama-2-13b"], "24GiB", 32_768)
    assert whole.bytes_of("cache") == 26_843_545_600 > whole.memory == 24 * GIB
    assert not whole.fits and whole.tokens_that_fit == 0
    fits = {(o.plan.weights.name, o.plan.kv.name): o.plan.fits for o in whole.combinations()}
    assert fits == {
        ("bf16", "bf16"): False, ("bf16", "int8"): False, ("bf16", "int4"): False,
        ("int8", "bf16"): False, ("int8", "int8"): False, ("int8", "int4"): True,
        ("int4", "bf16"): False, ("int4", "int8"): True, ("int4", "int4"): True,
    }  # fmt: skip
    small = plan(KNOWN["llama-2-13b"], "24GiB", 32_768, dtype="int4", kv_dtype="int4", page_size=32)
    assert small.fits and small.bytes_of("weights") == 7_396_567_040 and small.bytes_of("cache") == 8_388_608_000
    assert "32,768 tokens are more than the 4,096" in small.text
    assert (
        plan(KNOWN["llama-2-13b"], "24GiB", 32_768, dtype="int4").fits is False
    )  # 4-bit weights leave the cache as it is
    for option in whole.combinations():
        assert option.text in whole.text and ("does not fit" in option.text) is not option.plan.fits


def test_options_are_the_smallest_changes():
    whole = plan(KNOWN["llama-2-13b"], "24GiB", 32_768)
    options = whole.options()
    changes = [option.changes for option in options]
    assert changes[0] == ["4 ranks"]
    assert ["int4 weights", "int8 cache"] in changes and ["int8 weights", "int4 cache"] in changes
    assert ["int4 weights", "int4 cache"] not in changes  # goes farther than needed
    assert ["int4 weights", "window 16,384"] in changes
    assert all(option.plan.fits for option in options)
    assert [len(change) for change in changes] == sorted(map(len, changes))
    for one in options:  # a step less, and it does not fit
        for i in range(2):
            if one.steps[i]:
                earlier = [o for o in whole.combinations() if o.steps[i] == one.steps[i] - 1]
                of = next(o for o in earlier if o.steps[1 - i] == one.steps[1 - i]).plan
                again = plan(
                    KNOWN["llama-2-13b"], "24GiB", 32_768, dtype=of.weights, kv_dtype=of.kv,
                    shards=one.plan.shards, window=one.plan.window,
                )  # fmt: skip
                assert not again.fits
    assert repr(options) == "\n".join(option.text for option in options)
    assert json.loads(json.dumps(options.to_json()))[0]["changes"] == ["4 ranks"]
    assert options._repr_html_().count("<li>") == len(options)


def test_options_at_the_ends():
    fitting = plan(KNOWN["smollm2-135m"], "8GiB", 1000).options()
    assert [option.changes for option in fitting] == [[]]
    hopeless = plan(KNOWN["deepseek-v3"], "1GiB", 1000).options()
    assert hopeless == [] and "nothing here fits" in repr(hopeless)
    with pytest.raises(InvalidRequest, match="memory"):
        plan(KNOWN["smollm2-135m"], tokens=1000).options()


@pytest.mark.parametrize("name", ["llama-2-7b", "gemma-2-9b", "gpt-oss-20b", "deepseek-v2"])
@pytest.mark.parametrize("batch", [1, 5])
def test_one_token_more_than_fits_does_not(name, batch):
    memory = 600 * GIB if name == "deepseek-v2" else 48 * GIB
    most = plan(KNOWN[name], memory, 1, batch).tokens_that_fit
    assert most > 1000
    assert plan(KNOWN[name], memory, most, batch).fits
    more = plan(KNOWN[name], memory, most + 1, batch)
    assert not more.fits and more.free < 0 and more.tokens_that_fit == most


def test_without_tokens_the_plan_is_for_those_that_fit():
    assert plan(KNOWN["llama-2-7b"], "80GiB").tokens == 4096  # what the model was made for
    tight = plan(KNOWN["llama-2-7b"], "15GiB")
    assert 0 < tight.tokens == tight.tokens_that_fit < 4096 and tight.fits
    none = plan(KNOWN["llama-2-7b"], "12GiB")
    assert none.tokens == 0 and not none.fits and "not one token fits" in none.verdict
    bare = plan(KNOWN["llama-2-7b"], none.bytes)  # the weights fit, and no token does
    assert bare.tokens == bare.free == 0 and bare.fits is False
    assert plan(KNOWN["llama-2-7b"]).tokens == 4096 and plan(KNOWN["llama-2-7b"]).fits is None
    sliding = plan(KNOWN["mistral-7b-v0.1"], "24GiB", 10**9)
    assert sliding.endless and sliding.fits and sliding.tokens_that_fit is None and "any number" in sliding.verdict


def test_heads_over_ranks():
    shape, tokens = KNOWN["smollm2-135m"], 1600
    whole = plan(shape, tokens=tokens).bytes_of("cache")
    two = plan(shape, tokens=tokens, shards=2)
    assert two.bytes_of("cache") == whole * 2 // 3 and "2 heads (of 3 over ranks: 2 + 1)" in two.text
    assert plan(shape, tokens=tokens, shards=3).bytes_of("cache") == whole // 3
    eight = plan(shape, tokens=tokens, shards=8)
    assert eight.bytes_of("cache") == whole // 3 and "more than once" in eight.text
    assert abs(eight.bytes_of("weights") - 2 * 134_515_008 / 8) <= 1
    latent = [plan(KNOWN["deepseek-v3"], tokens=tokens, shards=n).bytes_of("cache") for n in (1, 8)]
    assert latent[0] == latent[1] == tokens * 70_272
    assert "1 latent (on every rank)" in plan(KNOWN["deepseek-v3"], tokens=tokens, shards=8).text
    expanded = [plan(KNOWN["deepseek-v3"], tokens=tokens, shards=n, mla="expanded").bytes_of("cache") for n in (1, 8)]
    assert expanded[0] == 8 * expanded[1] == tokens * 61 * 128 * (192 + 128) * 2


def test_overhead():
    shape, tokens = KNOWN["llama-2-7b"], 4096
    usual = {term.name: term.bytes for term in plan(shape, tokens=tokens).terms}
    assert usual["CUDA context"] == GIB // 2
    assert usual["logits of the prefill chunk"] == 2048 * 32_000 * 4
    assert usual["activations of the prefill chunk"] == 2048 * (4 * 4096 + 2 * 11_008) * 2
    other = sizing.Overhead(context=0, prefill_chunk=512, logits_tokens=1)
    less = {term.name: term.bytes for term in plan(shape, tokens=tokens, overhead=other).terms}
    assert "CUDA context" not in less and less["logits of the prefill chunk"] == 32_000 * 4
    assert less["activations of the prefill chunk"] == usual["activations of the prefill chunk"] // 4
    batch = {term.name: term.bytes for term in plan(shape, tokens=100, batch=3).terms}
    assert batch["logits of the prefill chunk"] == 300 * 32_000 * 4
    flat = plan(shape, tokens=tokens, overhead=12345)
    assert flat.bytes == flat.bytes_of("weights") + flat.bytes_of("cache") + 12345


def test_memory_as_text():
    assert memory_bytes("24GiB") == 24 * GIB == 24_576 * (1 << 20)
    assert memory_bytes("24GB") == memory_bytes("24 gb") == 24 * 10**9
    assert memory_bytes("1.5MiB") == 3 << 19
    assert memory_bytes(7) == 7
    assert "24,000,000,000 bytes; a card sold as 24GB has 24GiB" in plan(KNOWN["gpt2"], "24GB", 9).text
    assert "sold as" not in plan(KNOWN["gpt2"], "24GiB", 9).text


@pytest.mark.parametrize(
    ("wish", "says"),
    [
        ({"memory": "24"}, "24GiB"),
        ({"memory": "much"}, "24GiB"),
        ({"memory": "0GiB"}, "24GiB"),
        ({"memory": 0}, "memory"),
        ({"memory": 2.5}, "memory"),
        ({"tokens": 0}, "tokens"),
        ({"batch": 0}, "batch"),
        ({"page_size": 0}, "page_size"),
        ({"window": 0}, "window"),
        ({"shards": 0}, "shards"),
        ({"shards": True}, "shards"),
        ({"dtype": "int2"}, "dtype"),
        ({"kv_dtype": "int2"}, "kv_dtype"),
        ({"overhead": -1}, "overhead"),
        ({"overhead": "much"}, "overhead"),
        ({"parameters": 0}, "parameters"),
        *(
            ({name: 10**400}, f"{name} must be a whole number from 1 to .* got more")
            for name in ["memory", "tokens", "batch", "page_size", "window", "shards", "parameters"]
        ),
        ({"memory": "9" * 500 + "GiB"}, "24GiB"),
        ({"memory": "1e3GiB"}, "24GiB"),
        ({"overhead": 10**400}, "overhead must be a whole number from 0 to .* got more"),
        ({"overhead": True}, "overhead"),
    ],
)
def test_wishes_that_make_no_sense(wish, says):
    with pytest.raises(InvalidRequest, match=says):
        plan(KNOWN["gpt2"], **({"tokens": 10} | wish))


def test_a_plan_as_text_html_and_json():
    made = plan(KNOWN["gpt-oss-20b"], "24GiB", 4096, dtype="int4", kv_dtype="int4", window=64)
    assert repr(made) == made.text
    for term in made.terms:
        line = f"  {term.name}: {term.equation} = {term.bytes:,} B"
        assert line in made.text and f"<td>{term.bytes:,}</td>" in made._repr_html_()
    assert made.verdict in made.text and made.verdict in made._repr_html_()
    assert any("window of 64 tokens is not the model's own" in note for note in made.notes)
    assert any("page_size=32" in note for note in made.notes)
    read = json.loads(json.dumps(made.to_json()))
    assert read["bytes"] == made.bytes and read["terms"][0]["bytes"] == made.terms[0].bytes
    assert read["fits"] is made.fits is True and read["tokens_that_fit"] == made.tokens_that_fit


def test_layers_that_keep_nothing_are_noted():
    made = plan(tiny(*OTHERS["mamba in turn"]), tokens=64)
    assert "1 of 2 layers keep nothing of a token" in made.text
    assert made.bytes_of("cache") == 64 * kv_bytes_per_token(tiny(*OTHERS["mamba in turn"]), "bf16")


def test_a_model_is_read_by_its_config():
    assert kv_bytes_per_token(SimpleNamespace(config=build("qwen3").config), "fp32") == 512
