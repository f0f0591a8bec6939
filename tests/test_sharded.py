"""Shards: the same tokens from 1, 2 and 3 ranks, each with its share of the bytes and the same pages; and no rank hangs."""

import json
import multiprocessing
import os
import subprocess
import sys
import time

import pytest
import torch

import kvviz
from kvviz.cache import sharded
from kvviz.cache.sweep import Row, sweep
from tests import sharded_worker
from tests.sharded_worker import CASES, PROMPT, STEPS
from tests.tiny_models import build, model

APART = 2e-5  # most that a logit of a tiny model may differ: sums of fp32 in another order
TORCHRUN = sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.sharded_worker"])


def on_ranks(count, what, folder, timeout=60, wait=60, ends=0):
    """What each of `count` processes answers, None from one that died. Fails rather than wait for ever.

    ends: the exit code of the last rank; all others must end well, also once their answer is written.
    """
    events = CONTEXT.Event()
    arguments = count, str(folder), what, timeout, events
    ranks = [CONTEXT.Process(target=sharded_worker.rank_main, args=(rank, *arguments)) for rank in range(count)]
    for rank in ranks:
        rank.start()
    finish(ranks, wait)
    assert [rank.exitcode for rank in ranks] == [0] * (count - 1) + [ends], "a negative number is a signal"
    return answers_in(folder, count)


def finish(processes, wait):
    until = time.monotonic() + wait
    for process in processes:
        process.join(max(0.0, until - time.monotonic()))
    hanging = [process for process in processes if process.is_alive()]
    for process in hanging:
        process.kill()
    assert not hanging, f"{len(hanging)} ranks still run after {wait} s"


def answers_in(folder, count):
    files = [folder / f"rank{rank}.json" for rank in range(count)]
    found = [json.loads(file.read_text()) if file.exists() else None for file in files]
    for answer in found:
        assert answer is None or "traceback" not in answer, answer["traceback"]
    return found


@pytest.fixture(scope="module")
def alike(tmp_path_factory):
    """Answers of 2 and of 3 ranks."""
    return {count: on_ranks(count, "alike", tmp_path_factory.mktemp(f"ranks{count}")) for count in CASES}


# who has which heads


