"""Live pictures: their rhythm, what they show, and that nothing of them stays behind."""

import base64
import copy
import gc
import gzip
import os
import random
import re
import signal

import numpy as np
import pytest
import torch

import kvviz
from kvviz.cache.pagelog import PageLog
from kvviz.memory import cpu
from kvviz.memory.cpu import allocations
from kvviz.memory.looks import Looks, of_segments, of_snapshot
from kvviz.memory.state import State
from kvviz.memory.trace import Action
from kvviz.view.live import outputs
from kvviz.view.live.pace import Pace
from kvviz.view.live.pages import live as live_pages
from tests.tiny_models import build, cache_name


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Always(Pace):
    """A picture at every chance."""

    @property
    def due(self) -> bool:
        return True


@pytest.fixture
def page(monkeypatch):
    """A notebook's page: what is sent to it, and the end of the cell."""
    hooks, sent = [], []

    class Page:
        kernel = object()
        shown: tuple = ()
        buffers = sent

        def register(self, name, hook):
            assert name == "post_run_cell"
            hooks.append(hook)

        def unregister(self, name, hook):
            hooks.remove(hook)

        def end_cell(self):
            for hook in list(hooks):
                hook(None)

        @property
        def hooks(self):
            return len(hooks)

    page = Page()
    page.events = page

    def show(self, html, name, update=True):
        if found := re.search(r'=\["([^"]+)", "Live: ', html):
            sent.append(gzip.decompress(base64.b64decode(found[1])))

    def close(self, view, words):
        page.shown = view, words

    monkeypatch.setattr(outputs, "shell", lambda: page)
    monkeypatch.setattr(outputs.Outputs, "_show", show)
    monkeypatch.setattr(outputs.Outputs, "close", close)
    return page


def paged(**options) -> kvviz.PagedKVCache:
    return kvviz.PagedKVCache(layers=2, kv_heads=1, head_dim=4, page_size=4, tokens=64, **options)


def grow(cache, steps: int) -> None:
    token = torch.ones(cache.spec.batch, 1, 1, 4)
    for _ in range(steps):
        for layer in range(2):
            cache.append(layer, token, token)


def generated(model, ids, cache) -> torch.Tensor:
    return model.generate(ids, max_new_tokens=6, do_sample=False, **{cache_name(model): cache})


# the rhythm


@pytest.mark.parametrize("cost", [0.001, 0.01, 0.2])
def test_pictures_take_their_share_of_the_time_and_no_more(cost):
    clock = Clock()
    pace = Pace(clock=clock)
    while clock.now < 200:
        clock.now += 0.003  # a step of the run
        if pace.due:
            began, clock.now = clock.now, clock.now + cost
            pace.drawn(began)
    assert pace.spent <= 0.05 * pace.elapsed + cost
    assert pace.pictures <= 4 * pace.elapsed + 1
    wanted = min(4.0, 0.05 / cost)  # a second
    assert pace.pictures >= 0.95 * wanted * pace.elapsed - 1


def test_work_that_is_done_anyway_does_not_count():
    clock = Clock()
    pace = Pace(clock=clock)
    clock.now = 3.0
    pace.drawn(0.0, other=2.99)
    assert pace.spent == pytest.approx(0.01)
    clock.now += 0.3
    assert pace.due


# cache.live()


def test_each_batch_is_a_true_beginning_of_the_log_and_the_end_is_the_page_map(page):
    cache = paged()
    cache.live().stop()  # before there is a pool
    picture = live_pages(cache, pace=Always())
    grow(cache, 20)
    cache.truncate(9)
    grow(cache, 3)
    picture.stop()
    assert len(page.buffers) == 23  # one before each step
    lengths = set()
    for sent in page.buffers:
        events = int(re.search(rb'"events":(\d+)', sent)[1])
        lengths.add(events)
        start = PageLog(cache.log.origin) if events else PageLog()  # where they lie is not known before there are any
        start.pools = cache.log.pools if events else []
        start._rows = cache.log._rows[: 7 * events]
        start._sequences = cache.log._sequences
        assert sent == kvviz.page_map(start, start=events).data
    assert len(lengths) == 23
    shown, words = page.shown
    assert shown.data == kvviz.page_map(cache.log).data
    assert picture.view is shown
    assert re.search(r"Live: 23 pictures, \d+ events, drawn in .* of the .* s it ran", words)


