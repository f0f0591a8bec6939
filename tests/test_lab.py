"""A person's way through notebook 00: real JupyterLab, all cells run, the map is played and scrubbed."""

import hashlib
import os
import pathlib
import shutil

import nbformat
import pytest

from tests.player.browser import wait_for_count
from tests.player.jupyter import KERNEL, LAB_PATIENCE, server, wait_until_idle

NOTEBOOKS = pathlib.Path(__file__).parent.parent / "notebooks"
MAP = ".jp-OutputArea .kvviz-player[data-ready='1']"

pytestmark = [pytest.mark.browser, pytest.mark.model]


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """A JupyterLab of its own, with notebook 00 in its folder, and one that shows an explorer."""
    root = tmp_path_factory.mktemp("lab")
    (source,) = NOTEBOOKS.glob("00*.ipynb")
    shutil.copy(source, root / "00.ipynb")
    explorer = nbformat.v4.new_code_cell("import kvviz\nkvviz.AllocatorExplorer()")
    nbformat.write(nbformat.v4.new_notebook(cells=[explorer], metadata=KERNEL), root / "explorer.ipynb")
    with server(root) as address:
        yield address


def run_all(page, address):
    """Open a notebook, run all its cells, and wait until they have run."""
    page.set_default_timeout(LAB_PATIENCE)
    page.goto(address)
    wait_until_idle(page)
    page.evaluate("() => jupyterapp.commands.execute('notebook:run-all-cells')")
    page.wait_for_function(
        """() => {
          const cells = jupyterapp.shell.currentWidget.content.model.cells;
          const code = [...Array(cells.length).keys()].map(i => cells.get(i)).filter(c => c.type === 'code');
          return code.every(c => c.executionCount !== null && c.executionState !== 'running') &&
                 jupyterapp.shell.currentWidget.sessionContext.session.kernel.status === 'idle';
        }""",
        timeout=2 * LAB_PATIENCE,
    )


def close(page):
    page.evaluate("() => jupyterapp.shell.currentWidget.sessionContext.shutdown()")
    page.close()


@pytest.fixture(scope="module")
def notebook(lab, chromium):
    """The page after all its cells have run."""
    page = chromium.new_page(viewport={"width": 1280, "height": 1400})
    page.problems, page.elsewhere = [], []
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    page.on(
        "request", lambda r: page.elsewhere.append(r.url) if not r.url.startswith((lab, "data:", "blob:")) else None
    )
    run_all(page, f"{lab}/lab/workspaces/t{os.getpid()}/tree/00.ipynb?reset")
    yield page
    close(page)


@pytest.fixture
def player(notebook):
    player = notebook.locator(MAP).filter(has=notebook.locator("canvas.map")).first
    player.scroll_into_view_if_needed()
    return player


def digest(canvas) -> str:
    """Of its own pixels: on a screenshot, something of JupyterLab's may lie over it."""
    return hashlib.sha1(canvas.evaluate("c => c.toDataURL()").encode()).hexdigest()


def event(player) -> int:
    """The event that the map says it shows, from its accessible name."""
    words = player.locator("canvas.map").get_attribute("aria-label").split()
    return int(words[words.index("event") + 1].replace(",", ""))


def test_every_cell_ran(notebook):
    failed = notebook.evaluate(
        """() => {
          const cells = jupyterapp.shell.currentWidget.content.model.cells;
          return [...Array(cells.length).keys()].map(i => cells.get(i)).filter(c => c.type === 'code')
            .flatMap(c => c.outputs.toJSON()).filter(o => o.output_type === 'error').map(o => o.ename + ': ' + o.evalue);
        }"""
    )
    assert failed == []
    assert notebook.problems == []
    assert notebook.elsewhere == []  # no request leaves the machine


def test_scrubbing_changes_the_picture(notebook, player):
    slider, canvas = player.locator("input[type=range]").first, player.locator("canvas.map")
    last = int(slider.get_attribute("max"))
    assert last > 10_000

    def go(i):
        slider.evaluate("(e, i) => { e.value = i; e.dispatchEvent(new Event('input', {bubbles: true})) }", i)
        notebook.wait_for_function("([e, i]) => +e.value === i", arg=[slider.element_handle(), i])
        notebook.wait_for_function(
            "([e, i]) => e.getAttribute('aria-label').replaceAll(',', '').includes(`after event ${i} of`)",
            arg=[canvas.element_handle(), i],
        )
        return digest(canvas)

    pictures = {go(i) for i in (0, last // 3, last)}
    assert len(pictures) == 3
    assert go(last // 3) in pictures  # the same moment gives the same picture


def test_keyboard(notebook, player):
    canvas = player.locator("canvas.map")
    canvas.click(position={"x": 5, "y": 5})
    notebook.keyboard.press("Home")
    notebook.wait_for_function(
        "e => /after event 0 of/.test(e.getAttribute('aria-label'))", arg=canvas.element_handle()
    )
    for _ in range(3):
        notebook.keyboard.press("ArrowRight")
    notebook.wait_for_function(
        "e => /after event 3 of/.test(e.getAttribute('aria-label'))", arg=canvas.element_handle()
    )


def test_playing_moves_on_by_itself(notebook, player):
    canvas = player.locator("canvas.map")
    canvas.click(position={"x": 5, "y": 5})
    notebook.keyboard.press("Home")
    notebook.keyboard.press("Space")
    notebook.wait_for_function(
        "e => +e.getAttribute('aria-label').replaceAll(',', '').match(/event (\\d+)/)[1] > 1000",
        arg=canvas.element_handle(),
    )
    notebook.keyboard.press("Space")
    assert event(player) > 1000


def test_charts_are_drawn(notebook):
    notebook.locator(".jp-OutputArea .js-plotly-plot .scatterlayer path").first.wait_for(state="attached")


def test_a_live_explorer_fits_a_narrow_page_and_a_dark_one(lab, chromium):
    page = chromium.new_page(viewport={"width": 1280, "height": 1400})
    run_all(page, f"{lab}/lab/workspaces/e{os.getpid()}/tree/explorer.ipynb?reset")
    page.locator(MAP).nth(1).wait_for(state="attached")
    page.evaluate("() => { document.querySelector('.jp-OutputArea-output').style.maxWidth = '400px'; }")
    rows = page.locator(".widget-hslider, .widget-dropdown")
    wait_for_count(rows, 7)
    for row in rows.all():
        box = row.bounding_box()
        assert box["width"] <= 400
        for part in row.locator("> *").all():
            inner = part.bounding_box()
            assert box["y"] - 1 <= inner["y"] and inner["y"] + inner["height"] <= box["y"] + box["height"] + 1
            assert box["x"] - 1 <= inner["x"] and inner["x"] + inner["width"] <= box["x"] + box["width"] + 1
        control = row.locator(".slider-container, .noUi-target, select").first.bounding_box()
        assert control["width"] >= 60, "room for a thumb"
    filters = "() => getComputedStyle(document.querySelector('.kvviz-curves')).filter"
    assert page.evaluate(filters) == "none"
    page.evaluate("() => { document.body.dataset.jpThemeLight = 'false'; }")
    assert page.evaluate(filters).startswith("invert")
    close(page)
