"""paged_cache under real models: the tokens and logits of the default cache, from pages, whatever generate() does."""

import copy
import functools
import math
import random
import weakref
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from transformers import CONFIG_MAPPING, AttentionMaskInterface, AutoModelForCausalLM, DynamicCache

import kvviz
from kvviz import InvalidRequest, OutOfMemory, PoolExhausted, SequenceFreed
from kvviz.cache import flex
from kvviz.cache.attach import GATHERING, NAME, paged_attention
from kvviz.cache.attention import plain_attention, running_softmax, window_mask
from kvviz.cache.groups import share
from kvviz.cache.layer import PagedLayer
from kvviz.cache.paged import PagedKVCache
from kvviz.cache.pagelog import PageAction
from kvviz.cache.pages import PagePool
from kvviz.cache.store import Loose, Slab
from tests.tiny_models import FULL_ONLY, HYBRID, MODELS, VOCABULARY, WINDOW, assistant, build, cache_name, model

SIZES = (1, 3, 16, 64, 256)
NEAR = 2e-5  # of a logit in fp32
BOTH = pytest.mark.parametrize("attached", [False, True], ids=["plain", "attached"])
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def paths(monkeypatch):
    """How pages were read and written: a count of calls, each for one layer. In the end no cache may hold anything."""
    found, caches, make = Counter(), [], kvviz.paged_cache

    def remember(*args, **kwargs):
        caches.append(make(*args, **kwargs))
        return caches[-1]

    monkeypatch.setattr(kvviz, "paged_cache", remember)

    def spy(owner, name, how):
        real = getattr(owner, name)

        def spied(*args, **kwargs):
            found[how(*args)] += 1
            return real(*args, **kwargs)

        monkeypatch.setattr(owner, name, spied)

    spy(Slab, "read", lambda slab, layer, at, *rest: "view" if at.start >= 0 else "gather")
    spy(Loose, "read", lambda *rest: "page by page")
    spy(flex, "decode", lambda *rest: "flex")
    spy(Slab, "write", lambda *rest: "write")
    spy(Loose, "write", lambda *rest: "write")
    yield found
    for cache in caches:
        if cache.seen:
            assert_paged(cache, found, None, cache.seen)
        elif "freed" not in repr(cache):
            cache.check()
            assert_free_releases(cache)


@contextmanager
def scattered():
    """Whoever takes a page gets any free one."""
    real, pick = PagePool.allocate, random.Random(0)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(PagePool, "allocate", lambda pool, prefer=-1: real(pool, pick.choice(list(pool._free))))
        yield


def reads(paths):
    return paths.total() - paths["write"]


def assert_paged(cache, paths, first, last):
    """All layers wrote tokens `first` … `last` - 1 to pages one by one, and read from pages; free() gives all back.

    first None: they did not come one by one, and some were taken back.
    """
    cache.check()
    events = cache.log.events
    for group in cache.groups:
        assert group.cache.seen == last
        for table in group.cache.tables:
            mine = (events.pool == group.cache.pool.number) & (events.sequence == table.sequence)
            written = set(events.tokens[mine & (events.action == PageAction.WRITE)].tolist())
            assert max(written) >= last and set(range(last + 1 if first is None else first + 1, last + 1)) <= written
    steps = len(cache.layers) * (1 if first is None else last - first)
    assert paths["write"] >= steps
    assert reads(paths) >= steps or all(group.window == 1 for group in cache.groups), "such a query sees itself alone"
    assert cache.held_bytes >= cache.logical_bytes > 0
    assert_free_releases(cache)


def assert_free_releases(cache):
    memories = [group.cache._memory for group in cache.groups if group.cache]
    slabs = [weakref.ref(memory.store) for memory in memories if memory]
    del memories
    cache.free()
    assert cache.held_bytes == 0 and not any(slab() for slab in slabs)


# --- step by step: models × page sizes × edges × padding × chunks ------------------------------------------------------


class Case(NamedTuple):
    """A batch, one row for each count of pads on its left; the prompt comes in these pieces."""

    pads: tuple[int, ...]
    pieces: tuple[int, ...]
    steps: int = 3

    @property
    def prompt(self):
        return sum(self.pieces)

    @property
    def tokens(self):
        """Ids and mask, [rows, prompt + steps]."""
        length = self.prompt + self.steps
        ids = torch.randint(1, VOCABULARY, (len(self.pads), length), generator=torch.Generator().manual_seed(length))
        mask = torch.ones_like(ids)
        for row, pads in enumerate(self.pads):
            mask[row, :pads] = ids[row, :pads] = 0
        return ids, mask


@torch.no_grad()
def walk(model, case, cache, mask4d=None):
    """Logits [rows, prompt + steps, vocabulary], read in pieces and then token by token."""
    ids, mask = case.tokens
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    seen, found = 0, []
    for count in (*case.pieces, *[1] * case.steps):
        piece = slice(seen, seen := seen + count)
        given = None if case.pads == (0,) else mask[:, :seen]
        extra = {cache_name(model): cache, "attention_mask": given, "position_ids": positions[:, piece]}
        found.append(model(ids[:, piece], **extra, use_cache=True).logits)
    return torch.cat(found, 1)


@functools.cache
def expected(name, case):
    return walk(model(name), case, DynamicCache(config=model(name).config))


def difference(found, wanted, case):
    """The largest, pads left out."""
    return (found - wanted)[case.tokens[1].bool()].abs().max().item()


def cases(name, size):
    """Prompts on both sides of every edge of a page and of the window, padded and in pieces."""
    lengths = {1, size - 1, size, size + 1, 2 * size + 1}
    if name not in FULL_ONLY:
        lengths |= {WINDOW - 1, WINDOW, WINDOW + 1, WINDOW + size - 1, WINDOW + size, WINDOW + size + 1}
    for length in sorted(lengths - {0}):
        first, second = min(5, length), (length - min(5, length)) // 2
        pieces = tuple(filter(None, (first, second, length - first - second)))
        yield Case((0,), (length,))
        yield Case((0, min(2, length - 1), length - 1), pieces)
        if length in (size, WINDOW + 1):
            yield Case((0,), pieces)
            yield Case((0, min(6, length - 1)), (length,))


FEW = [(name, size) for name in HYBRID[2:] for size in (3, 64)]
MANY = [(name, size) for name in MODELS if name not in HYBRID[2:] for size in SIZES]


@BOTH
@pytest.mark.parametrize(("name", "size"), MANY + FEW)
def test_each_logit_of_each_step(name, size, attached, paths):
    for case in cases(name, size):
        cache = kvviz.paged_cache(model(name), page_size=size)
        paths.clear()
        found = walk(model(name, attached), case, cache)
        assert difference(found, expected(name, case), case) < NEAR, case
        assert_paged(cache, paths, case.prompt, case.prompt + case.steps)


# --- generate() -----------------------------------------------------------------------------------------------------------