def test_the_end_of_the_cell_ends_it(page):
    cache = paged()
    cache.live()
    assert cache.log.watch is not None
    assert page.hooks == 1
    grow(cache, 2)
    page.end_cell()
    assert cache.log.watch is None
    assert page.hooks == 0
    assert page.shown[0].data == kvviz.page_map(cache.log).data


@pytest.mark.parametrize("problem", [KeyboardInterrupt, ValueError])
def test_an_interrupted_block_ends_it(page, problem):
    cache = paged()
    with pytest.raises(problem), cache.live():
        grow(cache, 2)
        raise problem
    assert cache.log.watch is None
    assert page.hooks == 0
    assert page.shown[0] is not None


def test_an_interrupt_while_drawing_reaches_the_run_and_changes_nothing(page, monkeypatch):
    cache = paged()
    grow(cache, 3)

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(outputs.Outputs, "send", interrupted)
    with pytest.raises(KeyboardInterrupt), live_pages(cache, pace=Always()):
        grow(cache, 1)
    assert cache.seen == 3
    cache.check()
    grow(cache, 1)


def test_an_error_in_drawing_does_not_stop_the_run(page, monkeypatch):
    cache = paged()

    def broken(*_):
        raise OSError("the page is gone")

    monkeypatch.setattr(outputs.Outputs, "send", broken)
    with pytest.warns(UserWarning, match="the run goes on: the page is gone"), live_pages(cache, pace=Always()):
        grow(cache, 5)
    assert cache.seen == 5


def test_without_a_page_nothing_is_watched_and_the_picture_is_there_in_the_end(monkeypatch):
    cache = paged()
    with cache.live(title="Pages of a script") as picture:
        assert cache.log.watch is None
        with pytest.raises(kvviz.ViewError, match="running"):
            _ = picture.view
        grow(cache, 3)
    assert picture.view.data == kvviz.page_map(cache.log, title="Pages of a script").data


def test_a_second_picture_of_a_cache_ends_the_first(page):
    cache = paged()
    first, second = cache.live(), cache.live()
    assert page.hooks == 1
    first.stop()  # again: nothing
    assert cache.log.watch == second.tick
    second.stop()


def test_a_copy_is_not_watched_and_a_cache_that_is_gone_leaves_its_picture(page):
    cache = paged()
    picture = cache.live()
    grow(cache, 4)
    assert copy.deepcopy(cache.log).watch is None
    wanted = kvviz.page_map(cache.log).data
    del cache
    gc.collect()
    picture.stop()
    assert page.shown[0].data == wanted


def test_bad_options_are_refused_before_anything_is_shown(page):
    with pytest.raises(kvviz.ViewError, match="theme"):
        paged().live(theme="blue")
    with pytest.raises(TypeError, match="bogus"):  # at once, not when the run is over
        paged().live(bogus=3)
    assert page.hooks == 0


def test_generate_with_a_picture_that_follows_the_cache_to_another_batch(page, monkeypatch):
    model = build("llama")
    cache = kvviz.paged_cache(model, tokens=64, page_size=4)
    ids = torch.tensor([[5, 6, 7]])
    alone = generated(model, ids, kvviz.paged_cache(model, tokens=64))
    picture = live_pages(cache, pace=Always())
    assert torch.equal(generated(model, ids, cache), alone)
    assert len(page.buffers) == 6
    log = cache.log
    cache.reset()
    generated(model, ids.repeat(2, 1), cache)
    assert cache.log is not log
    assert len(page.buffers) == 12
    picture.stop()
    assert page.shown[0].data == kvviz.page_map(cache.log).data


