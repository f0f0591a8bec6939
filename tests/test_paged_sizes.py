"""What pages hold, to the byte, for models whose layers slide or do not: tensors without memory, so any size is quick.

The model is gpt-oss's kind: 24 layers, every other one with a window of 128 tokens, 8 KV heads of 64, bf16.
"""

from types import SimpleNamespace

import pytest
import torch
from transformers import DynamicCache, GptOssConfig

import kvviz
from kvviz.errors import PoolExhausted

MIB = 1 << 20
LAYERS, HEADS, DIM, WINDOW = 24, 8, 64, 128
LAYER_TOKEN = 2 * HEADS * DIM * 2  # bytes
HALF = LAYERS // 2  # layers of each type
FULL, HYBRID = ["full_attention"] * LAYERS, ["sliding_attention", "full_attention"] * HALF


def model(kinds=HYBRID):
    """All that paged_cache looks at."""
    config = GptOssConfig(
        num_hidden_layers=LAYERS, num_key_value_heads=HEADS, head_dim=DIM, sliding_window=WINDOW, layer_types=kinds
    )
    return SimpleNamespace(config=config)


def put(cache, tokens, at_once=None, device="meta", batch=1):
    """That many tokens, in steps of `at_once`."""
    for start in range(0, tokens, at_once or tokens):
        step = min(at_once or tokens, tokens - start)
        new = torch.zeros(batch, HEADS, step, DIM, dtype=torch.bfloat16, device=device)
        for layer in range(LAYERS):
            cache.update(new, new, layer)
    return cache


def bytes_of(full, window):
    """Of so many slots in the layers of each type."""
    return HALF * LAYER_TOKEN * (full + window)


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_full_history_of_4096_tokens_is_192_mib(device):
    cache = put(kvviz.paged_cache(model(FULL), tokens=4096), 4096, device=device)
    assert cache.held_bytes == cache.logical_bytes == 192 * MIB
    others = put(DynamicCache(), 4096, device=device).layers
    assert sum(layer.keys.nbytes + layer.values.nbytes for layer in others) == 192 * MIB


@pytest.mark.parametrize("device", ["meta", "cpu"])
@pytest.mark.parametrize(
    ("page_size", "pages", "held"),
    [  # pages of a window: those that 127 tokens lie in at most, and one to write into
        (1, 128, 99 * MIB),
        (16, 9, 99.375 * MIB),
        (100, 3, None),  # of the full layers' pages the last one is not full
        (127, 2, None),
        (128, 2, 102 * MIB),
        (256, 2, 108 * MIB),
    ],
)
def test_windows_hold_their_pages_and_no_more(page_size, pages, held, device):
    cache = put(kvviz.paged_cache(model(), page_size, tokens=4096), 4096, device=device)
    slots = -(-4096 // page_size) * page_size
    assert cache.held_bytes == bytes_of(slots, pages * page_size)
    assert cache.held_bytes == held or held is None
    assert cache.logical_bytes == bytes_of(4096, WINDOW) == 99 * MIB
    assert [group.cache.pool.pages for group in cache.groups] == [pages, slots // page_size]
    # one page for each type of layer is the most that is held and not needed
    assert cache.held_bytes - cache.logical_bytes <= bytes_of(page_size, page_size)
    cache.check()


@pytest.mark.parametrize("tokens", [1, 16, 127, 128, 129, 144, 145, 4095])
def test_other_lengths(tokens):
    """A pool for fewer tokens than the window has no more pages than those."""
    cache = put(kvviz.paged_cache(model(), tokens=tokens), tokens)
    slots = -(-tokens // 16) * 16
    assert cache.held_bytes == bytes_of(slots, min(slots, 144))
    assert cache.logical_bytes == bytes_of(tokens, min(tokens, WINDOW))


@pytest.mark.parametrize("at_once", [1, 100, 400])
def test_in_steps_it_is_the_same_and_memory_to_gather_a_window_in(at_once):
    """Pages of a window that has moved on do not lie in a row: to read them takes room, once for all layers."""
    cache = put(kvviz.paged_cache(model(), tokens=400), 400, at_once)
    pools = bytes_of(400, 144)
    gather = cache.held_bytes - pools
    assert LAYER_TOKEN * 144 <= gather <= LAYER_TOKEN * (144 + 256) if at_once == 1 else gather == 0
    assert cache.logical_bytes == bytes_of(400, WINDOW)


def test_a_batch_holds_that_for_each_sequence():
    cache = put(kvviz.paged_cache(model(), tokens=4096), 4096, batch=3)
    assert cache.held_bytes == 3 * 99.375 * MIB


def test_the_very_bytes_are_enough_and_one_less_is_not():
    held = int(99.375 * MIB)
    cache = put(kvviz.paged_cache(model(), max_bytes=held), 4096, at_once=1024)
    assert cache.held_bytes == held
    tight = kvviz.paged_cache(model(), max_bytes=held - 1)
    with pytest.raises(PoolExhausted, match="max_bytes"):
        put(tight, 4096, at_once=1024)
    tight.check()
    assert tight.get_seq_length() == 3072


def test_131072_tokens():
    """The whole context of such a model: 3 GiB in the full layers, the windows as before."""
    cache = put(kvviz.paged_cache(model(), tokens=131072), 131072, at_once=16384)
    assert cache.held_bytes == bytes_of(131072, 144) == 3 * 1024 * MIB + 3.375 * MIB
    assert bytes_of(131072, 131072) == 6 * 1024 * MIB  # without windows
