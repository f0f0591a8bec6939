"""The lessons as a site: complete, self-contained, quick to build, open to everyone."""

import importlib.util
import pathlib
import re
import time

import nbformat
import pytest

from tests.player.axe import violations

ROOT = pathlib.Path(__file__).parent.parent
NOTEBOOKS = ROOT / "notebooks"


@pytest.fixture(scope="module")
def builder():
    found = importlib.util.spec_from_file_location("kvviz_site", ROOT / "scripts" / "site.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site(builder, tmp_path_factory):
    began = time.monotonic()
    first = builder.build(tmp_path_factory.mktemp("site"))
    assert time.monotonic() - began < 60
    return first


@pytest.fixture
def open_page(chromium):
    """A page of the site with no network at all, and what went wrong on it."""
    contexts = []

    def open_page(path, **options):
        context = chromium.new_context(offline=True, **options)
        contexts.append(context)
        page = context.new_page()
        page.troubles = []
        page.on("pageerror", lambda error: page.troubles.append(str(error)))
        page.on("console", lambda said: page.troubles.append(said.text) if said.type == "error" else None)
        page.on(
            "request",
            lambda asked: (
                None if asked.url.startswith(("file:", "data:", "blob:")) else page.troubles.append(asked.url)
            ),
        )
        page.goto(path.as_uri())
        page.wait_for_function(
            """() => [...document.querySelectorAll(".kvviz-player, .kvviz-choices")].every((e) => e.dataset.ready)"""
        )
        return page

    yield open_page
    for context in contexts:
        context.close()


def pages():
    names = [path.relative_to(NOTEBOOKS).with_suffix(".html").as_posix() for path in NOTEBOOKS.rglob("[0-9]*.ipynb")]
    return ["index.html", *sorted(names)]


def test_the_first_page_tells_of_each_lesson(site):
    text = site.read_text(encoding="utf-8")
    lessons = sorted(NOTEBOOKS.glob("[0-9]*.ipynb"))
    assert len(lessons) >= 13 and text.count("<li>") == len(lessons)
    for path in lessons:
        first = nbformat.read(path, as_version=4).cells[0].source
        title, minutes = re.search("# (.+)", first)[1], re.search(r"\*\*Time\*\* (\d+ minutes? to run)", first)[1]
        assert title in text.replace("&#x27;", "'") and minutes in text
    assert "You will be able to" in text and "**" not in text


@pytest.mark.browser
@pytest.mark.parametrize("name", pages())
def test_a_page_opens_without_a_network(site, open_page, name):
    page = open_page(site.parent / name)
    assert page.troubles == []
    stored = nbformat.read((NOTEBOOKS / name).with_suffix(".ipynb"), as_version=4) if name != "index.html" else None
    if stored is not None:
        told = [str(o.data.get("text/html", "")) for c in stored.cells for o in c.get("outputs", []) if "data" in o]
        wanted = sum(html.count('class="kvviz-player"') for html in told)
        assert page.locator(".kvviz-player[data-ready='1']").count() == wanted
        code = [cell for cell in stored.cells if cell.cell_type == "code"]
        assert page.locator(".cell > .highlight").count() == len(code)
    for width in (320, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    for link in page.eval_on_selector_all("a[href]", "links => links.map(link => link.href)"):
        file, _, part = link.removeprefix("file://").partition("#")
        assert link.startswith("file:") and pathlib.Path(file).is_file(), link
        if part and pathlib.Path(file) == site.parent / name:
            assert page.locator(f'[id="{part}"]').count() == 1, link


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["index.html", "06_page_size_and_window.html", "solutions/06.html"])
def test_open_to_everyone(site, open_page, name, scheme):
    page = open_page(site.parent / name, color_scheme=scheme)
    for width in (320, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        assert violations(page) == []


@pytest.mark.browser
def test_one_can_walk_from_the_first_lesson_to_the_last_and_back(site, open_page):
    page = open_page(site)
    page.locator(".lessons a").first.click()
    for _ in range(len(list(NOTEBOOKS.glob("[0-9]*.ipynb"))) - 1):
        page.get_by_role("link", name="→").first.click()
    assert "12 ·" in page.locator("h1").first.text_content()
    page.get_by_role("link", name="All lessons").first.click()
    assert page.locator(".lessons li").count() >= 13


def notebook(folder, *texts):
    path = folder / "x.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(text) for text in texts]), path)
    return path


def test_a_lesson_with_latex_is_refused(builder, tmp_path):
    for formula in ("it is $x^2$ here", "$$\n\\frac{a}{b}\n$$ and $a$", r"\(a\)"):
        with pytest.raises(builder.SiteError, match=r"x\.ipynb has LaTeX"):
            builder.read(notebook(tmp_path, "# T", formula))
    assert builder.read(notebook(tmp_path, "# T", "`$HOME` and `$PATH` cost $5")).title == "T"


def test_a_lesson_without_a_title_is_refused(builder, tmp_path):
    with pytest.raises(builder.SiteError, match="no title"):
        builder.read(notebook(tmp_path, "text"))


def test_execute_runs_the_lesson_first(builder, tmp_path):
    path = notebook(tmp_path, "# T")
    content = nbformat.read(path, as_version=4)
    content.cells.append(nbformat.v4.new_code_cell("6 * 7"))
    nbformat.write(content, path)
    assert ">42</pre>" not in builder.cells(builder.read(path))
    assert ">42</pre>" in builder.cells(builder.read(path, execute=True))
    assert nbformat.read(path, as_version=4).cells[1].outputs == [], "the notebook itself stays as it was"


def test_badges_stay_out_and_links_lead_to_pages(builder, tmp_path):
    badge = "[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://x)<!-- colab -->"
    lesson = builder.read(notebook(tmp_path, f"# T\n\n{badge}\nsee [03](03_x.ipynb#a) and [all](https://h/a.ipynb)"))
    text = lesson.notebook.cells[0].source
    assert "colab" not in text and "[03](03_x.html#a)" in text and "https://h/a.ipynb" in text