# looks at a device


def test_looks_say_what_lives_at_each_of_them():
    chance = random.Random(5)
    for conf in ("", "expandable_segments:True"):
        model = kvviz.CachingAllocator(1 << 34, conf)
        looks, living = Looks("a test"), {}
        for _ in range(60):
            for _ in range(chance.randrange(40)):
                if living and chance.random() < 0.48:
                    address = chance.choice(list(living))
                    del living[address]
                    model.free(address)
                else:
                    stream = chance.randrange(2)
                    address = model.malloc(chance.choice((700, 30_000, 3 << 20, 40 << 20)), stream)
                    living[address] = chance.randrange(3)
            if chance.random() < 0.1:
                model.empty_cache()
            looks.add(of_segments(model.segments, living, 0))
            trace = looks.trace(["other", "weights", "kv cache"])
            state = trace.at(len(trace))
            whole = model.trace.at(-1)
            same = [name for name in state.blocks.dtype.names if name not in ("owner", "born", "stack")]
            assert np.array_equal(state.blocks[same], whole.blocks[same])
            assert np.array_equal(state.segments, whole.segments)
            held = state.blocks[state.blocks["state"] != State.INACTIVE]
            assert dict(zip(held["address"].tolist(), held["owner"].tolist())) == living
        for i in range(len(trace) + 1):
            trace.at(i)  # raises where a state between two looks is none


def churn(run, look=None) -> None:
    """The same program each time: tensors that live for some steps, one that grows, and one from before the run."""
    kept, cache = [], torch.zeros(1, 100)
    run.own([cache], "kv cache")
    for step in range(12):
        kept = [*kept[-3:], torch.ones(1000 * (step % 5 + 1)), torch.ones(300_000)]
        cache = torch.cat([cache, torch.zeros(1, 5_000)], 1)
        run.mark(f"step {step}")
        if look is not None and step % 3 == 2:
            look(step)
    del kept[::2]


def test_a_cpu_recording_in_slices_is_the_one_without_and_each_look_is_a_state_of_it():
    def recorded(look=None):
        old = [torch.ones(20_000) for _ in range(3)]
        with kvviz.record(device="cpu") as run:
            old.pop()
            churn(run, look and (lambda step: look(run, step)))
        return run.trace

    seen = {}
    plain = recorded()
    trace = recorded(lambda run, step: seen.update({f"step {step}": run._recorder.look()}))
    for name in ("action", "size", "requested", "owner"):
        assert np.array_equal(trace.events[name], plain.events[name]), name
    assert [trace.stacks[k] for k in trace.events.stack] == [plain.stacks[k] for k in plain.events.stack]
    assert trace.marks == plain.marks
    assert len(seen) == 4
    places = {mark.name: mark.event for mark in trace.marks}
    for name, found in seen.items():
        state = trace.at(places[name])
        blocks = state.blocks[state.blocks["state"] == State.ALLOCATED]
        told = [(b.address, b.size, b.requested) for b in sorted(found.blocks)]
        assert told == [(int(b["address"]), int(b["size"]), int(b["requested"])) for b in blocks]
        assert [s[:2] for s in found.segments] == [(int(s["address"]), int(s["size"])) for s in state.segments]


def test_what_autograd_alone_holds_at_a_look_is_freed_when_its_graph_goes():
    def trained(looks: bool) -> kvviz.Trace:
        weight = torch.ones(100_000, requires_grad=True)
        with kvviz.record(device="cpu", stacks=None) as run:
            for _ in range(3):
                loss = (weight * 2).exp().sin().sum()  # what the two steps between leave is autograd's
                if looks:
                    assert run._recorder.look() is not None
                loss.backward()
                weight.grad = None
                del loss
        return run.trace

    one, sliced = trained(False), trained(True)
    for name in ("action", "size", "requested"):
        assert np.array_equal(one.events[name], sliced.events[name])