def text(rows, length, pads=()):
    """Ids and mask. The second half says the first again, so that a look-up has something to find."""
    half = torch.randint(1, VOCABULARY, (rows, -(-length // 2)), generator=torch.Generator().manual_seed(length))
    ids = torch.cat([half, half], 1)[:, :length]
    mask = torch.ones_like(ids)
    for row, count in enumerate(pads):
        mask[row, :count] = ids[row, :count] = 0
    return {"input_ids": ids, "attention_mask": mask}


def generate(model, cache, inputs, **how):
    """What generate() returns, by the default cache where `cache` is None."""
    torch.manual_seed(5)
    given = {} if cache is None else {cache_name(model): cache}
    how = {"max_new_tokens": 12, "do_sample": False, "output_logits": True, "return_dict_in_generate": True} | how
    return model.generate(**inputs, **given, **how)


KINDS = {  # rows, pads on the left, what generate() is told
    "greedy": (1, (), {}),
    "padded": (3, (0, 2, 11), {}),
    "beams": (1, (), {"num_beams": 3}),
    "padded beams": (2, (4, 0), {"num_beams": 3, "num_return_sequences": 2}),
    "chunks": (2, (3, 0), {"prefill_chunk_size": 5}),
    "sampled": (2, (0, 3), {"do_sample": True, "num_return_sequences": 3}),
    "sampled beams": (1, (), {"do_sample": True, "num_beams": 2}),
    "looked up": (1, (), {"prompt_lookup_num_tokens": 12}),
    "assisted": (1, (), {"assistant_model": None}),
}
DRAFTED = ("looked up", "assisted")


@functools.cache
def by_default(name, kind, prompt, attached=False, size=0):
    rows, pads, how = KINDS[kind]
    how = how | ({"assistant_model": assistant()} if kind == "assisted" else {})
    cache = kvviz.paged_cache(model(name), page_size=size) if size else None
    return generate(model(name, attached), cache, text(rows, prompt, pads), **how), cache


def same(got, wanted):
    """The same tokens; the largest difference of a logit, of those beams alike that are worth comparing."""
    assert got.sequences.tolist() == wanted.sequences.tolist()
    pairs = zip(got.logits, wanted.logits, strict=True)
    return max((a - b).abs().max().item() for a, b in pairs)


@BOTH
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", MODELS)
def test_generate(name, kind, attached, paths):
    sizes = SIZES if name in ("llama", "mistral", "gemma2") and list(KINDS).index(kind) < 3 else (3,)
    for size in sizes:
        prompt = 20 if size < 16 else size - 3  # a few tokens before a page is full
        paths.clear()
        got, cache = by_default.__wrapped__(name, kind, prompt, attached, size)
        wanted, _ = by_default(name, kind, prompt)
        assert same(got, wanted) < NEAR
        assert len(wanted.logits) == 12 and got[cache_name(model(name))] is cache
        if kind in DRAFTED:
            assert cache.recording and (cache.log.events.action == PageAction.LENGTH).any(), "nothing was taken back"
        assert_paged(cache, paths, None if kind in DRAFTED else prompt, prompt + 11)


SOME = pytest.mark.parametrize("name", ["llama", "gpt2", "mistral", "gemma2", "gpt-oss"])


@BOTH
@SOME
@pytest.mark.parametrize("size", [1, 16])
def test_a_filled_cache_goes_on(name, size, attached, paths):
    outs = []
    for who, cache in ((model(name), None), (model(name, attached), kvviz.paged_cache(model(name), page_size=size))):
        first = generate(who, cache, text(2, 14, (3, 0)), max_new_tokens=5)
        filled = cache or first[cache_name(who)]
        longer = torch.cat([first.sequences, text(2, 13)["input_ids"]], 1)
        mask = torch.ones_like(longer)
        mask[0, :3] = 0
        paths.clear()
        outs.append(generate(who, filled, {"input_ids": longer, "attention_mask": mask}))
    assert same(outs[1], outs[0]) < NEAR
    assert_paged(cache, paths, 32, 32 + 11)


@BOTH
@SOME
def test_reset_and_reuse_also_by_a_batch_of_another_size(name, attached, paths):
    cache, log = kvviz.paged_cache(model(name), page_size=3), None
    who = model(name, attached)
    for rows, prompt in ((1, 20), (1, 31), (3, 17), (3, 20), (1, 9)):
        paths.clear()
        got = generate(who, cache, text(rows, prompt))
        assert same(got, generate(model(name), None, text(rows, prompt))) < NEAR
        held = cache.held_bytes
        assert (cache.seen, cache.batch_size, len(cache)) == (prompt + 11, rows, model(name).config.num_hidden_layers)
        assert (cache.log is log) == ((rows, prompt) in ((1, 31), (3, 20))), "pools of another size, another log"
        log = cache.log
        cache.check()
        cache.reset()
        cache.check()
        assert (cache.seen, cache.length, cache.logical_bytes, cache.held_bytes) == (0, 0, 0, held)
        assert all(group.cache.pool.used_count == 0 for group in cache.groups)
    generate(who, cache, text(1, 9))
    assert_paged(cache, paths, 9, 20)


def step(who, cache, ids, seen=0):
    """Logits of tokens number `seen` … of these ids."""
    positions = torch.arange(seen, ids.shape[1])[None].expand(len(ids), -1)
    return who(ids[:, seen:], **{cache_name(who): cache}, position_ids=positions, use_cache=True).logits


@BOTH
@pytest.mark.parametrize("name", [*MODELS[:5], "gpt-oss"])
def test_crop_takes_the_newest_back(name, attached, paths):
    ids = text(2, 60)["input_ids"]
    who = model(name, attached)
    wanted = step(model(name), DynamicCache(config=who.config), ids)
    cache = kvviz.paged_cache(who, page_size=4)
    cache.activate_past_recording()
    step(who, cache, ids[:, :30])
    for back, forward in ((0, 3), (2, 4), (12, 20), (1, 1), (20, 33)):  # 12 and 20 are more than the window
        seen = cache.seen - back
        cache.crop(-back)
        cache.check()
        assert {group.cache.seen for group in cache.groups} == {cache.seen} == {seen}
        wrong = step(who, cache, ids.flip(0)[:, : seen + 1], seen)  # other tokens, at the same places
        cache.crop(-1)
        found = step(who, cache, ids[:, : seen + forward], seen)
        assert (found - wanted[:, seen : seen + forward]).abs().max() < NEAR < (wrong - found[:, :1]).abs().max()
    cache.crop(-1000)
    assert cache.seen == 0 and all(group.cache.pool.used_count == 0 for group in cache.groups)
    assert (step(who, cache, ids) - wanted).abs().max() < NEAR


def test_crop_that_cannot_be(paths):
    for name in ("mistral", "gemma2", "gemma3"):
        who, ids = model(name), text(1, 40)["input_ids"]
        cache = kvviz.paged_cache(who, page_size=4)
        with pytest.raises(InvalidRequest, match="0 or a negative number of tokens to remove, got 1"):
            cache.crop(1)
        cache.crop(-3)  # of nothing
        step(who, cache, ids[:, :30])
        tables = [list(table.pages) for group in cache.groups for table in group.cache.tables]
        events = len(cache.log)
        for back, why in ((2, "the window of 9 has moved on. activate_past_recording"), (15, "the window of 9")):
            with pytest.raises(InvalidRequest, match=why):
                cache.crop(-back)
        assert len(cache.log) == events and cache.seen == 30
        assert tables == [list(table.pages) for group in cache.groups for table in group.cache.tables]
        found = step(who, cache, ids, 30)
        assert (found - step(who, DynamicCache(config=who.config), ids)[:, 30:]).abs().max() < NEAR
        cache.crop(-40)
        assert cache.seen == 0
    cache = kvviz.paged_cache(who, page_size=4)
    cache.activate_past_recording()
    step(who, cache, text(1, 300)["input_ids"])
    with pytest.raises(InvalidRequest, match="128 are kept beyond the window of 9"):
        cache.crop(-200)
    cache.crop(-128)
    full = kvviz.paged_cache(model("llama"))
    step(model("llama"), full, ids)
    full.truncate(10)
    with pytest.raises(InvalidRequest, match="12 tokens cannot be taken back: 10 are stored"):
        full.crop(-12)
    full.crop(-4)
    assert (full.seen, full.length) == (36, 6)


@BOTH
@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_crop_mends_an_interrupted_step(name, attached, monkeypatch, paths):
    ids, who = text(1, 40)["input_ids"], model(name, attached)
    wanted = step(model(name), DynamicCache(config=who.config), ids)
    cache = kvviz.paged_cache(who, page_size=4)
    cache.activate_past_recording()
    step(who, cache, ids[:, :30])
    real, calls = PagedLayer.update, []

    def interrupted(*args, **kwargs):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(PagedLayer, "update", interrupted)
        with pytest.raises(KeyboardInterrupt):
            step(who, cache, ids, 30)
    with pytest.raises(InvalidRequest, match="left a step of 10 tokens unfinished"):
        cache.crop(-3)
    cache.crop(-10)
    cache.check()
    assert {group.cache.seen for group in cache.groups} == {30}
    assert (step(who, cache, ids, 30) - wanted[:, 30:]).abs().max() < NEAR


@BOTH
@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3"])
def test_other_batches(name, attached, paths):
    ids, who = text(3, 30)["input_ids"], model(name, attached)
    cache, default = kvviz.paged_cache(who, page_size=4), DynamicCache(config=who.config)
    for one in (cache, default):
        early = (1, who.config.num_key_value_heads, 8, torch.float32, torch.device("cpu"))
        one.early_initialization(3, *early[1:])
        step(model(name) if one is default else who, one, ids[:, :20])
    for verb, given, rows in (
        ("reorder_cache", torch.tensor([2, 0, 0]), [2, 0, 0]),
        ("batch_repeat_interleave", 2, [2, 2, 0, 0, 0, 0]),
        ("batch_select_indices", torch.tensor([1, 5, 2]), [2, 0, 0]),
    ):
        outs = []
        for one in (cache, default):
            getattr(one, verb)(given)
            seen = one.get_seq_length()
            more = torch.cat([ids[rows, :20], text(len(rows), 31)["input_ids"][:, 20:]], 1)[:, : seen + 2]
            outs.append(step(model(name) if one is default else who, one, more, seen))
        cache.check()
        assert (outs[0] - outs[1]).abs().max() < NEAR
        assert cache.batch_size == len(rows)
    cache.free()


@BOTH
def test_truncate_hides_what_came_before(attached, paths):
    ids, who = text(2, 40)["input_ids"], model("llama", attached)
    seen = torch.ones(40, 40, dtype=torch.bool).tril()
    seen[20:, :13] = False  # 20 tokens cut down to 7
    wanted = model("llama")(ids, attention_mask=seen[None, None]).logits[:, 20:]
    cache = kvviz.paged_cache(who, page_size=4)
    step(who, cache, ids[:, :20])
    cache.truncate(7)
    found = [step(who, cache, ids[:, : n + 1], n) for n in range(20, 25)] + [step(who, cache, ids, 25)]
    assert (torch.cat(found, 1) - wanted).abs().max() < NEAR
    assert (cache.seen, cache.length) == (40, 27)
    cache.check()


@BOTH
@pytest.mark.parametrize("name", ["mistral", "gemma2"])
def test_recording_may_begin_later(name, attached, paths):
    ids, who = text(2, 60)["input_ids"], model(name, attached)
    wanted = step(model(name), DynamicCache(config=who.config), ids)
    cache = kvviz.paged_cache(who, page_size=4)
    with torch.inference_mode():
        step(who, cache, ids[:, :20])
        cache.activate_past_recording()
    assert (step(who, cache, ids[:, :40], 20) - wanted[:, 20:40]).abs().max() < NEAR
    with pytest.raises(InvalidRequest, match="taken back"):
        cache.crop(-22)  # 9 were stored before the recording, 8 would do for number 19
    cache.crop(-20)
    assert (step(who, cache, ids, 20) - wanted[:, 20:]).abs().max() < NEAR


@BOTH
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_deep_copy_goes_its_own_way(name, attached, paths):
    who, ids = build(name), text(1, 60)["input_ids"]
    handle = kvviz.attach(who) if attached else None
    wanted = step(model(name), DynamicCache(config=who.config), ids)
    cache = kvviz.paged_cache(who, page_size=4)
    step(who, cache, ids[:, :30])
    other = copy.deepcopy(cache)
    step(who, cache, ids.flip(1)[:, :50], 30)
    assert (step(who, other, ids[:, :45], 30) - wanted[:, 30:45]).abs().max() < NEAR
    if handle:
        handle.detach()
    assert (step(who, other, ids, 45) - wanted[:, 45:]).abs().max() < NEAR, "the copy knows that it was detached"
    assert (cache.seen, other.seen) == (50, 60) and cache.log is not other.log
    cache.check(), other.check()


@BOTH
@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_pages_taken_one_by_one(name, attached, paths):
    for case in cases(name, 3):
        cache = kvviz.paged_cache(model(name), page_size=3, grow=True)
        paths.clear()
        found = walk(model(name, attached), case, cache)
        assert difference(found, expected(name, case), case) < NEAR
        assert paths["page by page"] and not paths["view"] + paths["gather"]
        assert cache.held_bytes == sum(
            group.cache.pool.used_count * 3 * group.cache.spec.token_bytes for group in cache.groups
        )
        assert_paged(cache, paths, case.prompt, case.prompt + case.steps)


@BOTH
def test_stored_in_half_the_bytes(attached, paths):
    who = model("llama", attached)
    for size in (3, 64):
        paths.clear()
        case = Case((0, 2, 20), (30, 7), 8)
        cache = kvviz.paged_cache(who, page_size=size, dtype=torch.bfloat16)
        found = walk(who, case, cache)
        assert found.dtype == torch.float32
        assert NEAR < difference(found, expected("llama", case), case) < 0.5
        assert cache.groups[0].cache.spec.dtype == torch.bfloat16
        assert cache.logical_bytes == 3 * 45 * 2 * 2 * 2 * 8 * 2  # rows, tokens, K and V, layers, heads, size, bytes
        assert_paged(cache, paths, 37, 45)


@BOTH
@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt-oss"])
def test_a_model_in_bfloat16(name, attached, paths):
    default, who = build(name).bfloat16(), build(name).bfloat16()
    if attached:
        kvviz.attach(who)
    for case in (Case((0,), (30, 7), 8), Case((0, 2, 20), (40,), 8)):
        wanted = walk(default, case, DynamicCache(config=default.config))
        assert difference(walk(who, case, kvviz.paged_cache(who, page_size=16)), wanted, case) < 0.2


@BOTH
def test_every_mode_of_autograd_can_read_what_another_wrote(attached, paths):
    who, ids = build("llama").requires_grad_(True), text(2, 40)["input_ids"]
    if attached:
        kvviz.attach(who)
    wanted = step(model("llama"), DynamicCache(config=who.config), ids)
    for scatter in (False, True):
        cache = kvviz.paged_cache(who, page_size=4)
        with scattered() if scatter else torch.no_grad():
            for n, mode in enumerate([torch.inference_mode] * 2 + [torch.enable_grad, torch.no_grad] * 2):
                with mode():
                    seen = 20 + n if n else 0
                    found = step(who, cache, ids[:, : 21 + n], seen)
                assert found.requires_grad == (mode is torch.enable_grad)
                assert (found.detach() - wanted[:, seen : 21 + n]).abs().max() < NEAR
        cache.check()


@BOTH
def test_decode(attached, paths):
    ids = text(3, 19)["input_ids"]
    wanted = kvviz.decode(model("gemma3"), ids, 12)
    cache = kvviz.paged_cache(model("gemma3"), page_size=4)
    assert kvviz.decode(model("gemma3", attached), ids, 12, cache).equal(wanted)
    assert cache.seen == 30
    cache.check()


# --- reading pages --------------------------------------------------------------------------------------------------------


def naive(query, keys, values, scale):
    """One softmax over everything, in float64. query: [heads, head_dim], keys and values: [kv_heads, tokens, head_dim]."""
    query, keys, values = query.double(), keys.double(), values.double()
    out = []
    for head, q in enumerate(query):
        kv = head // (len(query) // len(keys))
        weights = torch.tensor([math.exp(scale * float(q @ key)) for key in keys[kv]], dtype=torch.float64)
        out.append(weights / weights.sum() @ values[kv])
    return torch.stack(out)


def stored(size, rows, kv_heads, tokens, scatter, window=None, grow=False, dim=16):
    """A cache with the next token written, the pages to read, and what they hold."""
    cache = kvviz.PagedKVCache(1, kv_heads, dim, size, tokens=max(256, 4 * size), batch=rows, window=window, grow=grow)
    keys, values = torch.randn(2, rows, kv_heads, tokens, dim, generator=torch.Generator().manual_seed(tokens))
    with scattered() if scatter else torch.no_grad():
        for low, high in ((0, tokens // 2), (tokens // 2, tokens - 1)):
            if low < high:
                cache.append(0, keys[:, :, low:high], values[:, :, low:high])
        last = keys[:, :, -1:], values[:, :, -1:]
        step = cache.write(0, *last)
        cache.put(0, step, *last)
    visible = slice(None if window is None else -window, None)
    return cache, cache.pages_of(0, step), keys[:, :, visible], values[:, :, visible]


@pytest.mark.parametrize("scatter", [False, True])
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize(("size", "window"), [(1, None), (3, None), (16, 20), (64, None), (256, 40)])
def test_every_way_to_read_is_the_running_softmax(size, window, groups, scatter):
    for tokens in (2, size, size + 1, 2 * size + 5, 70):
        if tokens < 2:
            continue
        cache, pages, keys, values = stored(size, 2, 2, tokens, scatter, window)
        query = torch.randn(2, 2 * groups, 1, 16, generator=torch.Generator().manual_seed(size))
        got = pages.tensors()
        assert got[0].equal(keys) and got[1].equal(values)
        if not scatter:
            assert pages.in_a_row and got[0].untyped_storage()._cdata == pages.store.keys[0].untyped_storage()._cdata
        wanted = torch.stack([running_softmax(query[b, :, 0], pages.each(b), 0.25) for b in range(2)])
        assert (
            wanted - torch.stack([naive(query[b, :, 0], keys[b], values[b], 0.25) for b in (0, 1)])
        ).abs().max() < 1e-6
        counts = [chunk[0].shape[1] for chunk in pages.each(0)]
        assert sum(counts) == keys.shape[2] and max(counts) <= size and all(n == size for n in counts[1:-1])
        plain = plain_attention(query, *got, None, 0.25)
        assert (plain[:, :, 0] - wanted).abs().max() < 1e-6
        module = torch.nn.Module()
        module.num_key_value_groups, module.config = groups, build_config(GATHERING)
        ours, weights = paged_attention(module, query, keys[:, :, -1:], values[:, :, -1:], None, 0.25, kv_pages=pages)
        assert weights is None and ours.is_contiguous() and ours.shape == (2, 1, 2 * groups, 16)
        assert (ours[:, 0] - wanted).abs().max() < 1e-6
        cache.check()


def build_config(attention):
    config = CONFIG_MAPPING["llama"]()
    config._attn_implementation_internal = attention
    return config


def test_running_softmax_survives_scores_that_overflow():
    query, (keys, values) = (
        torch.full((1, 4), 40.0),
        torch.randn(2, 1, 9, 4, generator=torch.Generator().manual_seed(0)),
    )
    pages = [(keys[:, n : n + 2], values[:, n : n + 2]) for n in range(0, 9, 2)]
    assert (query @ keys[0].T).max() > 89, "exp of that is infinite in fp32"
    weights = torch.softmax((query.double() @ keys[0].double().T), -1)
    assert (running_softmax(query, pages, 1.0) - weights @ values[0].double()).abs().max() < 1e-4


def test_masks_of_a_window():
    seen = window_mask(3, 5, 2, None, torch.device("cpu"))
    assert seen.int().tolist() == [[[[0, 1, 1, 0, 0], [0, 0, 1, 1, 0], [0, 0, 0, 1, 1]]]]
    padding = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 0, 1, 1]]).bool()[:, None, None]
    both = window_mask(3, 5, 2, padding, torch.device("cpu"))
    assert both.shape == (2, 1, 3, 5) and both[0].equal(seen[0]) and both[1].sum() == 3
    low = torch.finfo(torch.float32).min
    added = window_mask(3, 5, 2, torch.zeros(2, 1, 3, 5).masked_fill(~padding, low), torch.device("cpu"))
    assert (added == 0).equal(both) and added.min() == low


def test_plain_attention_knows_caps_sinks_and_both_kinds_of_mask():
    draw = functools.partial(torch.randn, generator=torch.Generator().manual_seed(1))
    query, keys, values, sinks = draw(2, 6, 3, 8), draw(2, 2, 5, 8), draw(2, 2, 5, 8), draw(6)
    mask = torch.ones(2, 1, 3, 5, dtype=torch.bool).tril(2)
    mask[1, :, :, 0] = False
    scores = query @ keys.repeat_interleave(3, 1).transpose(2, 3) * 0.3
    scores = (torch.tanh(scores / 2) * 2).masked_fill(~mask, float("-inf"))
    weights = torch.cat([scores, sinks.view(1, 6, 1, 1).expand(2, 6, 3, 1)], -1).softmax(-1)[..., :-1]
    wanted = weights @ values.repeat_interleave(3, 1)
    for one in (mask, torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)):
        assert (plain_attention(query, keys, values, one, 0.3, 2.0, sinks) - wanted).abs().max() < 1e-6
    causal = plain_attention(query, keys, values, None, 0.3)
    wanted = torch.nn.functional.scaled_dot_product_attention(
        query, keys, values, torch.ones(3, 5, dtype=torch.bool).tril(2), scale=0.3, enable_gqa=True
    )
    assert (causal - wanted).abs().max() < 1e-6


@BOTH
@pytest.mark.parametrize("size", [1, 3, 16])
@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "gpt-oss"])
def test_scattered_pages_are_gathered(name, size, attached, paths):
    with scattered():
        for case in cases(name, size):
            paths.clear()
            cache = kvviz.paged_cache(model(name), page_size=size)
            found = walk(model(name, attached), case, cache)
            assert difference(found, expected(name, case), case) < NEAR
            if case.prompt > 3 * size and name == "llama":
                assert not paths["view"] and paths["gather"] >= 3 * 2
                rows = {len(set(map(tuple, group.cache.tables[0].entries))) for group in cache.groups}
                assert max(rows) > 1
            assert_paged(cache, paths, case.prompt, case.prompt + case.steps)
        paths.clear()
        got, cache = by_default.__wrapped__(name, "padded beams", 20, attached, size)
        assert same(got, by_default(name, "padded beams", 20)[0]) < NEAR
        assert_paged(cache, paths, 20, 31)