def test_heads_are_divided_in_a_row_and_the_first_ranks_have_more():
    assert [list(sharded.heads_of(rank, 2, 3)) for rank in range(2)] == [[0, 1], [2]]
    assert [list(sharded.heads_of(rank, 3, 3)) for rank in range(3)] == [[0], [1], [2]]
    assert [len(sharded.heads_of(rank, 4, 10)) for rank in range(4)] == [3, 3, 2, 2]
    assert [list(sharded.heads_of(rank, 4, 2)) for rank in range(4)] == [[0], [0], [1], [1]]
    for ranks in range(1, 9):
        for kv_heads in range(1, 20):
            each = [sharded.heads_of(rank, ranks, kv_heads) for rank in range(ranks)]
            assert sorted({head for heads in each for head in heads}) == list(range(kv_heads))
            assert max(map(len, each)) == -(-kv_heads // ranks)  # what kvviz.plan counts on


@pytest.mark.parametrize(("ranks", "kv_heads", "queries"), [(2, 3, 9), (3, 2, 8), (5, 2, 6), (8, 3, 12), (7, 7, 7)])
def test_each_query_head_is_on_one_rank_together_with_its_kv_head(ranks, kv_heads, queries):
    seen = []
    for rank in range(ranks):
        heads, mine = (
            sharded.heads_of(rank, ranks, kv_heads), sharded.queries_of(rank, ranks, kv_heads, queries)
        )  # fmt: skip
        assert mine and {query // (queries // kv_heads) for query in mine} == set(heads)
        assert len(mine) % len(heads) == 0
        seen += mine
    assert seen == list(range(queries))


def test_heads_that_do_not_divide_are_refused():
    with pytest.raises(kvviz.InvalidRequest, match="10 query heads do not divide over 4 KV heads"):
        sharded.queries_of(0, 2, 4, 10)
    with pytest.raises(kvviz.InvalidRequest, match=r"5 ranks are too many: 3 of them .* 2 query heads; 4 ranks"):
        sharded.queries_of(0, 5, 2, 4)
    for rank, ranks, heads in ((2, 2, 3), (-1, 2, 3), (0, 1, 0)):
        with pytest.raises(kvviz.InvalidRequest):
            sharded.heads_of(rank, ranks, heads)


# the same as one rank


@pytest.mark.parametrize(("count", "case"), [(count, case) for count in CASES for case in CASES[count]])
def test_ranks_say_what_one_rank_says(alike, count, case):
    answers = [answer[case] for answer in alike[count]]
    whole = answers[0]["whole"]
    assert len(whole["tokens"][0]) == PROMPT + STEPS
    assert [answer["tokens"] for answer in answers] == [whole["tokens"]] * count
    assert whole["apart"] < APART < whole["largest"] / 1e4
    assert len({answer["bits"] for answer in answers}) == 1, "ranks differ from one another"


@pytest.mark.parametrize(("count", "case"), [(count, case) for count in CASES for case in CASES[count]])
def test_each_rank_holds_the_slots_of_its_heads_and_one_table_serves_all(alike, count, case):
    answers = [answer[case] for answer in alike[count]]
    whole = answers[0]["whole"]
    for rank, answer in enumerate(answers):
        heads, of = len(sharded.heads_of(rank, count, answer["kv_heads"])), answer["kv_heads"]
        assert len(answer["heads"]) == heads
        assert answer["page_bytes"] == [page * heads // of for page in whole["page_bytes"]]
        if answer["pages"] == whole["pages"]:
            assert whole["same_events"]
            assert abs(answer["held"] - whole["held"] * heads / of) <= max(answer["page_bytes"])
        else:  # with max_bytes there is room for more pages where each has fewer heads
            assert "max_bytes" in CASES[count][case][3]
            assert answer["pages"] > whole["pages"]
        assert answer["own"] == answers[0]["own"] and answer["used"] == [0] * len(answer["pages"])
        assert answer["report"] == answers[0]["report"] and f"{answer['held']:,} B held" in answer["report"]
        assert answer["merged"] == count * answer["events"] and answer["states"] == answers[0]["own"] * count


def test_max_bytes_is_of_the_rank_that_has_most_and_pages_are_as_many_on_all(alike):
    for case in ("llama, bytes", "gemma4, two head sizes, bytes"):
        first, second = (answer[case] for answer in alike[2])
        limit = CASES[2][case][3]["max_bytes"]
        pools = sum(pages * page for pages, page in zip(first["pages"], first["page_bytes"], strict=True))
        assert first["pages"] == second["pages"] and limit - sum(first["page_bytes"]) < pools <= limit


def test_pools_in_the_merged_log_are_named_by_rank_and_heads(alike):
    assert alike[2][0]["llama, 3 KV heads"]["pools"] == ["rank 0: heads 0–1", "rank 1: head 2"]
    assert alike[3][1]["llama, 3 KV heads"]["pools"] == ["rank 0: head 0", "rank 1: head 1", "rank 2: head 2"]
    assert alike[2][1]["gemma3, two windows"]["pools"][2:] == [
        "rank 1: head 1, window 9", "rank 1: head 1, full attention"
    ]  # fmt: skip
    assert "rank 1: head 2, 1 of 3" in alike[2][0]["llama, 3 KV heads"]["report"]


def test_weights_are_divided_too(alike):
    first, second = (answer["llama, 3 KV heads"]["weights"] for answer in alike[2])
    # hidden 48, 6 query and 3 KV heads of 8, 2 layers, 4 bytes
    assert first + second == 2 * 4 * 48 * 8 * (6 + 3 + 3 + 6) and first == 2 * second


def test_generate_works_with_beams_and_caches_can_be_copied(alike):
    for answer in alike[2]:
        assert answer["generate"] == {"greedy": True, "beams": True, "copy": "ShardedCache", "copy grew": True}


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory):
    """Answers of 2 and of 3 ranks. One process reads the model, and the ranks are forked from it."""
    folder = tmp_path_factory.mktemp("smollm2")
    parent = CONTEXT.Process(target=sharded_worker.smollm2_main, args=(str(folder), (2, 3)))
    parent.start()
    finish([parent], 90)
    assert parent.exitcode == 0, "a rank did not end well"
    return {count: answers_in(folder / str(count), count) for count in (2, 3)}


@pytest.mark.model
@pytest.mark.parametrize("count", [2, 3])
def test_smollm2_in_shards_says_what_it_says_whole(smollm2, count):
    answers = smollm2[count]
    whole = answers[0]["whole"]
    shares = {2: [2, 1], 3: [1, 1, 1]}[count]
    for answer, heads in zip(answers, shares, strict=True):
        assert answer["tokens"] == whole["tokens"] and len(answer["heads"]) == heads
        assert answer["held"] == whole["held"] * heads // 3 == 8 * 8 * heads * 64 * 30 * 2 * 4  # 8 pages of 8 tokens
        assert answer["used"] == [0]
    assert whole["apart"] < 2e-4 and whole["largest"] > 10  # 3.6e-5 of 31.8 measured, over 30 layers
    assert len({answer["bits"] for answer in answers}) == 1


# what goes wrong


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("truncated alone", "rank 1 decided otherwise about pages: 22 events, rank 0 has 17"),
        ("afterwards", "this cache cannot go on, make a new one: rank 1 decided otherwise about pages"),
        ("more tokens", "rank 1 was given other tokens than rank 0 and decided otherwise about pages"),
        ("other tokens", "rank 1 was given other tokens than rank 0"),
        ("check", "rank 1 decided otherwise about pages"),
    ],
)
def test_ranks_that_disagree_all_hear_of_it(alike, fault, says):
    for answer in alike[2]:
        assert answer["faults"][fault].startswith("RankError: ") and says in answer["faults"][fault]
        assert "\n" not in answer["faults"][fault]


