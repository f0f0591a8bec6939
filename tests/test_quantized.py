"""Quantized pages against the slow, obvious way: all tokens in one list, coded number by number in plain Python and torch.

KVVIZ_PRECISION_TOKENS and KVVIZ_PRECISION_CHUNK make the test on SmolLM2 longer (2048 and 64 for the figures of notebook
10; KVVIZ_PRECISION_TOPIC is a topic of pydoc_data); with -s it prints them. KVVIZ_FUZZ_PROGRAMS as in test_pages.py.
"""

from __future__ import annotations

import copy
import os
import pydoc_data.topics
import random

import pytest
import torch
from transformers import DynamicCache

import kvviz
from kvviz.cache.quantized import QuantizedPagedKVCache
from kvviz.errors import CorruptCache, InvalidRequest, PoolExhausted
from kvviz.sizing.precision import KV_SCHEMES
from tests import tiny_models
from tests.test_pages import FIRST_SEED, PROGRAMS

LAYERS, HEADS = 2, 2
NAMES = ("int8", "int4")
pytestmark = pytest.mark.usefixtures("one_thread")


def make(name: str, dim: int = 64, page_size: int | None = None, **kwargs) -> QuantizedPagedKVCache:
    return QuantizedPagedKVCache(LAYERS, HEADS, dim, page_size, dtype=name, **kwargs)


def states(tokens: int, dim: int = 64, batch: int = 1, seed: int = 0) -> torch.Tensor:
    """[keys and values, layers, batch, heads, tokens, dim], some channels larger than others, as those of keys are."""
    generator = torch.Generator().manual_seed(seed)
    wide = 1 + 9 * torch.rand(dim, generator=generator) ** 4
    return torch.randn(2, LAYERS, batch, HEADS, tokens, dim, generator=generator) * wide + 0.1


def put(cache: QuantizedPagedKVCache, new: torch.Tensor) -> torch.Tensor:
    """One step in all layers; what the queries may read, as `states` gives it."""
    return torch.stack([torch.stack(cache.append(layer, *new[:, layer])) for layer in range(LAYERS)], 1)


def everything(cache: QuantizedPagedKVCache) -> torch.Tensor:
    return torch.stack([torch.stack(cache.get_all(layer)) for layer in range(LAYERS)], 1)


# the slow way


def half(number: torch.Tensor) -> torch.Tensor:
    return number.half().float()


def coded(numbers: torch.Tensor, bits: int) -> torch.Tensor:
    """Numbers that share a scale, [numbers], there and back."""
    if bits == 8:
        scale = half(numbers.abs().max() / 127)
        return torch.round(numbers / (scale or 1)) * scale
    low, scale = half(numbers.min()), half((numbers.max() - numbers.min()) / 15)
    return torch.round((numbers - low) / (scale or 1)).clamp(0, 15) * scale + low


def slow(exact: torch.Tensor, name: str, page_size: int, kind: int | None = None) -> torch.Tensor:
    """What pages give back of [keys and values, …, tokens, dim], or of one of them if kind is 0 or 1."""
    if kind is None:
        return torch.stack([slow(exact[k], name, page_size, k) for k in (0, 1)])
    if exact.dim() > 2:
        return torch.stack([slow(each, name, page_size, kind) for each in exact])
    if name == "int8":
        return torch.stack([coded(token, 8) for token in exact])
    group = min(32, page_size)
    out = half(exact) if group > 1 else exact.clone()
    for begin in range(0, exact.shape[0] - group + 1, group):
        block = out[begin : begin + group]
        if kind == 0:
            for channel in range(exact.shape[1]):
                block[:, channel] = coded(block[:, channel], 4)
        else:
            for token in block:
                for channel in range(0, exact.shape[1], 32):
                    token[channel : channel + 32] = coded(token[channel : channel + 32], 4)
    return out