@pytest.fixture
def compiler():
    if flex.compiled() is None:
        pytest.skip("nothing here compiles FlexAttention")


IN_PLACE = [  # model, what is not as usual, page size, case
    ("llama", {}, 64, Case((0, 70, 199), (250,), 12)),
    ("mistral", {"sliding_window": 300, "num_key_value_heads": 4}, 128, Case((0, 170), (380, 20), 12)),
    ("gemma3", {"sliding_window": 40}, 256, Case((0, 299, 5), (300,), 8)),  # a window in one page, cut at both ends
]


@pytest.mark.parametrize(("name", "changes", "size", "case"), IN_PLACE)
def test_scattered_large_pages_are_read_in_place(name, changes, size, case, paths, compiler):
    who = build(name, **changes)
    wanted = walk(who, case, DynamicCache(config=who.config))
    assert "FlexAttention from 64 tokens a page on" in kvviz.attach(who).how
    with scattered():
        cache = kvviz.paged_cache(who, page_size=size)
        assert difference(walk(who, case, cache), wanted, case) < NEAR
        assert paths["flex"] == case.steps * len(cache.layers) and not paths["view"]
        assert_paged(cache, paths, case.prompt, case.prompt + case.steps)


def test_flex_attention_in_all_its_ways(paths, compiler, monkeypatch):
    """One pool, one shape: what may change from step to step does, and nothing is compiled anew for it."""
    who = build("llama")
    ids, mask = text(3, 420)["input_ids"], torch.ones(3, 420, dtype=torch.long)
    mask[1, :9] = mask[2, :205] = 0
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    name = cache_name(who)

    def run(model, cache, low, high, padded=True):
        extra = {"attention_mask": mask[:, :high] if padded else None, name: cache, "use_cache": True}
        return model(ids[:, low:high], position_ids=positions[:, low:high], **extra).logits

    def far(cache, n, padded=False):
        """Token number n read by flex and by the default cache, which reads the others at once before."""
        default = DynamicCache(config=who.config)
        run(model("llama"), default, 0, n, padded)
        wanted, before = run(model("llama"), default, n, n + 1, padded), paths["flex"]
        found = run(who, cache, n, n + 1, padded)
        assert paths["flex"] == before + 2
        return (found - wanted).abs().max() / 3  # reading at once adds up in another order than token by token

    kvviz.attach(who)
    with scattered(), torch.no_grad():
        cache = kvviz.paged_cache(who, page_size=64)
        run(who, cache, 0, 300)
        for n in range(300, 330):  # over the edge of a page
            assert far(cache, n, padded=True) < NEAR
        cache.crop(-20)
        assert far(cache, 310, padded=True) < NEAR
        cache.reset()
        for slab in (*(store := cache.groups[0].cache._memory.store).keys, *store.values):
            slab.fill_(torch.nan)  # what others leave in pages must not be seen
        run(who, cache, 0, 200, padded=False)
        assert far(cache, 200) < NEAR, "no padding is left"
        other = copy.deepcopy(cache)
        run(who, cache, 201, 390, padded=False)
        assert far(cache, 390) < NEAR
        with torch.inference_mode():  # the copy makes its own mask here, and goes on elsewhere
            assert far(other, 201) < NEAR
        assert far(other, 202) < NEAR
        assert other.groups[0].cache._memory.store.page_mask.modes == {(False, False), (False, True)}
        real = flex.PageMask.set
        with monkeypatch.context() as patched:
            patched.setattr(flex.PageMask, "set", lambda self, *rest: (real(self, *rest), self.bounds.add_(1)))
            assert far(other, 203) > 1e-3, "bounds one slot later must show"
        other.crop(-1)
        assert far(other, 203) < NEAR
        seen = torch.ones(206, 206, dtype=torch.bool).tril()
        for n, keep in ((204, 100), (205, 5)):  # both begin in the middle of a page, the second also ends in it
            other.truncate(keep)
            seen[n, : n - keep] = False
            given = {"position_ids": positions[:, : n + 1], "attention_mask": seen[None, None, : n + 1, : n + 1]}
            fewer, before = model("llama")(ids[:, : n + 1], **given).logits[:, -1:], paths["flex"]
            assert (run(who, other, n, n + 1, padded=False) - fewer).abs().max() / 3 < NEAR
            assert paths["flex"] == before + 2
        before = paths["flex"]
        cache.reorder_cache(torch.tensor([1, 1, 0]))
        cache.crop(-1)
        moved = who(ids[[1, 1, 0], 390:391], position_ids=positions[:1, 390:391] * 0 + 390, **{name: cache}).logits
        assert paths["flex"] == before + 2
        assert moved[0].equal(moved[1]) and not moved[0].equal(moved[2])
    trained = who.requires_grad_(True)
    gathered = paths["gather"]
    out = run(trained, cache, 391, 392, padded=False)
    assert out.requires_grad and paths["gather"] == gathered + 2


