"""The engine: whatever else is in the batch, each request gets what it would get alone, from pages, in order of arrival."""

import functools
import itertools
import random

import pytest
import torch

import kvviz
from kvviz import CorruptCache, InvalidRequest, PoolExhausted
from kvviz.cache.attention import plain_attention
from kvviz.cache.pagelog import PageAction
from kvviz.cache.spec import CacheSpec
from kvviz.cache.store import Slab, place
from kvviz.serve import Engine, shared_prefixes
from kvviz.serve.batch import Batch, Span
from kvviz.serve.metrics import stored_tokens
from kvviz.serve.scheduler import Scheduler
from tests.tiny_models import FULL_ONLY, VOCABULARY, build, model

TIE = 1e-4  # of a logit: closer than that, rounding may choose either token
pytestmark = pytest.mark.usefixtures("one_thread")


@functools.cache
def requests(count=64, seed=0):
    """Prompts, half of which share beginnings, and how many tokens to generate."""
    draw = random.Random(seed)
    prompts = shared_prefixes(count // 2, VOCABULARY, prefixes=3, prefix_tokens=19, tokens=(1, 20), seed=seed)
    prompts += [[draw.randrange(VOCABULARY) for _ in range(draw.randint(1, 45))] for _ in range(count - len(prompts))]
    draw.shuffle(prompts)
    return [(tuple(prompt), draw.randint(1, 24)) for prompt in prompts]


@functools.cache
def alone(name, prompt, steps):
    return kvviz.decode(model(name), torch.tensor([prompt]), steps)[0, len(prompt) :].tolist()


def assert_as_alone(name, prompt, output):
    """The tokens of a run alone; where one differs, the two likeliest must have been as good as tied."""
    wanted = alone(name, tuple(prompt), len(output))
    if output == wanted:
        return
    at = next(k for k, (a, b) in enumerate(zip(output, wanted, strict=True)) if a != b)
    logits = model(name)(torch.tensor([[*prompt, *wanted[:at]]])).logits[0, -1]
    gap = logits[wanted[at]] - logits[output[at]]
    assert gap < TIE, f"token {at} of {wanted} is {output[at]}, {gap} less likely"


def run(engine, wishes, join=0):
    """Add `wishes` (join at a time, 0: all at once), step until nothing is left, check each step."""
    todo, added = list(wishes), []
    while todo or engine.has_work:
        for prompt, steps in todo[: join or len(todo)]:
            added.append(engine.add(list(prompt), steps))
        del todo[: join or len(todo)]
        step = engine.step()
        engine.check()
        assert step.prefill + step.decode <= engine.scheduler.step_tokens
        assert step.running <= engine.scheduler.max_running
        if step.number % 16:
            continue  # going through the whole log takes its time
        state = engine.log.at(len(engine.log))
        assert state.stored == stored_tokens(engine.pool) and state.used == engine.pool.used_count
    return added


def assert_all_free(engine):
    engine.check()
    assert engine.pool.free_count == engine.pool.pages and not engine.pool.tables
    assert engine.log.at(len(engine.log)).used == 0


# --- token for token --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "page_size", "prefix_cache"),
    [*((name, 4, True) for name in FULL_ONLY), *(("llama", *each) for each in ((1, True), (16, True), (4, False)))],
)
def test_64_requests_with_too_few_pages_get_what_each_gets_alone(name, page_size, prefix_cache):
    """Mixed lengths, shared beginnings, chunks, joins and leaves, preemption; nobody starves, no page is lost."""
    engine = Engine(model(name), 144 // page_size, page_size, max_running=8, step_tokens=24, prefix_cache=prefix_cache)
    wishes = requests()
    added = run(engine, wishes, join=3)
    assert_all_free(engine)
    for request, (prompt, steps) in zip(added, wishes, strict=True):
        assert len(request.outputs[0]) == steps and request.finished_step <= request.bound
        assert_as_alone(name, prompt, request.outputs[0])
    m = engine.metrics
    assert m.preemptions > 0 and max(step.running for step in m.steps) >= 4
    assert any(step.prefill and step.decode for step in m.steps), "chunks beside decoding"
    assert any(len(prompt) > 24 for prompt, _ in wishes), "prompts longer than a step"
    assert (m.hit_tokens > 100) == prefix_cache and (page_size < 16 or m.hit_tokens % 16 == 0)


@pytest.mark.model
def test_smollm2_serves_what_it_gives_alone():
    """The real model, in short: bench_serve has 64 requests."""
    smollm2, tokenizer = kvviz.load_model()
    engine = Engine(smollm2, pages=14, page_size=8, max_running=4, step_tokens=32)
    texts = [
        "The capital of France is",
        "The capital of France is Paris, and that of Italy",
        "Once upon a time",
        "1, 2, 3",
    ]
    added = [engine.add(tokenizer(text).input_ids, 10) for text in texts]
    outputs = engine.run()
    assert_all_free(engine)
    for each, output in zip(added, outputs, strict=True):
        assert output == kvviz.decode(smollm2, torch.tensor([each.prompt]), 10)[0, len(each.prompt) :].tolist()


@pytest.mark.parametrize("pages", [100, 10], ids=["room", "too few pages"])
@pytest.mark.parametrize("page_size", [1, 4, 8])
def test_samples_share_the_prompt_until_they_write(page_size, pages):
    """Sample k begins with the k-th likeliest token, and goes on as it would alone."""
    prompt, steps, n = list(range(1, 19)), 12, 4
    pages = pages * 4 // page_size + 1
    engine = Engine(model("llama"), pages, page_size, max_running=6, step_tokens=12)
    forked = engine.add(prompt, steps, n=n)
    other = engine.add(list(range(20, 30)), steps)
    shared = 0
    for _ in engine:
        engine.check()
        shared = max(shared, engine.log.at(len(engine.log)).shared)
    assert_all_free(engine)
    assert shared >= 18 // page_size
    firsts = model("llama")(torch.tensor([prompt])).logits[0, -1].topk(n).indices.tolist()
    assert [output[0] for output in forked.outputs] == firsts
    for first, output in zip(firsts, forked.outputs, strict=True):
        assert len(output) == steps
        assert_as_alone("llama", [*prompt, first], output[1:])
    assert_as_alone("llama", other.prompt, other.outputs[0])
    copies = (engine.log.events.action == PageAction.COPY).sum()
    if not engine.metrics.preemptions:  # of the samples that share a half-full page, all but the last copy it
        assert copies == (0 if page_size == 1 else n - 1)


def test_run_returns_one_list_a_sample_in_order_of_arrival():
    engine = Engine(model("llama"), 40, 4)
    engine.add(torch.tensor([[5, 6, 7]]), 3)
    engine.add(torch.tensor([8, 9]), 2, n=2)
    engine.add((1,), 1, n=3)
    outputs = engine.run()
    assert [len(output) for output in outputs] == [3, 2, 2, 1, 1, 1] and outputs[0] == alone("llama", (5, 6, 7), 3)
    assert engine.run() == []
    engine.add([5, 6, 7], 3)
    assert engine.run() == [outputs[0]]


def test_a_stop_token_ends_a_sample_and_belongs_to_it():
    whole = alone("llama", (3, 1, 4), 12)
    stop = whole[5]
    engine = Engine(model("llama"), 40, 4)
    request = engine.add([3, 1, 4], 12, stop=stop)
    assert engine.run() == [whole[: whole.index(stop) + 1]] and request.done
    assert_all_free(engine)
    engine = Engine(model("llama"), 40, 4, max_running=2, step_tokens=4)
    request = engine.add([3, 1, 4] * 3 + [stop], 2, stop=stop)  # in a prompt of three steps it ends nothing
    assert not engine.step().finished and not request.done
    engine.run()
    assert len(request.outputs[0]) >= 1 and request.finished_step >= 2


# --- attention --------------------------------------------------------------------------------------------------------


def test_a_batch_reads_each_sequence_as_if_it_were_alone():
    """Held against attention written out, one token at a time: rows and scattered pages, decode, chunks, prompts."""
    torch.manual_seed(0)
    heads, kv_heads, dim, size = 6, 2, 8, 4
    slab = Slab(CacheSpec(1, kv_heads, dim, 1, torch.float32, torch.device("cpu")), 32, size)
    slab.keys[0].fill_(float("nan")), slab.values[0].fill_(float("nan"))  # who reads what nobody wrote will show it
    pool, lengths, past = kvviz.PagePool(32, size), [(0, 7), (9, 1), (5, 6), (0, 1), (12, 1)], []
    tables = [pool.table() for _ in lengths]
    for k in range(13):  # token by token in turn, so that pages are scattered
        for table, (first, new) in zip(tables[:4], lengths, strict=False):
            if k < first + new:
                table.append(1)
    tables[4].append(13)
    assert [table.row for table in tables[:3]] != [0, 0, 0] and tables[4].row == 0
    spans, slots, at = [], [], 0
    for table, (first, new) in zip(tables, lengths, strict=True):
        keys, values = torch.randn(2, kv_heads, first + new, dim)
        where = [table.pages[t // size] * size + t % size for t in range(first + new)]
        slab.keys[0][:, where[:first]], slab.values[0][:, where[:first]] = keys[:, :first], values[:, :first]
        slots += where[first:]
        mask = torch.ones(new, first + new, dtype=torch.bool).tril(first)[None, None] if first and new > 1 else None
        spans.append(Span(at, at + new, place([table], 0, first + new, torch.device("cpu")), mask))
        past.append((keys, values))
        at += new
    query = torch.randn(1, heads, at, dim)
    news = [torch.cat([pair[kind][:, first:] for pair, (first, _) in zip(past, lengths)], 1)[None] for kind in (0, 1)]
    out = Batch(slab, spans, torch.tensor(slots)).attend(0, query, *news, None)
    assert out.shape == (1, at, heads, dim)
    for span, (keys, values), (first, new) in zip(spans, past, lengths, strict=True):
        for k in range(new):
            seen = first + k + 1
            asked = query[:, :, span.low + k : span.low + k + 1]
            wanted = plain_attention(asked, keys[None, :, :seen], values[None, :, :seen], None, dim**-0.5)
            torch.testing.assert_close(out[:, span.low + k], wanted[:, :, 0], atol=1e-5, rtol=1e-4)


def test_between_steps_the_model_is_as_it_was():
    own = build("llama")
    before = own.config._attn_implementation
    engine = Engine(own, 20, 4)
    request = engine.add([1, 2, 3], 6)
    engine.step()
    assert own.config._attn_implementation == before
    assert kvviz.decode(own, torch.tensor([[1, 2, 3]]), 6)[0, 3:].tolist() == alone("llama", (1, 2, 3), 6)
    kvviz.attach(own)  # an attached model is served, too
    assert engine.run() == [alone("llama", (1, 2, 3), 6)] and request.done
    assert own.config._attn_implementation == "kvviz_paged"


# --- prefixes ---------------------------------------------------------------------------------------------------------


def test_a_prefix_is_found_in_whole_pages_and_its_last_token_is_computed():
    engine = Engine(model("llama"), 30, 4)
    prompt = list(range(1, 13))
    outputs = []
    for wish, hit in (
        (prompt, 0),
        (prompt, 8),
        ([*prompt, 50], 12),
        (prompt[:7], 4),
        (prompt[:3], 0),
        ([90, *prompt], 0),
    ):
        before = engine.metrics.hit_tokens
        engine.add(wish, 3)
        outputs += engine.run()
        assert engine.metrics.hit_tokens - before == hit, wish
        assert outputs[-1] == alone("llama", tuple(wish), 3)


def test_those_who_come_together_share_pages_that_are_written_in_the_same_step():
    engine = Engine(model("llama"), 30, 4)
    wishes = [[*range(1, 10), 40 + k] for k in range(4)]
    added = [engine.add(wish, 4) for wish in wishes]
    step = engine.step()
    assert engine.metrics.hit_tokens == 3 * 8 and step.prefill == 10 + 3 * 2 and step.used == 2 + 4
    engine.run()
    for request in added:
        assert_as_alone("llama", request.prompt, request.outputs[0])


def test_what_was_used_last_is_remembered_longest():
    """12 pages, 3 a request: of five requests in turn, the first is forgotten first."""
    engine = Engine(model("llama"), 12, 4, max_running=1)
    wishes = [[k * 10 + j for j in range(1, 10)] for k in range(5)]
    for wish in wishes[:4]:
        engine.add(wish, 3)
        engine.run()
    engine.add(wishes[0], 3)  # now used again
    engine.run()
    assert engine.metrics.hit_tokens == 8
    engine.add(wishes[4], 3)
    engine.run()
    known = [len(engine.pool.find(wish)) for wish in wishes]
    assert known[0] == 2 and known[1] < 2 and known[3] == known[4] == 2


# --- order, preemption, fairness --------------------------------------------------------------------------------------


def test_the_youngest_gives_way_and_keeps_its_tokens(monkeypatch):
    engine, gone = Engine(model("llama"), 9, 4, max_running=3), []
    real = Scheduler.preempt

    def preempt(scheduler):
        youngest = max(scheduler.running, key=lambda sample: sample.order)
        had = list(youngest.tokens)
        sample = real(scheduler)
        assert sample is youngest and sample.tokens == had and sample.table is None and scheduler.waiting[0] is sample
        gone.append(sample)
        return sample

    monkeypatch.setattr(Scheduler, "preempt", preempt)
    added = run(engine, [((k + 1,) * 5, 20) for k in range(3)])
    assert gone and all(sample.request.number > 0 for sample in gone), "the oldest never gives way"
    assert any(len(sample.output) > 0 for sample in gone)
    for request in added:
        assert_as_alone("llama", request.prompt, request.outputs[0])
    assert [request.finished_step for request in added] == sorted(request.finished_step for request in added)


def test_first_come_first_served_even_if_a_smaller_one_would_fit():
    engine = Engine(model("llama"), 8, 4, max_running=4)
    engine.add([1] * 12, 8)
    big, small = engine.add([2] * 20, 3), engine.add([3], 3)
    order = [request.number for step in engine for request in step.finished]
    assert order.index(big.number) < order.index(small.number) or small.first_token >= big.first_token


def test_nobody_starves_under_a_stream_of_newcomers():
    """A long request, and a short one more each step: it is done within its bound, which nobody later can move."""
    engine = Engine(model("llama"), 20, 4, max_running=4, step_tokens=8)
    engine.add([5] * 10, 10)
    long = engine.add(list(range(1, 60)), 12)
    bound = long.bound
    for _ in range(bound + 1):
        if long.done:
            break
        engine.add([7, 8, 9], 4)
        engine.step()
        engine.check()
    assert long.done and long.finished_step <= bound == long.bound
    assert engine.has_work, "newcomers still wait"


def test_a_long_prompt_does_not_stop_those_who_decode():
    engine = Engine(model("llama"), 60, 4, max_running=4, step_tokens=8)
    short = engine.add([1, 2], 12)
    engine.step()
    engine.add(list(range(1, 41)), 2)
    for count in range(2, 13):
        step = engine.step()
        assert len(short.outputs[0]) == count and step.decode >= 1 and step.prefill + step.decode <= 8


def test_nobody_is_let_in_on_pages_that_the_next_step_takes():
    engine = Engine(model("llama"), 3, 4)
    first, second = engine.add([1] * 8, 3), engine.add([2], 2)
    assert engine.step().running == 1, "the third page is for the first one's next token"
    run(engine, [])
    assert not engine.metrics.preemptions and second.first_token >= first.finished


def test_samples_need_as_many_places_before_they_are_forked():
    engine = Engine(model("llama"), 40, 4, max_running=3)
    engine.add([1], 8), engine.add([2], 4, n=3), engine.add([3], 2)
    running = [step.running for step in run(engine, []) or engine.metrics.steps]
    assert max(running) == 3 and running[:8] == [1] * 8


# --- cancel -----------------------------------------------------------------------------------------------------------


def test_cancelled_requests_give_their_pages_back_and_change_nobody():
    """Whoever they are and wherever they stand: waiting, in their prompt, decoding, preempted, forked, or done."""
    llama, draw, stands = model("llama"), random.Random(5), set()
    for _ in range(5):
        engine = Engine(llama, 30, 4, max_running=6, step_tokens=20)
        wishes = [(prompt, steps, 1 + 2 * (k % 4 == 0)) for k, (prompt, steps) in enumerate(requests(24, seed=3))]
        added, last = [engine.add(list(prompt), steps, n=n) for prompt, steps, n in wishes], {}
        while engine.has_work:
            engine.step()
            if draw.random() < 0.3 and (left := [each for each in added if not each.done]):
                request = draw.choice(left)
                sample = request.samples[-1]
                stands.add("waits" if sample.table is None else "reads" if sample.remaining > 1 else "writes")
                held = sum(len(s.table.pages) for s in request.samples if s.table)
                before, outputs = engine.pool.used_count, [list(output) for output in request.outputs]
                assert engine.cancel(request) and request.done and request.cancelled
                assert before - held <= engine.pool.used_count <= before and not any(s.table for s in request.samples)
                assert request.outputs == outputs
                last[request] = outputs
            engine.check()
        assert_all_free(engine)
        gone = [request for request in added if request.cancelled]
        told = f"{24 - len(gone)} of 24 requests done, {len(gone)} cancelled in"
        assert 3 < len(gone) < 24 and told in str(engine.metrics)
        assert all(request.outputs == last[request] for request in gone), "nobody goes on with it"
        for request in added:
            assert all(len(output) == request.max_new_tokens for output in request.outputs) or request.cancelled
            if request.n == 1 and request.outputs[0]:
                assert_as_alone("llama", request.prompt, request.outputs[0])
    assert stands == {"waits", "reads", "writes"}


def test_a_place_is_free_in_the_step_after():
    engine = Engine(model("llama"), 12, 4, max_running=1)
    first, second = engine.add([1] * 9, 20), engine.add([1] * 9, 3)
    engine.step()
    engine.cancel(first)
    assert engine.pool.used_count == 0 and first.finished_step == 1 and len(first.outputs[0]) == 1
    step = engine.step()
    assert step.running == 1 and engine.metrics.hit_tokens == 8, "what it read is still found"
    assert engine.run() == [alone("llama", (1,) * 9, 3)] and not engine.cancel(second) and not second.cancelled
    with pytest.raises(InvalidRequest, match=r"<Request 0: 9 .* was not added to this engine"):
        Engine(model("llama"), 4).cancel(first)
    with pytest.raises(InvalidRequest, match="'first' was not added"):
        engine.cancel("first")


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layer", [0, 1])
def test_a_step_that_fails_did_not_happen(layer, monkeypatch):
    """The model fails in a layer, now and then; what is remembered of pages is never what was not written."""
    engine, draw, fails = Engine(model("llama"), 30, 4, max_running=6, step_tokens=20), random.Random(layer), [0]
    real = Batch.attend

    def attend(batch, number, *rest):
        if number == layer and draw.random() < 0.3:
            fails[0] += 1
            raise MemoryError("no")
        return real(batch, number, *rest)

    wishes = requests(24, seed=3)
    added = [engine.add(list(prompt), steps, n=1 + (k % 5 == 0)) for k, (prompt, steps) in enumerate(wishes)]
    monkeypatch.setattr(Batch, "attend", attend)
    while engine.has_work:
        steps, tables = len(engine.metrics.steps), {s: s.computed for s in engine.samples()}
        try:
            engine.step()
        except MemoryError:
            assert len(engine.metrics.steps) == steps
            assert all(sample.computed == tables[sample] for sample in engine.samples())
        engine.check()
    monkeypatch.undo()
    assert fails[0] > 5 and engine.metrics.hit_tokens
    assert_all_free(engine)
    for request in added:
        assert_as_alone("llama", request.prompt, request.outputs[0])


def test_hits_of_a_step_that_fails_are_not_counted_twice(monkeypatch):
    engine = Engine(model("llama"), 30, 4)
    engine.add([1] * 9, 2)
    engine.run()
    engine.add([1] * 9, 2)
    with monkeypatch.context() as broken, pytest.raises(MemoryError):
        broken.setattr(Batch, "attend", lambda *_: (_ for _ in ()).throw(MemoryError("no")))
        engine.step()
    engine.run()
    assert engine.metrics.hit_tokens == 8


@pytest.mark.parametrize("name", ["mistral", "gemma2", "gemma3", "gpt-oss", "gemma4", "llama4"])
def test_models_with_windows_are_refused_and_left_as_they_were(name):
    other = model(name)
    before = other.config._attn_implementation
    with pytest.raises(InvalidRequest, match="full attention"):
        Engine(other, 4)
    assert other.config._attn_implementation == before


def test_what_makes_no_sense_is_told_in_one_line_with_numbers():
    llama = model("llama")
    with pytest.raises(InvalidRequest, match="transformers model"):
        Engine("llama", 4)
    with pytest.raises(InvalidRequest, match="step_tokens=4 leaves some of 16"):
        Engine(llama, 4, step_tokens=4)
    with pytest.raises(InvalidRequest, match="pages must be"):
        Engine(llama, 0)
    engine = Engine(llama, 10, 4, max_running=3)
    for bad in ([], [VOCABULARY], [-1], [1.5], "text", torch.ones(2, 3, dtype=torch.long), torch.tensor(3), None):
        with pytest.raises(InvalidRequest, match="token ids 0 … 95"):
            engine.add(bad, 3)
    with pytest.raises(InvalidRequest, match="max_new_tokens must be"):
        engine.add([1], 0)
    with pytest.raises(InvalidRequest, match="n=4 samples, and 3 may run"):
        engine.add([1], 2, n=4)
    with pytest.raises(InvalidRequest, match="1,020 prompt tokens and 6 new ones: the model has 1,024"):
        Engine(llama, 999, 4).add([1] * 1020, 6)
    with pytest.raises(PoolExhausted, match="take 11 pages, the pool has 10: raise pages"):
        engine.add([1] * 30, 12)
    with pytest.raises(InvalidRequest, match="no request is left"):
        engine.step()
    assert not engine.metrics.requests
    engine.add([1] * 30, 11)
    assert len(engine.run()[0]) == 11


def test_check_finds_what_is_wrong():
    def broken(change, told):
        engine = Engine(model("llama"), 20, 4, max_running=3)
        for k in range(5):
            engine.add([k + 1] * 5, 9)
        engine.step()
        engine.check()
        change(engine)
        with pytest.raises(CorruptCache, match=told):
            engine.check()

    broken(lambda e: e.scheduler.running.reverse(), "order of age")
    broken(lambda e: e.scheduler.waiting.appendleft(e.scheduler.running.pop()), "tables")
    broken(lambda e: setattr(e.scheduler.waiting[0], "table", e.samples()[0].table), "waits, and has pages")
    broken(lambda e: setattr(e.metrics.requests[0], "bound", 1), "starves")
    broken(lambda e: e.samples()[0].tokens.pop(), "nothing to compute|reads 0 tokens")
    broken(lambda e: e.samples()[0].tokens.append(1), "reads 2 tokens, and younger ones run")
    broken(lambda e: e.pool.allocate(), "references")


# --- what it tells ----------------------------------------------------------------------------------------------------


def test_times_are_those_of_the_clock():
    """One second a look at the clock: when added, when a step begins, when its tokens are there, when it ends."""
    ticks = itertools.count()
    engine = Engine(model("llama"), 20, 4, clock=lambda: float(next(ticks)))
    first, second = engine.add([1, 2, 3], 3), engine.add([4], 1)
    assert first.time_to_first_token is None and first.time_per_output_token is None and not first.done
    list(engine)
    assert (first.added, second.added) == (0, 1) and first.first_token == second.finished == 3
    assert first.time_to_first_token == 3 and second.time_to_first_token == 2
    assert first.finished == 9 and first.time_per_output_token == 3 and second.time_per_output_token is None
    m = engine.metrics
    assert m.seconds == 6 and m.output_tokens == 4 and m.throughput == 4 / 6
    assert m.time_to_first_token == 2.5 and m.time_per_output_token == 3
    assert [(s.number, s.running, s.prefill, s.decode, s.used, s.stored) for s in m.steps] == [
        (0, 2, 3, 1, 2, 4), (1, 1, 0, 1, 1, 4), (2, 1, 0, 1, 2, 5)
    ]  # fmt: skip
    assert m.steps[0].waste == 0.5 and m.steps[1].waste == 0 and m.peak_used == 2
    assert [len(step.finished) for step in m.steps] == [1, 0, 1]
    assert "2 of 2 requests done in 3 steps, 6.00 s" in str(m) and "0.7 tokens a second" in str(m)


def test_a_chunk_of_one_token_is_no_decode():
    engine = Engine(model("llama"), 20, 4, max_running=4, step_tokens=4)
    for k in range(3):
        engine.add([k + 1], 9)
    engine.step()
    engine.add([9] * 5, 2)
    step = engine.step()
    assert (step.running, step.prefill, step.decode) == (4, 1, 3)


def test_metrics_say_what_the_log_and_the_scheduler_did(monkeypatch):
    """Too few pages, shared beginnings: what each step tells, against the log, and against what was called."""
    engine = Engine(model("llama"), 24, 4, max_running=6, step_tokens=20)
    states, gone, real, real_preempt = [], [0], Engine._compute, Scheduler.preempt

    def compute(of, work):
        states.append(of.log.at(len(of.log)))
        return real(of, work)

    def preempt(scheduler):
        gone[0] += 1
        return real_preempt(scheduler)

    monkeypatch.setattr(Engine, "_compute", compute)
    monkeypatch.setattr(Scheduler, "preempt", preempt)
    added = [engine.add(list(prompt), steps) for prompt, steps in requests(24, seed=3)]
    for step in engine:
        state, before = states[-1], gone[0]
        assert (step.used, step.stored, step.waste) == (state.used, state.stored, state.waste)
        assert step.running == len(state.lengths) and step.preempted <= before
        assert step.waiting == sum(not each.done and each.samples[0].table is None for each in added)
        assert set(step.finished) == {each for each in added if each.finished_step == step.number}
    m = engine.metrics
    assert (
        m.preemptions
        == gone[0]
        == sum(step.preempted for step in m.steps)
        == sum(each.samples[0].preempted for each in added)
    )
    assert m.preemptions > 2 and m.peak_used == max(state.used for state in states) > m.steps[-1].used
    assert m.waste == pytest.approx(sum(state.waste for state in states) / len(states)) and 0 < m.waste < 0.5
    computed = sum(step.prefill + step.decode for step in m.steps)
    stored = sum(len(each.samples[0].tokens) - 1 for each in added)  # the last token is not read again
    assert computed == stored - m.hit_tokens + m.recomputed_tokens and m.hit_tokens and m.recomputed_tokens
    assert f"{m.preemptions} preemptions, {m.recomputed_tokens} tokens computed again" in str(m)
    assert f"{m.hit_tokens} of them found in pages" in str(m) and f"waste {m.waste:.1%}" in str(m)


def test_the_log_can_be_played():
    engine = Engine(model("llama"), 12, 4, max_running=3)
    run(engine, [((k + 1,) * 6, 12) for k in range(4)])
    assert engine.log.origin == "pages of a run on CPU"
    view = kvviz.page_map(engine.log)
    assert "12" in str(view.title) and view._repr_mimebundle_()
    info = engine.log.pools[0]
    assert info.token_bytes == 2 * 2 * 2 * 8 * 4 and engine.held_bytes >= 12 * 4 * info.token_bytes
