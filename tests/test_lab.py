"""A person's way through notebook 00: real JupyterLab, all cells run, the map is played and scrubbed."""

import hashlib
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

NOTEBOOKS = pathlib.Path(__file__).parent.parent / "notebooks"
IDLE = """() => {
  const panel = window.jupyterapp && jupyterapp.shell.currentWidget;
  const session = panel && panel.sessionContext && panel.sessionContext.session;
  return !!(session && session.kernel && session.kernel.status === 'idle');
}"""
MAP = ".jp-OutputArea .kvviz-player[data-ready='1']"

pytestmark = [pytest.mark.browser, pytest.mark.model]


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """A JupyterLab of its own, with notebook 00 in its folder and nothing of this user's settings."""
    root = tmp_path_factory.mktemp("lab")
    (source,) = NOTEBOOKS.glob("00*.ipynb")
    shutil.copy(source, root / "00.ipynb")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    folders = {f"JUPYTER_{k}_DIR": str(root / k.lower()) for k in ("CONFIG", "DATA", "RUNTIME")}
    env = os.environ | folders | {"JUPYTERLAB_WORKSPACES_DIR": str(root / "workspaces")}
    env["JUPYTER_PATH"] = str(pathlib.Path(sys.prefix) / "share" / "jupyter")
    command = [
        sys.executable, "-m", "jupyter", "lab", "--no-browser", "--allow-root", f"--port={port}",
        "--ServerApp.port_retries=0", "--IdentityProvider.token=", "--expose-app-in-browser",
        f"--ServerApp.root_dir={root}", "--LabApp.extension_manager=readonly", "--log-level=WARN",
    ]  # fmt: skip
    log = root / "lab.log"
    with log.open("w") as out:
        server = subprocess.Popen(command, env=env, stdout=out, stderr=out)
        address = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            assert server.poll() is None, log.read_text()
            try:
                urllib.request.urlopen(f"{address}/api/status", timeout=1)
                break
            except (urllib.error.URLError, OSError):
                time.sleep(0.25)
        yield address
        server.terminate()
        server.wait(30)


@pytest.fixture(scope="module")
def notebook(lab, chromium):
    """The page after all its cells have run."""
    page = chromium.new_page(viewport={"width": 1280, "height": 1400})
    page.problems, page.elsewhere = [], []
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    page.on(
        "request", lambda r: page.elsewhere.append(r.url) if not r.url.startswith((lab, "data:", "blob:")) else None
    )
    page.goto(f"{lab}/lab/workspaces/t{os.getpid()}/tree/00.ipynb?reset")
    page.wait_for_function(IDLE, timeout=120_000)
    page.evaluate("() => jupyterapp.commands.execute('notebook:run-all-cells')")
    page.wait_for_function(
        """() => {
          const cells = jupyterapp.shell.currentWidget.content.model.cells;
          const code = [...Array(cells.length).keys()].map(i => cells.get(i)).filter(c => c.type === 'code');
          return code.every(c => c.executionCount !== null && c.executionState !== 'running') &&
                 jupyterapp.shell.currentWidget.sessionContext.session.kernel.status === 'idle';
        }""",
        timeout=300_000,
    )
    yield page
    page.evaluate("() => jupyterapp.shell.currentWidget.sessionContext.shutdown()")
    page.close()


@pytest.fixture
def player(notebook):
    player = notebook.locator(MAP).filter(has=notebook.locator("canvas.map")).first
    player.scroll_into_view_if_needed(timeout=60_000)
    return player


def digest(locator) -> str:
    return hashlib.sha1(locator.screenshot()).hexdigest()


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
    notebook.locator(".jp-OutputArea .js-plotly-plot .scatterlayer path").first.wait_for(
        state="attached", timeout=60_000
    )