def same(got: torch.Tensor, wanted: torch.Tensor) -> None:
    """Alike up to the last bits of fp32; one code more or less is a hundred times that."""
    assert got.shape == wanted.shape
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("name", "page_size", "dim"), [
    ("int8", 16, 64), ("int8", 7, 5), ("int4", 32, 64), ("int4", 64, 16), ("int4", 16, 80), ("int4", 1, 8),
])  # fmt: skip
def test_as_the_slow_way(name, page_size, dim):
    exact = states(75, dim, batch=2)
    cache = make(name, dim, page_size, batch=2, tokens=80)
    end = 0
    for tokens in (10, 1, 21, 1, 37):  # to the end of a group, over two, and into one
        begin, end = end, end + tokens
        read = put(cache, exact[..., begin:end, :])
        same(read[..., :begin, :], slow(exact[..., :end, :], name, page_size)[..., :begin, :])
        assert torch.equal(read[..., begin:, :], exact[..., begin:end, :])  # as it came
    same(everything(cache), slow(exact[..., :70, :], name, page_size))
    cache.check()
    assert (cache.length, cache.seen) == (70, 70)


def test_how_many_come_at_a_time_makes_no_difference():
    exact = states(70)
    at_once, one_by_one = make("int4"), make("int4")
    put(at_once, exact)
    for token in range(70):
        put(one_by_one, exact[..., token : token + 1, :])
    assert torch.equal(everything(at_once), everything(one_by_one))


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + max(10, PROGRAMS // 30)))
def test_programs(seed):
    """Random verbs on a cache and its forks, all compared with lists."""
    rng = random.Random(seed)
    name, dim = rng.choice(NAMES), 8
    page_size = rng.choice((4, 8, 16, 64))
    window = rng.choice((None, None, 5, 40))
    exact = states(900, dim, batch=2, seed=seed)
    cache = make(name, dim, page_size, batch=2, pages=600, window=window)
    lists = [(cache, [], 0, 0)]  # cache, what is stored as the slow way gives it, first, tokens seen
    fresh = 0

    for _ in range(25):
        which = rng.randrange(len(lists))
        cache, past, first, seen = lists[which]
        verb = rng.choice(["append"] * 6 + ["fork", "rollback", "truncate", "reorder", "reset"])
        group = cache.spec.group
        if verb == "append":
            tokens = rng.choice((1, 1, 2, 7, 33))
            put(cache, new := exact[..., fresh : fresh + tokens, :])
            fresh, seen = fresh + tokens, seen + tokens
            first = first if window is None else max(first, seen - window)
            past = [*past, *new.unbind(-2)]
            if name == "int8":
                past[-tokens:] = slow(new, name, page_size).unbind(-2)
            else:  # groups complete now are coded, of what is stored of them now
                for begin in range((seen - tokens) // group * group, seen - group + 1, group):
                    low = max(begin, first)
                    if low < begin + group:
                        block = [past[max(low, min(t, seen - 1))] for t in range(begin, begin + group)]
                        done = slow(torch.stack(block, -2), name, page_size)
                        past[low : begin + group] = done.unbind(-2)[low - begin :]
        elif verb == "fork" and len(lists) < 4:
            lists.append((cache.fork(), list(past), first, seen))
        elif verb == "rollback":
            tokens = rng.randrange(0, 6)
            left = seen - tokens
            exactly = left % group == 0 or left // group == seen // group
            stored = seen - first
            if tokens > stored or (tokens and not exactly):
                with pytest.raises(InvalidRequest, match="cannot roll back"):
                    cache.rollback(tokens)
            else:
                cache.rollback(tokens)
                past, seen = past[:left], left
        elif verb == "truncate":
            keep = rng.randrange(0, 40)
            cache.truncate(keep)
            first = max(first, seen - keep)
        elif verb == "reorder":
            cache.reorder([1, 1])
            past = [token[:, :, [1, 1]] for token in past]
        elif verb == "reset":
            cache.reset()
            past, first, seen = [], 0, 0
        lists[which] = cache, past, first, seen
        for cache, past, _, seen in lists:
            cache.check()
            assert cache.seen == seen
            visible = past[cache.visible_from : seen]
            if visible:
                wanted = torch.stack(visible, -2)
                same(everything(cache), wanted if name == "int8" else wanted_open(wanted, seen, cache.spec.group))
    for cache, *_ in lists:
        cache.free()


def wanted_open(wanted: torch.Tensor, seen: int, group: int) -> torch.Tensor:
    """Tokens that wait are in fp16."""
    rest = min(seen % group, wanted.shape[-2])
    return torch.cat(
        [wanted[..., : wanted.shape[-2] - rest, :], wanted[..., wanted.shape[-2] - rest :, :].half().float()], -2
    )


# bytes


@pytest.mark.parametrize(("name", "page_size", "dim"), [
    ("int8", 16, 64), ("int8", 3, 80), ("int4", 32, 64), ("int4", 16, 64), ("int4", 64, 80), ("int4", 8, 128),
])  # fmt: skip
def test_bytes_are_those_of_the_planner(name, page_size, dim):
    scheme = KV_SCHEMES[name]
    bits = LAYERS * HEADS * (scheme.key_bits(dim, page_size) + scheme.value_bits(dim))
    cache = make(name, dim, page_size, pages=3)
    assert cache.spec.token_bytes * 8 == bits
    assert cache.held_bytes == cache.logical_bytes == 0
    put(cache, states(1, dim))
    group = 1 if name == "int8" else min(32, page_size)
    waiting = 2 * LAYERS * HEADS * dim * 2  # bytes of a token in 16 bits
    assert cache.held_bytes == 3 * page_size * bits // 8 + (waiting * group if group > 1 else 0)
    assert cache.logical_bytes == (bits // 8 if group == 1 else waiting)
    held = cache.held_bytes
    put(cache, states(page_size + 1, dim))  # over the end of a group, into the next
    put(cache, states(page_size - 2, dim))
    assert cache.held_bytes == held
    assert cache.logical_bytes == 2 * page_size * bits // 8
    assert sum(t.untyped_storage().nbytes() for t in cache.kept_tensors()) == cache.held_bytes


@pytest.mark.parametrize("computes", [torch.float32, torch.bfloat16])
def test_bytes_beside_bf16_at_2048_tokens(computes):
    """SmolLM2's shape; with the tokens that wait, and at a length where most of a group waits."""
    bf16 = 2 * 30 * 3 * 64 * 2
    for name, most in (("int8", 0.56), ("int4", 0.33)):
        cache = QuantizedPagedKVCache(30, 3, 64, dtype=name, tokens=2048)
        new = torch.randn(1, 3, 2047, 64, dtype=computes)
        for layer in range(30):
            cache.append(layer, new, new)
        assert cache.logical_bytes <= most * 2047 * bf16
        assert cache.held_bytes <= most * 2048 * bf16
        assert cache.get_all(0)[0].dtype == computes


@pytest.mark.parametrize("name", NAMES)
def test_max_bytes_is_for_all_of_it(name):
    cache = make(name, max_bytes=200_000, batch=3)
    put(cache, states(1, batch=3))
    page = cache.page_size * cache.spec.token_bytes
    assert 200_000 - page < cache.held_bytes <= 200_000
    with pytest.raises(InvalidRequest, match=r"max_bytes=5,000 is less than one page"):
        put(make(name, max_bytes=5_000, batch=3), states(1, batch=3))
    model = tiny_models.model("llama")
    cache = kvviz.paged_cache(model, dtype=name, max_bytes=50_000)
    kvviz.decode(model, torch.ones(2, 5, dtype=torch.long), 3, cache)
    assert 0 < cache.held_bytes <= 50_000


# fewer tokens, forks


def test_back_within_what_waits_or_to_a_group():
    exact = states(80)
    cache = make("int4")
    put(cache, exact[..., :40, :])
    before = everything(cache)
    for refused in (9, 39):
        assert not cache.can_rollback(refused)
        with pytest.raises(InvalidRequest, match="of 40 tokens 8 wait in 16 bits and can be taken back"):
            cache.rollback(refused)
    assert torch.equal(everything(cache), before)
    cache.rollback(8)
    assert cache.length == 32 and torch.equal(everything(cache), before[..., :32, :])
    put(cache, exact[..., 32:80, :])
    same(everything(cache), slow(exact, "int4", 32))
    cache.rollback(80)
    assert cache.length == 0 and cache.pool.used_count == 0
    cache.check()


def test_a_step_that_an_error_left_unfinished():
    exact = states(40)
    cache = make("int4")
    put(cache, exact[..., :10, :])
    cache.append(0, *exact[:, 0, ..., 10:14, :])
    cache.rollback(4)
    assert torch.equal(everything(cache), exact[..., :10, :].half().float())
    cache.append(1, *exact[:, 1, ..., 10:40, :])  # its first group is coded in this layer only
    with pytest.raises(InvalidRequest, match="cannot roll back 30 tokens"):
        cache.rollback(30)
    cache.reset()
    put(cache, exact)
    same(everything(cache), slow(exact, "int4", 32))


def test_forks_share_and_part():
    exact, other = states(40), states(40, seed=1)
    a = make("int4", pages=6)
    put(a, exact[..., :10, :])
    b = a.fork()
    assert type(b) is QuantizedPagedKVCache and b.logical_bytes == a.logical_bytes
    c = a.fork()
    c.select([0, 0])
    assert (a.spec.batch, b.spec.batch, c.spec.batch) == (1, 1, 2)
    c.free()
    put(a, exact[..., 10:, :])
    put(b, other[..., 10:, :])
    same(everything(a), slow(exact, "int4", 32))
    same(everything(b), slow(torch.cat([exact[..., :10, :], other[..., 10:, :]], -2), "int4", 32))
    assert a._memory.store.waiting.shape[2] == 2
    b.free()
    assert len(a._memory.store.rows) == 1 and a.pool.used_count == 2
    a.check()
    a._memory.store.rows.clear()
    with pytest.raises(CorruptCache, match="rows"):
        a.check()


def test_no_room_changes_nothing():
    exact = states(70)
    cache = make("int4", pages=2)
    put(cache, exact[..., :40, :])
    before = everything(cache)
    with pytest.raises(PoolExhausted, match="raise pages, now 2"):
        put(cache, exact[..., 40:, :])
    assert torch.equal(everything(cache), before)
    cache.check()


def test_more_sequences_take_more_pages():
    exact = states(40, batch=1)
    cache = make("int4", tokens=64)
    put(cache, exact)
    held = cache.held_bytes
    cache.select([0, 0, 0])
    put(cache, states(3, batch=3, seed=2))
    assert cache.held_bytes > 2 * held
    same(everything(cache)[..., :32, :], slow(exact, "int4", 32)[..., :32, :].expand(-1, -1, 3, -1, -1, -1))
    cache.check()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("number", [0.0, -3.0, 1e30, 1e-30])
def test_numbers_out_of_the_ordinary(name, number):
    cache = make(name)
    put(cache, torch.full((2, LAYERS, 1, HEADS, 64, 64), number))
    read = everything(cache)
    assert torch.isfinite(read).all()
    if number == 1e30:  # the largest there is
        assert (read == torch.finfo(torch.float16).max * (127 if name == "int8" else 1)).all()
    if abs(number) < 100:
        torch.testing.assert_close(read, torch.full_like(read, number), rtol=1e-3, atol=1e-6)


def test_codes_stay_within_four_bits_where_a_scale_is_rounded_down():
    """1.3e-6 / 15 is 1.46 times the smallest number of fp16, so the largest code would be 22."""
    exact = torch.zeros(2, LAYERS, 1, HEADS, 64, 64)
    exact[..., ::2, ::2] = 1.3e-6
    cache = make("int4")
    put(cache, exact)
    read = everything(cache)
    assert (read[exact == 0] == 0).all() and (read[exact > 0] > 8e-7).all() and read.max() < 1.31e-6


@pytest.mark.parametrize(("call", "told"), [
    (lambda: make("int4", page_size=48), "page_size must be a multiple of 32 or divide it, got 48"),
    (lambda: make("int4", dim=5), "head_dim is 5, an odd number"),
    (lambda: make("fp4"), "dtype must be a floating-point torch.dtype, 'int8', 'int4' or None, got 'fp4'"),
    (lambda: make(torch.float16), "dtype must be 'int8' or 'int4', got torch.float16"),
    (lambda: kvviz.paged_cache(tiny_models.model("llama"), dtype=torch.int8), "'int8', 'int4' or None, got torch.int8"),
    (lambda: kvviz.paged_cache(tiny_models.model("llama"), dtype="int4", page_size=48), "got 48"),
    (lambda: kvviz.paged_cache(tiny_models.model("llama"), dtype="int8", grow=True), "grow=True"),
])  # fmt: skip
def test_one_line_says_what_is_wrong(call, told):
    with pytest.raises(InvalidRequest) as error:
        call()
    assert told in str(error.value) and "\n" not in str(error.value)


# models


class SlowCache(DynamicCache):
    """transformers' own cache; it codes what it stores the slow way, all of it anew in each step."""

    def __init__(self, config, name: str, page_size: int):
        super().__init__(config=config)
        self.name, self.page_size = name, page_size

    def update(self, keys, values, layer, *args, **kwargs):
        read = []
        for kind, whole in enumerate(super().update(keys, values, layer, *args, **kwargs)):
            before = slow(whole, self.name, self.page_size, kind)[:, :, : whole.shape[2] - keys.shape[2]]
            read.append(torch.cat([before, (keys, values)[kind]], dim=2))
        return tuple(read)


class SlowWindowCache(SlowCache):
    """A group of 4 bits is coded once, when it is complete, of what the window has left of it then."""

    past: dict[tuple[int, int], list[torch.Tensor]] | None = None  # (layer, keys or values) -> tokens, as they are read

    def update(self, keys, values, layer, *args, **kwargs):
        if not self.layers[layer].is_sliding:
            return super().update(keys, values, layer, *args, **kwargs)
        read, group = [], min(32, self.page_size)
        self.past = self.past or {}
        for kind, whole in enumerate(DynamicCache.update(self, keys, values, layer, *args, **kwargs)):
            new, past = (keys, values)[kind], self.past.setdefault((layer, kind), [])
            begun, seen = len(past), len(past) + keys.shape[2]
            past += half(new).unbind(2)
            visible = past[begun - whole.shape[2] + keys.shape[2] : begun]
            read.append(torch.cat([*(token[:, :, None] for token in visible), new], 2))
            first = max(0, seen - tiny_models.WINDOW)
            for begin in range(begun // group * group, seen - group + 1, group):
                low, end = max(begin, first), begin + group
                if low < end:
                    block = torch.stack([past[max(low, token)] for token in range(begin, end)], 2)
                    past[low:end] = slow(block, self.name, self.page_size, kind).unbind(2)[low - begin :]
        return tuple(read)


def ids_of(rows: int, tokens: int) -> torch.Tensor:
    return torch.randint(1, tiny_models.VOCABULARY, (rows, tokens), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("attached", [False, True])
@pytest.mark.parametrize("kind", ["llama", "qwen3", "mistral", "gemma3"])
@pytest.mark.parametrize("name", NAMES)
def test_logits_as_with_the_slow_cache(name, kind, attached):
    """Chunks, then token by token; two rows, one of them padded on the left."""
    if attached and kind == "mistral":
        pytest.skip("once is enough")
    model = tiny_models.model(kind, attached)
    slow_cache = SlowWindowCache if name == "int4" and kind in ("mistral", "gemma3") else SlowCache
    ids, mask = ids_of(2, 40), torch.ones(2, 40, dtype=torch.long)
    mask[0, :3] = 0
    ways = kvviz.paged_cache(model, dtype=name, page_size=16, tokens=64), slow_cache(model.config, name, 16)
    ends = [9, 20, 33, *range(34, 41)]
    for begin, end in zip([0, *ends], ends, strict=False):
        one, other = (
            model(
                ids[:, begin:end], attention_mask=mask[:, :end],
                position_ids=(mask.cumsum(-1) - 1).clamp(min=0)[:, begin:end], **{tiny_models.cache_name(model): cache},
            ).logits
            for cache in ways
        )  # fmt: skip
        torch.testing.assert_close(one[1], other[1], rtol=1e-3, atol=1e-3)
        real = mask[0, begin:end].bool()
        torch.testing.assert_close(one[0, real], other[0, real], rtol=1e-3, atol=1e-3)
    ways[0].check()


@pytest.mark.parametrize("extra", [{}, {"num_beams": 3}, {"num_return_sequences": 2, "do_sample": True}])
@pytest.mark.parametrize("name", NAMES)
def test_generate(name, extra):
    model = tiny_models.model("llama")
    said = []
    for cache in (kvviz.paged_cache(model, dtype=name, page_size=16), SlowCache(model.config, name, 16)):
        torch.manual_seed(0)
        extra = extra | {tiny_models.cache_name(model): cache}
        said.append(model.generate(ids_of(2, 13), max_new_tokens=12, **extra))
    if "do_sample" not in extra:
        assert torch.equal(*said)
    assert said[0].shape[1] == 25


def test_crop_and_drafts():
    model = tiny_models.model("llama")
    cache = kvviz.paged_cache(model, dtype="int4")
    kvviz.decode(model, ids_of(1, 40), 2, cache)
    with pytest.raises(
        InvalidRequest, match=r"12 tokens cannot be taken back: of 41 tokens 9 wait in 16 bits.*reset\(\)"
    ):
        cache.crop(-12)
    cache.crop(-9)
    assert cache.length == 32 and repr(cache).startswith("<PagedCache: 2 × full attention; 32 tokens")
    other = copy.deepcopy(cache)
    kvviz.decode(model, ids_of(1, 40), 1, cache)
    assert (cache.length, other.length) == (40, 32)
    other.check()
    draft = {"assistant_model": tiny_models.assistant(), "max_new_tokens": 20}
    for name in NAMES:
        draft[tiny_models.cache_name(model)] = kvviz.paged_cache(model, dtype=name)
        if name == "int8":
            model.generate(ids_of(1, 13), **draft)
        else:
            with pytest.raises(ValueError, match="requires a cache that can be cropped"):
                model.generate(ids_of(1, 13), **draft)


def test_smollm2_says_nearly_the_same():
    """Perplexity of a text that ships with Python; each chunk reads the earlier tokens from pages of codes."""
    tokens = int(os.environ.get("KVVIZ_PRECISION_TOKENS", 160))
    chunk = int(os.environ.get("KVVIZ_PRECISION_CHUNK", 32))
    text = pydoc_data.topics.topics[os.environ.get("KVVIZ_PRECISION_TOPIC", "execmodel")]
    torch.set_num_threads(2)
    model, tokenizer = kvviz.load_model()
    ids = tokenizer(text, return_tensors="pt").input_ids[:, :tokens]
    logits, loss = {}, {}
    for name, dtype in (("fp32", None), ("int8", "int8"), ("int4", "int4")):
        cache, read = kvviz.paged_cache(model, dtype=dtype, tokens=tokens), []
        with torch.inference_mode():
            for begin in range(0, tokens, chunk):
                read.append(model(ids[:, begin : begin + chunk], **{tiny_models.cache_name(model): cache}).logits[0])
        logits[name] = torch.cat(read)
        loss[name] = torch.nn.functional.cross_entropy(logits[name][:-1], ids[0, 1:])
        error = float((logits[name] - logits["fp32"]).square().mean().sqrt() / logits["fp32"].std())
        worse = float((loss[name] - loss["fp32"]).exp() - 1)
        print(f"\n{name}: {tokens:,} tokens in chunks of {chunk}: perplexity {loss[name].exp():.4f} ({worse:+.2%}), "
              f"logits off by {error:.2%} of their deviation; held {cache.held_bytes:,} B, "
              f"{cache.held_bytes / (tokens * 23_040):.3f} of bf16's")  # fmt: skip
        if name != "fp32":
            assert 0 < error < {"int8": 0.02, "int4": 0.12}[name]
            assert abs(worse) < {"int8": 0.005, "int4": 0.03}[name]
