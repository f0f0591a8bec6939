"""Explorers: their figures are those of a plain count, sliders act at once, and what is recorded stands by itself."""

import json
import math
import pathlib
import re
import runpy
import sys

import nbformat
import pytest

from kvviz import InvalidRequest, PageExplorer, ViewError, WindowExplorer
from kvviz.cache.pagelog import PageAction
from kvviz.explore import pages, windows
from kvviz.view.choices import Axis, State, choices
from kvviz.view.pagescene import PageScene
from tests.player.browser import READY, opener

ROOT = pathlib.Path(__file__).parent.parent
WIDGET = "application/vnd.jupyter.widget-view+json"
EXPLORERS = [PageExplorer, WindowExplorer]


@pytest.fixture(autouse=True, scope="module")
def no_clock():
    """Times differ from run to run, and nothing here is about them."""
    pages.compared.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        for module in (pages, windows):
            patch.setattr(module, "read_times", lambda sizes, tokens: dict.fromkeys(sizes, (1e-05, 2e-05)))
        yield
    pages.compared.cache_clear()


@pytest.fixture(scope="module")
def recorded(no_clock):
    """Each explorer's recorded form."""
    return {cls: cls().recorded() for cls in EXPLORERS}


@pytest.fixture
def open_page(chromium, tmp_path):
    yield from opener(chromium, tmp_path)


@pytest.mark.parametrize(
    ("page_size", "prompt", "new_tokens", "sequences", "lengths"),
    [
        (16, 80, 32, 3, [72, 112, 152]),
        (1, 80, 32, 3, [72, 112, 152]),
        (256, 10, 0, 1, [10]),
        (64, 320, 128, 2, [288, 608]),
        (8, 20, 8, 6, [18, 22, 26, 30, 34, 38]),
    ],
)
def test_pages_waste_and_tables(page_size, prompt, new_tokens, sequences, lengths):
    found = PageExplorer(page_size=page_size, prompt=prompt, new_tokens=new_tokens, sequences=sequences).outcome.figures
    count = sum(math.ceil(n / page_size) for n in lengths)
    assert (found["pages"], found["table_bytes"]) == (count, 4 * count)
    assert found["waste"] == pytest.approx(100 * (count * page_size - sum(lengths)) / (count * page_size))


