"""Pages on PyTorch's own CUDA allocator: what they take and give back, beside caches that grow, shift and slice.

Shapes are SmolLM2's (3 KV heads of 64, fp32, and 30 layers where nothing else is said). No kernel runs here, so values
mean nothing; the allocator's figures are those of a GPU.
"""

import random

import pytest

from tests.cuda_stub.oracle import in_child

MIB = 1 << 20
LAYERS, HEADS, DIM, PAGE, WINDOW = 30, 3, 64, 16, 128
LAYER_TOKEN = 2 * HEADS * DIM * 4  # bytes of a token in a layer, keys and values
TOKEN = LAYERS * LAYER_TOKEN
GATHER = (WINDOW + PAGE + 256) * LAYER_TOKEN  # memory to read a window's pages in, with room for 256 tokens
LIST = 2048  # bytes: the numbers of the pages to gather are on the device, too, in steps that need them


def make(kind, layers=LAYERS, **how):
    import kvviz

    shape = layers, HEADS, DIM
    return {
        "concat": lambda: kvviz.ConcatCache(*shape),
        "shift": lambda: kvviz.ShiftingCache(*shape, WINDOW),
        "view": lambda: kvviz.SliceCache(*shape, WINDOW),
        "clone": lambda: kvviz.SliceCache(*shape, WINDOW, clone=True),
        "ring": lambda: kvviz.RingCache(*shape, WINDOW),
        "pages": lambda: kvviz.PagedKVCache(*shape, **({"window": WINDOW} | how)),
    }[kind]()


def states(tokens):
    """Keys, which serve as values, too."""
    import torch

    return torch.empty(1, HEADS, tokens, DIM, device="cuda")


def put(cache, new):
    """A step: the same tokens in all layers."""
    for layer in range(cache.spec.layers):
        cache.append(layer, new, new)


def write(cache, new):
    """A step of which nothing is read."""
    for layer in range(cache.spec.layers):
        cache.put(layer, cache.write(layer, new, new), new, new)


def now():
    import torch

    return torch.cuda.memory_allocated(), torch.cuda.memory_reserved()


# -- 4,096 tokens, one by one ---------------------------------------------------------------------------------------


def grown(kind, tokens):
    """(logical, held, allocated, peak allocated, peak reserved) of a cache; the last three beyond what was there."""
    import torch

    new = states(1)
    allocated, reserved = now()
    cache = make(kind, window=None, tokens=tokens)
    for _ in range(tokens):
        put(cache, new)
    peaks = torch.cuda.max_memory_allocated() - allocated, torch.cuda.max_memory_reserved() - reserved
    return cache.logical_bytes, cache.held_bytes, now()[0] - allocated, *peaks


@pytest.mark.parametrize("tokens", [4096, 4081])
def test_pages_take_what_their_tokens_need(tokens):
    logical, held, allocated, peak_allocated, peak_reserved = in_child(grown, "pages", tokens)
    assert logical == tokens * TOKEN
    assert held == allocated == peak_allocated == 256 * PAGE * TOKEN
    assert held - logical < PAGE * TOKEN  # less than a page: what is left of the last one
    assert held <= peak_reserved <= 1.02 * held
    assert peak_reserved == 180 * MIB  # one allocation, rounded up to 2 MiB at most


def test_growing_by_concatenation_reserves_more_than_half_as_much_again():
    logical, held, allocated, peak_allocated, peak_reserved = in_child(grown, "concat", 4096)
    assert logical == held == allocated == 4096 * TOKEN
    assert peak_allocated == held + 4095 * LAYER_TOKEN + 512  # old and new of a layer, counted in units of 512 B
    assert peak_reserved > 1.05 * held
    assert peak_reserved == 282 * MIB  # 1.57 times the 180 that are held: each size is a little too large for the gaps


