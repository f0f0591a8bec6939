"""The page map's data and layout in the player against PageLog and against the still picture's layout."""

import json
import random

import pytest

from kvviz.cache.pagelog import NULL, PageLog, PoolInfo
from kvviz.view import theme
from kvviz.view.pagelayout import HIDDEN, Item, Most, fit, items, layout, place, share_lines
from kvviz.view.pagescene import PageScene
from kvviz.view.squeeze import squeeze
from tests.player.node import HERE, run_node
from tests.player.pagelogs import LogWriter, random_log, served


def states(folder, log, **options):
    (folder / "packed.bin").write_bytes(PageScene(log, **options).pack("t", "s"))
    return json.loads(run_node(str(HERE / "pagestates.mjs"), str(folder / "packed.bin")))


@pytest.mark.parametrize("seed", range(12))
def test_every_state_is_that_of_the_log(tmp_path, seed):
    log = random_log(seed)
    scene = PageScene(log)
    shown = states(tmp_path, log)
    assert len(shown["states"]) == len(log) + 1 and shown["peak"] == scene.peak
    for i, state in enumerate(shown["states"]):
        for k, pool in enumerate(state["pools"]):
            truth = log.at(i, k)
            for name in ("references", "low", "high"):
                assert pool[name] == getattr(truth, name).tolist(), f"{name} of pool {k} after event {i}"
            tables = {number: [page for page in table if page != NULL] for number, table in truth.tables.items()}
            assert {number: [page for _, page in table] for number, table, *_ in pool["tables"]} == tables
            for number, table, length, first, letter in pool["tables"]:
                assert all(truth.tables[number][index] == page for index, page in table)
                assert (length, first) == (truth.lengths[number], truth.visible_from(number))
                assert letter == theme.sequence(number).letter
            holders = [
                sorted(n for n, table in truth.tables.items() if page in table) for page in range(len(truth.low))
            ]
            assert pool["holders"] == holders
        assert state["totals"] == [int(series.values[i]) for series in scene.series]
        assert state["words"] == scene.state_words(i)
        assert [tuple(figure) for figure in state["figures"]] == scene.figures(i)


def test_the_random_logs_have_everything_in_them():
    actions = [set(random_log(seed).events.action.tolist()) for seed in range(12)]
    assert set.union(*actions) == set(range(11))
    assert any(log.at(i, k).shared for log in map(random_log, range(4)) for i in range(len(log)) for k in (0, 1))


@pytest.mark.parametrize("seed", range(12))
def test_totals_are_what_the_states_add_up_to(seed):
    log = random_log(seed)
    scene = PageScene(log)
    held, used, logical = (series.values for series in scene.series)
    weight = [pool.token_bytes if scene.in_bytes else 1 for pool in log.pools]
    for i in range(len(log) + 1):
        now = [log.at(i, k) for k in (0, 1)]
        sizes = [state.pool.page_size * w for state, w in zip(now, weight, strict=True)]
        assert used[i] == sum(state.used * size for state, size in zip(now, sizes, strict=True))
        assert logical[i] == sum(state.logical * w for state, w in zip(now, weight, strict=True))
        taken = [state.used if state.pool.grows else state.pool.pages for state in now]
        assert held[i] == sum(pages * size for pages, size in zip(taken, sizes, strict=True))


def test_a_hidden_pool_counts_for_nothing(tmp_path):
    log = random_log(5)
    alone, both = states(tmp_path, log, pools="sliding"), states(tmp_path, log)
    scene = PageScene(log, pools=[1])
    for i, (one, other) in enumerate(zip(alone["states"], both["states"], strict=True)):
        assert one["pools"] == other["pools"] and one["happened"] == other["happened"], "it is known all the same"
        assert one["totals"] == [int(series.values[i]) for series in scene.series]
        assert one["words"] == scene.state_words(i)
    assert alone["states"][-1]["totals"] != both["states"][-1]["totals"]


