"""transformers' continuous batching, recorded: the log says at every step what its own cache manager says."""

import random
import sys

import pytest
from transformers import ContinuousBatchingConfig, GenerationConfig

import kvviz
from kvviz import InvalidRequest, RecordingError
from kvviz.cache.pagelog import PageAction, PoolInfo
from kvviz.serve import Engine, record_batching
from kvviz.serve.transformers import BatchingRecording
from tests.tiny_models import VOCABULARY, build, model

SIZE = 16
pytestmark = pytest.mark.usefixtures("one_thread")


def prompts(count=6, seed=0):
    """Half of them begin alike, for longer than a block."""
    draw = random.Random(seed)

    def some(tokens):
        return [draw.randrange(VOCABULARY) for _ in range(tokens)]

    head = some(70)
    return [head * (k % 2) + some(draw.randint(1, 60)) for k in range(count)]


def batch(llama, wishes, new=24, blocks=14, samples=1, **more):
    """What generate_batch says, in order. 14 blocks are too few for all at once, 100 tokens for some prompts."""
    settings = GenerationConfig(
        max_new_tokens=new, do_sample=samples > 1, num_return_sequences=samples, eos_token_id=-1, pad_token_id=0
    )
    memory = ContinuousBatchingConfig(num_blocks=blocks, page_size=SIZE, max_batch_tokens=100, **more)
    found = llama.generate_batch(wishes, generation_config=settings, continuous_batching_config=memory)
    return [list(each.generated_tokens) for each in found.values()]


@pytest.fixture
def counted(monkeypatch):
    """The state of the log after each look, held against the tables and counters of transformers at that moment."""
    states, real = [], BatchingRecording.look

    def look(recording, processor):
        real(recording, processor)
        cache = processor.cache
        (blocks,) = cache.cache_allocators.values()
        log = recording.log
        state = log.at(len(log), len(log.pools) - 1)
        free = cache.pool.num_free_sectors * blocks.blocks_per_sector + cache.pool.count_free_blocks(blocks.index)
        states.append((state, blocks.num_blocks - free - len(blocks.ledger.cached_blocks)))
        first = 2 * blocks.blocks_per_sector
        assert sorted(state.tables.values()) == sorted(
            tuple(block - first for block in table) for table in blocks.block_table.values() if table
        )
        active = processor.scheduler.active_requests.values()
        assert sorted(state.lengths.values()) == sorted(each.position_offset for each in active if each.position_offset)

    monkeypatch.setattr(BatchingRecording, "look", look)
    return states


@pytest.mark.parametrize("sharing", [True, False])
def test_the_log_says_what_their_cache_manager_counts(counted, sharing):
    """Shared beginnings, chunks, too few blocks; at the end all are free."""
    llama, wishes = model("llama"), prompts()
    with record_batching(llama) as run:
        outputs = batch(llama, wishes, allow_block_sharing=sharing)
    assert [len(output) for output in outputs] == [24] * len(wishes)
    assert len(counted) > 24 and max(count for _, count in counted) > 10
    for state, count in counted:
        assert state.used == count and state.pool.pages == 14
        assert all(state.lengths[s] <= SIZE * len(table) for s, table in state.tables.items())
    assert any(state.shared for state, _ in counted) == sharing
    assert (PageAction.SHARE in run.log.events.action) == sharing
    log = run.log
    assert log.origin == "generate_batch of transformers, pages of a run on CPU"
    assert log.at(len(log)).used == 0 and not log.at(len(log)).tables
    token_bytes = 2 * 2 * 2 * 8 * 4  # keys and values, layers, heads, channels, fp32
    assert (log.pools[0].token_bytes, log.pools[0].layers) == (token_bytes, 2)
    assert "14 pages" in kvviz.page_map(log).title


def test_preempted_requests_come_back(counted):
    llama, wishes = model("llama"), [[k + 1] * 30 for k in range(4)]
    with record_batching(llama) as run:
        outputs = batch(llama, wishes, new=60, blocks=10)
    assert [len(output) for output in outputs] == [60] * 4
    begun = (run.log.events.action == PageAction.BEGIN).sum()
    assert begun > 4, "who gave its blocks up begins anew"
    assert all(state.used == count for state, count in counted)


def test_blocks_that_turn_out_alike_become_one(counted):
    """Read in one batch, so that neither finds the other's; then one of them gives its own block back."""
    llama, wish = model("llama"), prompts(1)[0][:20] + [5] * 20
    with record_batching(llama) as run:
        batch(llama, [[*wish, 1], [*wish, 2]], new=4)
    assert all(state.used == count for state, count in counted) and counted[0][0].shared == 0
    assert max(state.shared for state, _ in counted) == 2 and PageAction.SHARE in run.log.events.action