def generated(kind):
    """A model of SmolLM2's shape reads 1,000 tokens and writes 8, recorded; which blocks are the cache's at the end."""
    import torch
    from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM
    from transformers.initialization import no_init_weights

    import kvviz

    config = LlamaConfig(
        hidden_size=576, intermediate_size=1536, num_hidden_layers=LAYERS, num_attention_heads=9,
        num_key_value_heads=HEADS, vocab_size=49152, tie_word_embeddings=True, attn_implementation="sdpa",
    )  # fmt: skip
    with torch.device("cuda"), no_init_weights():
        model = LlamaForCausalLM(config).eval()
    model.tie_weights()
    if kind == "attached":
        kvviz.attach(model)
    cache = DynamicCache(config=config) if kind == "grown" else kvviz.paged_cache(model, tokens=1007)
    ids = torch.zeros(1, 1000, dtype=torch.long, device="cuda")
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    with kvviz.record(stacks=None) as run:
        kvviz.decode(model, ids, 8, cache)
    trace = run.trace
    assert trace.peak_reserved == torch.cuda.max_memory_reserved()
    assert trace.peak_allocated == torch.cuda.max_memory_allocated()
    blocks = trace.at(-1).blocks
    mine = blocks["owner"] == list(trace.owners).index("kv cache")
    sizes = blocks["requested"].tolist(), blocks["requested"][mine].tolist()
    return *sizes, trace.peak_reserved, *((0, 0) if kind == "grown" else (cache.held_bytes, cache.logical_bytes))


