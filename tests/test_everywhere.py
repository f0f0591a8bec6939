"""One picture in every place that shows notebooks: the same pixels, and no request leaves the machine.

JupyterLab is real, and so are nbconvert and print; Notebook 7 is where it is installed. VS Code, Colab and a code host are
pages that do with an output what those do: their rules for scripts, their marks of light and dark, their frames.
"""

import base64
import io
import json
import re
import subprocess
import sys
import types

import nbformat
import numpy as np
import pytest
from PIL import Image

from kvviz.view import block_map, charts, page_map, timeline
from kvviz.view.choices import Axis, State, choices
from tests.player import pagelogs, traces
from tests.player.browser import PATIENCE, READY, drawn
from tests.player.jupyter import KERNEL, LAB_PATIENCE, environment, server

pytestmark = pytest.mark.browser

WIDTH = 900
DECODED = "e => e.decode().then(() => e.naturalWidth > 200)"
PICTURES = """() => [...document.querySelectorAll(".kvviz-player")].flatMap((host) =>
  [...host.shadowRoot.querySelectorAll("canvas.map, canvas.line")].map((canvas) => canvas.toDataURL()))"""


def _choices():
    shown = [block_map(traces.settled(still)) for still in (2, 5)]
    return choices("how many", [Axis("still", ["2", "5"], 1)], [State(view, view.png, "words") for view in shown])


VIEWS = {
    "block map": lambda: block_map(traces.showcase()),
    "page map": lambda: page_map(pagelogs.showcase()),
    "timeline": lambda: timeline(traces.showcase()),
    "choices": _choices,
}


@pytest.fixture(scope="module", params=VIEWS)
def view(request):
    return VIEWS[request.param]()