def test_the_event_line_tells_what_happened(tmp_path):
    log = PageLog()
    pool = LogWriter(log, PoolInfo("pool", 5, 4, window=9))
    one = pool.begin()
    pool.append(one, 6)
    two = pool.begin(parent=one)
    pool.append(two, 3)
    pool.append(one, 7)
    pool.rollback(one, 10)
    pool.slide(one, 8, said=True)
    pool.append(two, 20)
    pool.end(two)
    shown = states(tmp_path, log)["states"]
    assert [line for state in shown for line in state["happened"]] == [
        "start before the first event", "begin A", "allocate page 0 → A entry 0", "write page 0 · A 4 tokens",
        "allocate page 1 → A entry 1", "write page 1 · A 6 tokens", "begin B, fork of A", "share page 0 with B",
        "share page 1 with B", "set B to 6 tokens", "copy page 1 → 2 · B (copy-on-write)", "write page 2 · B 8 tokens",
        "allocate page 3 → B entry 2", "write page 3 · B 9 tokens", "write page 1 · A 8 tokens",
        "allocate page 4 → A entry 2", "write page 4 · A 12 tokens", "refuse 1 page missing", "roll back A to 10 tokens",
        "slide page 0 out of A's window", "slide page 1 out of A's window", "forget A's tokens before number 8",
        "write page 3 · B 12 tokens", "allocate page 1 → B entry 3", "write page 1 · B 16 tokens",
        "refuse 4 pages missing", "release page 1 · B entry 3", "release page 3 · B entry 2", "release page 2 · B entry 1",
        "release page 0 · B entry 0", "end B",
    ]  # fmt: skip
    touched = {state["happened"][0]: state["touched"] for state in shown}
    assert touched["copy page 1 → 2 · B (copy-on-write)"] == [2, 1] and touched["begin A"] == []
    assert touched["write page 2 · B 8 tokens"] == [2]


def random_table(chance):
    entries, index = [], chance.choice([0, 0, 1, 14])
    for page in chance.sample(range(500), chance.randrange(0, 60)):
        entries.append((index, page))
        index += chance.choice([1, 1, 1, 1, 1, 2, 7])
    return entries


def test_still_and_player_lay_out_alike():
    chance = random.Random(7)
    pools = []
    for _ in range(60):
        some = []
        for _ in range(chance.choice([1, 1, 2, 3])):
            pages = chance.choice([1, 2, 9, 16, 17, 64, 250, 257, 1024, 4096, 70_000, chance.randrange(1, 5000)])
            most = Most(chance.randrange(200), chance.randrange(3000), chance.randrange(300), chance.randint(1, 3),
                        len(str(pages - 1)), chance.randint(5, 12))  # fmt: skip
            some.append((pages, most))
        pools.append(some)
    widths = [286, 340, 719, 720, 1064, 1310, 2364]
    tables = [(random_table(chance), chance.randint(3, 20), chance.randint(1, 6)) for _ in range(200)]
    lines = [
        ([chance.randint(1, 9) for _ in range(chance.randrange(0, 20))], chance.randint(1, 16)) for _ in range(100)
    ]
    letters = [0, 25, 26, 51, 52, 701, 702, 18_277, 18_278]
    told = {
        "pools": [[{"pages": pages, "most": most._asdict()} for pages, most in some] for some in pools],
        "widths": widths, "tables": tables, "lines": lines, "letters": letters,
    }  # fmt: skip
    theirs = json.loads(run_node(str(HERE / "pagelayouts.mjs"), json.dumps(told)))
    for some, row in zip(pools, theirs["layouts"], strict=True):
        for width, their in zip(widths, row, strict=True):
            ours = layout([pages for pages, _ in some], [most for _, most in some], width)
            assert (ours.height, ours.beside) == (their["height"], their["beside"])
            for s, t in zip(ours.sections, their["sections"], strict=True):
                names = ("top", "gridTop", "x", "head", "lines", "perLine", "boxes", "unit", "width")
                assert list(s[1:]) == [t[name] for name in names] and s.grid._asdict() == t["grid"]
    for (table, per_line, most), (placed, fitted) in zip(tables, theirs["tables"], strict=True):
        assert plain(place(items(table), per_line)) == placed
        assert plain(fit(items(table), per_line, most)) == fitted
    assert [share_lines(*case) for case in lines] == theirs["lines"]
    assert [theme.sequence(number).letter for number in letters] == theirs["letters"]
    assert theirs["letters"] == ["A", "Z", "AA", "AZ", "BA", "ZZ", "AAA", "ZZZ", "AAAA"]