def test_where_nothing_can_compile_pages_are_gathered(paths, monkeypatch, recwarn):
    def refuse(*args, **kwargs):
        raise RuntimeError("no compiler\nhere")

    case, who = Case((0, 70), (200,), 3), build("llama")
    wanted = walk(who, case, DynamicCache(config=who.config))
    monkeypatch.setattr(torch, "compile", refuse)
    monkeypatch.setattr(flex, "compiled", functools.cache(flex.compiled.__wrapped__))
    with scattered():
        kvviz.attach(who)
        found = walk(who, case, kvviz.paged_cache(who, page_size=64))
        assert difference(found, wanted, case) < NEAR
        said = [str(w.message) for w in recwarn if "FlexAttention" in str(w.message)]
        assert said == ["FlexAttention cannot be compiled here (no compiler): scattered pages are gathered"]
        monkeypatch.setattr(flex, "compiled", refuse)
        assert "scattered ones gathered" in kvviz.attach(who, compile=False).how
        assert difference(walk(who, case, kvviz.paged_cache(who, page_size=64)), wanted, case) < NEAR
    assert paths["gather"] == 2 * 3 * 2 and not paths["flex"]


# --- a window that the model does not know --------------------------------------------------------------------------------


def additive(case, window):
    """A mask by which each query sees its last `window` keys, pads left out."""
    mask = case.tokens[1].bool()
    number = torch.arange(mask.shape[1])
    gap = number[:, None] - number[None]
    seen = (gap >= 0) & (gap < window) & mask[:, None, None]
    return torch.zeros(seen.shape, dtype=torch.float64).masked_fill(~seen, torch.finfo(torch.float32).min)