def test_what_fails_on_one_rank_stops_all_and_takes_back_the_step(alike):
    first, second = (answer["faults"] for answer in alike[2])
    assert second["no room on one"].startswith("OutOfMemory: ") and second["corrupt"].startswith("CorruptCache: ")
    assert first["no room on one"] == "RankError: rank 1 failed: OutOfMemory: a pool of many bytes does not fit"
    assert first["corrupt"].startswith("RankError: rank 1 failed: CorruptCache: page 0 has 2 references")
    assert first["seen after"] == second["seen after"] == 0
    assert first["taken back"] == second["taken back"] == PROMPT + 1
    assert first["twice"] == second["twice"] == "InvalidRequest: this LlamaForCausalLM is cut already: load it anew"


def test_what_fails_on_all_ranks_alike_changes_nothing(alike):
    for answer in alike[2]:
        assert answer["faults"]["pool too small"].startswith("PoolExhausted: no room for 21 more tokens of 1 sequence")
        assert answer["faults"]["goes on"] == "no error"


def test_more_ranks_than_query_heads_are_refused_and_nothing_is_cut(alike):
    for answer in alike[3]:
        assert answer["too many"].startswith("InvalidRequest: 3 ranks are too many: 3 of them would share a KV head")
        assert answer["as it was"] == "Linear"


def test_a_rank_that_does_not_come_is_waited_for_no_longer_than_the_timeout(tmp_path):
    first, second = on_ranks(2, "missing", tmp_path, timeout=3, wait=30)
    assert second["waited"] and 2 < first["seconds"] < 15
    assert first["error"].startswith("RankError: rank 0 of 2 gets no answer from the others: RuntimeError: Timed out")
    assert first["seen"] == PROMPT + 1


def test_a_rank_that_dies_is_missed_at_once(tmp_path):
    first, second = on_ranks(2, "dying", tmp_path, timeout=60, wait=30, ends=3)
    assert second is None and first["seconds"] < 15
    assert first["error"].startswith("RankError: rank 0 of 2 gets no answer from the others: RuntimeError: ")
    assert "/" not in first["error"], "gloo's source file in the message"


# without torchrun


def test_one_rank_needs_no_torchrun_and_cuts_nothing():
    whole = build("llama", num_key_value_heads=3)
    ids = sharded_worker.ids_of(1)
    wanted = kvviz.decode(whole, ids, 5)
    with sharded.join() as here:
        part = sharded.shard(whole, here)
        cache = part.paged_cache(page_size=4, max_bytes=20_000)
        assert torch.equal(kvviz.decode(part.model, ids, 5, cache), wanted)
        cache.check()
        assert (here.rank, here.count, len(sharded.bytes_of_ranks(cache).rows)) == (0, 1, 1)
        assert sharded.bytes_of_ranks(cache).held == cache.held_bytes
        log = sharded.log_of_ranks(cache)
    assert type(whole.model.layers[0].self_attn.o_proj) is torch.nn.Linear and not torch.distributed.is_initialized()
    assert [pool.name for pool in log.pools] == ["rank 0: heads 0–2"] and len(log) == len(cache.log)
    assert "heads 0–2 of 3, query heads 0–5 of 6" in repr(part)