def plain(placed):
    return [{"item": vars(p.item), "line": p.line, "at": p.at} for p in placed]


@pytest.mark.parametrize("pages", [1, 2, 7, 16, 20, 64, 256, 1000, 1024, 2048, 4096])
@pytest.mark.parametrize("width", [286, 340, 720, 1064, 1310, 2364])
def test_grids_keep_within_their_room(pages, width):
    most = Most(64, 2000, 100, 2, len(str(pages - 1)), 9)
    for count in (1, 2, 3):
        laid = layout([pages] * count, [most] * count, width)
        total = 0
        for section in laid.sections:
            g = section.grid
            assert g.columns * g.rows >= pages > g.columns * (g.rows - 1) and g.width <= width and g.size >= 2
            assert section.x + section.boxes + section.per_line * section.unit - 3 <= section.x + section.width <= width
            total += g.height
            end = section.head + 24 + section.lines * 25 - 7
            assert not laid.beside or section.x >= g.width + 24
            assert laid.height >= max(end, section.grid_top + g.height)
        assert total <= 420 or g.size == 2, "so many pages on so little paper that no budget holds"
        tops = [section.top for section in laid.sections]
        assert tops == sorted(set(tops))


def test_tables_lose_their_middle_alone():
    chance = random.Random(3)
    for _ in range(300):
        table, per_line, lines = random_table(chance), chance.randint(3, 20), chance.randint(1, 6)
        whole = items(table)
        placed = fit(whole, per_line, lines)
        shown = [p.item for p in placed]
        hidden = [item for item in shown if item.page == HIDDEN]
        assert all(p.line < lines and p.at + p.item.units <= per_line for p in placed)
        assert len(hidden) == (len(place(whole, per_line)) > 0 and place(whole, per_line)[-1].line >= lines)
        covered = [index for item in shown for index in range(item.index, item.index + item.count)]
        assert covered == list(range(max((index for index, _ in table), default=-1) + 1)), "each entry once, in order"
        kept = {item.index: item for item in whole}
        assert all(item == kept[item.index] for item in shown if item.page != HIDDEN)
    assert fit(items([(14, 3), (15, 9)]), 8, 1)[0].item == Item(0, 14, NULL)


def test_lines_are_shared_fairly():
    assert share_lines([1, 5, 1], 6) == [1, 4, 1]
    assert share_lines([3, 3], 5) == [3, 2]
    assert share_lines([9, 1, 1, 1], 3) == [1, 1], "the last line says how many more there are"
    assert share_lines([], 4) == []


def test_a_long_log_is_read_in_moderate_space():
    log = served(10**6, 1024, limit=200_000)
    assert len(PageScene(log).pack("t", "s")) < 1_500_000


def test_squeezing_keeps_what_is_in_quotes():
    source = """// a comment
/** Says
 *  much. */
export const a = "x + y  // no comment", b = (c) => `a ${c + 1} : b`; // gone
const d = [1, 2].map((e) => e + +"1" - -e), f = g.replace(/ +\\/ *"/g, '  '); if (a) { b(); }
const h = `
.x, .y  { color: red;
  width: calc(1px + 2px); border: ${c} 1px }`;
"""
    assert squeeze(source).strip() == (
        'export const a="x + y  // no comment",b=(c)=>`a ${c + 1} : b`;'
        """const d=[1,2].map((e)=>e + +"1"- -e),f=g.replace(/ +\\/ *"/g,'  ');if(a){b();}"""
        "const h=`\n.x,.y{color:red;width:calc(1px + 2px);border:${c} 1px}`;"
    )
    with pytest.raises(ValueError, match="a template inside another"):
        squeeze("a = `x ${b ? `y` : 1}`;")