def masked(name, case, window):
    """Logits by no cache at all, and masks that are written out."""
    ids, mask = case.tokens
    config = model(name).config
    own = getattr(config, "sliding_window", None)
    masks = {"full_attention": additive(case, window), "sliding_attention": additive(case, min(window, own or window))}
    given = masks if name in ("gemma2", "gemma3") else additive(case, min(window, own or window))
    with torch.no_grad():
        return exact(name)(ids, attention_mask=given, position_ids=(mask.cumsum(-1) - 1).clamp(min=0)).logits


@functools.cache
def exact(name):
    """In float64: reading all at once adds up in another order than reading in pieces."""
    return build(name).double()


@pytest.mark.parametrize("window", [1, 5, 20])
@pytest.mark.parametrize("name", ["llama", "qwen3", "gpt2", "mistral", "gemma2", "gemma3"])
def test_a_window_for_a_model_that_has_none(name, window, paths):
    who = build(name).double()
    for size in (1, 3, 64):
        for length in (3, window - 1, window, window + 1, 3 * window + 2, 45):
            rest = length - min(4, length)
            pieces = tuple(filter(None, (min(4, length), rest // 2, rest - rest // 2)))
            for case in (Case((0,), (length,), 6), Case((0, min(3, length - 1)), pieces, 6)):
                if length < 1:
                    continue
                cache = kvviz.paged_cache(who, page_size=size, window=window)
                paths.clear()
                found = walk(who, case, cache)
                assert difference(found, masked(name, case, window), case) < NEAR, (size, case)
                assert all(group.window <= window for group in cache.groups) and cache.length <= window
                assert_paged(cache, paths, length, length + 6)
    own = getattr(who.config, "sliding_window", None) or math.inf
    assert (who.config._attn_implementation == NAME) == (name != "mistral" or window < own), "attached where needed"


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_a_window_in_generate(name, paths):
    who = build(name).double()
    inputs = text(2, 20, (3, 0))
    cache = kvviz.paged_cache(who, page_size=4, window=5)
    got = generate(who, cache, inputs)
    ids, mask = got.sequences[:, :-1], torch.ones(2, 31, dtype=torch.long)
    mask[0, :3] = 0

    class Fixed(Case):
        tokens = property(lambda self: (ids, mask))

    logits = masked(name, Fixed((3, 0), (20,), 11), 5)[:, -12:]
    assert torch.stack(got.logits, 1).sub(logits).abs().max() < NEAR
    assert got.sequences[:, 20:].equal(logits.argmax(-1))
    assert got.sequences.tolist() != generate(model(name), None, inputs).sequences.tolist()
    pages = max(int(state.references.sum()) for state in (cache.log.at(i) for i in range(0, len(cache.log), 7)))
    assert pages <= 2 * 3, "two sequences, and a window of 5 is in 3 pages of 4 at most"
    cache.check()


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_a_window_without_its_attention_is_an_error(name, paths):
    who, ids = build(name).double(), text(1, 30)["input_ids"]
    cache = kvviz.paged_cache(who, page_size=4, window=5)
    kvviz.attach(who).detach()
    assert who.config._attn_implementation == model(name).config._attn_implementation
    for _ in range(2):
        with pytest.raises(InvalidRequest, match=r"does not mask a window of 5 by itself.*kvviz.attach\(model\) again"):
            step(who, cache, ids[:, :20])
        assert cache.seen == 0 and not any(group.cache.seen for group in cache.groups)
    step(who, cache, ids[:, :4])  # all of it is in the window
    with pytest.raises(InvalidRequest, match="does not mask"):
        step(who, cache, ids[:, :7], 4)
    assert {group.cache.seen for group in cache.groups} == {4}
    kvviz.attach(who)
    case = Case((0,), (20,), 10)
    cache.reset()
    step(who, cache, case.tokens[0][:, :20])
    kvviz.attach(who).detach()
    for n in range(20, 30):  # one query needs no mask: it sees all that it gets
        found = step(who, cache, case.tokens[0][:, : n + 1], n)
    assert (found[:, 0] - masked(name, case, 5)[:, -1]).abs().max() < NEAR


def test_a_written_out_mask_and_a_window():
    case = Case((0, 3), (12,), 0)
    who = build("llama").double()
    cache = kvviz.paged_cache(who, page_size=4, window=5)
    ids, mask = case.tokens
    given = {"attention_mask": additive(case, 100), "position_ids": (mask.cumsum(-1) - 1).clamp(min=0)}
    assert difference(who(ids, **{cache_name(who): cache}, **given).logits, masked("llama", case, 5), case) < NEAR


# --- attach -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_attach_and_detach(name, paths):
    who, case = build(name), Case((0, 4), (20, 3), 3)
    before = who.config._attn_implementation
    saved = who.config.to_dict()
    handle = kvviz.attach(who)
    assert who.config._attn_implementation == NAME and "view" in repr(handle)
    assert who.config.to_dict() == saved, "nothing of it is saved with the model"
    again, third = kvviz.attach(who, compile=False), kvviz.attach(who)
    assert handle.before == again.before == third.before == before
    default = DynamicCache(config=who.config)
    assert difference(walk(who, case, default), expected(name, case), case) < NEAR, "other caches work as before"
    third.detach()
    again.detach()
    assert who.config._attn_implementation == before
    cache = kvviz.paged_cache(who, page_size=4)
    ids, _ = Case((0,), (23,)).tokens
    wanted = step(model(name), DynamicCache(config=who.config), ids)
    step(who, cache, ids[:, :20])
    kvviz.attach(who)  # in the middle of a text
    found = step(who, cache, ids[:, :21], 20)
    kvviz.attach(who).detach()
    assert (torch.cat([found, step(who, cache, ids, 21)], 1) - wanted[:, 20:]).abs().max() < NEAR


def test_attach_says_where_it_cannot(monkeypatch):
    who = build("llama")
    monkeypatch.setattr(type(who), "_can_set_attn_implementation", classmethod(lambda cls: False))
    with pytest.raises(InvalidRequest, match=r"LlamaForCausalLM.*notebook cell must be moved into a file"):
        kvviz.attach(who)
    assert who.config._attn_implementation == "sdpa"
    with pytest.raises(InvalidRequest, match="notebook cell"):
        kvviz.paged_cache(who, window=5)
    case = Case((0, 2), (10,))
    assert difference(walk(who, case, kvviz.paged_cache(who)), expected("llama", case), case) < NEAR
    mamba = AutoModelForCausalLM.from_config(CONFIG_MAPPING["mamba"](vocab_size=9, hidden_size=8, num_hidden_layers=1))
    monkeypatch.setattr(
        mamba, "set_attn_implementation", lambda name: (_ for _ in ()).throw(ValueError("no attention"))
    )
    with pytest.raises(InvalidRequest, match="cannot be changed: no attention"):
        kvviz.attach(mamba)


def test_without_its_half_of_the_masks_padding_would_be_seen(monkeypatch):
    """Why attach() registers two functions."""
    who, case = build("llama"), Case((0, 4), (20,))
    kvviz.attach(who)
    known = AttentionMaskInterface._global_mapping
    monkeypatch.setattr(AttentionMaskInterface, "_global_mapping", {k: v for k, v in known.items() if k != NAME})
    found = walk(who, case, kvviz.paged_cache(who, page_size=4))
    assert difference(found, expected("llama", case), case) > 1e-2


# --- what is wrong on purpose must show -------------------------------------------------------------------------------------


def shifted(real, length=0, first=0):
    return lambda self, query: tuple(a + b for a, b in zip(real(self, query), (length, first), strict=True))


def later(real, **by):
    """A slab function with its place moved."""

    def moved(self, layer, at, *rest, **named):
        return real(self, layer, replace(at, **{k: getattr(at, k) + n for k, n in by.items()}), *rest, **named)

    return moved


MUTATIONS = {
    "mask one later": (PagedLayer, "get_mask_sizes", lambda real: shifted(real, first=1)),
    "mask one earlier": (PagedLayer, "get_mask_sizes", lambda real: shifted(real, first=-1)),
    "mask one shorter": (PagedLayer, "get_mask_sizes", lambda real: shifted(real, -1, 1)),
    "mask one longer": (PagedLayer, "get_mask_sizes", lambda real: shifted(real, 1)),
    "sees one less": (PagedKVCache, "next_from", lambda real: property(lambda self: real.fget(self) + bool(self.seen))),
    "reads a slot later": (Slab, "read", lambda real: later(real, start=1)),
    "writes a slot later": (Slab, "write", lambda real: later(real, start=1)),
    "reads a token later": (Slab, "_gather", lambda real: lambda slab, *rest: real(slab, *rest).roll(1, 2)),
    "forgets the copies": (Slab, "copy", lambda real: lambda *rest: None),
    "beams stay": (PagedKVCache, "reorder", lambda real: lambda *rest: None),
    "crops one less": (PagedKVCache, "rollback", lambda real: lambda self, count: real(self, count - 1)),
}  # fmt: skip


@BOTH
@pytest.mark.parametrize("name", ["mistral", "gemma2"])
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_mutation_is_noticed(mutation, name, attached, monkeypatch):
    owner, attribute, change = MUTATIONS[mutation]
    prompt, size = 21, 3
    case = Case((0, 4), (12, 9))

    kind = {"crops one less": "looked up", "beams stay": "beams", "forgets the copies": "beams"}.get(mutation)

    def differs():
        try:
            if kind:
                got, _ = by_default.__wrapped__(name, kind, prompt, attached, size)
                return same(got, by_default(name, kind, prompt)[0]) > 1e-3
            with scattered() if attribute == "_gather" else torch.no_grad():
                found = walk(model(name, attached), case, kvviz.paged_cache(model(name), page_size=size))
            return not difference(found, expected(name, case), case) < 1e-3
        except (AssertionError, RuntimeError, ValueError, IndexError):
            return True

    assert not differs()
    monkeypatch.setattr(owner, attribute, change(getattr(owner, attribute)))
    assert differs()


# --- errors -----------------------------------------------------------------------------------------------------------------


def config_of(kind, **settings):
    class Only:
        config = CONFIG_MAPPING[kind](**settings)

    return Only


@pytest.mark.parametrize(
    ("kind", "settings", "why"),
    [
        ("t5", {}, "encoder-decoder"),
        ("bart", {}, "encoder-decoder"),
        ("mamba", {}, "layer 0 is of type"),
        ("lfm2", {"num_hidden_layers": 2, "layer_types": ["full_attention", "conv"]}, "layer 1 is of type conv"),
        ("qwen3_next", {}, "layer 0 is of type linear_attention"),
        ("gemma3n_text", {}, "layer 20 has no keys and values of its own"),
    ],
)
def test_models_without_pages(kind, settings, why):
    with pytest.raises(InvalidRequest, match=why):
        kvviz.paged_cache(config_of(kind, **settings))


@pytest.mark.parametrize(
    "wrong",
    [
        {"page_size": 0}, {"page_size": 2.5}, {"window": 0}, {"tokens": -1}, {"pages": True}, {"max_bytes": "1"},
        {"tokens": 5, "pages": 5}, {"window": "9"}, {"page_size": 0, "window": 5}, {"pages": 0, "window": 5},
    ],
)  # fmt: skip
def test_settings_that_make_no_sense(wrong):
    who = build("llama")
    with pytest.raises(InvalidRequest):
        kvviz.paged_cache(who, **wrong)
    assert who.config._attn_implementation == "sdpa"


@BOTH
@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "gemma3", "gemma4"])
@pytest.mark.parametrize("grow", [False, True])
def test_an_exhausted_pool_changes_nothing(name, attached, grow):
    who, inputs = model(name, attached), text(2, 20)
    for wish in ({"tokens": 24}, {"pages": 20}, {"tokens": 16}):
        if name == "mistral":
            wish = {"tokens": 4} if "tokens" in wish else {"pages": 4}  # a window wants no more
        raised = ", now ".join(map(str, *wish.items()))
        cache = kvviz.paged_cache(who, page_size=4, **wish, grow=grow)
        with pytest.raises(PoolExhausted, match=f"raise {raised}") as caught:
            generate(who, cache, inputs, max_new_tokens=80)
        assert "pages" in str(caught.value) and "of 2 sequences" in str(caught.value)
        cache.check()
        seen = cache.seen
        assert seen % 4 == 0 and {group.cache.seen for group in cache.groups} == {seen}
        assert (cache.log.events.action == PageAction.REFUSE).sum() <= 1
        before = [(list(t.pages), t.first) for g in cache.groups for t in g.cache.tables], len(cache.log)
        if seen:
            assert seen >= 24
            with pytest.raises(PoolExhausted):
                step(who, cache, inputs["input_ids"][:, :1].expand(2, seen + 1), seen)
            assert before == (
                [(list(t.pages), t.first) for g in cache.groups for t in g.cache.tables],
                len(cache.log) - 1,
            )
            cache.reset()
        short = text(2, 3)["input_ids"]
        found = step(who, cache, short)
        assert (found - step(model(name), DynamicCache(config=who.config), short)).abs().max() < NEAR, "still good"


@BOTH
@pytest.mark.parametrize("name", ["gemma2", "gemma4"])
def test_no_memory_for_the_second_pool(name, attached, monkeypatch):
    who, cache = model(name, attached), kvviz.paged_cache(model(name), page_size=4)
    real, made = Slab._new, []

    def refuse(self, pages):
        made.append(1)
        if len(made) > 1:
            raise OutOfMemory("a pool of 9 bytes does not fit")
        return real(self, pages)

    ids = text(1, 12)["input_ids"]
    with monkeypatch.context() as patched:
        patched.setattr(Slab, "_new", refuse)
        with pytest.raises(OutOfMemory):
            step(who, cache, ids)
    assert cache.seen == 0 and not any(group.cache.seen for group in cache.groups)
    cache.check()
    assert (step(who, cache, ids) - step(model(name), DynamicCache(config=who.config), ids)).abs().max() < NEAR


def test_use_after_free_and_what_pages_cannot_do():
    who, ids = model("llama"), text(1, 9)["input_ids"]
    cache = kvviz.paged_cache(who, page_size=4)
    assert "0 tokens, holds 0 bytes" in repr(cache) and (cache.batch_size, cache.held_bytes, cache.length) == (-1, 0, 0)
    step(who, cache, ids)
    assert "2 × full attention; 9 tokens" in repr(cache) and repr(cache.layers[0]) == "PagedLayer(full attention)"
    with pytest.raises(InvalidRequest, match="pages are not offloaded"):
        cache.offload(0, only_non_sliding=False)
    with pytest.raises(InvalidRequest, match="pages are not offloaded"):
        cache.layers[0].prefetch()
    with pytest.raises(InvalidRequest, match="keys must be"):
        step(who, cache, text(2, 10)["input_ids"], 9)  # a batch of another size, before a reset
    assert (cache.is_compileable, cache.is_croppable, cache.is_initialized) == (False, True, True)
    assert (cache.get_max_length(), cache.get_max_length(0)) == (-1, -1)
    assert kvviz.paged_cache(model("mistral")).get_max_length() == WINDOW
    cache.free()
    cache.free()
    for use in (lambda: step(who, cache, ids), lambda: generate(who, cache, text(1, 5))):
        with pytest.raises(SequenceFreed):
            use()
    assert "freed" in repr(cache) and cache.held_bytes == 0


def test_a_step_that_was_interrupted_is_noticed(monkeypatch):
    who, ids = model("gemma2"), text(1, 20)["input_ids"]
    cache = kvviz.paged_cache(who, page_size=4)
    with monkeypatch.context() as patched:
        patched.setattr(cache.layers[1], "update", lambda *args, **kwargs: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            step(who, cache, ids[:, :12])
    with pytest.raises(InvalidRequest, match=r"step of 12 tokens unfinished: crop\(-12\) takes it back"):
        step(who, cache, ids[:, :13], 12)
    cache.crop(-12)
    assert (step(who, cache, ids) - step(who, DynamicCache(config=who.config), ids)).abs().max() < NEAR


# --- capacity ---------------------------------------------------------------------------------------------------------------


def test_shares():
    full = math.inf
    assert share(100, [1, 1], {0: 8, 1: full}) == {0: 8, 1: 92}
    assert share(100, [1, 3], {0: 8, 1: full}) == {0: 8, 1: 30}
    assert share(10, [1, 1], {0: 8, 1: full}) == {0: 5, 1: 5}
    assert share(12, [2, 1], {0: 8, 1: full}) == {0: 4, 1: 4}
    assert share(100, [1, 1], {0: 8, 1: 9}) == {0: 8, 1: 9}
    assert share(30, [1, 1, 1], {0: 4, 1: 20, 2: full}) == {0: 4, 1: 13, 2: 13}
    assert share(7, [1], {0: full}) == {0: 7} and share(7, [1, 9], {0: full}) == {0: 7}
    assert share(1, [1, 1], {0: 8, 1: full}) == {0: 0, 1: 0}


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "gemma3", "gemma4"])
@pytest.mark.parametrize("limit", [{"max_bytes": 60_000}, {"max_bytes": 20_000}, {"pages": 40}, {"pages": 9}])
def test_pages_and_bytes_are_of_all_types_together(name, limit):
    who, ids = model(name), text(2, 5)["input_ids"]
    cache = kvviz.paged_cache(who, page_size=4, **limit)
    step(who, cache, ids)
    pools = [group.cache.pool for group in cache.groups]
    sizes = [len(g.layers) * 2 * g.cache.spec.kv_heads * g.cache.spec.head_dim * 4 * 4 for g in cache.groups]
    total = sum(pool.pages for pool in pools)
    if "pages" in limit:
        assert total <= limit["pages"] < total + len(pools) or name == "mistral"
    else:
        room = limit["max_bytes"] - sum(pool.pages * size for pool, size in zip(pools, sizes))
        assert cache.held_bytes == limit["max_bytes"] - room
        assert 0 <= room < sum(sizes) or name == "mistral"
    for group, pool in zip(cache.groups, pools):
        assert group.window is None or pool.pages <= 2 * 3, "a window of 9 is in 3 pages of 4 at most"
        assert group.cache.pool.info.name == group.name