@pytest.mark.parametrize(
    ("window", "page_size", "prompt", "new_tokens"),
    [(32, 8, 16, 128), (1, 1, 0, 16), (1, 64, 8, 16), (8, 16, 128, 16), (64, 1, 0, 256), (128, 32, 128, 128)],
)
def test_window_slots(window, page_size, prompt, new_tokens):
    seen = prompt + new_tokens
    explorer = WindowExplorer(window=window, page_size=page_size, prompt=prompt, new_tokens=new_tokens)
    found = explorer.outcome.figures
    first = max(0, seen - window)
    slots = (math.ceil(seen / page_size) - first // page_size) * page_size
    assert (found["seen"], found["visible"], found["slots"]) == (seen, seen - first, slots)
    assert found["waste"] == pytest.approx(100 * (slots - seen + first) / slots)
    drawn, log = next(iter(explorer.outcome.charts)).series, windows.slide(window, page_size, prompt, new_tokens)
    states = [log.at(i + 1) for i, action in enumerate(log.events.action.tolist()) if action == PageAction.WRITE]
    assert drawn["slots in use"] == [state.used * page_size for state in states]
    assert drawn["visible"] == [state.logical for state in states]
    assert found["most_slots"] == page_size * max(log.at(i).used for i in range(len(log) + 1))
    if seen >= window + page_size:
        assert found["most_slots"] == (math.ceil((window - 1) / page_size) + 1) * page_size


def test_a_slider_changes_all_at_once():
    explorer = PageExplorer()
    before = explorer.outcome, explorer._curves.value, explorer._words.value
    explorer.page_size.value = 64
    assert explorer.outcome is not before[0] and explorer.outcome.figures["pages"] == 2 + 2 + 3
    assert explorer._curves.value not in before and explorer._words.value == explorer.outcome.words
    (shown,) = explorer._map.outputs
    assert shown["data"]["text/html"] == explorer.outcome.view.html and "64 tokens" in explorer.outcome.view.title
    assert explorer.chosen == {"page_size": 64, "prompt": 80, "new_tokens": 32, "sequences": 3}


def test_the_words_say_what_without_a_window_would_be():
    assert "without a window: 144" in WindowExplorer(page_size=16).outcome.words
    assert "without a window: 192" in WindowExplorer(page_size=64).outcome.words


@pytest.mark.parametrize("cls", EXPLORERS)
def test_nothing_is_printed(cls, capsys):
    cls().page_size.value = 1
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("cls", EXPLORERS)
def test_misuse(cls):
    with pytest.raises(InvalidRequest, match=r"no setting 'page'; there are .*page_size"):
        cls(page=16)
    with pytest.raises(InvalidRequest, match=r"page_size is one of 1, 2, 4, .* got 3"):
        cls(page_size=3)
    with pytest.raises(AttributeError):
        cls().pages  # noqa: B018


def test_a_setting_that_fails_leaves_nothing_of_the_one_before():
    class Fails(PageExplorer):
        def measure(self, **chosen):
            if chosen["page_size"] == 1:
                raise InvalidRequest("no <room>")
            return super().measure(**chosen)

    explorer = Fails()
    explorer.page_size.value = 1
    assert explorer.outcome is None and explorer._map.outputs == () and explorer._curves.value == b""
    assert "InvalidRequest" in explorer._words.value and "&lt;room&gt;" in explorer._words.value
    explorer.page_size.value = 2
    assert explorer.outcome.figures["pages"] == 36 + 56 + 76


@pytest.mark.parametrize("cls", EXPLORERS)
def test_recorded(cls, recorded):
    made, explorer = recorded[cls], cls()
    grids = [setting.recorded for setting in cls.settings.values() if setting.recorded]
    assert len(made._states) == math.prod(map(len, grids))
    for _, values, first, few, *_ in cls.settings.values():
        assert set(few) <= set(values) and (not few or first in few), "it opens as the live one does"
    assert made._states[made._place].view.data == explorer.outcome.view.data
    assert len(made.html) < 400_000


@pytest.mark.parametrize("cls", EXPLORERS)
def test_the_page_asks_for_nothing(cls, recorded, tmp_path):
    text = recorded[cls].save_html(tmp_path / "page.html").read_text()
    assert not re.findall("https?://", text)
    assert not re.search(r"<link|src=\"(?!data:)|@import|url\((?!#|data:)", text)


def test_recorded_keeps_what_was_chosen():
    made = PageExplorer(sequences=8, new_tokens=64, page_size=2).recorded()
    opens = made._states[made._place]
    assert opens.view.title == "8 sequences in pages of 16 tokens", "2 is not recorded, so it opens with the usual one"
    assert opens.words.endswith("new tokens: 64")
    count = sum(math.ceil((n + 64) / 16) for n in pages.lengths(80, 8))
    assert f"<b>{count}</b> pages" in opens.words


@pytest.mark.parametrize("cls", EXPLORERS)
def test_forms(cls, recorded):
    """A kernel's page takes the widget, any other the recorded form: which is the same whenever it is made."""
    explorer = cls()
    bundle = explorer._repr_mimebundle_()
    assert {WIDGET, "text/html", "image/png", "text/plain"} <= set(bundle)
    assert bundle[WIDGET]["model_id"] == explorer.model_id
    assert bundle["text/html"] == recorded[cls].html and "State after event" in bundle["text/plain"]


def test_states_must_be_as_many_as_combinations():
    view = PageExplorer().outcome.view
    axes = [Axis("a", "12"), Axis("b", "123")]
    states = [State(view, b"", "")] * 6
    assert choices("six", axes, states).title == "six"
    for wrong in (states[:5], states * 2, []):
        with pytest.raises(ViewError, match=f"6 combinations of 2 sliders, {len(wrong)} states"):
            choices("wrong", axes, wrong)


def test_stored_notebooks_lose_their_widgets(tmp_path, monkeypatch):
    data = {WIDGET: {"model_id": "x"}, "text/html": "<p>stays</p>", "text/plain": "so does this"}
    cell = nbformat.v4.new_code_cell("1", outputs=[nbformat.v4.new_output("execute_result", data, execution_count=1)])
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# 1"), cell])
    notebook.metadata["widgets"] = {"application/vnd.jupyter.widget-state+json": {}}
    path = tmp_path / "one.ipynb"
    nbformat.write(notebook, path)
    script = str(ROOT / "scripts" / "drop_widgets.py")
    monkeypatch.setattr(sys, "argv", [script, str(path)])
    runpy.run_path(script, run_name="__main__")
    left = json.loads(path.read_text())
    assert "widgets" not in left["metadata"]
    (output,) = left["cells"][1]["outputs"]
    assert set(output["data"]) == {"text/html", "text/plain"} and "stays" in str(output["data"]["text/html"])
    before = path.read_bytes()
    runpy.run_path(script, run_name="__main__")
    assert path.read_bytes() == before


@pytest.mark.browser
def test_sliders_of_the_recorded_page(open_page, recorded):
    made = recorded[PageExplorer]
    page = open_page(made)
    root, curves, canvas = (page.locator(c) for c in (".kvviz-choices", ".kvviz-curves", "canvas.map"))
    sliders = [root.locator(f"input[aria-label='{name}']") for name in ("page size", "prompt tokens", "sequences")]

    def shows(size, prompt, sequences):
        """Wait for the state of that choice; returns the curves' picture."""
        place = ((1, 4, 16, 64, 256).index(size) * 2 + (20, 80).index(prompt)) * 3 + (1, 3, 8).index(sequences)
        page.wait_for_selector(f".kvviz-choices[data-ready='{place}'] {READY}")
        told = re.sub(r"<[^>]*>", "", made._states[place].words)
        assert root.locator(".kvviz-words").inner_text() == told == curves.get_attribute("alt")
        log = pages.serve(size, prompt, 32, sequences)
        assert canvas.get_attribute("aria-label") == PageScene(log).state_words(len(log))
        assert [slider.get_attribute("aria-valuetext") for slider in sliders] == [
            str(size),
            str(prompt),
            str(sequences),
        ]
        assert curves.evaluate("image => image.decode().then(() => image.naturalWidth)") > 500
        return curves.get_attribute("src")

    def press(slider, key):
        sliders[slider].focus()
        page.keyboard.press(key)

    first = shows(16, 80, 3)
    press(0, "ArrowRight")
    assert shows(64, 80, 3) == first, "one picture serves all page sizes"
    press(1, "Home")
    press(2, "End")
    assert shows(64, 20, 8) != first
    press(2, "ArrowLeft")
    press(1, "End")
    press(0, "End")
    assert shows(256, 80, 3) == first
    assert canvas.count() == 1 and page.troubles == []
    assert all(url.startswith(("file:", "data:")) for url in page.requests)
