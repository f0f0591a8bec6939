"""Write a GitHub repository into the notebooks' Colab badges and set-up cells: `make stamp REPO=owner/name`.

Running it again with another name replaces the first; with an empty name it takes the stamp back.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import nbformat

NOTEBOOKS = Path(__file__).resolve().parent.parent / "notebooks"
MARKER = "<!-- colab -->"
UNSTAMPED = "*Open in Colab:* the badge appears here after `make stamp REPO=owner/name` in a copy of the project on GitHub."


def badge(repository: str, notebook: str) -> str:
    """The line that stands above a notebook."""
    if not repository:
        return UNSTAMPED + MARKER
    address = f"https://colab.research.google.com/github/{repository}/blob/main/notebooks/{notebook}"
    return f"[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]({address}){MARKER}"


def stamp(text: str, repository: str, notebook: str) -> str:
    """A cell's text with the badge line and the REPO line renewed."""
    text = re.sub(rf"^.*{re.escape(MARKER)}$", lambda _: badge(repository, notebook), text, flags=re.MULTILINE)
    return re.sub(r'^REPO = "[^"]*"', f'REPO = "{repository}"', text, flags=re.MULTILINE)


def main(repository: str) -> int:
    if repository and not re.fullmatch(r"[\w.-]+/[\w.-]+", repository):
        print(f"kvviz: {repository!r} is not of the form owner/name", file=sys.stderr)
        return 2
    for path in sorted(NOTEBOOKS.rglob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        for cell in notebook.cells:
            cell.source = stamp(cell.source, repository, path.relative_to(NOTEBOOKS).as_posix())
        nbformat.write(notebook, path)
        print(f"kvviz: stamped {path.relative_to(NOTEBOOKS.parent)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else ""))