def test_too_little_for_a_page_of_each_type():
    for name, limit in (("gemma2", {"pages": 1}), ("gemma3", {"max_bytes": 1000}), ("llama", {"max_bytes": 10})):
        who = model(name)
        cache = kvviz.paged_cache(who, page_size=4, **limit)
        ((kind, amount),) = limit.items()
        with pytest.raises(PoolExhausted, match=f"{kind}={amount:,} leaves no page for .*: raise {kind}$"):
            step(who, cache, text(1, 5)["input_ids"])
        assert cache.seen == cache.held_bytes == len(cache.log) == 0
        cache.check()


def test_after_a_reset_too_large_a_batch_is_refused_and_a_smaller_one_goes():
    who = model("gemma2")
    cache = kvviz.paged_cache(who, page_size=4, pages=12)
    step(who, cache, text(1, 5)["input_ids"])
    cache.reset()
    with pytest.raises(PoolExhausted, match="raise pages, now 12"):
        step(who, cache, text(8, 5)["input_ids"])
    cache.check()
    ids = text(2, 5)["input_ids"]
    assert (step(who, cache, ids) - step(who, DynamicCache(config=who.config), ids)).abs().max() < NEAR
    assert [len(cache.log.at(len(cache.log), pool).tables) for pool in range(2)] == [2, 2]


