"""The contiguous caches: what they give back, what they hold, and that a wrong call changes nothing."""

import random

import pytest
import torch

from kvviz import InvalidRequest, record
from kvviz.cache.contiguous import ConcatCache, RingCache, ShiftingCache, SliceCache
from kvviz.errors import CorruptCache, SequenceFreed
from kvviz.memory.trace import Action

MIB = 1 << 20
BATCH, HEADS, DIM = 2, 2, 3

WINDOWED = {
    "shifting": ShiftingCache,
    "ring": RingCache,
    "slice": SliceCache,
    "clone": lambda *args, **kwargs: SliceCache(*args, clone=True, **kwargs),
}
KINDS = ["concat", *WINDOWED]
windowed = pytest.mark.parametrize("kind", WINDOWED)
every = pytest.mark.parametrize("kind", KINDS)


def make(kind: str, layers: int = 1, window: int = 8, **kwargs):
    """A cache of any kind; a window of 8 is more than the tests without one in mind put in."""
    kwargs = {"kv_heads": HEADS, "head_dim": DIM, "batch": BATCH} | kwargs
    if kind == "concat":
        return ConcatCache(layers, **kwargs)
    return WINDOWED[kind](layers, window=window, **kwargs)


def tensors(ids, layer: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values in which batch, head, layer and number can be told apart; values are not keys."""
    numbers = torch.tensor(list(ids), dtype=torch.float32).view(1, 1, -1, 1) + 1000 * layer
    place = torch.arange(BATCH * HEADS * DIM).view(BATCH, HEADS, 1, DIM) / 64
    return numbers + place, -(numbers + place)


def ids_of(pair, layer: int = 0) -> list[int]:
    """Which tokens these are; every number in them is looked at."""
    keys, values = pair
    ids = [round(x) for x in (keys[0, 0, :, 0] - 1000 * layer).tolist()]
    for found, wanted in zip((keys, values), tensors(ids, layer)):
        assert found.shape == wanted.shape and torch.equal(found, wanted)
    return ids


def filled(kind: str, *ids: int, **kwargs):
    cache = make(kind, **kwargs)
    for layer in range(cache.spec.layers):
        cache.append(layer, *tensors(ids, layer))
    return cache


def state(cache) -> tuple:
    layers = range(cache.spec.layers)
    return (
        cache.length, cache.seen, cache.logical_bytes, cache.held_bytes, cache.spec.dtype,
        [[t.tolist() for t in cache.get_all(layer)] for layer in layers],
    )  # fmt: skip


# -- growing, cropping, sliding ------------------------------------------------------------------------------------


@every
def test_remove_the_newest(kind):
    cache = filled(kind, 0, 1, 2)
    cache.rollback(1)
    assert ids_of(cache.get_all(0)) == [0, 1] and (cache.length, cache.seen) == (2, 2)
    before = state(cache)
    with pytest.raises(InvalidRequest, match=r"newest 5 tokens: 2 are stored, of 2 seen"):
        cache.rollback(5)
    assert state(cache) == before
    cache.rollback(0)
    assert state(cache) == before
    cache.rollback(2)
    assert ids_of(cache.get_all(0)) == [] and (cache.length, cache.seen) == (0, 0)
    cache.check()


@every
@pytest.mark.parametrize(("keep", "left"), [(0, []), (1, [2]), (2, [1, 2]), (3, [0, 1, 2]), (5, [0, 1, 2])])
def test_keep_the_most_recent(kind, keep, left):
    cache = filled(kind, 0, 1, 2)
    cache.truncate(keep)
    assert ids_of(cache.get_all(0)) == left and (cache.length, cache.seen) == (len(left), 3)
    assert ids_of(cache.append(0, *tensors([3]))) == [*left, 3]
    cache.check()


@every
def test_reset_then_two(kind):
    cache = filled(kind, 0, 1, 2)
    cache.reset()
    assert (cache.length, cache.seen, cache.logical_bytes) == (0, 0, 0)
    assert (cache.held_bytes == 0) == (kind not in ("shifting", "ring"))  # buffers of a fixed size stay
    assert ids_of(cache.append(0, *tensors([7, 8]))) == [7, 8] == ids_of(cache.get_all(0))
    assert (cache.length, cache.seen) == (2, 2)


@windowed
@pytest.mark.parametrize("before", [0, 1, 2, 3, 4, 9])
@pytest.mark.parametrize("new", [1, 2, 3, 4, 5, 11])
def test_what_the_new_queries_may_read(kind, before, new):
    """With W = 3 the first new query sees two old keys; all new ones follow, also where only three are stored."""
    cache = filled(kind, *range(before), window=3)
    read = ids_of(cache.append(0, *tensors(range(before, before + new))))
    assert read == list(range(max(0, before - 2), before + new))
    assert ids_of(cache.get_all(0)) == list(range(before + new))[-3:]
    assert (cache.length, cache.seen) == (min(3, before + new), before + new)


def test_a_slice_keeps_the_whole_storage():
    """100 tokens of 2 heads × 4 numbers of 4 bytes, cropped to 10: 320 B are needed, 3,200 B are held."""
    hundred = torch.rand(1, 2, 100, 4)
    concat = ConcatCache(1, 2, 4)
    concat.append(0, hundred, hundred)
    concat.truncate(10)
    sliced = SliceCache(1, 2, 4, window=10)
    sliced.append(0, hundred, hundred)
    cloned = SliceCache(1, 2, 4, window=10, clone=True)
    cloned.append(0, hundred, hundred)
    cropped = SliceCache(1, 2, 4, window=100, clone=True)
    cropped.append(0, hundred, hundred)
    cropped.truncate(10)
    for cache, held in ((concat, 3200), (sliced, 3200), (cloned, 320), (cropped, 320)):
        for rows in cache.get_all(0):
            assert rows.numel() * rows.element_size() == 320 and rows.untyped_storage().nbytes() == held
            assert torch.equal(rows, hundred[:, :, -10:])
        assert (cache.logical_bytes, cache.held_bytes) == (640, 2 * held)


def test_a_sliced_cache_holds_one_token_more_than_a_cloned_one():
    sliced, cloned = (filled(kind, *range(20), window=8) for kind in ("slice", "clone"))
    for cache in (sliced, cloned):
        cache.append(0, *tensors([20]))
    row = sliced.spec.token_bytes * BATCH
    assert (sliced.logical_bytes, sliced.held_bytes) == (8 * row, 9 * row)
    assert (cloned.logical_bytes, cloned.held_bytes) == (8 * row, 8 * row)


def test_a_hybrid_model():
    """24 layers of 8 heads × 64 in bf16 at 4,096 tokens, 12 of them with a window: shapes only, on the meta device."""
    tokens = torch.empty(1, 8, 4096, 64, dtype=torch.bfloat16, device="meta")

    def mib(cache) -> float:
        for layer in range(cache.spec.layers):
            cache.append(layer, tokens, tokens)
        return cache.held_bytes / MIB

    full, half = mib(ConcatCache(24, 8, 64)), mib(ConcatCache(12, 8, 64))
    assert full == 192 and half + mib(RingCache(12, 8, 64, window=256)) == 102
    assert half + mib(RingCache(12, 8, 64, window=128)) == half + mib(SliceCache(12, 8, 64, 128, clone=True)) == 99
    assert half + mib(SliceCache(12, 8, 64, 128)) == 192


# -- memory, measured ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "live"), [(1, 3), (63, 127), (1024, 2049)])
def test_concatenation_has_2n_plus_1_rows_live(n, live):
    """A row is 2 heads × 64 numbers × 4 bytes = 512 bytes, the allocator's own unit: sizes are exact."""
    cache, old, new = ConcatCache(1, 2, 64), torch.rand(1, 2, n, 64), torch.rand(1, 2, 1, 64)
    cache.append(0, old, old)
    assert cache.held_bytes == n * 2 * 512
    with record("cpu") as run:
        cache.append(0, new, new)
    trace = run.trace
    others = trace.at(0).allocated - n * 2 * 512  # what else is alive here
    assert trace.peak_allocated - others == live * 2 * 512
    assert trace.at(-1).allocated - others == (n + 1) * 2 * 512 == cache.held_bytes
    made = trace.events.requested[trace.events.action == Action.ALLOC]
    assert made.tolist() == [(n + 1) * 512] * 2


def test_cloning_has_three_windows_live():
    cache, window, new = make("clone", window=64, kv_heads=2, head_dim=64, batch=1), torch.rand(1, 2, 64, 64), None
    cache.append(0, window, window)
    new = torch.rand(1, 2, 1, 64)
    with record("cpu") as run:
        cache.append(0, new, new)
    start = run.trace.at(0).allocated
    assert run.trace.peak_allocated - start == (65 + 64) * 2 * 512 and run.trace.at(-1).allocated == start


@pytest.mark.parametrize("window", [8, 40])  # the larger one moves by way of the spare
def test_a_shift_allocates_nothing(window):
    cache = filled("shifting", 0, layers=3, window=window)
    held, places = cache.held_bytes, {t.untyped_storage().data_ptr() for t in cache._tensors()}
    row = cache.spec.token_bytes * BATCH
    assert held == window * row + window // 16 * row // 6  # the spare: keys or values of one layer, for all
    steps = [[tensors([n], layer) for layer in range(3)] for n in range(1, window + 9)]
    with record("cpu") as run:
        for step in steps:
            for layer, pair in enumerate(step):
                cache.append(layer, *pair)
    assert Action.ALLOC not in run.trace.events.action
    cache.truncate(3)
    cache.reset()
    cache.append(0, *tensors(range(2 * window)))
    assert cache.held_bytes == held and {t.untyped_storage().data_ptr() for t in cache._tensors()} == places
    cache.free()
    assert cache.held_bytes == 0


def test_a_ring_keeps_nothing_new():
    """Reading in order takes a copy once the circle has closed; it goes with the reader."""
    cache = filled("ring", 0, layers=3)
    held, places = cache.held_bytes, {t.untyped_storage().data_ptr() for t in cache._tensors()}
    assert held == 8 * cache.spec.token_bytes * BATCH
    steps = [[tensors([n], layer) for layer in range(3)] for n in range(1, 30)]
    closed = 7  # the first seven of these steps fill the buffer
    with record("cpu") as run:
        for n, step in enumerate(steps):
            if n == closed:
                run.mark("the circle is closed")
            for layer, pair in enumerate(step):
                cache.append(layer, *pair)
    trace = run.trace
    assert Action.ALLOC not in trace.events.action[: trace.marks[0].event]
    assert trace.peak_allocated - trace.at(0).allocated == 2 * 512  # keys and values of one layer, rounded up
    assert trace.at(-1).allocated == trace.at(0).allocated
    assert cache.held_bytes == held and {t.untyped_storage().data_ptr() for t in cache._tensors()} == places


def test_a_shift_never_copies_onto_itself():
    """One head, one sequence: rows without a gap, where PyTorch itself refuses a copy between places that overlap."""
    cache = ShiftingCache(1, 1, 4, window=40)
    for n in range(100):
        cache.append(0, *(torch.full((1, 1, 1 + n % 3, 4), x) for x in (float(n), -float(n))))
    keys, values = cache.get_all(0)
    assert keys[0, 0, :, 0].tolist() == [float(n) for n in range(100) for _ in range(1 + n % 3)][-40:]
    assert torch.equal(values, -keys)


@pytest.mark.parametrize("kind", ["shifting", "ring"])
def test_the_first_append_takes_the_buffers_of_all_layers(kind):
    cache = make(kind, layers=5, dtype=torch.float32)
    assert cache.held_bytes == 0
    cache.append(3, *tensors([0]))
    assert cache.held_bytes == 8 * cache.spec.token_bytes * BATCH


@every
def test_a_recording_knows_whose_memory_it_is(kind):
    cache = make(kind, layers=2)
    with record("cpu") as run:
        run.own(cache, "mine")
        for n in range(12):
            for layer in range(2):
                cache.append(layer, *tensors([n], layer))
            run.mark(f"{cache.held_bytes}")
    owner = list(run.trace.owners).index("mine")
    for mark in run.trace.marks:
        blocks = run.trace.at(mark.event).blocks
        assert blocks["requested"][blocks["owner"] == owner].sum() == int(mark.name)
    assert len(run.trace.marks) == 12 and int(run.trace.marks[-1].name) >= cache.logical_bytes > 0


@every
def test_free_drops_everything(kind):
    cache = filled(kind, 0, 1, 2)
    cache.free()
    assert (cache.held_bytes, cache.logical_bytes, cache.length) == (0, 0, 0)
    for call in (
        lambda: cache.append(0, *tensors([3])),
        lambda: cache.append(0, *tensors([])),
        lambda: cache.get_all(0),
        lambda: cache.truncate(1),
        lambda: cache.rollback(0),
        lambda: cache.reset(),
    ):
        with pytest.raises(SequenceFreed, match=f"this {type(cache).__name__} was freed"):
            call()
    cache.free()
    cache.check()


# -- against a plain list --------------------------------------------------------------------------------------------


class Lists:
    """The same cache, of lists of token numbers."""

    def __init__(self, layers: int, window: int):
        self.window, self.stored, self.seen = window, [[] for _ in range(layers)], 0

    def append(self, layer: int, new: list[int]) -> list[int]:
        old = self.stored[layer]
        self.stored[layer] = (old + new)[-self.window :]
        return old[max(0, len(old) - self.window + 1) :] + new

    def truncate(self, keep: int) -> None:
        self.stored = [old[max(0, len(old) - keep) :] for old in self.stored]

    def rollback(self, n: int, lacking: list[int] = (), step: int = 0) -> None:
        drop = [n - step if layer in lacking else n for layer in range(len(self.stored))]
        self.stored = [old[: max(0, len(old) - d)] for old, d in zip(self.stored, drop)]
        self.truncate(min(map(len, self.stored)))  # what one layer has let go is gone for all
        self.seen -= n


def program(kind: str, window: int, seed: int) -> None:
    rng = random.Random(f"{kind} {window} {seed}")
    layers = rng.randint(1, 3)
    cache, lists = make(kind, layers, window), Lists(layers, window if kind != "concat" else 10**9)
    most = rng.choice([2, 7])
    for _ in range(30):
        order = rng.sample(range(layers), layers)
        match rng.choice(
            ["step"] * 8 + ["broken"] * 2 + ["truncate", "rollback", "rollback", "too far", "reset", "none"]
        ):
            case "step":
                new = list(range(lists.seen, lists.seen + rng.randint(1, most)))
                for layer in order:
                    assert ids_of(cache.append(layer, *tensors(new, layer)), layer) == lists.append(layer, new)
                    cache.check()
                lists.seen += len(new)
            case "broken" if layers > 1:
                new = list(range(lists.seen, lists.seen + rng.randint(1, most)))
                done = rng.randint(1, layers - 1)
                for layer in order[:done]:
                    assert ids_of(cache.append(layer, *tensors(new, layer)), layer) == lists.append(layer, new)
                lists.seen += len(new)
                length = len(lists.stored[order[0]])
                assert (cache.length, cache.seen) == (length, lists.seen)
                cache.check()
                n = rng.randint(len(new), max(len(new), length))
                cache.rollback(n)
                lists.rollback(n, order[done:], len(new))
            case "truncate":
                keep = rng.randint(0, 9)
                cache.truncate(keep)
                lists.truncate(keep)
            case "rollback":
                n = rng.randint(0, min(cache.length, 4))
                cache.rollback(n)
                lists.rollback(n)
            case "too far":
                with pytest.raises(InvalidRequest):
                    cache.rollback(cache.length + rng.randint(1, 5))
            case "reset" if rng.random() < 0.5:
                cache.reset()
                lists = Lists(layers, lists.window)
            case "none":
                layer = order[0]
                assert ids_of(cache.append(layer, *tensors([], layer)), layer) == lists.stored[layer]
        cache.check()
        assert (cache.length, cache.seen) == (len(lists.stored[0]), lists.seen)
        assert cache.logical_bytes == 2 * layers * HEADS * DIM * 4 * BATCH * cache.length <= cache.held_bytes
        for layer in range(layers):
            assert ids_of(cache.get_all(layer), layer) == lists.stored[layer]


@windowed
@pytest.mark.parametrize("window", [1, 2, 3, 5, 8, 19, 50])
def test_random_programs(kind, window):
    for seed in range(12):
        program(kind, window, seed)


def test_random_programs_without_a_window():
    for seed in range(40):
        program("concat", 0, seed)


# -- attention -------------------------------------------------------------------------------------------------------


def attend(queries, keys, values, first: int, window: int) -> torch.Tensor:
    """Plain attention; `first` is the place of the first query among the keys. A query sees its last `window` keys."""
    place = torch.arange(first, first + queries.shape[2]).view(-1, 1)
    key = torch.arange(keys.shape[2])
    seen = (key <= place) & (key > place - window)
    scores = (queries @ keys.transpose(2, 3)).masked_fill(~seen, float("-inf"))
    return scores.softmax(dim=3) @ values


@every
@pytest.mark.parametrize("window", [1, 2, 5, 8, 33])
@pytest.mark.parametrize("chunks", [[30] + [1] * 12, [3] + [1] * 12, [4, 4, 11, 1, 1, 7, 2], [5, 5, 5], [1, 40]])
def test_attention_over_what_append_returns(kind, window, chunks):
    layers, total = 2, sum(chunks)
    torch.manual_seed(total)
    q, k, v = torch.rand(3, layers, BATCH, HEADS, total, DIM, dtype=torch.float64)
    cache = make(kind, layers, window)
    at = 0
    for n in chunks:
        for layer in range(layers):
            new = slice(at, at + n)
            keys, values = cache.append(layer, k[layer, :, :, new], v[layer, :, :, new])
            found = attend(q[layer, :, :, new], keys, values, keys.shape[2] - n, window)
            wanted = attend(q[layer, :, :, new], k[layer], v[layer], at, window)
            torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
        at += n


# -- steps -------------------------------------------------------------------------------------------------------------


@every
def test_layers_move_in_step(kind):
    cache = filled(kind, 0, layers=3)
    cache.append(1, *tensors([1, 2], 1))
    assert (cache.length, cache.seen) == (3, 3)
    assert ids_of(cache.get_all(1), 1) == [0, 1, 2] and ids_of(cache.get_all(0)) == [0]
    before = state(cache)
    with pytest.raises(InvalidRequest, match=r"layer 1 already has the 2 tokens of this step, layer 0 still lacks"):
        cache.append(1, *tensors([3, 4], 1))
    with pytest.raises(InvalidRequest, match="layer 2 gets 1 tokens in a step of 2"):
        cache.append(2, *tensors([1], 2))
    with pytest.raises(InvalidRequest, match="layer 0 still lacks its 2 tokens"):
        cache.truncate(1)
    with pytest.raises(InvalidRequest, match="cannot drop 1 of the 2 tokens of a step that layer 0 still lacks"):
        cache.rollback(1)
    assert ids_of(cache.append(0, *tensors([]))) == [0]
    assert state(cache) == before
    cache.append(0, *tensors([1, 2], 0))
    with pytest.raises(InvalidRequest, match="layer 2 still lacks"):
        cache.append(0, *tensors([3, 4]))
    cache.append(2, *tensors([1, 2], 2))
    cache.append(2, *tensors([3], 2))  # the next step, of another size
    assert (cache.length, cache.seen) == (4, 4)
    cache.check()


@every
@pytest.mark.parametrize("reached", [1, 2])
def test_rollback_mends_an_interrupted_forward(kind, reached):
    cache = filled(kind, 0, 1, 2, layers=3, window=5)
    before = state(cache)
    for layer in range(reached):
        cache.append(layer, *tensors([3, 4], layer))
    cache.rollback(2)
    assert state(cache)[:3] == before[:3] and state(cache)[5] == before[5]
    for layer in range(3):
        assert ids_of(cache.append(layer, *tensors([3, 4], layer)), layer) == [0, 1, 2, 3, 4]
    cache.append(0, *tensors([5]))
    cache.rollback(3)  # the open step, and two tokens before it
    window = kind != "concat"  # its first layer has let go of token 0, so it is gone for all
    for layer in range(3):
        assert ids_of(cache.get_all(layer), layer) == ([1, 2] if window else [0, 1, 2])
    assert cache.seen == 3
    cache.check()


@windowed
def test_an_interrupted_prefill_longer_than_the_window(kind):
    cache = make(kind, layers=2, window=4)
    cache.append(0, *tensors(range(9)))
    with pytest.raises(InvalidRequest, match="newest 10 tokens: 4 are stored, of 9 seen"):
        cache.rollback(10)
    cache.rollback(9)
    assert (cache.length, cache.seen) == (0, 0)
    for layer in range(2):
        assert ids_of(cache.append(layer, *tensors(range(9), layer)), layer) == list(range(9))
    before = state(cache)
    with pytest.raises(InvalidRequest, match="newest 5 tokens: 4 are stored, of 9 seen"):
        cache.rollback(5)  # the step is complete now
    assert state(cache) == before


@every
def test_reset_within_a_step(kind):
    cache = make(kind, layers=2)
    cache.append(0, *tensors([0, 1]))
    cache.reset()
    assert (cache.length, cache.seen) == (0, 0)
    assert ids_of(cache.append(0, *tensors([5]))) == [5]
    assert ids_of(cache.append(1, *tensors([5], 1)), 1) == [5]
    cache.check()


# -- what goes in and comes out ----------------------------------------------------------------------------------------


@every
def test_the_callers_tensors_stay_his(kind):
    """Neither kept alive nor looked at again, and not written to."""
    cache = make(kind, window=3)
    for ids in ([0, 1], [2], [3], [4, 5, 6, 7]):
        keys, values = tensors(ids)
        cache.append(0, keys, values)
        assert ids_of((keys, values)) == ids
        keys.zero_(), values.zero_()
    assert ids_of(cache.get_all(0)) == list(range(8))[-3 if kind != "concat" else 0 :]


@every
def test_its_own_tokens_may_go_in_again(kind):
    """The last two of three, after a reset: a truncation by hand. What get_all gave are views of the buffers."""
    cache = filled(kind, 0, 1, 2, window=4)
    for _ in range(3):
        keys, values = (rows[:, :, -2:] for rows in cache.get_all(0))
        cache.reset()
        assert ids_of(cache.append(0, keys, values)) == [1, 2]
        assert ids_of(cache.append(0, *cache.get_all(0))) == [1, 2, 1, 2]
        assert ids_of(cache.append(0, *(rows[:, :, :3] for rows in cache.get_all(0)))) in (
            [2, 1, 2, 1, 2, 1],  # with a window, three old ones and the new ones
            [1, 2, 1, 2, 1, 2, 1],
        )
        assert ids_of(cache.get_all(0))[-4:] == [2, 1, 2, 1]
        cache.append(0, *tensors([2]))  # once more from the other places in the buffers


@every
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_dtype_and_device_come_from_the_first_tensors(kind, dtype):
    cache = make(kind)
    assert [t.dtype for t in cache.get_all(0)] == [torch.float32] * 2 and cache.get_all(0)[0].shape[2] == 0
    cache.append(0, *(t.to(dtype) for t in tensors([0, 1])))
    assert cache.spec.dtype == dtype and {t.dtype for t in cache.get_all(0)} == {dtype}
    assert cache.logical_bytes == 2 * 2 * HEADS * DIM * dtype.itemsize * BATCH
    cache.truncate(0)
    assert cache.get_all(0)[0].dtype == dtype
    cache.check()


@every
def test_inference_mode_comes_and_goes(kind):
    cache = make(kind, window=2)
    for n, inference in enumerate([True, False, True, False, False]):
        with torch.inference_mode(inference):
            cache.append(0, *tensors([n]))
    assert ids_of(cache.get_all(0))[-2:] == [3, 4]


@every
def test_no_graph_grows(kind):
    cache = make(kind, window=2)
    for n in range(4):
        read = cache.append(0, *(t.requires_grad_() for t in tensors([n])))
        assert not any(t.requires_grad for t in (*read, *cache.get_all(0)))


@every
def test_heads_and_tokens_may_be_swapped_in_memory(kind):
    """As models make them: [batch, tokens, heads, head_dim], transposed."""
    cache = make(kind, window=3)
    for ids in ([0, 1], [2, 3]):
        read = cache.append(0, *(t.transpose(1, 2).contiguous().transpose(1, 2) for t in tensors(ids)))
    assert ids_of(read) == [0, 1, 2, 3]


# -- misuse --------------------------------------------------------------------------------------------------------------

KEYS, VALUES = tensors([3, 4])
WRONG = {
    "three dimensions": (lambda c: c.append(0, KEYS[0], VALUES[0]), r"= \[2, 2, tokens, 3\], got \[2, 2, 3\]"),
    "another batch": (lambda c: c.append(0, KEYS[:1], VALUES[:1]), r"got \[1, 2, 2, 3\]"),
    "another head count": (lambda c: c.append(0, KEYS[:, :1], VALUES[:, :1]), r"got \[2, 1, 2, 3\]"),
    "another head size": (lambda c: c.append(0, KEYS[..., :2], VALUES[..., :2]), r"got \[2, 2, 2, 2\]"),
    "more keys than values": (lambda c: c.append(0, KEYS, VALUES[:, :, :1]), "keys bring 2 tokens, values 1"),
    "mixed dtypes": (lambda c: c.append(0, KEYS, VALUES.half()), "keys are torch.float32, values torch.float16"),
    "another dtype": (lambda c: c.append(0, KEYS.half(), VALUES.half()), "holds torch.float32, got torch.float16"),
    "integers": (lambda c: c.append(0, KEYS.long(), VALUES.long()), "floating-point"),
    "another device": (lambda c: c.append(0, KEYS.to("meta"), VALUES.to("meta")), "on cpu, got tensors on meta"),
    "no tensors": (lambda c: c.append(0, [1], [2]), "keys must be a tensor, got list"),
    "layer too high": (lambda c: c.append(2, KEYS, VALUES), "layer must be 0 … 1, got 2"),
    "layer below 0": (lambda c: c.append(-1, KEYS, VALUES), "layer must be 0 … 1, got -1"),
    "layer of get_all": (lambda c: c.get_all(2), "layer must be 0 … 1, got 2"),
    "layer no number": (lambda c: c.get_all("0"), "got '0'"),
    "truncate below 0": (lambda c: c.truncate(-1), "keep must be a whole number from 0 up, got -1"),
    "truncate to a half": (lambda c: c.truncate(1.5), "got 1.5"),
    "rollback below 0": (lambda c: c.rollback(-1), "n must be a whole number from 0 up, got -1"),
    "rollback too far": (lambda c: c.rollback(4), "newest 4 tokens: 3 are stored"),
}


@every
@pytest.mark.parametrize(("call", "says"), WRONG.values(), ids=WRONG)
def test_a_wrong_call_changes_nothing(kind, call, says):
    cache = filled(kind, 0, 1, 2, layers=2)
    before = state(cache)
    with pytest.raises(InvalidRequest, match=says):
        call(cache)
    assert state(cache) == before
    cache.check()
    for layer in range(2):
        assert ids_of(cache.append(layer, *tensors([3], layer)), layer) == [0, 1, 2, 3]


@every
def test_a_wrong_first_call_fixes_nothing(kind):
    cache = make(kind)
    with pytest.raises(InvalidRequest):
        cache.append(0, KEYS.half(), VALUES)
    assert cache.spec.dtype is None and cache.held_bytes == 0
    assert ids_of(cache.append(0, *tensors([0]))) == [0]


@windowed
@pytest.mark.parametrize("window", [0, -1, 1.5, None, True, "8"])
def test_windows_that_are_none(kind, window):
    with pytest.raises(InvalidRequest, match=f"window must be a whole number from 1 up, got {window!r}"):
        make(kind, window=window)


@every
@pytest.mark.parametrize("name", ["layers", "kv_heads", "head_dim", "batch"])
def test_counts_that_are_none(kind, name):
    with pytest.raises(InvalidRequest, match=f"{name} must be a whole number from 1 up, got 0"):
        make(kind, **{name: 0})


DAMAGE = {
    "length": lambda c: c._lengths.__setitem__(1, 2),
    "more than seen": lambda c: setattr(c, "_seen", 2),
    "an open step that nobody lacks": lambda c: setattr(c, "_step", 1),
    "dtype": lambda c: setattr(c.spec, "dtype", torch.float16),
}


@every
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_check_finds_damage(kind, damage):
    cache = filled(kind, 0, 1, 2, layers=2)
    cache.check()
    damage(cache)
    with pytest.raises(CorruptCache):
        cache.check()


def test_check_finds_damage_to_rows_and_buffers():
    concat, sliced, shifting, ring, lost = (filled(k, 0, 1, 2) for k in ("concat", "slice", "shifting", "ring", "ring"))
    concat._rows[0] = concat._rows[0][0], concat._rows[0][1][:, :, :2]
    sliced._rows[0] = None
    shifting._starts[0] = 6
    ring._starts[0] = 8
    lost._buffers = []
    says = [
        "3 keys and 2 values for 3",
        "0 keys",
        "3 tokens from slot 6 in 8",
        "slot 8 of 8",
        r"3 tokens in buffers of \[\]",
    ]
    for cache, text in zip((concat, sliced, shifting, ring, lost), says):
        with pytest.raises(CorruptCache, match=text):
            cache.check()
