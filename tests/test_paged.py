"""PagedKVCache: what goes into pages comes out of them, and a wrong call changes nothing.

The random programs compare with plain lists of token numbers; KVVIZ_FUZZ_PROGRAMS and KVVIZ_FUZZ_SEED as in test_pages.py.
"""

from __future__ import annotations

import random

import pytest
import torch

from kvviz import PagedKVCache, PageLog, PagePool
from kvviz.cache import store as stores
from kvviz.cache.capacity import USUAL_TOKENS, most_pages, pages_for
from kvviz.cache.pagelog import NULL, PageAction
from kvviz.cache.store import Loose, Slab
from kvviz.errors import CorruptCache, InvalidRequest, OutOfMemory, PoolExhausted, SequenceFreed
from tests.test_pages import FIRST_SEED, PROGRAMS, Lists, deep, foresee, in_use, together

HEADS, DIM = 2, 3
NAN = float("nan")
pytestmark = pytest.mark.usefixtures("one_thread")


def make(layers: int = 1, page_size: int = 4, **kwargs) -> PagedKVCache:
    return PagedKVCache(layers, HEADS, DIM, page_size, **kwargs)


def tensors(ids, layer: int = 0, batch: int = 1, dtype=torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values in which sequence, head, layer and number can be told apart; values are not keys."""
    numbers = torch.tensor(list(ids), dtype=torch.float32).view(1, 1, -1, 1) + 1000 * layer
    place = torch.arange(batch * HEADS * DIM).view(batch, HEADS, 1, DIM) / 64
    return (numbers + place).to(dtype), (-(numbers + place)).to(dtype)


def ids_of(pair, layer: int = 0) -> list[int]:
    """Which tokens these are; every number in them is looked at."""
    keys, values = pair
    ids = [round(x) for x in (keys[0, 0, :, 0] - 1000 * layer).tolist()]
    for found, wanted in zip((keys, values), tensors(ids, layer, keys.shape[0])):
        assert found.shape == wanted.shape and torch.equal(found, wanted)
    return ids


def put(cache: PagedKVCache, *ids: int) -> list[int]:
    """One step in all layers; what the queries of the last one may read."""
    for layer in range(cache.spec.layers):
        read = ids_of(cache.append(layer, *tensors(ids, layer, cache.spec.batch)), layer)
    return read


def filled(*ids: int, **kwargs) -> PagedKVCache:
    cache = make(**kwargs)
    put(cache, *ids)
    return cache


def contents(cache: PagedKVCache) -> list:
    """Every bit that is stored."""
    if cache._memory is None:
        return []
    store = cache._memory.store
    if isinstance(store, Slab):
        return [bits(slab) for slab in [*store.keys, *store.values]]
    used = [page for page in sorted(store.pages) if not cache.pool.is_free(page)]
    return [(page, [bits(tensor) for pair in store.pages[page] for tensor in pair]) for page in used]


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def state(cache: PagedKVCache) -> tuple:
    """All that an unsuccessful call must leave as it was."""
    step, store = cache._step, cache._memory and cache._memory.store
    return (
        deep(cache.pool) if cache.pool else None, contents(cache), [t.sequence for t in cache.tables], cache.length, cache.seen,
        cache.held_bytes, cache.cut, cache.past, vars(cache.spec).copy(), cache._freed,
        (step.tokens, sorted(step.missing)) if step else None, store.pages if isinstance(store, Slab) else None,
    )  # fmt: skip


def in_slab(cache: PagedKVCache, layer: int, keys: torch.Tensor, values: torch.Tensor) -> bool:
    """Do these lie in the pages themselves?"""
    store = cache._memory.store
    found = []
    for tensor, slab in ((keys, store.keys[layer]), (values, store.values[layer])):
        first, size = slab.data_ptr(), slab.numel() * slab.element_size()
        found.append(first <= tensor.data_ptr() < first + size)
        assert found[-1] == (tensor.untyped_storage().data_ptr() == slab.untyped_storage().data_ptr())
    assert found[0] == found[1]
    return found[0]


# -- growing, cropping, sliding ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grow", [False, True])
def test_remove_the_newest(grow):
    cache = filled(0, 1, 2, grow=grow)
    cache.rollback(1)
    assert ids_of(cache.get_all(0)) == [0, 1] and (cache.length, cache.seen) == (2, 2)
    before = state(cache)
    with pytest.raises(InvalidRequest, match="cannot roll back 5 tokens: 2 are stored"):
        cache.rollback(5)
    cache.rollback(0)
    assert state(cache) == before
    cache.rollback(2)
    assert ids_of(cache.get_all(0)) == [] and (cache.length, cache.seen, cache.pool.used_count) == (0, 0, 0)
    cache.check()


@pytest.mark.parametrize(("keep", "left"), [(0, []), (1, [2]), (2, [1, 2]), (3, [0, 1, 2]), (5, [0, 1, 2])])
@pytest.mark.parametrize("page_size", [1, 2, 4])
def test_keep_the_most_recent(keep, left, page_size):
    cache = filled(0, 1, 2, page_size=page_size)
    cache.truncate(keep)
    assert ids_of(cache.get_all(0)) == left and (cache.length, cache.seen) == (len(left), 3)
    assert cache.pool.used_count == pages_for(3 - len(left), 3, page_size)
    assert put(cache, 3) == [*left, 3]
    cache.check()


@pytest.mark.parametrize("grow", [False, True])
def test_reset_then_two(grow):
    cache = filled(0, 1, 2, grow=grow)
    held = cache.held_bytes
    cache.reset()
    assert (cache.length, cache.seen, cache.logical_bytes) == (0, 0, 0) and cache.held_bytes == (0 if grow else held)
    assert put(cache, 7, 8) == [7, 8] == ids_of(cache.get_all(0)) and (cache.length, cache.seen) == (2, 2)


@pytest.mark.parametrize(("n", "pages"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
@pytest.mark.parametrize("grow", [False, True])
def test_pages_of_n_tokens(n, pages, grow):
    cache = make(2, pages=3, grow=grow)
    put(cache, *range(n))
    assert cache.length == n and (cache.pool.used_count if cache.pool else 0) == pages
    assert cache.held_bytes == (pages if grow else 3 * (n > 0)) * 4 * cache.spec.token_bytes
    assert cache.logical_bytes == n * 2 * 2 * HEADS * DIM * 4


@pytest.mark.parametrize("window", [1, 2, 3, 4])
@pytest.mark.parametrize("before", [0, 1, 2, 3, 4, 9])
@pytest.mark.parametrize("new", [1, 2, 3, 4, 5, 11])
def test_what_the_new_queries_may_read(window, before, new):
    """A query sees its last W keys, its own included: up to W - 1 old tokens, then all new ones, stored or not."""
    for page_size in (1, 2, 4, 16):
        for grow in (False, True):
            cache = make(2, page_size, window=window, grow=grow, tokens=50)
            put(cache, *range(before))
            assert put(cache, *range(before, before + new)) == list(range(max(0, before - window + 1), before + new))
            for layer in range(2):
                assert ids_of(cache.get_all(layer), layer) == list(range(before + new))[-window:]
            assert (cache.length, cache.seen) == (min(window, before + new), before + new)
            cache.check()


@pytest.mark.parametrize(("done", "gone"), [(3, 0), (4, 0), (5, 1), (9, 3), (10, 3)])
def test_pages_that_slide_out(done, gone):
    """W = 4, two tokens a page: before the append that follows c tokens, the pages go that its query will not read."""
    cache = filled(*range(done), page_size=2, window=4)
    put(cache, done)
    assert cache.tables[0].pages[:gone] == [NULL] * gone and NULL not in cache.tables[0].pages[gone:]
    slid = cache.log.events.action == PageAction.SLIDE
    assert slid.sum() == gone - max(0, done - 4) // 2  # the others got no page in the first place


@pytest.mark.parametrize("grow", [False, True])
def test_batches_are_reordered_repeated_and_selected(grow):
    """A permutation of tables: data is copied only when a last page that several have is written."""
    cache = make(2, 2, batch=3, tokens=40, grow=grow)
    for layer in range(2):
        cache.append(layer, *tensors(range(5), layer, 3))
    rows = [[tensor[b].clone() for tensor in cache.get_all(1)] for b in range(3)]

    def which() -> list[int]:
        """For each sequence, whose tokens it has: the first five."""
        keys, values = (tensor[:, :, :5] for tensor in cache.get_all(1))
        same = [[torch.equal(k, a) and torch.equal(v, b) for a, b in rows] for k, v in zip(keys, values)]
        return [row.index(True) for row in same]

    written = contents(cache)
    cache.reorder([2, 0, 0])
    assert which() == [2, 0, 0] and cache.pool.used_count == 2 * 3
    assert grow or contents(cache) == written
    cache.select([0, 0, 1, 1, 2, 2])
    assert (
        which() == [2, 2, 0, 0, 0, 0] and cache.spec.batch == 6 == len(cache.tables) and cache.pool.used_count == 2 * 3
    )
    cache.check()
    for layer in range(2):
        cache.append(layer, *tensors([5], layer, 6))
    assert which() == [2, 2, 0, 0, 0, 0] and cache.pool.used_count == 2 * 2 + 6
    cache.select([5])
    assert which() == [0] and cache.pool.used_count == 3
    cache.check()
    for wrong in ([], [1], [-1], [0, 2]):
        before = state(cache)
        with pytest.raises(InvalidRequest, match=r"sequences are 0 … 0, got"):
            cache.select(wrong)
        assert state(cache) == before


def test_more_sequences_get_a_larger_pool(monkeypatch):
    """tokens= are of each sequence; what is there already moves along."""
    cache = filled(0, 1, 2, layers=2, tokens=8)
    cache.select([0, 0, 0])
    assert cache.pool.pages == 6 and ids_of_rows(cache) == [[0, 1, 2]] * 3
    for layer in range(2):
        cache.append(layer, *tensors([3, 4, 5, 6, 7], layer, 3))
    assert cache.pool.free_count == 0 and ids_of_rows(cache) == [[0, 1, 2, 3, 4, 5, 6, 7]] * 3
    cache.check()
    cache.select([1])
    assert cache.pool.pages == 6  # none goes
    before = state(cache)
    monkeypatch.setattr(stores, "refuse_more_than_memory", no_memory)
    with pytest.raises(OutOfMemory, match="no memory"):
        cache.select([0] * 8)
    assert state(cache) == before
    cache.check()


def no_memory(wanted: int, device: torch.device) -> None:
    raise OutOfMemory("no memory")


def test_copy_on_write():
    cache = filled(*range(6), pages=8, layers=2)
    child = cache.fork()
    assert put(child, 6) == [0, 1, 2, 3, 4, 5, 6] and put(cache, 7) == [0, 1, 2, 3, 4, 5, 7]
    pool = cache.pool
    assert (cache.tables[0].pages, child.tables[0].pages) == ([0, 1], [0, 2])
    assert [pool.references(page) for page in (0, 1, 2)] == [2, 1, 1]
    held = cache.held_bytes
    cache.free()
    assert (
        ids_of(child.get_all(1), 1) == [0, 1, 2, 3, 4, 5, 6] and child.held_bytes == held
    )  # the pool is whole or not at all
    child.free()
    assert pool.free_count == 8 and child.held_bytes == 0


# -- steps ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reached", [1, 2])
@pytest.mark.parametrize("grow", [False, True])
def test_rollback_mends_an_interrupted_forward(reached, grow):
    cache = filled(0, 1, 2, layers=3, grow=grow)
    for layer in range(reached):
        cache.append(layer, *tensors([3, 4], layer))
    assert [cache.seen_by(layer) for layer in range(3)] == [5] * reached + [3] * (3 - reached)
    with pytest.raises(InvalidRequest, match="roll back all 2 of it"):
        cache.rollback(1)
    cache.rollback(2)
    assert (cache.length, cache.seen) == (3, 3) and cache.tables[0].pages == [0] and cache.pool.used_count == 1
    for layer in range(3):
        assert ids_of(cache.get_all(layer), layer) == [0, 1, 2]
    assert put(cache, 3, 4) == [0, 1, 2, 3, 4]
    cache.append(0, *tensors([5]))
    cache.rollback(4)  # the open step, and three tokens before it
    for layer in range(3):
        assert ids_of(cache.get_all(layer), layer) == [0, 1]
    cache.check()


@pytest.mark.parametrize("grow", [False, True])
def test_an_interrupted_step_leaves_a_copied_page_whole(grow):
    """The first layer's append copied the shared page; the second layer's part of it must not be missing afterwards."""
    cache = filled(0, 1, 2, layers=2, grow=grow)
    child = cache.fork()
    child.append(0, *tensors([3]))
    child.rollback(1)
    for layer in range(2):
        assert ids_of(child.get_all(layer), layer) == [0, 1, 2] == ids_of(cache.get_all(layer), layer)
    assert put(child, 3) == [0, 1, 2, 3] and put(cache, 4) == [0, 1, 2, 4]
    child.check()


@pytest.mark.parametrize("grow", [False, True])
@pytest.mark.parametrize("page_size", [1, 2, 4, 16])
def test_an_interrupted_prefill_longer_than_the_window(grow, page_size):
    cache = make(2, page_size, window=4, grow=grow)
    for before in (0, 3):
        put(cache, *range(before))
        cache.append(0, *tensors(range(before, before + 9)))
        with pytest.raises(InvalidRequest, match=f"cannot roll back {before + 10} tokens: 4 are stored"):
            cache.rollback(before + 10)
        cache.rollback(9)
        # what the first layer let go of is gone for all
        assert (cache.length, cache.seen, cache.pool.used_count) == (0, before, 0)
        cache.check()
        read = put(cache, *range(before, before + 9))
        assert read == list(range(before, before + 9))
        with pytest.raises(InvalidRequest, match="cannot roll back 5 tokens: 4 are stored"):
            cache.rollback(5)  # the step is complete now
        cache.reset()


@pytest.mark.parametrize("what", ["free", "reset", "rollback", "truncate", "select"])
@pytest.mark.parametrize("grow", [False, True])
def test_a_fork_lets_go_while_another_is_within_a_step(what, grow):
    """The page that the step copies has no other owner any more when its second layer comes."""
    cache = filled(0, 1, 2, layers=2, grow=grow)
    child = cache.fork()
    child.append(0, *tensors([3]))
    getattr(cache, what)(*{"rollback": [2], "truncate": [0], "select": [[0]]}.get(what, []))
    assert ids_of(child.append(1, *tensors([3], 1)), 1) == [0, 1, 2, 3] == ids_of(child.get_all(1), 1)
    child.check()
    if grow:
        assert child.held_bytes == child.pool.used_count * 4 * child.spec.token_bytes


def test_reset_within_a_step():
    cache = make(2)
    cache.append(0, *tensors([0, 1]))
    cache.reset()
    assert (cache.length, cache.seen) == (0, 0)
    assert put(cache, 5) == [5]
    cache.check()


def test_layers_come_in_any_order():
    cache = make(3, 2, tokens=20)
    for n, order in enumerate([(0, 1, 2), (2, 0, 1), (1, 2, 0)]):
        for layer in order:
            assert ids_of(cache.append(layer, *tensors([2 * n, 2 * n + 1], layer)), layer) == list(range(2 * n + 2))
    assert put(cache) == list(range(6))  # nothing is nothing


# -- where it lies -----------------------------------------------------------------------------------------------------------


def test_pages_in_a_row_are_read_without_a_copy():
    cache = make(2, tokens=40)
    for n in range(11):
        for layer in range(2):
            read = cache.append(layer, *tensors([n], layer))
            assert n == 0 or in_slab(cache, layer, *read)  # the first time there is nothing to read
            assert in_slab(cache, layer, *cache.get_all(layer))
    assert cache.held_bytes == 10 * 4 * cache.spec.token_bytes  # and no memory to gather in
    cache.truncate(6)
    assert in_slab(cache, 1, *cache.get_all(1)) and ids_of(cache.get_all(1), 1) == [5, 6, 7, 8, 9, 10]
    first = cache._memory.store.keys[0]
    assert cache.get_all(0)[0].data_ptr() == first.data_ptr() + 5 * DIM * 4


def test_rows_of_a_batch_are_read_without_a_copy():
    cache = make(1, 2, tokens=8, batch=3)
    for n in range(8):
        read = cache.append(0, *tensors([n], 0, 3))
        assert n == 0 or in_slab(cache, 0, *read)
    assert [table.pages for table in cache.tables] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    cache.select([0, 2])
    assert in_slab(cache, 0, *cache.get_all(0))  # any distance will do, if it is always the same
    cache.select([0, 0, 0])
    assert in_slab(cache, 0, *cache.get_all(0)) and cache.get_all(0)[0].stride(0) == 0
    cache.rollback(2)
    for layer in range(1):
        cache.append(layer, *tensors([6], layer, 3))
    assert ids_of_rows(cache) == [[0, 1, 2, 3, 4, 5, 6]] * 3
    cache.select([2, 0])
    assert ids_of_rows(cache) == [[0, 1, 2, 3, 4, 5, 6]] * 2


def ids_of_rows(cache: PagedKVCache) -> list[list[int]]:
    return [[round(x) for x in row] for row in cache.get_all(0)[0][:, 0, :, 0].tolist()]


def scattered(pages: int = 60) -> tuple[PagedKVCache, PagedKVCache]:
    """Two forks that grow by turns, a token a page."""
    a = filled(0, 1, 2, page_size=1, pages=pages, layers=2)
    b = a.fork()
    for n in range(3, 7):
        assert put(a, n) == list(range(n + 1)) == put(b, n)
    return a, b


def test_scattered_pages_are_gathered():
    a, b = scattered()
    assert a.tables[0].pages == [0, 1, 2, 3, 5, 7, 9] and b.tables[0].pages == [0, 1, 2, 4, 6, 8, 10]
    first, second = a.get_all(1), b.get_all(0)
    copies = [tensor.clone() for tensor in (*first, *second)]
    assert not in_slab(a, 1, *first) and not in_slab(b, 0, *second)
    put(a, 7)
    put(b, 8)
    assert all(map(torch.equal, (*first, *second), copies))  # what get_all gives lasts
    assert ids_of(first, 1) == [0, 1, 2, 3, 4, 5, 6] == ids_of(second)
    a.truncate(2)
    assert not in_slab(a, 0, *a.get_all(0)) and a.tables[0].row == 7
    a.truncate(1)
    assert in_slab(a, 0, *a.get_all(0))  # one page is a row


@pytest.mark.parametrize(("pages", "room"), [(60, 60), (259, 259), (260, 260), (400, 4 + 256)])
def test_memory_to_gather_in_is_counted(pages, room):
    """Keys and values of one layer, taken at the first gather, of four pages: 256 tokens more, but not more than the pool."""
    a, b = scattered(pages)
    held = pages * a.spec.token_bytes + 2 * room * HEADS * DIM * 4
    assert a.held_bytes == b.held_bytes == held and a.logical_bytes == 7 * a.spec.token_bytes
    for layer in range(2):
        assert ids_of(a.get_all(layer), layer) == [0, 1, 2, 3, 4, 5, 6]
    assert a.held_bytes == held
    a.free()
    b.free()
    assert a.held_bytes == b.held_bytes == 0


def test_all_sequences_let_go_before_any_of_them_takes():
    """Two pages, which two sequences have in common: they are free when both have let go, and then each gets one."""
    cache = filled(*range(6), window=4, pages=2)
    cache.select([0, 0])
    cache.append(0, *tensors(range(6, 12), 0, 2))
    assert ids_of(cache.get_all(0)) == [8, 9, 10, 11] and cache.pool.free_count == 0
    cache.check()


def test_what_slid_out_is_read_before_it_is_written_again():
    """Three pages in all: five new tokens take the very slots of the old ones that their first queries still read."""
    for page_size, pages in ((1, 3), (2, 2), (4, 2)):
        cache = make(3, page_size, window=3, pages=pages)
        put(cache, 0, 1, 2)
        assert put(cache, 3, 4, 5, 6, 7) == [1, 2, 3, 4, 5, 6, 7]
        assert put(cache, 8, 9) == [6, 7, 8, 9]
        for layer in range(3):
            assert ids_of(cache.get_all(layer), layer) == [7, 8, 9]
        cache.check()


@pytest.mark.parametrize("page_size", [1, 2, 4])
@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("grow", [False, True])
def test_its_own_tokens_may_go_in_again(page_size, window, grow):
    """What get_all gives are views of the pages about to be written."""
    cache = filled(*range(8), page_size=page_size, window=window, grow=grow, tokens=40)
    for _ in range(3):
        newest = [rows[:, :, -3:] for rows in cache.get_all(0)]
        ids = ids_of(newest)
        cache.reset()
        assert ids_of(cache.append(0, *newest)) == ids == ids_of(cache.get_all(0))  # a truncation by hand
        assert ids_of(cache.append(0, *cache.get_all(0))) == ids * 2
        stored = ids_of(cache.get_all(0))
        read = ids_of(cache.append(0, *cache.get_all(0)))
        assert stored == (ids * 2)[-4 if window else 0 :] and read == (
            stored * 2 if window is None else stored[1:] + stored
        )
        cache.check()


def test_more_past_within_a_step():
    """The pool grows while a step is on its way through the layers, and its pages are scattered."""
    cache = filled(0, 1, 2, layers=2, page_size=1, window=3, tokens=100, batch=1)
    cache.keep_past(20)
    child = cache.fork()
    for n in range(3, 6):
        put(cache, n)
        put(child, n)
    read = ids_of(cache.append(0, *tensors([6])))
    pages = cache.pool.pages
    child.keep_past(40)
    assert cache.pool.pages > pages
    assert ids_of(cache.append(1, *tensors([6], 1)), 1) == read == [4, 5, 6]
    assert ids_of(child.get_all(1), 1) == [3, 4, 5]
    cache.check()


def test_a_kept_past_is_found_again():
    """W = 3 and five more: after taking back five the window is whole; without that it is not."""
    for keep, whole in ((5, True), (0, False)):
        cache = make(2, 2, window=3)
        cache.keep_past(keep)
        put(cache, *range(20))
        assert cache.length == 3 and cache.logical_bytes == 3 * cache.spec.token_bytes
        assert cache.can_rollback(5) == whole and cache.can_rollback(0)
        if not whole:
            continue
        assert not cache.can_rollback(9)
        cache.rollback(5)
        assert ids_of(cache.get_all(1), 1) == [12, 13, 14] and put(cache, 15) == [13, 14, 15]
        with pytest.raises(InvalidRequest, match="cannot roll back 9 tokens: 4 are stored"):
            cache.rollback(9)


def test_a_reset_forgets_what_was_truncated():
    """What was cut off is not missed after a rollback; what slid out of the window is."""
    cache = make(1, 2, window=3)
    put(cache, *range(9))
    cache.truncate(1)
    assert cache.can_rollback(1) and not cache.can_rollback(2)
    cache.reset()
    put(cache, *range(6))
    assert cache.can_rollback(1) and not cache.can_rollback(2)


# -- what others left -----------------------------------------------------------------------------------------------------------


def clean(cache: PagedKVCache) -> bool:
    """No NaN in what is read, nor in any slot of the values: a slot that is masked is multiplied by 0, and NaN stays NaN."""
    size, pages = cache.page_size, {page for table in cache.tables for _, page in table.entries}
    read = [tensor for layer in range(cache.spec.layers) for tensor in cache.get_all(layer)]
    stored = [slab[:, p * size : (p + 1) * size] for slab in cache._memory.store.values for p in pages]
    return not any(tensor.isnan().any() for tensor in read + stored)


@pytest.mark.parametrize("page_size", [2, 4, 8])
@pytest.mark.parametrize("window", [None, 3])
def test_what_a_freed_sequence_left_is_never_seen(page_size, window):
    cache = make(2, page_size, pages=8, window=window)
    sick = torch.full((1, HEADS, 5, DIM), NAN)

    def infect() -> None:
        """All pages that are free."""
        other = cache.fork()
        other.reset()
        while other.can_append(5) and other.seen < 60:
            for layer in range(2):
                other.append(layer, sick, sick)
        other.free()

    put(cache, 0)
    infect()
    assert put(cache, 1)[-1] == 1 and clean(cache)
    child = cache.fork()
    infect()
    assert put(child, 2)[-1] == 2 and clean(child) and clean(cache)  # a copy
    cache.free()
    cache = child
    for n in range(3, 12):
        infect()
        assert put(cache, n)[-1] == n and clean(cache)
    for call in (cache.reset, lambda: cache.truncate(0), lambda: cache.rollback(cache.length)):
        for count in (1, 3, 5, 6):
            call()
            infect()
            assert put(cache, *range(count)) == list(range(count)) and clean(cache)
    infect()
    put(cache, 6, 7, 8, 9, 10)
    assert clean(cache)


# -- dtypes, modes, the caller's tensors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("grow", [False, True])
def test_dtype_and_device_come_from_the_first_tensors(dtype, grow):
    cache = make(grow=grow)
    assert [t.dtype for t in cache.get_all(0)] == [torch.float32] * 2 and cache.get_all(0)[0].shape == (
        1,
        HEADS,
        0,
        DIM,
    )
    cache.append(0, *tensors([0, 1], dtype=dtype))
    assert cache.spec.dtype == dtype and {t.dtype for t in cache.get_all(0)} == {dtype}
    assert cache.logical_bytes == 2 * 2 * HEADS * DIM * dtype.itemsize
    cache.truncate(0)
    assert cache.get_all(0)[0].dtype == dtype
    cache.check()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_bytes_are_counted_in_the_dtype_that_comes(dtype):
    """Ten pages of it, also where the dtype is known only from the first tensors."""
    page = 2 * HEADS * DIM * dtype.itemsize
    cache = make(page_size=1, max_bytes=10 * page + page // 2)
    before = state(cache)
    with pytest.raises(
        PoolExhausted, match=f"1 page missing of a pool of 10: raise max_bytes, now {10 * page + page // 2:,}"
    ):
        cache.append(0, *tensors(range(11), dtype=dtype))
    assert state(cache) == before
    cache.append(0, *tensors(range(10), dtype=dtype))
    assert (cache.pool.pages, cache.pool.free_count, cache.held_bytes) == (10, 0, 10 * page)


@pytest.mark.parametrize("grow", [False, True])
@pytest.mark.parametrize("first", [True, False])
def test_inference_mode_comes_and_goes(grow, first):
    a = make(2, 1, window=3, grow=grow, **({} if grow else {"pages": 90}))
    with torch.inference_mode(first):
        put(a, 0, 1, 2)
        a.keep_past(9)
        b = a.fork()
    for n in range(3, 9):
        with torch.inference_mode(first == (n % 3 == 0)):
            assert put(a, n) == [n - 2, n - 1, n] == put(b, n)  # scattered
            if n == 6:
                a.keep_past(20)
    with torch.inference_mode(not first):
        assert put(a, 9, 10) == [7, 8, 9, 10] and ids_of(b.get_all(1), 1) == [6, 7, 8]


def test_heads_and_tokens_may_be_swapped_in_memory():
    """As models make them: [batch, tokens, heads, head_dim], transposed."""
    for grow in (False, True):
        cache = make(batch=2, grow=grow)
        for ids in ([0, 1], [2, 3, 4], [5]):
            read = cache.append(0, *(t.transpose(1, 2).contiguous().transpose(1, 2) for t in tensors(ids, 0, 2)))
        assert ids_of(read) == [0, 1, 2, 3, 4, 5]


def test_the_callers_tensors_stay_his():
    cache = make(window=3)
    for ids in ([0, 1], [2], [3], [4, 5, 6, 7]):
        keys, values = tensors(ids)
        cache.append(0, keys.requires_grad_(), values)
        assert ids_of((keys.detach(), values)) == ids
        keys.detach().zero_(), values.zero_()
    read = cache.get_all(0)
    assert ids_of(read) == [5, 6, 7] and not any(t.requires_grad for t in read)


# -- capacity -----------------------------------------------------------------------------------------------------------


def test_pages_for_and_most_pages():
    for size in (1, 2, 3, 16):
        for first in range(20):
            for end in range(first, first + 40):
                assert pages_for(first, end, size) == len({n // size for n in range(first, end)})
        for stored in range(1, 40):
            assert most_pages(stored, size) == max(pages_for(n, n + stored, size) for n in range(size))


PAGE = 4 * 2 * HEADS * DIM * 4  # bytes, of one layer
CAPACITIES = [  # arguments, batch, window, pages
    ({"pages": 7}, 1, None, 7),
    ({"pages": 7}, 3, 9, 7),
    ({"tokens": 9}, 1, None, 3),
    ({"tokens": 9}, 2, None, 6),
    ({"tokens": 100}, 2, 9, 2 * 3),
    ({"tokens": 5}, 2, 100, 2 * 2),
    ({"max_bytes": 5 * PAGE}, 2, None, 5),
    ({"max_bytes": 6 * PAGE - 1}, 1, None, 5),
    ({}, 1, None, USUAL_TOKENS // 4),
    ({}, 2, 6, 2 * 3),
]


@pytest.mark.parametrize(("given", "batch", "window", "pages"), CAPACITIES)
def test_capacity(given, batch, window, pages):
    cache = make(batch=batch, window=window, **given)
    assert cache.held_bytes == 0 and cache.pool is None
    cache.append(0, *tensors([0], 0, batch))
    assert cache.pool.pages == pages and cache.held_bytes == pages * PAGE
    assert [pool.pages for pool in cache.log.pools] == [pages]


@pytest.mark.parametrize("grow", [False, True])
@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"tokens": 12}, "tokens, now 12"),
        ({"pages": 3}, "pages, now 3"),
        ({"max_bytes": 3 * PAGE}, f"max_bytes, now {3 * PAGE}"),
    ],
)
def test_running_out_says_what_to_raise(given, says, grow):
    says = f"raise {says}$"
    room = "no room for 17 more tokens of 1 sequence: 2 pages missing of a pool of 3: "
    cache = make(grow=grow, **given)
    assert cache.can_append(12) and not cache.can_append(13)
    with pytest.raises(PoolExhausted, match=room + says):
        cache.append(0, *tensors(range(17)))
    assert cache.pool is None and cache.seen == 0
    put(cache, *range(12))
    before = state(cache)
    assert cache.can_append(0) and not cache.can_append(1)
    room = "no room for 5 more tokens of 1 sequence: 2 pages of 4 tokens missing, 0 of 3 free: "
    with pytest.raises(PoolExhausted, match=room + says):
        cache.append(0, *tensors(range(5)))
    assert state(cache) == before and cache.log.events.action[-1] == PageAction.REFUSE
    cache.rollback(1)
    assert put(cache, 11) == list(range(12))


def test_running_out_of_the_usual():
    cache = make(page_size=256, layers=1)
    with pytest.raises(PoolExhausted, match="32: name more than the usual 8,192 tokens by tokens="):
        cache.append(0, *(torch.zeros(1, HEADS, 8193, DIM) for _ in "kv"))
    assert make(page_size=256, grow=True).can_append(10**9)  # page by page there is no usual


@pytest.mark.parametrize("layers", [1, 3])
def test_the_first_layer_takes_the_room_for_all(layers):
    cache = filled(*range(4), layers=layers, pages=2)
    other = cache.fork()
    put(other, 4)
    before, theirs = state(cache), state(other)
    for layer in range(layers):  # whichever comes first
        with pytest.raises(PoolExhausted):
            cache.append(layer, *tensors([4], layer))
    assert state(cache) == before and state(other) == theirs
    other.free()
    assert put(cache, 4) == [0, 1, 2, 3, 4]


def test_more_than_memory(monkeypatch):
    cache = PagedKVCache(2, 2, 64, page_size=16, pages=1 << 40)
    keys = torch.zeros(1, 2, 1, 64)
    wanted = (1 << 40) * 16 * 2 * 2 * 2 * 64 * 4
    for _ in range(2):
        with pytest.raises(OutOfMemory, match=rf"a pool of {wanted:,} bytes is more than the [\d,]+ bytes of cpu"):
            cache.append(0, keys, keys)
        assert (cache.held_bytes, cache.pool, cache.seen, cache.spec.dtype, len(cache.log)) == (0, None, 0, None, 0)
    windowed = make(1, 4, window=3, tokens=1 << 60)
    put(windowed, 0, 1, 2)
    before = state(windowed)
    with pytest.raises(OutOfMemory, match=r"a pool of [\d,]+ bytes is more than"):
        windowed.keep_past(1 << 50)
    assert state(windowed) == before and put(windowed, 3) == [1, 2, 3]
    windowed.check()


@pytest.mark.parametrize("grow", [False, True])
def test_an_allocator_that_has_no_more(monkeypatch, grow):
    """A pool that is refused leaves nothing; a page that is refused half-way leaves those that are there."""
    cache = make(2, grow=grow, tokens=40)
    if grow:
        put(cache, 0, 1, 2)
    before = state(cache)
    real, left = getattr(torch, "empty" if grow else "zeros"), [int(grow)]

    def scarce(*args, **kwargs):
        left[0] -= 1
        if left[0] < 0:
            raise RuntimeError("can't allocate memory: you tried to allocate 1 byte")
        return real(*args, **kwargs)

    monkeypatch.setattr(stores.torch, "empty" if grow else "zeros", scarce)
    with pytest.raises(OutOfMemory, match=r"of [\d,]+ bytes does not fit on cpu: can't allocate memory"):
        for layer in range(2):
            cache.append(layer, *tensors([3, 4, 5], layer))
    monkeypatch.undo()
    assert state(cache) == before
    assert put(cache, 3, 4, 5) == ([0, 1, 2, 3, 4, 5] if grow else [3, 4, 5])
    cache.check()


# -- misuse ----------------------------------------------------------------------------------------------------------------------

KEYS, VALUES = tensors([3, 4])
WRONG = {
    "three dimensions": (lambda c: c.append(0, KEYS[0], VALUES[0]), r"= \[1, 2, tokens, 3\], got \[2, 2, 3\]"),
    "another batch": (lambda c: c.append(0, KEYS.expand(2, -1, -1, -1), VALUES), r"got \[2, 2, 2, 3\]"),
    "another head count": (lambda c: c.append(0, KEYS[:, :1], VALUES[:, :1]), r"got \[1, 1, 2, 3\]"),
    "another head size": (lambda c: c.append(0, KEYS[..., :2], VALUES[..., :2]), r"got \[1, 2, 2, 2\]"),
    "more keys than values": (lambda c: c.append(0, KEYS, VALUES[:, :, :1]), "keys bring 2 tokens, values 1"),
    "mixed dtypes": (lambda c: c.append(0, KEYS, VALUES.half()), "keys are torch.float32, values torch.float16"),
    "another dtype": (lambda c: c.append(0, KEYS.half(), VALUES.half()), "holds torch.float32, got torch.float16"),
    "integers": (lambda c: c.append(0, KEYS.long(), VALUES.long()), "floating-point"),
    "another device": (lambda c: c.append(0, KEYS.to("meta"), VALUES.to("meta")), "on cpu, got tensors on meta"),
    "no tensors": (lambda c: c.append(0, [1], [2]), "keys must be a tensor, got list"),
    "layer too high": (lambda c: c.append(2, KEYS, VALUES), "layer must be 0 … 1, got 2"),
    "layer below 0": (lambda c: c.append(-1, KEYS, VALUES), "layer must be 0 … 1, got -1"),
    "layer of get_all": (lambda c: c.get_all(2), "layer must be 0 … 1, got 2"),
    "truncate below 0": (lambda c: c.truncate(-1), "keep must be a whole number from 0 up, got -1"),
    "truncate to a half": (lambda c: c.truncate(1.5), "got 1.5"),
    "rollback below 0": (lambda c: c.rollback(-1), "tokens must be a whole number from 0 up, got -1"),
    "rollback too far": (lambda c: c.rollback(4), "cannot roll back 4 tokens: 3 are stored"),
    "can append below 0": (lambda c: c.can_append(-1), "tokens must be a whole number from 0 up, got -1"),
    "an order of another length": (lambda c: c.reorder([0, 0]), "order has 2 entries for 1 sequences"),
    "a sequence that is not there": (lambda c: c.reorder([1]), r"sequences are 0 … 0, got \[1\]"),
    "past below 0": (lambda c: c.keep_past(-1), "tokens must be a whole number from 0 up, got -1"),
}
WITHIN = {  # a step of 2 tokens, which layer 0 has and layer 1 lacks
    "a layer twice": (lambda c: c.append(0, KEYS, VALUES), "layer 0 already has this step's tokens; layer 1 still lacks them"),
    "another count": (lambda c: c.append(1, *tensors([3])), "this step brings 2 tokens a layer, layer 1 got 1"),
    "reading the layer that lacks them": (lambda c: c.get_all(1), "layer 1 lacks the tokens of the open step"),
    "fork": (lambda c: c.fork(), "cannot fork now: layer 1 still lacks this step's tokens"),
    "truncate": (lambda c: c.truncate(1), "cannot truncate now: layer 1"),
    "reorder": (lambda c: c.reorder([0]), "cannot reorder now: layer 1"),
    "select": (lambda c: c.select([0, 0]), "cannot select now: layer 1"),
    "a part of the step": (lambda c: c.rollback(1), "layers lack tokens of the open step: roll back all 2 of it"),
    "nothing of the step": (lambda c: c.rollback(0), "roll back all 2 of it"),
    "too much": (lambda c: c.rollback(6), "cannot roll back 6 tokens: 5 are stored"),
}  # fmt: skip


@pytest.mark.parametrize("grow", [False, True])
@pytest.mark.parametrize(("call", "says"), WRONG.values(), ids=WRONG)
def test_a_wrong_call_changes_nothing(call, says, grow):
    cache = filled(0, 1, 2, layers=2, grow=grow, tokens=20)
    before, events = state(cache), len(cache.log)
    with pytest.raises(InvalidRequest, match=says):
        call(cache)
    assert state(cache) == before and len(cache.log) == events
    cache.check()
    assert put(cache, 3) == [0, 1, 2, 3]


@pytest.mark.parametrize("grow", [False, True])
@pytest.mark.parametrize(("call", "says"), WITHIN.values(), ids=WITHIN)
def test_a_wrong_call_within_a_step_changes_nothing(call, says, grow):
    cache = filled(0, 1, 2, layers=2, grow=grow, tokens=20)
    cache.append(0, *tensors([3, 4]))
    before, events = state(cache), len(cache.log)
    with pytest.raises(InvalidRequest, match=says):
        call(cache)
    assert state(cache) == before and len(cache.log) == events
    cache.check()
    assert ids_of(cache.append(1, *tensors([3, 4], 1)), 1) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("grow", [False, True])
def test_a_fork_waits_for_the_others_step(grow):
    cache = filled(0, 1, 2, layers=3, grow=grow, tokens=20)
    child = cache.fork()
    child.append(1, *tensors([3], 1))
    before, theirs = state(cache), state(child)
    with pytest.raises(InvalidRequest, match="a fork is in the middle of a step, 2 layers lack its tokens"):
        cache.append(0, *tensors([3]))
    assert state(cache) == before and state(child) == theirs
    child.rollback(1)
    assert put(cache, 3) == [0, 1, 2, 3] and put(child, 4) == [0, 1, 2, 4]
    child.append(0, *tensors([5]))
    child.free()  # ends its step, too
    assert put(cache, 4) == [0, 1, 2, 3, 4]


def test_a_wrong_first_call_fixes_nothing():
    cache = make()
    with pytest.raises(InvalidRequest):
        cache.append(0, KEYS.half(), VALUES)
    assert cache.spec.dtype is None and cache.held_bytes == 0 and cache.pool is None
    assert put(cache, 0) == [0]


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name in ("window", "page_size", "pages", "tokens", "max_bytes", "layers", "kv_heads", "head_dim", "batch")
     for value in (0, -1, 1.5, True, "8")],
)  # fmt: skip
def test_counts_that_are_none(name, value):
    arguments = {"layers": 1, "kv_heads": 1, "head_dim": 1, name: value}
    with pytest.raises(InvalidRequest, match=f"{name} must be a whole number from 1 up, got {value!r}"):
        PagedKVCache(**arguments)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"pages": 4, "tokens": 9}, "give one of tokens, pages and max_bytes, not tokens and pages"),
        ({"pages": 4, "max_bytes": 9}, "not pages and max_bytes"),
        ({"tokens": 4, "pages": 4, "max_bytes": 9}, "not tokens and pages and max_bytes"),
        ({"dtype": torch.int8}, "dtype must be a floating-point torch.dtype or None, got torch.int8"),
        ({"dtype": "int8"}, "got 'int8': kvviz.QuantizedPagedKVCache takes it"),
        ({"device": "nowhere"}, "device 'nowhere' cannot be used here"),
        ({"log": 5}, "log must be a PageLog or None, got int"),
    ],
)
def test_arguments_that_do_not_fit(given, says):
    with pytest.raises(InvalidRequest, match=says):
        make(**given)


@pytest.mark.parametrize("value", [-1, 1.5, None, "2", True])
def test_questions_about_counts_that_are_none(value):
    cache = make(pages=4)
    put(cache, 0)
    for ask in (cache.can_append, cache.can_rollback, cache.require, cache.keep_past):
        with pytest.raises(InvalidRequest, match="tokens must be a whole number from 0 up, got "):
            ask(value)
    with pytest.raises(InvalidRequest, match="layer must be 0 … 0, got "):
        cache.seen_by(value)
    with pytest.raises(InvalidRequest, match="sequences are 0 … 0, got "):
        cache.select([1 if value is True else value])
    assert cache.length == 1


def test_less_than_one_page():
    cache = make(max_bytes=PAGE - 1)
    with pytest.raises(InvalidRequest, match=f"max_bytes={PAGE - 1} is less than one page, which takes {PAGE} bytes"):
        put(cache, 0)
    assert cache.pool is None and cache.held_bytes == 0


FREED = {
    "append": lambda c: c.append(0, *tensors([3])),
    "append nothing": lambda c: c.append(0, *tensors([])),
    "can_append": lambda c: c.can_append(1),
    "get_all": lambda c: c.get_all(0),
    "truncate": lambda c: c.truncate(1),
    "rollback": lambda c: c.rollback(0),
    "reset": lambda c: c.reset(),
    "fork": lambda c: c.fork(),
    "reorder": lambda c: c.reorder([0]),
    "select": lambda c: c.select([0]),
    "keep_past": lambda c: c.keep_past(3),
}


@pytest.mark.parametrize("call", FREED.values(), ids=FREED)
@pytest.mark.parametrize("used", [True, False])
def test_a_freed_cache(call, used):
    cache = filled(0, 1, 2) if used else make()
    other = cache.fork()
    cache.free()
    assert (cache.held_bytes, cache.logical_bytes, cache.length, cache.seen) == (0, 0, 0, 0)
    with pytest.raises(SequenceFreed, match="this cache was freed"):
        call(cache)
    assert repr(cache) == "<PagedKVCache: freed>"
    assert put(other, 3) == ([0, 1, 2, 3] if used else [3])
    other.check()


DAMAGE = {
    "a reference too many": (lambda c: c.pool.retain(0), "page 0 has 3 references and 2 table entries"),
    "a table too few": (lambda c: c.tables.pop(), "1 tables for a batch of 2"),
    "out of step": (lambda c: c.tables[1].rollback(1), "sequences out of step: 4 tokens from 0, not 5"),
    "a pool of another size": (lambda c: c.pool.extend(1), r"\d+ pages of 4 tokens in slabs of \d+ slots|pages in use"),
}


@pytest.mark.parametrize(("damage", "says"), DAMAGE.values(), ids=DAMAGE)
def test_check_finds_damage(damage, says):
    cache = make(batch=2, tokens=16)
    cache.append(0, *tensors(range(5), 0, 2))
    cache.select([0, 0])
    cache.check()
    damage(cache)
    with pytest.raises(CorruptCache, match=says):
        cache.check()


def test_check_finds_pages_without_memory():
    cache = filled(*range(5), grow=True)
    del cache._memory.store.pages[1]
    with pytest.raises(CorruptCache, match="2 pages in use, 1 with memory"):
        cache.check()


# -- random programs ------------------------------------------------------------------------------------------------------------


class Rows:
    """Random keys and values for each token number: what is looked up is compared bit for bit."""

    def __init__(self, r: random.Random, layers: int, heads: int, dim: int, dtype: torch.dtype):
        generator = torch.Generator().manual_seed(r.randrange(1 << 30))
        self.rows = torch.randn(layers, 2, 1024, heads, dim, generator=generator).to(dtype)
        self.next = 0

    def new(self, count: int) -> list[int]:
        self.next += count
        return [n % 1024 for n in range(self.next - count, self.next)]

    def of(self, layer: int, tokens: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        index = torch.tensor(tokens)
        keys, values = (self.rows[layer, kind][index].transpose(1, 2) for kind in (0, 1))
        return keys, values


class Plain:
    """One cache of the model: a list of tokens for each of its sequences."""

    def __init__(self, size: int, batch: int, window: int | None):
        self.size, self.window, self.past = size, window, 0
        self.cut = 0  # what came before was truncated
        self.rows = [Lists(size) for _ in range(batch)]

    def fork(self) -> Plain:
        other = Plain(self.size, 0, self.window)
        other.past, other.cut, other.rows = self.past, self.cut, [row.copy() for row in self.rows]
        return other

    @property
    def seen(self) -> int:
        return self.rows[0].seen

    @property
    def first(self) -> int:
        """Number of the first token that is stored."""
        return self.rows[0].first

    def seen_from(self, newest: int) -> int:
        """Number of the first token that query number `newest` sees."""
        return max(self.first, newest - self.window + 1 if self.window else 0)

    @property
    def length(self) -> int:
        return self.seen - self.seen_from(self.seen - 1)

    @property
    def stored(self) -> int:
        return self.seen - self.first

    @property
    def visible(self) -> list[list[int]]:
        """What the newest query sees of each sequence."""
        return [row.tokens[self.seen_from(self.seen - 1) :] for row in self.rows]

    def can_rollback(self, count: int) -> bool:
        """Is all there that the next query sees then, but for what was truncated?"""
        needed = 0 if self.window is None else self.seen - count - self.window + 1
        return count <= self.stored and self.first <= max(0, self.cut, needed)

    def keep(self, count: int) -> int:
        """Number of the first token that stays after so many more."""
        return max(0, self.seen + count - self.window - self.past) if self.window else 0


WEIGHTS = {"step": 12, "broken": 3, "truncate": 1.5, "rollback": 3, "too far": 1, "fork": 2, "reorder": 2, "select": 1,
           "reset": 0.5, "free": 0.7, "keep past": 0.7, "nothing": 0.5}  # fmt: skip


class Program:
    """The same random calls on a cache and its forks, and on lists."""

    def __init__(self, seed: int):
        r = self.r = random.Random(f"paged {seed}")
        self.layers, self.heads, self.dim = r.choice([1, 1, 2, 3]), r.choice([1, 2]), r.choice([1, 2, 5])
        self.dtype = r.choice([torch.float32, torch.bfloat16, torch.float16])
        self.size = r.choice([1, 1, 2, 3, 4, 4, 8, 16])
        self.window = r.choice([None, None, 1, 2, 3, 5, 8])
        self.grow = r.random() < 0.3
        self.most = r.choice([2, 5, 9])  # tokens a step
        self.rows = Rows(r, self.layers, self.heads, self.dim, self.dtype)
        self.token_bytes = 2 * self.layers * self.heads * self.dim * self.dtype.itemsize
        batch = r.choice([1, 1, 2, 3])
        page = self.size * self.token_bytes
        pages = r.choice([r.randint(1, 8), r.randint(8, 40)])
        self.given = r.choice(
            [{"pages": pages}, {"tokens": r.randint(1, 60)}, {"max_bytes": pages * page + r.randrange(page)}, {}]
        )
        if not self.given:
            self.size = 16 if self.grow else 512
        cache = PagedKVCache(
            self.layers, self.heads, self.dim, self.size, window=self.window, batch=batch, grow=self.grow,
            dtype=r.choice([None, self.dtype]), log=PageLog(), **self.given,
        )  # fmt: skip
        self.caches = {cache: Plain(self.size, batch, self.window)}
        self.totals: dict[PagePool, int] = {}  # pages of each pool
        self.refused = 0

    # what the lists know

    def wanted(self, plain: Plain) -> int | None:
        """Pages of a pool for these sequences, None: no limit."""
        if self.grow and not self.given:
            return None
        if "pages" in self.given:
            return self.given["pages"]
        if "max_bytes" in self.given:
            return self.given["max_bytes"] // (self.size * self.token_bytes)
        each = len({n // self.size for n in range(self.given.get("tokens", USUAL_TOKENS))})
        if self.window:
            span = range(self.window + plain.past)
            each = min(each, max(len({(first + n) // self.size for n in span}) for first in range(self.size)))
        return each * len(plain.rows)

    def limit(self, cache: PagedKVCache) -> int | None:
        wanted = self.wanted(self.caches[cache])
        if cache.pool is None:
            return wanted
        there = self.totals[cache.pool]
        return there if not self.grow else wanted and max(there, wanted)

    def sharing(self, cache: PagedKVCache) -> list[Lists]:
        """All sequences on the same pool."""
        return [
            row
            for other, plain in self.caches.items()
            if other is cache or (cache.pool and other.pool is cache.pool)
            for row in plain.rows
        ]

    def fits(self, cache: PagedKVCache, count: int) -> bool:
        plain, limit = self.caches[cache], self.limit(cache)
        if not count or limit is None:
            return True
        return foresee(plain.rows, self.sharing(cache), count, max(plain.first, plain.keep(count)))[0] <= limit

    def mode(self):
        return torch.inference_mode(self.r.random() < 0.3)

    # verbs

    def step(self) -> None:
        r = self.r
        cache = r.choice(list(self.caches))
        verb = r.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        with self.mode():
            getattr(self, "do_" + verb.replace(" ", "_"))(cache)

    def do_step(self, cache: PagedKVCache) -> None:
        self.append(cache, self.layers)

    def do_broken(self, cache: PagedKVCache) -> None:
        """A step that some layers never get, and how it is mended."""
        if self.layers == 1:
            return self.do_step(cache)
        count = self.append(cache, self.r.randint(1, self.layers - 1))
        if not count:
            return
        assert not cache.can_rollback(count - 1)
        if self.r.random() < 0.1:
            return self.do_reset(cache)
        self.take_back(cache, self.r.choice([count, self.r.randint(count, max(count, self.caches[cache].stored))]))

    def append(self, cache: PagedKVCache, layers: int) -> int:
        """A step that comes to so many layers. Returns how many tokens it has, 0 where there was no room."""
        r, plain = self.r, self.caches[cache]
        count = r.choice([1, 1, r.randint(1, self.most)])
        fits = self.fits(cache, count)
        if cache.pool or "max_bytes" not in self.given or cache.spec.dtype:  # before that nobody knows a token's bytes
            more = r.randint(0, 40)
            assert (cache.can_append(count), cache.can_append(more)) == (fits, self.fits(cache, more))
        new = [self.rows.new(count) for _ in plain.rows]
        order = r.sample(range(self.layers), self.layers)
        if not fits:
            before, says = (
                state(cache),
                f"missing.*raise {next(iter(self.given))}, now" if self.given else "the usual 8,192",
            )
            for layer in order[:layers]:
                with pytest.raises(PoolExhausted, match=says):
                    cache.append(layer, *self.rows.of(layer, new))
            assert state(cache) == before
            self.refused += 1
            return 0
        self.poison(cache)
        before, low, keep = plain.seen, plain.seen_from(plain.seen), max(plain.first, plain.keep(count))
        readable = [row.tokens[low:] + tokens for row, tokens in zip(plain.rows, new)]
        everyone = self.sharing(cache)
        for n, layer in enumerate(order[:layers]):
            with self.mode():
                read = cache.append(layer, *self.rows.of(layer, new))
            self.same(read, layer, readable)
            if n == 0:
                together(plain.rows, everyone, new, keep)
                self.taken(cache)
            if n < self.layers - 1:
                self.within(cache, count, order[: n + 1], order[n + 1 :])
        assert (cache.seen, plain.seen) == (before + count,) * 2
        return count

    def taken(self, cache: PagedKVCache) -> None:
        """The pool is there from now on."""
        if cache.pool not in self.totals:
            self.totals[cache.pool] = 1 if self.grow else self.wanted(self.caches[cache])
        if self.grow:
            self.totals[cache.pool] = max(self.totals[cache.pool], in_use(self.sharing(cache)))

    def within(self, cache: PagedKVCache, count: int, done: list[int], lacking: list[int]) -> None:
        """Between two layers of a step: wrong calls, and what forks may do."""
        r, plain = self.r, self.caches[cache]
        others = [c for c in self.caches if c is not cache]
        assert [cache.seen_by(layer) for layer in (done[0], lacking[0])] == [plain.seen, plain.seen - count]
        if r.random() < 0.2:
            calls = [
                cache.fork,
                lambda: cache.truncate(0),
                lambda: cache.rollback(count - 1),
                lambda: cache.get_all(lacking[0]),
                lambda: cache.append(done[0], *self.any_of(cache, count)),
                lambda: cache.append(lacking[0], *self.any_of(cache, count + 1)),
                *[lambda c=c: c.append(0, *self.any_of(c, 1)) for c in others if c.pool is cache.pool],
            ]
            before = state(cache)
            with pytest.raises(InvalidRequest):
                r.choice(calls)()
            assert state(cache) == before
        if others and r.random() < 0.4:
            verbs = "truncate", "rollback", "fork", "select", "reset", "free", "keep_past"
            with self.mode():
                getattr(self, "do_" + r.choice(verbs))(r.choice(others))
            self.verify([c for c in self.caches if c is not cache])

    def any_of(self, cache: PagedKVCache, count: int):
        return self.rows.of(0, [self.rows.new(count) for _ in self.caches[cache].rows])

    def do_truncate(self, cache: PagedKVCache) -> None:
        plain, keep = self.caches[cache], self.r.randint(0, 12)
        cache.truncate(keep)
        if keep < plain.length:
            plain.cut = plain.seen - keep
            for row in plain.rows:
                row.slide(plain.cut)

    def do_rollback(self, cache: PagedKVCache) -> None:
        stored = self.caches[cache].stored
        count = self.r.choice([0, self.r.randint(0, stored), self.r.randint(0, min(stored, 4))])
        assert cache.can_rollback(count) == self.caches[cache].can_rollback(count)
        self.take_back(cache, count)

    def take_back(self, cache: PagedKVCache, count: int) -> None:
        cache.rollback(count)
        for row in self.caches[cache].rows:
            row.rollback(count)

    def do_too_far(self, cache: PagedKVCache) -> None:
        stored = self.caches[cache].stored
        before, count = state(cache), stored + self.r.randint(1, 9)
        with pytest.raises(InvalidRequest, match=f"cannot roll back {count} tokens: {stored} are stored"):
            cache.rollback(count)
        assert not cache.can_rollback(count) and state(cache) == before

    def do_fork(self, cache: PagedKVCache) -> None:
        if len(self.caches) < 4:
            self.caches[cache.fork()] = self.caches[cache].fork()

    def do_reorder(self, cache: PagedKVCache) -> None:
        plain = self.caches[cache]
        order = [self.r.randrange(len(plain.rows)) for _ in plain.rows]
        cache.reorder(order)
        plain.rows = [plain.rows[source].copy() for source in order]

    def do_select(self, cache: PagedKVCache) -> None:
        plain = self.caches[cache]
        order = [self.r.randrange(len(plain.rows)) for _ in range(self.r.choice([1, 2, 3, 4]))]
        cache.select(order)
        plain.rows = [plain.rows[source].copy() for source in order]
        self.widened(cache)

    def do_reset(self, cache: PagedKVCache) -> None:
        plain = self.caches[cache]
        cache.reset()
        plain.rows, plain.cut = [Lists(self.size) for _ in plain.rows], 0

    def do_free(self, cache: PagedKVCache) -> None:
        if len(self.caches) > 1:
            cache.free()
            del self.caches[cache]
            with pytest.raises(SequenceFreed):
                cache.append(0, *self.rows.of(0, [[0]] * cache.spec.batch))

    def do_keep_past(self, cache: PagedKVCache) -> None:
        plain, past = self.caches[cache], self.r.randint(0, 9)
        cache.keep_past(past)
        if self.window and past > plain.past:
            plain.past = past
            self.widened(cache)

    def widened(self, cache: PagedKVCache) -> None:
        """tokens= are of each sequence: with more of them, or longer ones, the pool has grown."""
        if cache.pool and not self.grow:
            self.totals[cache.pool] = max(self.totals[cache.pool], self.wanted(self.caches[cache]))

    def do_nothing(self, cache: PagedKVCache) -> None:
        plain, layer = self.caches[cache], self.r.randrange(self.layers)
        nothing = torch.empty(len(plain.rows), self.heads, 0, self.dim, dtype=self.dtype)
        before = state(cache)
        self.same(cache.append(layer, nothing, nothing), layer, plain.visible)
        assert state(cache) == before

    # what must hold

    def same(self, pair, layer: int, tokens: list[list[int]]) -> None:
        if not tokens[0]:
            assert [t.shape for t in pair] == [(len(tokens), self.heads, 0, self.dim)] * 2
            return
        for found, wanted in zip(pair, self.rows.of(layer, tokens)):
            assert found.dtype == wanted.dtype and torch.equal(found, wanted)

    def poison(self, cache: PagedKVCache) -> None:
        """Free pages hold the worst that another sequence could have left."""
        if cache._memory is None:
            return
        store, pool = cache._memory.store, cache.pool
        if isinstance(store, Loose):
            take = type(store).take.__get__(store)

            def poisoned(pages):
                there = set(store.pages)
                take(pages)
                for page in store.pages.keys() - there:
                    for pair in store.pages[page]:
                        for tensor in pair:
                            tensor.fill_(NAN)

            store.take = poisoned
            return
        free = torch.tensor([page for page in range(pool.pages) if pool.is_free(page)], dtype=torch.long)
        for slab in [*store.keys, *store.values]:
            slab.view(self.heads, pool.pages, self.size, self.dim)[:, free] = NAN

    def verify(self, caches: list[PagedKVCache]) -> None:
        for cache in caches:
            plain, open_step = self.caches[cache], cache._memory and cache._memory.stepping
            cache.check()
            assert (cache.seen, cache.length, cache.spec.batch) == (plain.seen, plain.length, len(plain.rows))
            assert cache.logical_bytes == plain.length * len(plain.rows) * self.bytes_now(cache)
            for layer in range(self.layers):
                with self.mode():
                    read = cache.get_all(layer)
                if cache.pool or cache.spec.dtype:
                    self.same(read, layer, plain.visible)
            if cache.pool is None:
                assert cache.held_bytes == 0
                continue
            pool, store = cache.pool, cache._memory.store
            if self.r.random() < 0.3:
                log = cache.log.at(len(cache.log), pool.number)
                for table in cache.tables:
                    shown = log.tables[table.sequence]
                    assert list(shown) == table.pages[: len(shown)] and set(table.pages[len(shown) :]) <= {NULL}
                    assert (log.lengths[table.sequence], log.visible_from(table.sequence)) == (
                        cache.seen,
                        cache.visible_from,
                    )
            used = in_use(self.sharing(cache))
            assert pool.pages == self.totals[pool]
            if open_step is None:
                assert pool.used_count == used
            if isinstance(store, Loose):
                assert not store._spare
                assert open_step or cache.held_bytes == used * self.size * self.token_bytes
                continue
            scratch = sum(t.numel() * t.element_size() for t in store._scratch)
            assert cache.held_bytes == pool.pages * self.size * self.token_bytes + scratch
            mine = torch.tensor(sorted({page for t in cache.tables for _, page in t.entries}), dtype=torch.long)
            if open_step is None:
                for slab in store.values:
                    assert not slab.view(self.heads, pool.pages, self.size, self.dim)[:, mine].isnan().any()

    def bytes_now(self, cache: PagedKVCache) -> int:
        return self.token_bytes if cache.spec.dtype else 2 * self.layers * self.heads * self.dim * 4

    def finish(self) -> None:
        for cache in list(self.caches):
            cache.free()
        for pool in self.totals:
            pool.check()
            assert pool.free_count == pool.pages and not pool.tables


def run(seed: int, steps: int = 25) -> Program:
    program = Program(seed)
    for n in range(steps):
        try:
            program.step()
            program.verify(list(program.caches))
        except Exception as error:
            raise AssertionError(f"program {seed}, step {n}: {type(error).__name__}: {error}") from error
    program.finish()
    return program


def test_random_programs():
    done = [run(FIRST_SEED + n) for n in range(PROGRAMS)]
    if PROGRAMS >= 100:
        assert sum(program.refused for program in done) > len(done) / 4