def test_the_usual_capacity():
    who = model("llama")
    cache = kvviz.paged_cache(who)
    step(who, cache, text(2, 5)["input_ids"])
    assert cache.groups[0].cache.pool.pages == 2 * 1024 // 16 and cache.page_size == 16
    long = build("llama", max_position_embeddings=100_000)
    cache = kvviz.paged_cache(long, page_size=256)
    step(long, cache, text(1, 5)["input_ids"])
    assert cache.groups[0].cache.pool.pages == 8192 // 256


# --- a real model -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def smollm2():
    real, tokenizer = kvviz.load_model()
    tokenizer.padding_side, tokenizer.pad_token = "left", tokenizer.pad_token or tokenizer.eos_token
    return real.requires_grad_(False), tokenizer


STORY = (
    "The lighthouse keeper counted the ships that passed in the night, and wrote their names into a book that nobody "
    "else had ever read. One evening in November a ship came by that was already in the book, on a page from forty "
    "years ago, under the same name, and with the same captain. He lit his lamp, opened the window, and"
)
REAL = {
    "greedy": ([STORY], {}),
    "padded": ([STORY[:90], STORY], {"max_new_tokens": 8}),
    "beams": ([STORY[:150]], {"num_beams": 3, "max_new_tokens": 8}),
}


