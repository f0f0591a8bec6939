"""Pages without tensors: pool, tables, free list and log. Cases one can work out by hand, and random programs.

KVVIZ_FUZZ_PROGRAMS (500) random programs run, half of them here and half in test_paged.py. `make fuzz` runs 10,000, with
fresh seeds each time; KVVIZ_FUZZ_SEED=N begins at N again.
"""

from __future__ import annotations

import os
import random
from collections import Counter, deque

import numpy as np
import pytest

from kvviz import PageLog, PagePool, PageTable
from kvviz.cache.freelist import FreeList
from kvviz.cache.pagelog import NULL, PageAction, PoolInfo
from kvviz.cache.table import Copy
from kvviz.errors import CorruptCache, InvalidRequest, PoolExhausted, SequenceFreed, UnknownPage

PROGRAMS = -(-int(os.environ.get("KVVIZ_FUZZ_PROGRAMS") or "500") // 2)
FRESH = int.from_bytes(os.urandom(3), "big") * 1000 if PROGRAMS > 250 else 0
FIRST_SEED = int(os.environ.get("KVVIZ_FUZZ_SEED") or FRESH)


def deep(pool: PagePool) -> tuple:
    """All that a pool and its tables are made of."""
    tables = {
        s: (list(t.pages), t.seen, t.first, t.row, t.home, list(t._keys), list(t._tail), t.freed)
        for s, t in pool.tables.items()
    }
    prefixes = list(pool._prefixes), dict(pool._found), pool._learned
    return list(pool._free), pool._free.count, list(pool._references), prefixes, tables, pool.pages, pool.info.pages


def filled(pool: PagePool, *tokens) -> list[PageTable]:
    """A table for each of these: a number of tokens, or their ids."""
    tables = [pool.table() for _ in tokens]
    for table, new in zip(tables, tokens):
        table.append(new)
    return tables


# -- cases ---------------------------------------------------------------------------------------------------------------


def test_freeing_twice():
    pool = PagePool(4, 16)
    b = pool.allocate()
    assert (pool.free_count, pool.used_count, pool.references(b)) == (3, 1, 1)
    pool.free(b)
    with pytest.raises(UnknownPage, match=f"page {b} is already free"):
        pool.free(b)
    assert pool.free_count == 4
    pool.check()
    assert pool.allocate() != pool.allocate()


def test_a_page_that_was_overwritten_is_not_found():
    pool = PagePool(1, 4)
    (x,) = filled(pool, [1, 2, 3, 4])
    x.free()
    assert [known.page for known in pool.find([1, 2, 3, 4])] == [0]  # as long as nobody needs the page
    (y,) = filled(pool, [5, 6, 7, 8])
    assert y.pages == [0]
    assert pool.find([1, 2, 3, 4]) == [] and pool.table().adopt([1, 2, 3, 4]) == 0
    assert [known.page for known in pool.find([5, 6, 7, 8])] == [0]
    y.free()
    filled(pool, 1)  # also by one of whose tokens nothing is known
    assert pool.find([5, 6, 7, 8]) == []
    pool.check()


@pytest.mark.parametrize(("n", "pages"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
@pytest.mark.parametrize("one_by_one", [True, False])
def test_pages_of_n_tokens(n, pages, one_by_one):
    pool = PagePool(8, 4)
    table = pool.table()
    for count in [1] * n if one_by_one else [n]:
        assert table.append(count) == []
    assert table.pages == list(range(pages)) and (table.length, pool.used_count) == (n, pages)
    pool.check()


def test_a_full_pool_has_room_in_its_last_page():
    pool = PagePool(2, 4)
    table, other = filled(pool, 3, 1)
    assert pool.free_count == 0 and table.can_append(1) and not table.can_append(2)
    table.append(1)
    before, events = deep(pool), len(pool.log)
    assert table.can_append(0) and not table.can_append(1)
    with pytest.raises(PoolExhausted, match="no room for 1 more token: 1 page of 4 tokens missing, 0 of 2 free"):
        table.append(1)
    with pytest.raises(PoolExhausted, match="no room for 9 more tokens: 3 pages of 4 tokens missing, 0 of 2 free"):
        table.append(9)
    with pytest.raises(PoolExhausted, match="no free page: all 2 pages of 4 tokens are in use"):
        pool.allocate()
    assert deep(pool) == before and table.append(0) == []
    refused = pool.log.events.tokens[events:]
    assert refused.tolist() == [1, 3] and set(pool.log.events.action[events:]) == {PageAction.REFUSE}
    other.free()
    table.append(1)
    assert (table.length, table.pages) == (5, [0, 1])


def test_a_hit_counts_whole_pages_only():
    pool = PagePool(8, 16)
    prompt = list(range(100, 140))
    (first,) = filled(pool, prompt)
    second = pool.table()
    assert second.adopt(prompt) == 32 <= 40  # the tail of 8 is in a page that is not full
    assert second.pages == first.pages[:2] and [pool.references(p) for p in first.pages] == [2, 2, 1]
    second.append(prompt[32:])
    assert second.pages[2] != first.pages[2]
    third = pool.table()
    assert third.adopt([*prompt[:31], 0]) == 16 and pool.table().adopt(prompt[:15]) == 0
    pool.check()


@pytest.mark.parametrize(("common", "hit"), [(0, 0), (3, 0), (4, 4), (7, 4), (8, 8), (9, 8)])
def test_a_common_prefix_is_aligned(common, hit):
    pool = PagePool(8, 4)
    filled(pool, range(1, 11))
    assert pool.table().adopt([*range(1, common + 1), 99, 99]) == hit


@pytest.mark.parametrize(("done", "gone"), [(3, 0), (4, 0), (5, 1), (9, 3), (10, 3)])
def test_pages_that_slide_out(done, gone):
    """W = 4, two tokens a page: the next query needs max(0, c - W + 1) and what follows."""
    pool = PagePool(8, 2)
    (table,) = filled(pool, done)
    table.slide(max(0, done - 4 + 1))
    assert table.pages == [NULL] * gone + list(range(gone, -(-done // 2))) and table.first == max(0, done - 3)
    assert pool.used_count == -(-done // 2) - gone
    pool.check()


def test_a_window_appends_into_a_full_pool():
    """W = 4, two tokens a page: three pages are enough for ever, since each append lets go before it takes."""
    pool = PagePool(3, 2, info=PoolInfo("window", 3, 2, window=4))
    table = pool.table()
    for seen in range(1, 40):
        table.append(1, keep=max(0, seen - 4))
        pool.check()
        assert (table.seen, table.first) == (seen, max(0, seen - 4)) and pool.used_count <= 3
    table.append(20, keep=55)  # 16 of the new ones get no slot
    assert (table.length, pool.used_count) == (4, 3) and table.pages[:27] == [NULL] * 27
    state = pool.log.at(len(pool.log))
    assert (state.visible_from(0), state.stored) == (55, 4)
    with pytest.raises(InvalidRequest, match="keep=60 leaves none of 60 tokens"):
        table.append(1, keep=60)


def test_remove_the_newest():
    pool = PagePool(4, 4)
    (table,) = filled(pool, 10)
    for count, left, pages in [(2, 8, 2), (1, 7, 2), (7, 0, 0)]:
        table.rollback(count)
        assert (table.length, len(table.pages), pool.used_count) == (left, pages, pages)
        pool.check()
        state = pool.log.at(len(pool.log))
        assert state.lengths[0] == left and state.stored == left
        if left == 7:
            assert state.high[table.pages[-1]] - state.low[table.pages[-1]] == 3
    with pytest.raises(InvalidRequest, match="cannot roll back 1 tokens: 0 are stored"):
        table.rollback(1)


def test_copy_on_write():
    pool = PagePool(8, 4)
    (parent,) = filled(pool, 6)
    child = parent.fork()
    assert [pool.references(page) for page in parent.pages] == [2, 2] and child.pages == parent.pages
    assert pool.missing([child], 1) == 0 and pool.needed([child], 1) == 1
    assert child.append(1) == [Copy(source=1, target=2, low=0, high=2)]
    assert (parent.pages, child.pages) == ([0, 1], [0, 2]) and [pool.references(p) for p in (0, 1, 2)] == [2, 1, 1]
    assert parent.append(1) == [] and parent.pages == [0, 1]  # nobody else has it any more
    state = pool.log.at(len(pool.log))
    assert (state.high - state.low).tolist()[:3] == [4, 3, 3] and (state.shared, state.stored) == (1, 10)
    pool.check()


def test_full_pages_are_not_copied():
    pool = PagePool(8, 4)
    (parent,) = filled(pool, 8)
    child = parent.fork()
    assert child.append(1) == [] and child.pages == [0, 1, 2]
    assert [pool.references(page) for page in child.pages] == [2, 2, 1]


def test_a_copy_needs_a_page():
    pool = PagePool(2, 4)
    (parent,) = filled(pool, 6)
    child = parent.fork()
    before = deep(pool)
    with pytest.raises(PoolExhausted, match="1 page of 4 tokens missing, 0 of 2 free"):
        child.append(1)
    assert deep(pool) == before
    # of the two that write it the second one needs no copy
    assert pool.needed([parent, child], 1) == 1 and pool.missing([parent, child], 1) == 1
    pool.extend(1)
    assert pool.missing([parent, child], 1) == 0 and (pool.pages, pool.free_count, pool.info.pages) == (3, 1, 3)
    assert len(child.append(1)) == 1 and parent.append(1) == []
    pool.check()


def test_a_slid_copy_moves_only_what_stays():
    pool = PagePool(8, 4)
    (parent,) = filled(pool, 7)
    child = parent.fork()
    assert child.append(1, keep=5) == [Copy(1, 2, low=1, high=3)] and child.pages == [NULL, 2]
    assert child.append(4, keep=8) == [] and child.pages[:2] == [NULL, NULL]
    pool.check()


@pytest.mark.parametrize("past", ["fork", "become"])
def test_a_shared_page_comes_back_only_after_the_last_one(past):
    pool = PagePool(4, 4)
    (a,) = filled(pool, 7)
    b = a.fork() if past == "fork" else pool.table()
    if past == "become":
        b.append(5)
        b.become(a.past())
    a.free()
    assert pool.free_count == 2 and b.pages == [0, 1]
    b.free()
    assert pool.free_count == 4
    pool.check()


def test_become_leaves_what_both_have_in_place():
    pool = PagePool(6, 2)
    (a,) = filled(pool, 5)
    b = a.fork()
    b.append(2)
    events = len(pool.log)
    a.become(b.past())
    assert (a.pages, a.seen) == (b.pages, 7)
    log = pool.log.events
    indices = log.index[events:][np.isin(log.action[events:], [PageAction.RELEASE, PageAction.SHARE])]
    assert 0 not in indices and 1 not in indices
    pool.check()


def test_one_past_for_several():
    pool = PagePool(8, 2)
    (a,) = filled(pool, [1, 2, 3])
    past, others = a.past(), [pool.table(), pool.table()]
    for table in others:
        table.become(past)
    a.append([4, 5])
    others[0].append([6, 7])
    assert (past.pages, past.keys, past.tail) == ([0, 1], [1], [3]) and others[1].pages == [0, 1] != others[0].pages
    pool.check()


def test_a_past_that_nobody_held():
    """One of its pages went back to the pool: nothing is shared, not even those that are still there."""
    pool = PagePool(6, 4)
    (a,) = filled(pool, 8)
    b = a.fork()
    b.append(4)
    past = b.past()
    b.free()
    c, before = pool.table(), deep(pool)
    before[4][c.sequence] = deep(pool)[4][c.sequence]
    with pytest.raises(UnknownPage, match=r"pages \[2\] of that past are free"):
        c.become(past)
    assert deep(pool) == before
    pool.check()


def test_sequences_lie_in_a_row_while_there_is_room():
    pool = PagePool(12, 2)
    a, b = pool.table(), pool.table()
    a.home, b.home = 0, 6
    for _ in range(10):
        a.append(1)
        b.append(1)
    assert (a.pages, b.pages, a.row, b.row) == ([0, 1, 2, 3, 4], [6, 7, 8, 9, 10], 0, 0)
    b.append(2)
    a.append(2)
    assert (a.pages[-1], b.pages[-1]) == (5, 11)
    b.rollback(4)
    a.append(2)  # 6 is taken; the one that was freed first is next
    assert a.pages[-1] == 11 and a.row == 6
    pool.check()


def test_what_was_freed_last_is_found_longest():
    pool = PagePool(3, 2)
    a, b, c = filled(pool, [1, 1], [2, 2], [3, 3])
    for table in (b, c, a):
        table.free()
    taken = []
    for new in ([4, 4], [5, 5]):
        (table,) = filled(pool, new)
        taken.append(table.pages[0])
    assert taken == [1, 2] and pool.find([1, 1]) and not pool.find([2, 2]) and not pool.find([3, 3])
    revived = pool.table()
    assert revived.adopt([1, 1, 9]) == 2 and pool.free_count == 0
    with pytest.raises(PoolExhausted):
        revived.append(1)
    pool.check()


def test_what_is_rewritten_is_forgotten():
    pool = PagePool(4, 2)
    (a,) = filled(pool, [1, 2, 3, 4])
    a.rollback(1)
    assert pool.table().adopt([1, 2, 3, 4]) == 4  # nothing is written over it yet
    next(t for t in pool.tables.values() if t is not a).free()
    a.append([5])
    assert [pool.table().adopt(p) for p in ([1, 2, 3, 4], [1, 2, 3, 5])] == [2, 2]  # what a rollback cut is not learned
    b = a.fork()
    b.rollback(1)
    b.append(1)  # a copy, so the first one's page stays what it was
    a.append([6, 7])
    pool.check()


def test_a_page_stands_for_what_it_was_last_said_to_hold():
    pool = PagePool(4, 2)
    (a,) = filled(pool, 2)
    assert pool.remember(a.pages[0], 0, [1, 1]) != pool.remember(a.pages[0], 0, [2, 2])
    assert pool.find([1, 1]) == [] and [known.page for known in pool.find([2, 2])] == a.pages
    pool.check()


def test_what_follows_a_hit_is_learned_too():
    pool = PagePool(8, 2)
    filled(pool, [1, 2, 3])
    b = pool.table()
    assert b.adopt([1, 2, 5, 6]) == 2
    b.append([5, 6])
    assert pool.table().adopt([1, 2, 5, 6, 7]) == 4
    c = b.fork()
    c.append([7, 8])
    assert pool.table().adopt([1, 2, 5, 6, 7, 8]) == 6


def test_ids_come_as_any_sequence():
    pool = PagePool(8, 2)
    (a,) = filled(pool, np.array([1, 2, 3, 4]))
    assert a.seen == 4
    (b,) = filled(pool, np.array([7]))  # one id is not seven tokens
    assert b.seen == 1
    assert pool.table().adopt(np.array([1, 2, 3, 4])) == 4 == pool.table().adopt((1, 2, 3, 4, 5))
    (c,) = filled(pool, np.int64(3))
    assert c.seen == 3


def test_what_was_rolled_back_is_no_beginning():
    """Its page still has the tokens; but what comes next comes after others, of which nothing is known."""
    for back, unknown, ids in [(3, 2, [3, 4]), (1, 1, [4])]:
        pool = PagePool(8, 2)
        (a,) = filled(pool, [1, 2, 3])
        a.rollback(back)
        a.append(unknown)
        a.append(ids)
        assert a.seen == 4 and pool.table().adopt([1, 2, 3, 4]) == 2
        pool.check()


def test_a_row_is_one_again_when_what_broke_it_is_gone():
    pool = PagePool(8, 2)
    a, b = filled(pool, 4, 2)
    a.append(4)
    assert (a.pages, a.row) == ([0, 1, 3, 4], 2)
    a.rollback(3)
    assert a.row == 2
    a.rollback(1)
    assert a.row <= 1
    b.free()
    a.append(1)
    assert a.pages == [0, 1, 2] and a.row <= 1
    pool.check()


def test_unknown_tokens_in_between_are_not_remembered():
    pool = PagePool(8, 2)
    (a,) = filled(pool, [1, 2])
    a.append(1)
    a.append([4, 5, 6])
    assert [k.page for k in pool.find([1, 2, 0, 4, 5, 6])] == [0] and len(pool._found) == 1
    (b,) = filled(pool, 4)
    b.slide(1)
    b.rollback(1)
    b.append([1, 2, 3])
    assert len(pool._found) == 1
    pool.check()


def test_the_same_page_under_another_beginning_is_another_prefix():
    pool = PagePool(8, 2)
    filled(pool, [1, 1, 2, 2], [3, 3, 2, 2])
    assert [k.page for k in pool.find([3, 3, 2, 2])] == [2, 3] and [k.page for k in pool.find([1, 1, 2, 2])] == [0, 1]
    assert pool.find([2, 2]) == []


def test_the_first_page_with_a_content_is_the_one_to_be_found():
    pool = PagePool(8, 2)
    a, b = filled(pool, [1, 1, 2, 2], [1, 1, 2, 2, 3, 3])
    assert [k.page for k in pool.find([1, 1, 2, 2, 3, 3])] == [a.pages[0], a.pages[1], b.pages[2]]
    pool.check()


# -- misuse ---------------------------------------------------------------------------------------------------------------

WRONG = {
    "free of a free page": (lambda p, t: p.free(3), UnknownPage, "page 3 is already free"),
    "free of another page": (lambda p, t: p.free(4), UnknownPage, r"no page 4 in this pool; it has 0 … 3"),
    "free of null": (lambda p, t: p.free(NULL), UnknownPage, "no page -1"),
    "free of no page": (lambda p, t: p.free("0"), UnknownPage, "no page '0'"),
    "free of yes": (lambda p, t: p.free(True), UnknownPage, "no page True"),
    "sharing a free page": (lambda p, t: p.retain(3), UnknownPage, "page 3 is free: it cannot be shared"),
    "references of another page": (lambda p, t: p.references(9), UnknownPage, "no page 9"),
    "is another page free": (lambda p, t: p.is_free(-2), UnknownPage, "no page -2"),
    "half a page": (lambda p, t: p.can_allocate(0.5), InvalidRequest, "pages must be a whole number from 0 up, got"),
    "no pages more": (lambda p, t: p.extend(0), InvalidRequest, "pages must be a whole number from 1 up, got 0"),
    "a part of a page": (lambda p, t: p.remember(0, 0, [1]), InvalidRequest, "only full pages are remembered: 1 of 4"),
    "append below 0": (lambda p, t: t.append(-1), InvalidRequest, "tokens must be a whole number from 0 up, got -1"),
    "append of a half": (lambda p, t: t.append(1.5), InvalidRequest, "a whole number from 0 up, got 1.5"),
    "append that leaves nothing": (lambda p, t: t.append(2, keep=7), InvalidRequest, "keep=7 leaves none of 7 tokens"),
    "keep below 0": (lambda p, t: t.append(2, keep=-1), InvalidRequest, "keep must be a whole number from 0 up"),
    "can append below 0": (lambda p, t: t.can_append(-1), InvalidRequest, "got -1"),
    "rollback too far": (lambda p, t: t.rollback(6), InvalidRequest, "cannot roll back 6 tokens: 5 are stored"),
    "rollback below 0": (lambda p, t: t.rollback(-1), InvalidRequest, "got -1"),
    "slide below 0": (lambda p, t: t.slide(-1), InvalidRequest, "first must be a whole number from 0 up, got -1"),
    "adopt too late": (lambda p, t: t.adopt([1]), InvalidRequest, "only an empty sequence can adopt.*has 5 tokens"),
}


@pytest.mark.parametrize(("call", "error", "says"), WRONG.values(), ids=WRONG)
def test_a_wrong_call_changes_nothing(call, error, says):
    pool = PagePool(4, 4)
    (table,) = filled(pool, 5)
    before, events = deep(pool), len(pool.log)
    with pytest.raises(error, match=says):
        call(pool, table)
    assert deep(pool) == before and len(pool.log) == events
    pool.check()


@pytest.mark.parametrize(
    "call",
    [
        lambda t: t.append(1),
        lambda t: t.append(0),
        lambda t: t.can_append(1),
        lambda t: t.rollback(0),
        lambda t: t.slide(1),
        lambda t: t.fork(),
        lambda t: t.become(t.pool.table().past()),
        lambda t: t.adopt([1]),
        lambda t: t.free(),
    ],
)
def test_a_freed_sequence(call):
    pool = PagePool(4, 4)
    table, _ = filled(pool, 5, 2)
    table.free()
    before = deep(pool)
    with pytest.raises(SequenceFreed, match="sequence 0 was freed"):
        call(table)
    assert {s: t for s, t in deep(pool)[4].items() if s < 2} == before[4] and deep(pool)[:4] == before[:4]
    assert repr(table) == "<PageTable 0: freed>"


def test_a_pool_that_nobody_could_count():
    with pytest.raises(InvalidRequest, match="a pool has at most 16,777,216 pages, not 1,000,000,000,000"):
        PagePool(10**12, 16)
    with pytest.raises(InvalidRequest, match="log must be a PageLog or None, got int"):
        PagePool(4, 16, log=5)


@pytest.mark.parametrize("name", ["pages", "page_size"])
@pytest.mark.parametrize("value", [0, -1, 1.5, None, True, "8"])
def test_counts_that_are_none(name, value):
    with pytest.raises(InvalidRequest, match=f"{name} must be a whole number from 1 up, got {value!r}"):
        PagePool(**{"pages": 4, "page_size": 4, name: value})


# -- check() ----------------------------------------------------------------------------------------------------------------


def set_at(cells, index: int, value) -> None:
    cells[index] = value


def swap(a, i: int, b, j: int) -> None:
    a[i], b[j] = b[j], a[i]


# sequence 0 has pages 0, 1, 2 and 9 tokens; sequence 1 shares 0 and 1, and has 3; sequence 2 has 4, 5; 6 and 7 are free
DAMAGE = {
    "a reference too many": (lambda p, t: p.retain(1), "page 1 has 3 references and 2 table entries"),
    "a reference too few": (lambda p, t: p.free(1), "page 1 has 1 references and 2 table entries"),
    "freed under a table": (lambda p, t: p.free(2), "page 2 has 0 references and 1 table entries"),
    "twice in the free list": (lambda p, t: p._free.append(6), "free list holds 1 entries, 1 pages, counts 3"),
    "lost": (lambda p, t: p._free.remove(6), "page 6 is lost with 0 table entries"),
    "free and used": (lambda p, t: p._free.append(4), "page 4 is free with 1 table entries"),
    "free by its mark only": (lambda p, t: set_at(p._free._in, 5, 1), "2 pages, counts 2, and 3 pages are marked"),
    "another one is free by its mark": (lambda p, t: swap(p._free._in, 5, p._free._in, 7), "page 4 is free with 1"),
    "miscounted": (lambda p, t: setattr(p._free, "count", 3), "holds 2 entries, 2 pages, counts 3"),
    "entries of a table swapped": (lambda p, t: t[0].pages.reverse(), "sequence 0: pages 2 and 1 do not lie in a row"),
    "entries of two tables swapped": (
        lambda p, t: swap(t[0].pages, 1, t[2].pages, 1),
        "sequence 0: pages 0 and 5 do not lie in a row",
    ),
    "an entry of another page": (
        lambda p, t: set_at(t[2].pages, 1, 6),
        "sequence 2: pages 4 and 6 do not lie in a row",
    ),
    "an entry of a free page": (lambda p, t: set_at(t[1].pages, 2, 6), "page 3 has 1 references and 0 table entries"),
    "a page too few": (lambda p, t: t[0].pages.pop(), "sequence 0 has 2 entries for 9 tokens, not 3"),
    "a token too many": (lambda p, t: setattr(t[2], "seen", 9), "sequence 2 has 2 entries for 9 tokens, not 3"),
    "let go too early": (lambda p, t: set_at(t[2].pages, 0, NULL), "sequence 2 has no page for tokens 0 … 3"),
    "kept too long": (lambda p, t: setattr(t[0], "first", 4), "sequence 0 has page 0 for tokens 0 … 3"),
    "found under other tokens": (
        lambda p, t: swap(p._prefixes, 0, p._prefixes, 1),
        "page 0 is found under tokens that",
    ),
    "remembered but not found": (lambda p, t: p._found.popitem(), "2 pages are remembered, 1 of them can be found"),
}


@pytest.mark.parametrize(("damage", "says"), DAMAGE.values(), ids=DAMAGE)
def test_check_finds_damage(damage, says):
    pool = PagePool(8, 4)
    (a,) = filled(pool, range(9))
    b = a.fork()
    b.append(1)
    filled(pool, 8)
    assert [t.pages for t in pool.tables.values()] == [[0, 1, 2], [0, 1, 3], [4, 5]]
    pool.check()
    damage(pool, pool.tables)
    with pytest.raises(CorruptCache, match=says):
        pool.check()


def uncounted(pool: PagePool, page: int) -> None:
    """A retain that forgets to count."""


def hasty(pool: PagePool, page: int) -> None:
    """A free that does not wait for the last reference."""
    pool._references[page] = max(0, pool._references[page] - 1)
    pool._free.append(page)


@pytest.mark.parametrize(
    ("name", "wrong", "says"),
    [
        ("retain", uncounted, "page 0 has 1 references and 2 table entries"),
        ("free", hasty, "page 1 is free with 1 table entries|the free list holds"),
    ],
)
def test_a_pool_that_miscounts_is_found_out(monkeypatch, name, wrong, says):
    monkeypatch.setattr(PagePool, name, wrong)
    pool = PagePool(8, 4)
    (a,) = filled(pool, 6)
    a.fork().append(1)
    with pytest.raises(CorruptCache, match=says):
        pool.check()


# -- the free list ------------------------------------------------------------------------------------------------------------


def test_the_free_list_is_a_queue_from_which_any_may_be_taken():
    for seed in range(30):
        r = random.Random(seed)
        free, queue = FreeList(n := r.randint(1, 20)), deque(range(n))
        for _ in range(100):
            match r.choice(["first", "any", "back", "back", "more"]):
                case "first" if queue:
                    assert free.first() == queue[0]
                    free.remove(queue.popleft())
                case "any" if queue:
                    page = r.choice(queue)
                    free.remove(page)
                    queue.remove(page)
                case "back" if len(queue) < n:
                    page = r.choice([p for p in range(n) if p not in queue])
                    free.append(page)
                    queue.append(page)
                case "more" if n < 30:
                    free.extend(2)
                    queue += [n, n + 1]
                    n += 2
            assert list(free) == list(queue) and free.count == len(queue)
            assert [p for p in range(-2, n + 2) if p in free] == sorted(queue)


class Cells(list):
    """Counts the cells that are read and written; nothing else may be done to it."""

    touched = 0

    def __getitem__(self, index):
        assert isinstance(index, int)
        Cells.touched += 1
        return super().__getitem__(index)

    def __setitem__(self, index, value):
        assert isinstance(index, int)
        Cells.touched += 1
        super().__setitem__(index, value)

    def refuse(self, *args):
        raise AssertionError("this walks the whole list")

    __iter__ = __contains__ = __reversed__ = __add__ = __iadd__ = __delitem__ = refuse
    remove = insert = pop = index = count = sort = copy = append = extend = refuse


def test_taking_and_giving_back_cost_the_same_in_any_pool():
    """Counted, not timed: cells of lists that are touched, for the same calls on pools of four sizes."""
    counts = []
    for pages in (8, 80, 800, 8000):
        pool = PagePool(pages, 1)
        for owner, name in [(pool._free, "_next"), (pool._free, "_prev"), (pool._free, "_in"),
                            (pool, "_references"), (pool, "_prefixes")]:  # fmt: skip
            setattr(owner, name, Cells(getattr(owner, name)))
        Cells.touched, each = 0, []
        first = [pool.allocate() for _ in range(4)]
        for page in (first[2], first[0]):
            pool.free(page)
        pool.allocate(prefer=pages - 1)
        pool.allocate(prefer=first[0])
        pool.retain(first[1])
        pool.free(first[1])
        pool.free(first[1])
        assert pool.can_allocate() and not pool.is_free(first[0]) and pool.references(first[3]) == 1
        each.append(Cells.touched)
        table = pool.table()
        table.append(2)
        child = table.fork()
        child.append(1)
        each.append(Cells.touched)
        table.free()
        child.free()
        counts.append([*each, Cells.touched])
    assert counts[0] == counts[1] == counts[2] == counts[3] and counts[0][0] > 0


# -- the log --------------------------------------------------------------------------------------------------------------------


def test_a_state_in_numbers():
    log = PageLog()
    pool = PagePool(6, 4, log=log)
    (a,) = filled(pool, 6)
    log.mark("forked")
    b = a.fork()
    b.append(1)
    a.slide(5)
    state = log.at(len(log))
    assert state.tables == {0: (NULL, 1), 1: (0, 2)} and state.lengths == {0: 6, 1: 7} and state.firsts == {0: 5, 1: 0}
    assert state.references.tolist() == [1, 1, 1, 0, 0, 0]
    assert (state.low.tolist(), state.high.tolist()) == ([0, 1, 0, 0, 0, 0], [4, 2, 3, 0, 0, 0])
    assert (state.used, state.free, state.shared, state.stored, state.logical) == (3, 3, 0, 8, 8)
    assert state.waste == 1 - 8 / 12 and log.at(0).waste == 0.0 and log.at(0).tables == {}
    ((before, name),) = log.marks
    state = log.at(before)
    assert name == "forked" and state.tables == {0: (0, 1)} and state.logical == 6 and state.shared == 0
    names = [PageAction(x).name for x in log.events.action[before:]]
    assert names == ["BEGIN", "SHARE", "SHARE", "LENGTH", "COPY", "WRITE", "SLIDE", "FIRST"]
    assert log.events.source[before] == 0  # the parent
    frame = log.to_dataframe()
    assert frame["action"].tolist()[before:] == [n.lower() for n in names] and len(frame) == len(log)
    assert repr(log) == f"<PageLog: {len(log)} events; pool: 6 pages of 4; page bookkeeping, no tensors>"


@pytest.mark.parametrize(
    ("i", "pool", "says"),
    [(-1, 0, "i must be 0 … 2, got -1"), (3, 0, "got 3"), (True, 0, "got True"), (1.0, 0, "got 1.0"),
     (0, 1, "no pool 1 in this log; it has 1"), (0, -1, "no pool -1"), (0, True, "no pool True")],
)  # fmt: skip
def test_moments_that_are_none(i, pool, says):
    log = PageLog()
    PagePool(4, 4, log=log).table().append(0)
    log.add(PageAction.REFUSE, 0, tokens=1)
    with pytest.raises(InvalidRequest, match=says):
        log.at(i, pool)


def test_a_window_is_counted_without_an_event():
    pool = PagePool(8, 2, info=PoolInfo("w", 8, 2, window=4))
    (a,) = filled(pool, 7)
    state = pool.log.at(len(pool.log))
    assert state.visible_from(0) == 3 and state.logical == state.stored == 4 and state.firsts == {0: 0}
    assert (state.high - state.low).tolist() == [0, 1, 2, 1, 0, 0, 0, 0]
    a.rollback(2)  # without a first of its own it moves back
    assert pool.log.at(len(pool.log)).visible_from(0) == 1
    a.append(3, keep=4)
    a.rollback(2)
    assert pool.log.at(len(pool.log)).visible_from(0) == 4 == a.first
    b = pool.table()
    b.become(a.past())
    assert pool.log.at(len(pool.log)).visible_from(1) == 4
    c = a.fork()
    for table in (a, c):
        table.append(4, keep=6)
    c.rollback(2)  # its window cannot move back
    assert (a.seen, a.first, c.seen, c.first) == (10, 6, 8, 6)
    a.become(c.past())
    assert pool.log.at(len(pool.log)).visible_from(0) == 6 == a.first


# -- random programs -----------------------------------------------------------------------------------------------------------


class Sheet:
    """A page of the slow model. It has no number; two are the same if they are the same object."""


class Lists:
    """A sequence of the slow model: all tokens that came, the number of the first that is stored, sheets by index."""

    def __init__(self, size: int, tokens=(), first: int = 0, sheets=()):
        self.size, self.tokens, self.first, self.sheets = size, list(tokens), first, dict(sheets)

    @property
    def seen(self) -> int:
        return len(self.tokens)

    def copy(self) -> Lists:
        return Lists(self.size, self.tokens, self.first, self.sheets)

    def take(self, other: Lists) -> None:
        self.tokens, self.first, self.sheets = list(other.tokens), other.first, dict(other.sheets)

    def slide(self, first: int) -> None:
        self.first = max(self.first, first)
        held = {t // self.size for t in range(self.first, self.seen)}
        self.sheets = {k: sheet for k, sheet in self.sheets.items() if k in held}

    def rollback(self, count: int) -> None:
        del self.tokens[self.seen - count :]
        self.first = min(self.first, self.seen)
        self.slide(self.first)

    def grow(self, new: list, keep: int, all_of_them: list[Lists]) -> int:
        """Returns how many sheets it took. What is not stored any more must be gone already."""
        written = {t // self.size for t in range(max(keep, self.seen), self.seen + len(new))}
        taken = 0
        for k in written:
            others = [sheet for lists in all_of_them if lists is not self for sheet in lists.sheets.values()]
            if k not in self.sheets or self.sheets[k] in others:
                self.sheets[k] = Sheet()
                taken += 1
        self.tokens += new
        self.first = max(self.first, keep)
        return taken


def together(group: list[Lists], everyone: list[Lists], new: list[list], keep: int) -> int:
    """The same append to several sequences: all let go, then each takes. Returns how many sheets that took."""
    for lists in group:
        lists.slide(min(keep, lists.seen))
    return sum(lists.grow(tokens, keep, everyone) for lists, tokens in zip(group, new))


def foresee(group: list[Lists], everyone: list[Lists], count: int, keep: int) -> tuple[int, int]:
    """(sheets in use afterwards, sheets taken), and nothing happens."""
    copies = {id(lists): lists.copy() for lists in everyone}
    chosen = [copies[id(lists)] for lists in group]
    taken = together(chosen, list(copies.values()), [[0] * count] * len(chosen), keep)
    return in_use(list(copies.values())), taken


def in_use(everyone: list[Lists]) -> int:
    return len({sheet for lists in everyone for sheet in lists.sheets.values()})


VERBS = {"table": 3, "count": 6, "ids": 6, "prompt": 6, "group": 3, "back": 5, "step back": 2, "slide": 2, "fork": 4,
         "become": 3, "held": 1, "free": 3, "extend": 0.3, "wrong": 2}  # fmt: skip


class Program:
    """The same random calls on tables and on lists; `there` is what stands in each slot, as tensors would have it."""

    def __init__(self, r: random.Random, log: PageLog):
        self.r, self.log = r, log
        self.size = r.choice([1, 1, 2, 2, 3, 4, 4, 5, 8, 16])
        self.total = r.choice([1, 2, 3, r.randint(4, 16), r.randint(4, 16), r.randint(17, 64)])
        self.window = r.choice([None, None, 1, 2, 3, 5, 8, 20])
        self.past = r.choice([0, 0, 3])  # kept beyond the window
        info = PoolInfo("pool", self.total, self.size, window=self.window)
        self.pool = PagePool(self.total, self.size, log=log, info=info)
        self.lists: dict[PageTable, Lists] = {}
        self.there: dict[tuple[int, int], int] = {}
        self.names: dict[tuple, int] = {}  # a number for each token together with all before it
        self.prompts = [[r.randint(1, 2) for _ in range(r.randint(1, 5 * self.size))] for _ in range(2)]
        self.moments: list[tuple] = []
        self.hits = self.refused = 0

    def name(self, tokens: list[int], ids: list) -> list[int]:
        """Names of tokens with these ids behind those; an id that is None is like no other."""
        found, before = [], tokens[-1] if tokens else 0
        for token in ids:
            key = (before, len(self.names) * 1j if token is None else token)
            before = self.names.setdefault(key, len(self.names) + 1)
            found.append(before)
        return found

    def step(self) -> None:
        verb = self.r.choices(list(VERBS), list(VERBS.values()))[0]
        if not self.lists or (verb == "table" and len(self.lists) < 8):
            table = self.pool.table()
            table.home = self.r.choice([NULL, self.r.randrange(self.total)])
            self.lists[table] = Lists(self.size)
        elif verb != "table":
            getattr(self, "do_" + verb.replace(" ", "_"))(self.r.choice(list(self.lists)))

    def keep_for(self, lists: Lists, count: int) -> int | None:
        end = lists.seen + count
        if self.window is not None:
            return max(0, end - self.window - self.past)
        return self.r.choice([None] * 6 + [self.r.randint(0, end - 1)]) if count else None

    # verbs

    def do_count(self, table: PageTable) -> None:
        self.append([table], self.r.choice([0, 1, 1, 1, 2, self.r.randint(0, 3 * self.size), 40]))

    def do_ids(self, table: PageTable) -> None:
        ids = [self.r.randint(1, 2) for _ in range(self.r.choice([1, 2, self.size, 2 * self.size + 1]))]
        self.append([table], len(ids), ids)

    def do_prompt(self, table: PageTable) -> None:
        """A prompt that others had, too: its beginning is taken from where it lies."""
        if table.seen and len(self.lists) == 8:
            return self.do_ids(table)
        if table.seen:
            table = self.pool.table()
            self.lists[table] = Lists(self.size)
        prompt = self.r.choice(self.prompts)
        prompt = [
            *prompt[: self.r.randint(0, len(prompt))],
            *[self.r.randint(1, 2) for _ in range(self.r.randint(0, 3))],
        ]
        pages = {page: lists.sheets[k] for other, lists in self.lists.items() for k, page in other.entries}
        hit = table.adopt(prompt)
        assert hit <= len(prompt) and hit % self.size == 0
        lists = self.lists[table]
        lists.tokens = self.name([], prompt[:hit])
        lists.sheets = {k: pages.get(page) or Sheet() for k, page in enumerate(table.pages)}
        self.hits += hit > 0
        self.append([table], len(prompt) - hit, prompt[hit:])

    def do_group(self, table: PageTable) -> None:
        """Several at once, as a batch does: with a common first token only those that are in step."""
        like = [t for t in self.lists if (t.seen, t.first) == (table.seen, table.first)]
        group = self.r.sample(like, self.r.randint(1, len(like)))
        self.append(group, self.r.randint(0, 2 * self.size))

    def do_back(self, table: PageTable) -> None:
        count = self.r.choice([0, 1, 2, table.length, self.r.randint(0, table.length)])
        if count > table.length:
            return self.refuse(lambda: table.rollback(count), InvalidRequest, f"{table.length:,} are stored")
        table.rollback(count)
        self.lists[table].rollback(count)

    def do_step_back(self, table: PageTable) -> None:
        """An append, and all of it taken back, also where its first tokens got no slot."""
        count = self.r.randint(1, 3 * self.size)
        if self.append([table], count):
            table.rollback(count, step=count)
            self.lists[table].rollback(count)

    def do_slide(self, table: PageTable) -> None:
        first = self.r.choice([table.seen, table.seen + 2, self.r.randint(0, table.seen)])
        table.slide(first)
        self.lists[table].slide(min(first, table.seen))

    def do_fork(self, table: PageTable) -> None:
        if len(self.lists) < 8:
            self.lists[table.fork()] = self.lists[table].copy()

    def do_become(self, table: PageTable) -> None:
        other = self.r.choice(list(self.lists))
        table.become(other.past())
        self.lists[table].take(self.lists[other])

    def do_held(self, table: PageTable) -> None:
        """The past of a sequence that has ended, because somebody held its pages."""
        other = self.r.choice(list(self.lists))
        if other is table:
            return
        past = other.past()
        for page in past.held:
            self.pool.retain(page)
        other.free()
        table.become(past)
        for page in past.held:
            self.pool.free(page)
        self.lists[table].take(self.lists.pop(other))

    def do_free(self, table: PageTable) -> None:
        table.free()
        del self.lists[table]
        self.refuse(self.r.choice([table.free, table.fork, lambda: table.append(1)]), SequenceFreed, "was freed")

    def do_extend(self, table: PageTable) -> None:
        more = self.r.randint(1, 3)
        self.pool.extend(more)
        self.total += more

    def do_wrong(self, table: PageTable) -> None:
        free = [page for page in range(self.total) if self.pool.is_free(page)]
        calls = [lambda: table.rollback(table.length + 1), lambda: table.append(1, keep=table.seen + 1)]
        if table.seen:
            calls.append(lambda: table.adopt([1] * 40))
        if free:
            calls.append(lambda: self.pool.free(free[0]))
        self.refuse(self.r.choice(calls), (InvalidRequest, UnknownPage))

    def refuse(self, call, error, says: str | None = None) -> None:
        before, events = deep(self.pool), len(self.log)
        with pytest.raises(error, match=says):
            call()
        assert deep(self.pool) == before and len(self.log) == events

    def append(self, group: list[PageTable], count: int, ids: list[int] | None = None) -> bool:
        """Returns whether there was room, which the lists know before."""
        pool, size, table = self.pool, self.size, group[0]
        lists, everyone = [self.lists[t] for t in group], list(self.lists.values())
        keep = self.keep_for(lists[0], count)
        start = max(lists[0].first, keep or 0)
        wanted, taken = foresee(lists, everyone, count, start)
        if not count:
            wanted, taken = in_use(everyone), 0
        missing = max(0, wanted - self.total)
        assert pool.missing(group, count, keep) == missing and pool.needed(group, count, keep) == taken
        assert table.can_append(count, keep) == (
            foresee(lists[:1], everyone, count, start)[0] <= self.total or not count
        )
        if missing:
            before, events = deep(pool), len(self.log)
            if len(group) == 1:
                says = (
                    f"{missing} pages? of {size} tokens missing, {self.total - in_use(everyone)} of {self.total} free"
                )
                with pytest.raises(PoolExhausted, match=says):
                    table.append(count if ids is None else ids, keep)
                e = self.log.events
                assert (len(self.log), e.action[-1], e.tokens[-1]) == (events + 1, PageAction.REFUSE, missing)
            assert deep(pool) == before
            self.refused += 1
            return False
        had = [list(t.pages) for t in group]
        if len(group) == 1:
            copies = table.append(count if ids is None else ids, keep)
        else:
            for t in group:
                t.let_go(start)
            copies = [copy for t in group for copy in t.extend(count, keep)]
        if count:
            new = [self.name(plain.tokens, ids or [None] * count) for plain in lists]
            seen = [plain.seen for plain in lists]
            together(lists, everyone, new, start)
            fresh = {p for t, old in zip(group, had) for k, p in t.entries if old[k : k + 1] != [p]}
            copied = {(c.target, slot): self.there[c.source, slot] for c in copies for slot in range(c.low, c.high)}
            self.there = {at: what for at, what in self.there.items() if at[0] not in fresh} | copied
            for t, plain, old in zip(group, lists, seen):
                for n in range(max(start, old), t.seen):
                    page = t.pages[n // size]
                    assert pool.references(page) == 1  # nobody writes what another one reads
                    self.there[page, n % size] = plain.tokens[n]
        return True

    # what must hold after each step

    def verify(self) -> None:
        pool, size = self.pool, self.size
        pool.check()
        pages: dict[int, Sheet] = {}
        holders: Counter[int] = Counter()
        for table, lists in self.lists.items():
            assert (table.seen, table.first, table.length) == (lists.seen, lists.first, lists.seen - lists.first)
            assert all(
                self.there[table.pages[n // size], n % size] == lists.tokens[n] for n in range(table.first, table.seen)
            )
            assert {k for k, _ in table.entries} == lists.sheets.keys()
            for k, page in table.entries:
                assert pages.setdefault(page, lists.sheets[k]) is lists.sheets[k]
                holders[page] += 1
        assert len(pages) == in_use(list(self.lists.values())) == pool.used_count
        assert pool.free_count + len(pages) == self.total == pool.pages
        assert [pool.references(page) for page in range(self.total)] == [holders[page] for page in range(self.total)]
        assert pool.can_allocate(pool.free_count) and not pool.can_allocate(pool.free_count + 1)
        self.moments.append((len(self.log), self.live()))
        self.compare(*self.moments[-1])

    def live(self) -> tuple:
        """What the log should say, from the tables themselves."""
        size = self.size
        tables, lengths, seen_from = {}, {}, {}
        references, low, high = [0] * self.total, [size] * self.total, [0] * self.total
        for t in self.lists:
            pages = list(t.pages)
            while pages and pages[-1] == NULL:
                pages.pop()
            tables[t.sequence], lengths[t.sequence] = tuple(pages), t.seen
            seen_from[t.sequence] = first = max(t.first, t.seen - self.window if self.window else 0)
            for k, page in t.entries:
                references[page] += 1
                visible = [n - k * size for n in range(max(first, k * size), min(t.seen, (k + 1) * size))]
                low[page] = min([low[page], *visible])
                high[page] = max([high[page], *[slot + 1 for slot in visible]])
        spans = [(a, b) if a < b else (0, 0) for a, b in zip(low, high)]
        return tables, lengths, seen_from, references, spans

    def compare(self, i: int, live: tuple) -> None:
        tables, lengths, seen_from, references, spans = live
        state = self.log.at(i, self.pool.number)
        assert state.tables == tables and state.lengths == lengths
        assert {s: state.visible_from(s) for s in lengths} == seen_from
        more = len(state.references) - len(references)  # pages that came later
        assert state.references.tolist() == references + [0] * more
        assert list(zip(state.low.tolist(), state.high.tolist())) == spans + [(0, 0)] * more
        assert (state.used, state.shared) == (sum(n > 0 for n in references), sum(n > 1 for n in references))
        assert state.free + state.used == state.pool.pages
        assert state.stored == sum(b - a for a, b in spans)
        assert state.logical == sum(lengths[s] - seen_from[s] for s in lengths)
        assert state.waste == (1 - state.stored / (state.used * self.size) if state.used else 0)

    def finish(self) -> None:
        for i, live in self.r.sample(self.moments, min(8, len(self.moments))):
            self.compare(i, live)
        for _ in range(4):
            state = self.log.at(self.r.randint(0, len(self.log)), self.pool.number)  # also within a call
            assert 0 <= state.used <= self.total and state.stored <= state.used * self.size
        for table in list(self.lists):
            table.free()
            del self.lists[table]
        self.verify()
        assert self.pool.free_count == self.total


def run(seed: int, steps: int = 40) -> list[Program]:
    """One or two pools with one log; the calls go to either."""
    r, log = random.Random(seed), PageLog()
    programs = [Program(r, log) for _ in range(r.choice([1, 1, 1, 2]))]
    for n in range(steps):
        program = r.choice(programs)
        try:
            program.step()
            program.verify()
        except Exception as error:
            raise AssertionError(f"program {seed}, step {n}: {type(error).__name__}: {error}") from error
    for program in programs:
        program.finish()
    return programs


def test_random_programs():
    done = [program for n in range(PROGRAMS) for program in run(FIRST_SEED + n)]
    if PROGRAMS >= 100:  # or they would say nothing about what they are for
        assert sum(p.hits for p in done) > len(done) / 3 and sum(p.refused for p in done) > len(done)
        assert any(len(p.log.pools) == 2 for p in done)