def opener(chromium, folder):
    contexts = []

    def open_page(html, **options):
        context = chromium.new_context(viewport={"width": 1280, "height": 1000}, offline=True, **options)
        context.set_default_timeout(PATIENCE)
        contexts.append(context)
        page = noted(context.new_page())
        file = folder / "page.html"
        file.write_text(html, encoding="utf-8")
        page.goto(file.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()


@pytest.fixture
def open_page(chromium, tmp_path):
    """open_page(html, …) -> a page without a network; what it asked for and what went wrong on it are noted."""
    yield from opener(chromium, tmp_path)


def noted(page, own=()):
    page.troubles, page.asked = [], []
    page.on("pageerror", lambda error: page.troubles.append(str(error)))
    page.on("console", lambda said: page.troubles.append(said.text) if said.type == "error" else None)
    page.on(
        "request",
        lambda r: (
            page.asked.append(r.url) if not r.url.startswith(("file:", "data:", "blob:", "about:", *own)) else None
        ),
    )
    return page


def output(html):
    return f'<div id="output" style="width:{WIDTH}px">{html}</div>'


def ready(page, count=1):
    page.wait_for_function(f"n => document.querySelectorAll('{READY}').length === n", arg=count)
    drawn(page)


@pytest.fixture(scope="module")
def pictures(chromium, tmp_path_factory, view):
    """What an output of WIDTH draws on a plain page: {light, dark} -> data URLs."""
    found = {}
    for open_page in opener(chromium, tmp_path_factory.mktemp("pictures")):
        for scheme in ("light", "dark"):
            page = open_page(f"<!doctype html><body>{output(view.html)}", color_scheme=scheme)
            ready(page)
            found[scheme] = page.evaluate(PICTURES)
    assert found["light"] and found["light"] != found["dark"]
    return found


# VS Code's webview for notebooks: its Content-Security-Policy, even narrower; scripts made anew, added, and taken away
VSCODE = """<!doctype html><html><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="default-src
'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:"></head>
<body class="{body}" data-vscode-theme-kind="{kind}">{output}<script>
const container = document.querySelector("#output");
container.innerHTML = JSON.parse({html});
for (const node of [...container.getElementsByTagName("script")]) {{
  const script = document.createElement("script");
  script.text = node.innerText;
  if (node.type) script.setAttribute("type", node.type);
  container.appendChild(script).parentNode.removeChild(script);
}}
</script></body></html>"""


def quoted(html):
    """JSON text as a JavaScript string that may stand in a script element."""
    return json.dumps(json.dumps(html)).replace("<", "\\u003c")


@pytest.mark.parametrize(
    ("kind", "scheme"), [("vscode-light", "light"), ("vscode-dark", "dark"), ("vscode-high-contrast", "dark")]
)
def test_vs_code(open_page, pictures, view, kind, scheme):
    # the system wishes the other theme: the editor's counts
    page = open_page(
        VSCODE.format(body=kind, kind=kind, output=output(""), html=quoted(view.html)),
        color_scheme="dark" if scheme == "light" else "light",
    )
    ready(page)
    assert page.evaluate(PICTURES) == pictures[scheme]
    page.locator("input[type=range]").last.fill("3")
    page.wait_for_selector("canvas[aria-label*='after event 3 of']")
    assert (page.asked, page.troubles) == ([], [])


# Colab's output: a frame of its own without an origin, so without storage and without its parent; as high as its content
COLAB = """<!doctype html><body><iframe sandbox="allow-scripts allow-popups allow-forms" style="width:{width}px;height:10px"
srcdoc="{frame}"></iframe><script>
addEventListener("message", (e) => {{ document.querySelector("iframe").style.height = e.data + "px"; }});
</script></body>"""
FRAME = """<!doctype html><html theme="{theme}"><head><meta charset="utf-8"></head><body style="margin:0">{output}<script>
const container = document.querySelector("#output");
container.innerHTML = JSON.parse({html});
for (const node of [...container.querySelectorAll("script")]) {{
  const script = document.createElement("script");
  script.type = node.type;
  script.textContent = node.textContent;
  node.replaceWith(script);
}}
new ResizeObserver(() => parent.postMessage(document.documentElement.offsetHeight, "*")).observe(container);
</script></body></html>"""


@pytest.fixture
def colab(monkeypatch):
    """As in a Colab kernel: the module google.colab is there."""
    google, module = types.ModuleType("google"), types.ModuleType("google.colab")
    google.colab = module
    monkeypatch.setitem(sys.modules, "google", google)
    monkeypatch.setitem(sys.modules, "google.colab", module)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colab(open_page, pictures, view, colab, scheme):
    bundle = view._repr_mimebundle_()
    assert {"text/plain", "image/png", "text/html"} == set(bundle)
    frame = FRAME.format(theme=scheme, output=output(""), html=quoted(bundle["text/html"]))
    page = open_page(COLAB.format(width=WIDTH, frame=frame.replace("&", "&amp;").replace('"', "&quot;")))
    inside = page.frame_locator("iframe")
    inside.locator(READY).wait_for(state="attached")
    frame = page.frames[1]
    drawn(frame)
    assert frame.evaluate(PICTURES) == pictures[scheme]
    page.wait_for_function("() => document.querySelector('iframe').offsetHeight > 200")
    high = frame.evaluate("document.querySelector('#output').offsetHeight")
    page.wait_for_function("high => document.querySelector('iframe').clientHeight >= high", arg=high)
    assert (page.asked, page.troubles) == ([], [])


def test_charts_in_colab_ask_for_plotly_alone(open_page, colab):
    """Colab is a page of the network, and does not know plotly's own type; plotly itself does the same there."""
    bundle = charts.lines([1, 2], {"a": [1, 2]}, "T", "x", "y")._repr_mimebundle_()
    page = open_page(f"<body>{bundle['text/html']}")
    assert [url for url in page.asked if not re.match(r"https://cdn\.plot\.ly/plotly-[\d.]+\.min\.js$", url)] == []
    assert bundle["image/png"], "where that does not come, the still picture is there"


def stored(folder, *views):
    """A notebook with these outputs, as a kernel would have left it."""
    cells = [nbformat.v4.new_markdown_cell("# Pictures")]
    for k, shown in enumerate(views):
        result = nbformat.v4.new_output("execute_result", shown._repr_mimebundle_(), execution_count=k + 1)
        cells.append(nbformat.v4.new_code_cell("view", execution_count=k + 1, outputs=[result]))
    path = folder / "pictures.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=KERNEL), path)
    return path


def test_nbconvert_offline(open_page, tmp_path):
    """The page that nbconvert makes asks for its own two scripts, which we do not need: every picture plays without."""
    from nbconvert import HTMLExporter

    views = [make() for make in VIEWS.values()]
    body, _ = HTMLExporter().from_filename(stored(tmp_path, *views))
    page = open_page(body)
    ready(page, len(views))
    assert all(re.search(r"(require|MathJax|mathjax)[\w.@/-]*\.js", url) for url in page.asked), page.asked
    page.locator(READY).nth(1).locator("input[type=range]").fill("7")
    page.wait_for_selector("canvas[aria-label*='after event 7 of']")


def test_a_code_host_shows_the_still_picture(open_page, view):
    """It takes the scripts out, or shows image/png alone."""
    bundle = view._repr_mimebundle_()
    still = np.asarray(Image.open(io.BytesIO(base64.b64decode(bundle["image/png"]))).convert("L"))
    assert min(still.shape) > 100 and still.std() > 10, "a blank picture"
    safe = re.sub(r"<script.*?</script>", "", bundle["text/html"], flags=re.DOTALL)
    page = open_page(f"<body>{safe}")
    picture = page.locator("img").first
    assert picture.is_visible() and picture.evaluate(DECODED)
    assert picture.get_attribute("alt")
    assert (page.asked, page.troubles) == ([], [])


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_print(open_page, pictures, view, scheme):
    """On paper every picture is light, and without what can only be pressed. What is on the screen stays as it was."""
    page = open_page(f"<!doctype html><body>{output(view.html)}", color_scheme=scheme)
    ready(page)
    before = page.evaluate(PICTURES)
    page.evaluate(f"""() => matchMedia("print").addEventListener("change", (e) => {{
      if (e.matches) window.printed = ({PICTURES})(); }})""")
    pdf = page.pdf()
    assert page.evaluate("window.printed") == pictures["light"]
    assert pdf.startswith(b"%PDF") and b"/Image" in pdf
    page.wait_for_function(f"before => JSON.stringify(({PICTURES})()) === JSON.stringify(before)", arg=before)
    page.emulate_media(media="print")
    assert not page.locator(".controls").first.is_visible() and page.locator("canvas.line").first.is_visible()
    assert (page.asked, page.troubles) == ([], [])


@pytest.fixture(scope="module", params=["lab", "notebook"])
def jupyter(request, tmp_path_factory):
    """A server with one notebook of all pictures: its kind, its address, its folder."""
    if request.param == "notebook":
        pytest.importorskip(
            "notebook", reason="Notebook 7 is not installed, so it is not checked (pip install notebook)"
        )
    root = tmp_path_factory.mktemp(request.param)
    stored(root, *[make() for make in VIEWS.values()])
    with server(root, request.param) as address:
        yield request.param, address, root


@pytest.mark.parametrize("trusted", [False, True], ids=["untrusted", "trusted"])
def test_jupyter(chromium, jupyter, trusted):
    kind, address, root = jupyter
    if trusted:
        path = root / "pictures.ipynb"
        command = [sys.executable, "-m", "jupyter", "trust", path]
        subprocess.run(command, env=environment(root), check=True, timeout=LAB_PATIENCE / 1000)
    page = noted(chromium.new_page(viewport={"width": 1280, "height": 6000}), (address,))
    page.set_default_timeout(LAB_PATIENCE)
    where = "notebooks" if kind == "notebook" else f"lab/workspaces/w{trusted}/tree"
    page.goto(f"{address}/{where}/pictures.ipynb?reset")
    outputs = page.locator(".jp-OutputArea-output")
    if trusted:
        page.locator(READY).nth(len(VIEWS) - 1).wait_for(state="attached")
        slider = page.locator(READY).first.locator("input[type=range]")
        slider.fill("5")
        page.wait_for_selector("canvas[aria-label*='after event 5 of']")
        light = page.evaluate(PICTURES)
        page.evaluate("document.body.dataset.jpThemeLight = 'false'")
        page.wait_for_function(f"light => ({PICTURES})().every((one, k) => one !== light[k])", arg=light)
    else:
        outputs.nth(len(VIEWS) - 1).locator("img").first.wait_for()
        for k in range(len(VIEWS)):
            picture = outputs.nth(k).locator("img").first
            picture.wait_for()
            assert picture.is_visible() and picture.evaluate(DECODED)
        assert page.locator(READY).count() == 0 and outputs.locator("script").count() == 0
    assert page.asked == []
    page.close()