@pytest.mark.model
@pytest.mark.parametrize("kind", REAL)
def test_smollm2(smollm2, kind, paths):
    real, tokenizer = smollm2
    texts, how = REAL[kind]
    inputs = dict(tokenizer(texts, return_tensors="pt", padding=True))
    how = {"max_new_tokens": 24, "min_new_tokens": how.get("max_new_tokens", 24), "pad_token_id": 0} | how
    wanted = generate(real, None, inputs, **how)
    prompt, last = inputs["input_ids"].shape[1], wanted.sequences.shape[1] - 1
    assert kind != "greedy" or 64 < prompt < 80
    for size in (1, 16, 64, 256) if kind == "greedy" else (16,):
        for attached in (False, True):
            cache = kvviz.paged_cache(real, page_size=size, tokens=512)
            handle = kvviz.attach(real) if attached else None
            paths.clear()
            got = generate(real, cache, inputs, **how)
            if handle:
                handle.detach()
            assert same(got, wanted) < NEAR
            assert_paged(cache, paths, prompt, last)


@pytest.mark.parametrize("thing", [None, "SmolLM2", torch.nn.Linear(2, 2)])
@pytest.mark.parametrize("call", [kvviz.paged_cache, kvviz.attach])
def test_what_is_no_model(call, thing):
    with pytest.raises(InvalidRequest, match="a transformers model is needed, got"):
        call(thing)


def test_used_with_another_model_by_mistake():
    """The first update cannot know; but a reset makes the cache its own model's again, and one layer too many is told."""
    own, ids = model("llama"), torch.arange(1, 8)[None]
    other = kvviz.PagedKVCache(len(own.model.layers), 1, 4)
    expected = kvviz.decode(own, ids, 5)
    cache = kvviz.paged_cache(own, page_size=4, tokens=64)
    wrong = torch.zeros(1, other.spec.kv_heads, 3, other.spec.head_dim)
    for layer in range(other.spec.layers):
        cache.update(wrong, wrong, layer)
    with pytest.raises(
        InvalidRequest, match=rf"made for a model of {other.spec.layers} layers, got layer {other.spec.layers}"
    ):
        cache.update(wrong, wrong, other.spec.layers)
    cache.reset()
    assert torch.equal(kvviz.decode(own, ids, 5, cache), expected)
    cache.check()