def test_one_that_is_let_in_again_between_two_looks_begins_anew():
    run = BatchingRecording(None)
    run._pool = run.log.add_pool(PoolInfo("blocks", 4, SIZE))
    for now in ({"a": ([0, 1], 20)}, {"a": ([2], 5), "b": ([3], 0)}, {"a": ([2], 6)}):
        run._change(now, set())
    state = run.log.at(len(run.log))
    assert (state.tables, state.lengths, state.used) == ({1: (2,)}, {1: 6}, 1)


def test_samples_share_the_blocks_of_their_prompt(counted):
    llama = model("llama")
    with record_batching(llama) as run:
        batch(llama, prompts(2), new=8, samples=3)
    assert all(state.used == count for state, count in counted) and max(state.shared for state, _ in counted) >= 4
    assert max(len(state.tables) for state, _ in counted) == 6 and run.log.at(len(run.log)).used == 0


def test_beside_an_engine_in_one_log(counted):
    """The same requests, one after the other: one picture with both pools."""
    llama, wishes = model("llama"), prompts(3)
    engine = Engine(llama, 14, SIZE)
    for wish in wishes:
        engine.add(wish, 6)
    ours = engine.run()
    with record_batching(llama, engine.log):
        theirs = batch(llama, wishes, new=6)
        batch(llama, wishes[:1], new=2, blocks=5)
    assert ours == theirs
    log = engine.log
    assert [(pool.name, pool.pages) for pool in log.pools] == [
        ("pages", 14), ("transformers' blocks", 14), ("transformers' blocks", 5)
    ]  # fmt: skip
    assert log.origin == "pages of a run on CPU" and all(log.at(len(log), k).used == 0 for k in range(3))
    for k in (0, 1):
        found = log.lengths(k)
        longest = [found.length[found.sequence == sequence].max() for sequence in range(3)]
        assert longest == [len(wish) + 5 for wish in wishes], "the last token is not stored"


def test_only_this_model_and_only_within_the_block():
    from transformers.generation.continuous_batching.continuous_api import ContinuousBatchProcessor as Processor

    before = Processor.prepare_next_batch
    llama, other = model("llama"), build("llama")
    with record_batching(llama) as run:
        batch(other, prompts(1), new=2)
    assert not run.log.pools and not len(run.log)
    assert Processor.prepare_next_batch is before
    with pytest.raises(RuntimeError, match="mine"), record_batching(llama):
        raise RuntimeError("mine")
    assert Processor.prepare_next_batch is before


def test_a_run_that_is_broken_off_has_given_its_blocks_back():
    llama = model("llama")
    settings = GenerationConfig(max_new_tokens=500, do_sample=False, eos_token_id=-1, pad_token_id=0)
    memory = ContinuousBatchingConfig(num_blocks=40, page_size=SIZE)
    with record_batching(llama) as run:
        manager = llama.init_continuous_batching(settings, memory)
        manager.start()
        manager.add_request([1, 2, 3])
        while not len(run.log):
            manager.get_result(timeout=0.01)
        manager.stop(block=True, hard_stop=True)
        manager.destroy()
        del manager
    assert len(run.log) > 2 and run.log.at(len(run.log)).used == 0 and not run.log.at(len(run.log)).tables


def test_what_cannot_be_recorded_is_told():
    with pytest.raises(InvalidRequest, match="windows: only full attention"), record_batching(model("mistral")):
        pass
    with pytest.raises(InvalidRequest, match="a transformers model is needed"), record_batching("llama"):
        pass
    with pytest.raises(InvalidRequest, match="log must be a PageLog"), record_batching(model("llama"), log=3):
        pass


def test_another_way_to_keep_tables_stops_the_recording_and_not_the_run(monkeypatch):
    from transformers.generation.continuous_batching.cache import PagedAttentionCache

    llama, real = model("llama"), PagedAttentionCache.__init__

    def otherwise(cache, *args, **kwargs):
        real(cache, *args, **kwargs)
        del cache.pool.num_reserved_sectors

    monkeypatch.setattr(PagedAttentionCache, "__init__", otherwise)
    outputs, told = [], r"transformers \S+ keeps its blocks otherwise \(AttributeError: .*reserved"
    with pytest.raises(RecordingError, match=told), record_batching(llama):
        outputs = batch(llama, prompts(2), new=3)
    assert [len(output) for output in outputs] == [3, 3]


def test_a_release_without_continuous_batching_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers.generation.continuous_batching.continuous_api", None)
    told = r"transformers \S+ has no continuous batching"
    with pytest.raises(RecordingError, match=told), record_batching(model("llama")):
        pass