def test_an_interrupt_waits_until_a_look_is_whole(monkeypatch):
    def interrupted(result):
        os.kill(os.getpid(), signal.SIGINT)
        return allocations(result)

    kept = []
    with pytest.raises(KeyboardInterrupt), kvviz.record(device="cpu") as run:
        kept += [torch.ones(3_000) for _ in range(5)]
        with monkeypatch.context() as patched:
            patched.setattr(cpu, "allocations", interrupted)
            run._recorder.look()
    made = run.trace.events.requested[run.trace.events.action == Action.ALLOC]
    assert made.tolist().count(12_000) == 5


def test_a_profiler_that_was_taken_away_shows_nothing_more():
    with kvviz.record(device="cpu") as run, pytest.raises(kvviz.RecordingError, match="took torch's profiler away"):
        torch.autograd._disable_profiler()
        assert run._recorder.look() is None
        raise kvviz.RecordingError("another profiler took torch's profiler away")


def test_a_recording_is_shown_to_its_end(page):
    with kvviz.record(device="cpu") as run:
        picture = run.live(title="A run")
        picture._pace = Always()
        module = torch.nn.Linear(8, 8)
        with torch.no_grad():
            for _ in range(5):
                kept = module(torch.ones(2, 8))
        del kept
    assert len(page.buffers) == 5  # after each call of the module
    assert page.hooks == 0
    shown, words = page.shown
    assert shown.data == kvviz.block_map(run.trace, title="A run").data
    assert "more went into what the map at the end needs" in words
    with torch.no_grad():
        module(torch.ones(2, 8))
    assert len(page.buffers) == 5
    with pytest.raises(kvviz.RecordingError, match="inside the with block"):
        run.live()


def test_a_recording_that_was_interrupted_is_shown_too(page):
    with pytest.raises(KeyboardInterrupt), kvviz.record(device="cpu") as run:
        run.live()
        kept = torch.ones(1000)
        raise KeyboardInterrupt
    assert page.shown[0].data == kvviz.block_map(run.trace).data
    del kept


def test_pytorchs_own_list_of_segments_becomes_a_look():
    free, used = {"size": 512, "state": "inactive"}, {"size": 1024, "requested_size": 900, "state": "active_allocated"}
    waits = used | {"state": "active_pending_free"}
    found = [
        {"device": 1, "address": 0, "total_size": 1, "stream": 0, "segment_type": "small", "blocks": []},
        {"device": 0, "address": 4096, "total_size": 2560, "stream": 77, "segment_type": "small", "is_expandable": True,
         "blocks": [used, free, waits]},
    ]  # fmt: skip
    look = of_snapshot(found, 0, {4096: 2}, streams := [0], 5)
    assert streams == [0, 77]
    assert [tuple(s) for s in look.segments] == [(4096, 2560, 1, True, True)]
    assert [tuple(b) for b in look.blocks] == [(4096, 1024, 900, 1, False, 2), (5632, 1024, 900, 1, True, 0)]


def test_it_says_what_it_is_doing(page):
    picture = paged().live()
    assert repr(picture) == "<Live: running>"
    picture.stop()
    assert repr(picture).startswith("<Live: 0 pictures, 0 events, drawn in 0.00 s")


def test_a_notebook_that_nobody_watches_keeps_the_last_picture_and_one_line():
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    cell = """
import torch, kvviz
cache = kvviz.PagedKVCache(layers=1, kv_heads=1, head_dim=4, tokens=64)
cache.live()
for _ in range(20):
    cache.append(0, torch.ones(1, 1, 1, 4), torch.ones(1, 1, 1, 4))
"""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell)])
    nbclient.NotebookClient(notebook, timeout=120).execute()
    picture, line = notebook.cells[0].outputs
    assert "kvviz-player" in picture.data["text/html"] and "image/png" in picture.data
    assert "event 23 of 23" in picture.data["text/html"]
    assert set(line.data) == {"text/plain"} and line.data["text/plain"].startswith("Live: ")
