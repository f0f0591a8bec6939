"""A run is watched while it goes on: in real JupyterLab, to its end, and to an interrupt."""

import base64
import gzip
import json
from pathlib import Path

import nbformat
import pytest
import torch

import kvviz
from kvviz.view.bundle import script
from kvviz.view.pagescene import PageScene
from tests.player.browser import PLAYER, figures, wait_for_count
from tests.player.jupyter import KERNEL, LAB_PATIENCE, server, wait_until_idle

pytestmark = pytest.mark.browser

HEAD = """
import os, torch, kvviz
def step():  # some milliseconds of work, as a model's step is
    return torch.mm(torch.ones(500, 500), torch.ones(500, 500))
"""
CACHE = """
cache = kvviz.PagedKVCache(layers=1, kv_heads=1, head_dim=8, page_size=16, window=256)
keys = torch.ones(1, 1, 1, 8)
with cache.live():
    while not os.path.exists("NAME"):
        step()
        cache.append(0, keys, keys)
print("done", len(cache.log))
"""
PLAIN = CACHE.replace("with cache.live():", "cache.live()\nif True:")
BLOCKS = """
kept = []
with kvviz.record(device="cpu") as run:
    run.live()
    while not os.path.exists("NAME"):
        kept = [*kept[-20:], step()]
        run.mark("step")
print("done", len(run.trace))
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """A JupyterLab of its own, and its folder."""
    root = tmp_path_factory.mktemp("lab")
    with server(root) as address:
        yield address, root


class Watched:
    """A notebook whose last cell runs until `end`, a file, is there."""

    def __init__(self, page, name: str, end: Path):
        self.page, self.name, self.end = page, name, end

    def do(self, command: str) -> None:
        self.page.evaluate(f"() => {{ jupyterapp.commands.execute('{command}') }}")

    def live_event(self, after: int = 0) -> int:
        """The event that the live picture shows, once it is past `after`."""
        found = self.page.wait_for_function(
            "n => [...document.querySelectorAll('.kvviz-player[data-live]')].map(h => +h.dataset.live).find(k => k > n)",
            arg=after, timeout=LAB_PATIENCE,
        )  # fmt: skip
        return found.json_value()

    def outputs(self) -> list[dict]:
        """Of the last cell, as they will be stored."""
        return self.page.evaluate(
            "() => { const cells = jupyterapp.shell.currentWidget.content.model.cells;"
            " return cells.get(cells.length - 1).outputs.toJSON(); }"
        )


@pytest.fixture
def watch(lab, chromium, request):
    address, root = lab
    context = chromium.new_context(viewport={"width": 1280, "height": 1300})
    context.set_default_timeout(LAB_PATIENCE)
    page = context.new_page()
    page.problems, page.elsewhere = [], []
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    own = (address, address.replace("http", "ws"), "data:", "blob:")
    page.on("request", lambda r: page.elsewhere.append(r.url) if not r.url.startswith(own) else None)

    def start(cell: str) -> Watched:
        name = request.node.name.split("[")[0] + str(abs(hash(cell)) % 10_000)
        end = root / f"{name}.end"
        cells = [nbformat.v4.new_code_cell(text) for text in (HEAD, cell.replace("NAME", end.name))]
        nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=KERNEL), root / f"{name}.ipynb")
        page.goto(f"{address}/lab/workspaces/{name}/tree/{name}.ipynb?reset")
        wait_until_idle(page)
        watched = Watched(page, name, end)
        watched.do("notebook:run-all-cells")
        return watched

    yield start
    page.evaluate("() => jupyterapp.shell.currentWidget.sessionContext.shutdown()")
    context.close()


def assert_clean(watched: Watched) -> None:
    """The ordinary player stands there, and nothing of the live one is left in what the notebook will store."""
    watched.page.wait_for_selector(".kvviz-player[data-ready='1']:not([data-live])")
    wait_for_count(watched.page.locator(".kvviz-live"), 0)
    assert "kvviz-news" not in json.dumps(watched.outputs())
    assert watched.page.problems == []
    assert watched.page.elsewhere == []


@pytest.mark.parametrize("cell", [CACHE, PLAIN, BLOCKS], ids=["with", "plain", "blocks"])
def test_the_picture_moves_while_the_kernel_is_busy_and_ends_as_an_ordinary_one(watch, cell):
    watched = watch(cell)
    first = watched.live_event()
    assert watched.live_event(first) > first
    watched.end.touch()
    wait_until_idle(watched.page)
    assert_clean(watched)
    shown = watched.outputs()
    assert any("Live: " in "".join(o.get("data", {}).get("text/plain", "")) for o in shown)
    assert not [o for o in shown if o["output_type"] == "error"]
    total = int("".join(o["text"] for o in shown if o["output_type"] == "stream").split()[-1])
    label = watched.page.locator(".kvviz-player[data-ready='1'] canvas.map").get_attribute("aria-label")
    assert f" of {total}:" in label


@pytest.mark.parametrize("cell", [CACHE, BLOCKS], ids=["cache", "blocks"])
def test_an_interrupt_ends_it_cleanly(watch, cell):
    watched = watch(cell)
    watched.live_event()
    watched.do("notebook:interrupt-kernel")
    wait_until_idle(watched.page)
    assert_clean(watched)
    assert [o["ename"] for o in watched.outputs() if o["output_type"] == "error"] == ["KeyboardInterrupt"]


# without a notebook: batches pushed into the player, as the scripts of a live output do


def push(page, name: str, view, words: str = "Live: some") -> None:
    packed = base64.b64encode(gzip.compress(view.data)).decode()
    page.evaluate(
        "([name, news]) => { (kvviz.news ??= {})[name] = news; dispatchEvent(new Event('kvviz-news')); }",
        [name, [packed, words]],
    )


def live_page(kind: str) -> str:
    told = json.dumps(["picture", {"theme": "light"}])
    return f'<div class="kvviz-player" data-kvviz="picture">Waiting.</div>{script("picture", kind, told, "live")}'


def test_what_is_drawn_live_are_states_of_the_whole_log(open_page):
    cache = kvviz.PagedKVCache(layers=1, kv_heads=1, head_dim=4, page_size=4, tokens=64)
    page = open_page(live_page("pages"), ready=False)
    page.wait_for_selector("p.kvviz-live")
    assert page.locator("p.kvviz-live").text_content() == "Waiting."
    token, drawn = torch.ones(1, 1, 1, 4), []
    for tokens in (3, 1, 9, 20):
        for _ in range(tokens):
            cache.append(0, token, token)
        n = len(cache.log)
        push(page, "picture", kvviz.page_map(cache.log, start=n), f"Live: event {n}")
        page.wait_for_selector(f"[data-live='{n}']")
        drawn.append((n, figures(page), page.locator("canvas.map").get_attribute("aria-label")))
        assert page.locator("p.kvviz-live").text_content() == f"Live: event {n}"
    whole = PageScene(cache.log)
    for n, numbers, label in drawn:
        assert numbers == dict(whole.figures(n))
        assert label.startswith(whole.state_words(n).replace(f"of {whole.events}:", f"of {n}:"))
    assert page.troubles == []
    assert len(page.requests) == 1


def test_a_slow_page_draws_the_newest_and_drops_the_rest(open_page):
    cache = kvviz.PagedKVCache(layers=1, kv_heads=1, head_dim=4, page_size=4, tokens=512)
    page = open_page(live_page("pages"), ready=False)
    page.wait_for_selector("p.kvviz-live")
    page.evaluate(
        """() => { const host = document.querySelector('.kvviz-player'); window.seen = [];
           new MutationObserver(() => seen.push(+host.dataset.live)).observe(host, {attributeFilter: ['data-live']}); }"""
    )
    token, batches = torch.ones(1, 1, 1, 4), []
    for _ in range(60):
        cache.append(0, token, token)
        view = kvviz.page_map(cache.log, start=len(cache.log))
        batches.append([base64.b64encode(gzip.compress(view.data)).decode(), f"Live: event {len(cache.log)}"])
    page.evaluate(  # all at once, as after a moment in which the page was busy
        """news => { kvviz.news ??= {};
           for (const one of news) { kvviz.news.picture = one; dispatchEvent(new Event('kvviz-news')); } }""",
        batches,
    )
    page.wait_for_selector(f"[data-live='{len(cache.log)}']")
    seen = page.evaluate("seen")
    assert seen[-1] == len(cache.log)
    assert len(seen) <= 2
    assert page.troubles == []


def test_the_reader_keeps_the_place_and_the_focus(open_page):
    cache = kvviz.PagedKVCache(layers=1, kv_heads=1, head_dim=4, page_size=4, tokens=512)
    page = open_page(live_page("pages"), ready=False)
    page.wait_for_selector("p.kvviz-live")
    token = torch.ones(1, 1, 1, 4)

    def more() -> int:
        for _ in range(8):
            cache.append(0, token, token)
        push(page, "picture", kvviz.page_map(cache.log, start=len(cache.log)))
        page.wait_for_selector(f"[data-live='{len(cache.log)}']")
        return len(cache.log)

    n = more()
    assert page.evaluate(f"{PLAYER}.model.pos") == n  # it follows
    page.locator(".box").focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    page.wait_for_function(f"() => {PLAYER}.model.pos === 1")
    more()
    assert page.evaluate(f"{PLAYER}.model.pos") == 1  # it stays where the reader is
    assert page.evaluate(f"{PLAYER}.host.shadowRoot.activeElement === {PLAYER}.box")
    page.keyboard.press("End")
    n = more()
    page.wait_for_function(f"n => {PLAYER}.model.pos === n", arg=n)
    assert page.troubles == []


def test_batches_that_came_before_the_player_are_not_lost(open_page):
    trace = kvviz.sample("window_slice")
    view = kvviz.block_map(trace, start=len(trace))
    packed = base64.b64encode(gzip.compress(view.data)).decode()
    early = f"<script>((globalThis.kvviz??={{}}).news??={{}}).picture={json.dumps([packed, 'Live'])}</script>"
    page = open_page(early + live_page("blocks"))
    assert page.evaluate(f"{PLAYER}.model.n") == len(trace)
    assert page.troubles == []