def test_a_model_with_pages():
    """The allocator sees one block, of which less than a page is not needed; and nothing beside it that was grown."""
    got = {kind: in_child(generated, kind) for kind in ("grown", "paged", "attached")}
    for kind in ("paged", "attached"):
        blocks, owned, reserved, held, logical = got[kind]
        assert held == 63 * PAGE * TOKEN and blocks.count(held) == 1
        assert owned == [held]
        assert logical == 1007 * TOKEN and held - logical < PAGE * TOKEN
        assert reserved < got["grown"][2]
    assert got["grown"][1] == [1007 * LAYER_TOKEN // 2] * 2 * LAYERS


# -- windows --------------------------------------------------------------------------------------------------------


def ten_windows(kind, layers, turns):
    """(allocated, reserved, rise) after and in each step, for ten windows' worth of tokens, after two to warm up.

    turns: now and then several tokens come at once, as a prompt does. rise: how much more was allocated within a step
    of one token.
    """
    import torch

    r, new, cache = random.Random(0), states(WINDOW), make(kind, layers)
    start, rows = now(), []
    put(cache, new)
    while cache.seen < 12 * WINDOW:
        at_once = r.randint(2, WINDOW // 2) if turns and r.random() < 0.05 else 1
        before, warm = now(), cache.seen >= 2 * WINDOW
        torch.cuda.reset_peak_memory_stats()
        put(cache, new[:, :, :at_once])
        if warm:
            rise = torch.cuda.max_memory_allocated() - before[0] if at_once == 1 else 0
            rows.append((now()[0] - start[0], now()[1] - start[1], rise))
    return cache.held_bytes, rows


def span(values):
    return max(values) - min(values)


@pytest.mark.parametrize("turns", [False, True])
@pytest.mark.parametrize(("kind", "layers"), [("pages", 4), ("ring", 2), ("shift", 2)])
def test_over_ten_windows_nothing_grows_where_memory_was_taken_once(kind, layers, turns):
    _, rows = in_child(ten_windows, kind, layers, turns)
    allocated, reserved, rise = zip(*rows, strict=True)
    assert span(reserved) == 0
    assert span(allocated) <= (LIST if kind == "pages" else 0)
    reading = 2 * WINDOW * HEADS * DIM * 4  # a ring is put in order to be read
    assert max(rise) <= {"pages": LIST, "ring": reading, "shift": 0}[kind]
    assert (max(rise) == reading) == (kind == "ring")


def test_slices_are_flat_only_between_steps_of_one_token():
    for kind, copies in (("view", 1), ("clone", 2)):
        held, rows = in_child(ten_windows, kind, 2, False)
        allocated, reserved, rise = zip(*rows, strict=True)
        assert span(allocated) == span(reserved) == 0
        # beside the old window a longer one is made, and of that perhaps a copy
        assert copies * WINDOW * LAYER_TOKEN <= max(rise) <= copies * (WINDOW + 1) * LAYER_TOKEN + LIST
        assert held == 2 * (WINDOW + (kind == "view")) * LAYER_TOKEN  # a view keeps the token that it hides


def test_a_view_keeps_as_much_as_the_longest_step_brought():
    _, rows = in_child(ten_windows, "view", 2, True)
    assert span([row[0] for row in rows]) > 50 * 2 * LAYER_TOKEN  # up to 64 tokens came at once
    _, rows = in_child(ten_windows, "clone", 2, True)
    assert span([row[0] for row in rows]) == 0


def slides(kind):
    """What the allocator has to do in 100 slides of a full window, from a recording, as a row of a table."""
    import kvviz
    from kvviz.memory.trace import Action

    new, cache = states(WINDOW), make(kind)
    put(cache, new)
    for _ in range(2 * PAGE):
        put(cache, new[:, :, :1])
    with kvviz.record(stacks=None) as run:
        run.mark("full")
        for _ in range(100):
            put(cache, new[:, :, :1])
            run.mark("slid")
    at = [run.trace.at(mark.event) for mark in run.trace.marks]
    return {
        "requests": int((run.trace.events.action == Action.ALLOC).sum()),
        "segments": int((run.trace.events.action == Action.SEGMENT_ALLOC).sum()),
        "allocated": [state.allocated for state in at],
        "peak": run.trace.peak_allocated - at[0].allocated,
        "reserved": [state.reserved for state in at],
        "largest_free": [state.largest_free for state in at],
        "held": cache.held_bytes,
        "logical": cache.logical_bytes,
    }


def test_what_100_slides_ask_of_the_allocator():
    """None of them leaves gaps that add up: what a slide takes it gives back, and the next slide finds it."""
    table = {kind: in_child(slides, kind) for kind in ("shift", "ring", "pages", "view", "clone")}
    requests = {kind: row["requests"] for kind, row in table.items()}
    assert requests["shift"] == 0  # moved in place
    assert requests["pages"] <= 100  # a list of pages a step
    assert requests["view"] == 100 * LAYERS * 2  # keys and values, longer by a token
    assert requests["ring"] == 99 * LAYERS * 2  # put in order, where they are not
    assert requests["clone"] == 2 * requests["view"]
    peak = {kind: row["peak"] for kind, row in table.items()}
    assert peak["shift"] == 0 and peak["pages"] <= LIST < peak["ring"] <= peak["view"] < peak["clone"]
    for kind, row in table.items():
        assert row["segments"] == 0 and span(row["reserved"]) == 0, kind
        assert span(row["allocated"]) <= (LIST if kind == "pages" else 0), kind
        half = len(row["largest_free"]) // 2  # slices come and go, so it is not always the same
        assert min(row["largest_free"][:half]) == min(row["largest_free"][half:]), kind
        assert row["logical"] == WINDOW * TOKEN
    beyond = {kind: row["held"] - row["logical"] for kind, row in table.items()}
    assert beyond["ring"] == beyond["clone"] == 0
    assert beyond["view"] == TOKEN
    assert beyond["shift"] == WINDOW // 16 * LAYER_TOKEN // 2  # what tokens move by way of
    assert PAGE * TOKEN < beyond["pages"] <= PAGE * TOKEN + GATHER  # a page, and memory to gather a layer's pages in


# -- pages taken one by one -----------------------------------------------------------------------------------------


def by_pages(layers):
    """(pages in use, allocated, reserved) after each token, and after each way of letting go."""
    new, start, seen = states(1), now()[0], []
    cache = make("pages", layers, window=None, grow=True, tokens=512)

    def look():
        seen.append((cache.pool.used_count if cache.pool else 0, now()[0] - start, now()[1]))

    for _ in range(300):
        put(cache, new)
        look()
    grown = len(seen)
    cache.truncate(100)
    look()
    cache.rollback(60)
    look()
    cache.reset()
    look()
    return seen[:grown], seen[grown:], cache.held_bytes


def test_pages_that_grow_go_through_the_allocator():
    layers = 4
    page = layers * PAGE * LAYER_TOKEN
    growing, shrinking, held = in_child(by_pages, layers)
    assert [pages for pages, *_ in growing] == [t // PAGE + 1 for t in range(300)]
    assert all(allocated == pages * page for pages, allocated, _ in growing + shrinking)
    assert [pages for pages, *_ in shrinking] == [7, 3, 0] and held == 0  # tokens 200 … 299, then 200 … 239, then none
    reserved = [reserved for *_, reserved in growing]
    assert reserved == sorted(reserved) and reserved[0] < reserved[-1]
    assert {reserved for *_, reserved in shrinking} == {reserved[-1]}  # what is let go of stays reserved


# -- running out ----------------------------------------------------------------------------------------------------


def too_large(tokens, taken, grow):
    """Tokens until memory runs out on a device of 1,000 MiB of which some are taken: what was said, what is left.

    They are written and not read, as by an attached model: reading would need memory outside of the pages.
    """
    import torch

    import kvviz

    other = torch.empty(taken * MIB, dtype=torch.uint8, device="cuda")
    new, cache = states(64), make("pages", window=None, tokens=tokens, grow=grow)
    before, stored, said = now()[0], 0, ""
    try:
        while stored < tokens:
            full, held = now()[0], cache.held_bytes
            write(cache, new)
            stored += 64
    except kvviz.OutOfMemory as error:
        said = str(error)
    unchanged = (cache.length, cache.held_bytes, now()[0]) == (stored, held, full)
    cache.check()
    del other
    write(cache, new) if taken else None  # there is room now
    cache.free()
    return said, stored, unchanged, now()[0] - before + taken * MIB


@pytest.mark.parametrize(("taken", "asked"), [(0, 1100), (400, 700)])
def test_a_pool_that_does_not_fit_leaves_nothing_behind(taken, asked):
    tokens = asked * MIB // TOKEN
    said, stored, unchanged, left = in_child(too_large, tokens, taken, False, STUBCUDA_TOTAL_MIB=1000)
    pool = -(-tokens // PAGE) * PAGE * TOKEN
    assert f"{pool:,} bytes" in said and stored == 0 and unchanged and left == 0


def test_a_page_that_does_not_fit_leaves_all_as_it_was():
    tokens = 300 * MIB // TOKEN
    said, stored, unchanged, left = in_child(too_large, tokens, 800, True, STUBCUDA_TOTAL_MIB=1000)
    assert "a page of 737,280 bytes" in said and unchanged and left == 0
    assert 190 < stored * TOKEN // MIB <= 200


# -- giving back ----------------------------------------------------------------------------------------------------


def forks():
    """Allocated bytes beyond the start: a cache, a fork of it, both with tokens of their own, one freed, both freed."""
    import torch

    new, start = states(40), now()
    cache = make("pages", window=None, tokens=4096)
    put(cache, new)
    seen = [now()[0]]
    other = cache.fork()
    seen.append(now()[0])
    for one in (cache, other):  # into a page that both have
        put(one, new[:, :, :3])
    seen.append(now()[0])
    assert cache.pool is other.pool and cache.held_bytes == other.held_bytes
    cache.check()
    cache.free()
    seen.append(now()[0])
    put(other, new)
    other.check()
    other.free()
    seen.append(now()[0])
    torch.cuda.empty_cache()
    return [allocated - start[0] for allocated in seen], now()[1] - start[1]


def test_forks_share_a_pool_and_the_last_one_gives_it_back():
    allocated, reserved = in_child(forks)
    pool = 4096 * TOKEN
    assert allocated[:2] == [pool] * 2
    assert pool < allocated[2] <= pool + LIST + GATHER  # the pages of one of them do not lie in a row any more
    assert allocated[3] >= pool and allocated[4] == 0
    assert reserved == 0
