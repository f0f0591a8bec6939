"""Every notebook as a page of one site that loads nothing from anywhere: build/site/index.html. Run by `make site`.

Outputs are those that are stored; with EXECUTE=1 the notebooks run first. Maps play, explorers show their recorded form,
charts are still pictures.
"""

from __future__ import annotations

import html
import os
import re
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import nbformat
from jinja2 import DictLoader
from nbconvert import HTMLExporter
from nbconvert.preprocessors import ExecutePreprocessor
from pygments.formatters import HtmlFormatter

from kvviz.view.theme import DARK, LIGHT, SANS

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "notebooks"
STYLE = Path(__file__).with_suffix(".css")
MONO = 'ui-monospace, "JetBrains Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace'

# one cell after the other; nbconvert's own page around them would ask the network for MathJax and require.js
CELLS = """
{%- extends 'base/display_priority.j2' -%}
{%- block codecell -%}<div class="cell">{{ super() }}</div>{%- endblock -%}
{%- block input -%}{{ cell.source | highlight_code(metadata=cell.metadata) }}{%- endblock -%}
{%- block output -%}<div class="output">{{ super() }}</div>{%- endblock -%}
{%- block execute_result -%}{%- block data_priority scoped -%}{{ super() }}{%- endblock -%}{%- endblock -%}
{%- block stream_stdout -%}<pre>{{ output.text | ansi2html }}</pre>{%- endblock -%}
{%- block stream_stderr -%}<pre class="stderr">{{ output.text | ansi2html }}</pre>{%- endblock -%}
{%- block traceback_line -%}<pre class="stderr">{{ line | ansi2html }}</pre>{%- endblock -%}
{%- block data_html -%}{{ output.data['text/html'] }}{%- endblock -%}
{%- block data_text -%}<pre>{{ output.data['text/plain'] | ansi2html }}</pre>{%- endblock -%}
{%- block data_png -%}<img alt="{{ output.data['text/plain'] | escape_html }}"
  src="data:image/png;base64,{{ output.data['image/png'] | posix_path }}">{%- endblock -%}
{%- block markdowncell -%}<div class="text">{{ cell.source | markdown2html | strip_files_prefix }}</div>{%- endblock -%}
"""
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the text</a>
<header><nav aria-label="Lessons">{nav}</nav></header>
<main id="main" tabindex="-1">
{body}
</main>
<footer><nav aria-label="Next lesson">{nav}</nav></footer>
</body>
</html>
"""


class SiteError(Exception):
    """What keeps the site from being built, in one line."""


class Lesson(NamedTuple):
    """A notebook, and what its first cell says of it. goal: Markdown in one line."""

    source: Path
    notebook: Any
    title: str
    goal: str
    time: str

    @property
    def page(self) -> str:
        return self.source.relative_to(NOTEBOOKS).with_suffix(".html").as_posix()


def read(path: Path, execute: bool = False) -> Lesson:
    """Raises SiteError for a notebook that says no title, or that has LaTeX, which only a script from a network can draw."""
    notebook = nbformat.read(path, as_version=4)
    if execute:
        ExecutePreprocessor(timeout=600, store_widget_state=False).preprocess(
            notebook, {"metadata": {"path": str(path.parent)}}
        )
    notebook.metadata.pop("widgets", None)
    for cell in notebook.cells:
        cell.source = cell.source.removeprefix("# NBVAL_CHECK_OUTPUT\n")  # for the tests, not for a reader
    texts = [cell for cell in notebook.cells if cell.cell_type == "markdown"]
    for cell in texts:
        cell.source = re.sub(r"^.*<!-- colab -->$\n?", "", cell.source, flags=re.MULTILINE)
        cell.source = re.sub(r"(\]\([^):#\s]+)\.ipynb\b", r"\1.html", cell.source)
        if re.search(r"\$[^$\n`]+\$|\\\(|\\\[", re.sub(r"```.*?```|`[^`]*`", "", cell.source, flags=re.DOTALL)):
            raise SiteError(f"{path.name} has LaTeX: {cell.source[:60]!r} …; write the formula in plain characters")
    first = texts[0].source if texts else ""
    title = re.search(r"^# (.+)$", first, re.MULTILINE)
    if not title:
        raise SiteError(f"{path.name} has no title in its first cell")
    return Lesson(path, notebook, title[1], _told(first, "You will be able to"), _told(first, "Time"))


def _told(text: str, name: str) -> str:
    """What stands behind a bold name, up to the next one."""
    found = re.search(rf"\*\*{name}\*\*\s+(.+?)(?=\s*\*\*[A-Z]|$)", text, re.MULTILINE)
    return found[1] if found else ""


def style() -> str:
    inks = {
        scheme: "".join(f"--{name}:{ink};" for name, ink in theme.items() if str(ink).startswith("#"))
        for scheme, theme in (("light", LIGHT), ("dark", DARK))
    }
    day, night = (HtmlFormatter(style=name).get_style_defs(".highlight") for name in ("default", "github-dark"))
    return (
        f":root{{--sans:{SANS};--mono:{MONO};{inks['light']}}}\n{day}\n"
        f"@media screen and (prefers-color-scheme:dark){{:root{{{inks['dark']}}}\n{night}}}\n{STYLE.read_text()}"
    )


def link(lesson: Lesson, text: str, up: str = "") -> str:
    return f'<a href="{up}{html.escape(lesson.page)}">{html.escape(text)}</a>'


def cells(lesson: Lesson) -> str:
    """The body of a page."""
    exporter = HTMLExporter(extra_loaders=[DictLoader({"cells.html.j2": CELLS})], template_file="cells.html.j2")
    exporter.exclude_input_prompt = exporter.exclude_output_prompt = True
    body, _ = exporter.from_notebook_node(lesson.notebook)
    # long lines scroll sideways, and what scrolls must be reached by keyboard
    return re.sub(r"<pre(?=[ >])", '<pre tabindex="0"', body)


def index(lessons: list[Lesson]) -> str:
    entries = "".join(
        f'<li><h2>{link(lesson, lesson.title)}</h2><p class="time">{html.escape(lesson.time)}</p>'
        f"<p>You will be able to {_inline(lesson.goal)}</p></li>"
        for lesson in lessons
    )
    minutes = sum(int(count) for lesson in lessons for count in re.findall(r"\d+", lesson.time))
    return (
        f"<h1>kvviz: see the memory of language models</h1><p>{len(lessons)} lessons, {minutes // 60} hours and "
        f"{minutes % 60} minutes in all. Maps can be played, and explorers show the values that were recorded. To run and "
        f'change the lessons, open the notebooks.</p><ul class="lessons">{entries}</ul>'
    )


def _inline(text: str) -> str:
    """Bold, italics and code of Markdown as HTML."""
    text = html.escape(text, quote=False)
    for mark, tag in ((r"\*\*", "b"), (r"\*", "i"), ("`", "code")):
        text = re.sub(rf"{mark}(.+?){mark}", rf"<{tag}>\1</{tag}>", text)
    return text


def build(folder: Path, execute: bool = False) -> Path:
    """Write the site; returns its first page. Raises SiteError."""
    lessons = [read(path, execute) for path in sorted(NOTEBOOKS.glob("[0-9]*.ipynb"))]
    answers = {path.stem: read(path, execute) for path in sorted((NOTEBOOKS / "solutions").glob("[0-9]*.ipynb"))}
    if not lessons:
        raise SiteError(f"no notebooks in {NOTEBOOKS}")
    (folder / "solutions").mkdir(parents=True, exist_ok=True)
    looks = style()

    def write(name: str, title: str, nav: list[str], body: str) -> Path:
        page = PAGE.format(title=html.escape(title), style=looks, nav="".join(nav), body=body)
        (folder / name).write_text(page, encoding="utf-8", newline="\n")
        return folder / name

    for k, lesson in enumerate(lessons):
        nav = ['<a href="index.html">All lessons</a>']
        nav += [link(lessons[k - 1], f"← {lessons[k - 1].title}")] if k else []
        number = lesson.source.name[:2]
        if number in answers:
            nav.append(link(answers[number], "Solutions"))
            up = ['<a href="../index.html">All lessons</a>', link(lesson, f"← {lesson.title}", "../")]
            write(answers[number].page, answers[number].title, up, cells(answers[number]))
        nav += [link(following, f"{following.title} →") for following in lessons[k + 1 : k + 2]]
        write(lesson.page, lesson.title, nav, cells(lesson))
    return write("index.html", "kvviz", ["<span>kvviz</span>"], index(lessons))


def main() -> int:
    began = time.monotonic()
    try:
        made = build(ROOT / "build" / "site", os.environ.get("EXECUTE", "") not in ("", "0"))
    except SiteError as error:
        print(f"kvviz: {error}", file=sys.stderr)
        return 1
    size = sum(file.stat().st_size for file in made.parent.rglob("*.html")) / 2**20
    print(f"kvviz: the site is {made}, {size:.0f} MiB, built in {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