def test_models_that_do_not_divide_by_heads_are_refused():
    two = sharded.Ranks(0, 2)
    with pytest.raises(kvviz.InvalidRequest, match="0 of 2 layers of GPT2LMHeadModel have q_proj"):
        sharded.shard(model("gpt2"), two)
    with pytest.raises(kvviz.InvalidRequest, match="a transformers model is needed, got str"):
        sharded.shard("a model", two)
    odd = build("llama")
    odd.model.layers[1].self_attn.q_norm = torch.nn.LayerNorm(48)  # over all heads at once
    with pytest.raises(kvviz.InvalidRequest, match=r"layer 1 cannot be divided by heads: q_norm.weight spans \[48\]"):
        sharded.shard(odd, two)
    odd = build("llama")
    odd.model.layers[0].self_attn.k_proj = torch.nn.Identity()
    with pytest.raises(kvviz.InvalidRequest, match=r"each projection must be a Linear, there is .*k_proj Identity"):
        sharded.shard(odd, two)
    assert type(odd.model.layers[1].self_attn.o_proj) is torch.nn.Linear


def test_ranks_without_a_process_group_are_told_to_join(monkeypatch):
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(kvviz.InvalidRequest, match="torchrun started 2 ranks, but they have no process group yet"):
        sharded.shard(build("llama"))
    with pytest.raises(kvviz.InvalidRequest, match="RANK, MASTER_ADDR, MASTER_PORT is not"), sharded.join():
        pass


def test_ranks_that_never_come_are_waited_for_no_longer_than_the_timeout(monkeypatch):
    for name, value in (("WORLD_SIZE", "2"), ("RANK", "0"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "0")):
        monkeypatch.setenv(name, value)
    begun = time.monotonic()
    with pytest.raises(sharded.RankError, match=r"the 2 ranks did not all come in 1 s: "), sharded.join(timeout=1):
        pass
    assert time.monotonic() - begun < 20 and not torch.distributed.is_initialized()


def test_reports_want_a_sharded_cache():
    for report in (sharded.bytes_of_ranks, sharded.log_of_ranks):
        with pytest.raises(kvviz.InvalidRequest, match=r"shard\(model\).paged_cache\(\) is needed, got PagedCache"):
            report(kvviz.paged_cache(model("llama")))


def test_a_log_comes_back_from_its_file_and_other_files_are_refused(tmp_path):
    cache = sharded.shard(build("gemma3")).paged_cache(page_size=4)
    kvviz.decode(cache.part.model, sharded_worker.ids_of(1), 5, cache)
    cache.log.mark("here")
    sharded.save_log(cache.log, tmp_path / "pages.npz")
    again = sharded.load_log(tmp_path / "pages.npz")
    assert (again.pools, again.marks, again.origin) == (cache.log.pools, cache.log.marks, cache.log.origin)
    assert again._rows == cache.log._rows and len(cache.log) > 10
    (tmp_path / "text.npz").write_text("no")
    torch.save([1], tmp_path / "zip.npz")
    for name in ("text.npz", "zip.npz", "nowhere.npz"):
        with pytest.raises(kvviz.TraceError, match="is no page log of kvviz"):
            sharded.load_log(tmp_path / name)


# commands


def test_torchrun_runs_a_model_and_leaves_a_log_to_draw(tmp_path):
    command = (*TORCHRUN, "-m", "kvviz.cache.run_sharded", str(tmp_path / "pages.npz"), "--compare", "--steps", "9")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, env=environment)
    assert done.returncode == 0, done.stderr
    assert "rank 1: head 1, 1 of 2:" in done.stdout and "the same tokens as the whole model" in done.stdout
    log = sharded.load_log(tmp_path / "pages.npz")
    assert log.origin == "pages of a run on CPU, 2 ranks"
    assert "3 of 3 pages in use by 1 sequence" in repr(kvviz.page_map(log, pools="rank 1: head 1"))


def test_a_sweep_is_one_table_whoever_measured(capsys):
    rows = sweep(sharded.Ranks(), [1, 64], ["short", "long"], steps=1)
    assert [(row.workload, row.page_size) for row in rows] == [("short", 1), ("short", 64), ("long", 1), ("long", 64)]
    assert rows[0].waste == 0 < rows[3].waste < rows[1].waste and rows[0].longest > 16 * rows[1].longest / 2
    assert all(isinstance(row, Row) and row.step_us > 0 for row in rows)
    with pytest.raises(kvviz.InvalidRequest, match="no workload 'wide'; there are short, mixed, long"):
        sweep(sharded.Ranks(), [1], ["wide"])


def test_points_are_spread_over_ranks_and_a_failure_is_everybodys(alike):
    for answer in alike[2]:
        assert answer["faults"]["spread"] == [[k * k, k % 2] for k in range(5)]
        assert answer["faults"]["spread fails"].startswith("RankError: rank 1: ZeroDivisionError: ")
