"""Take live widgets out of stored notebooks: without a kernel they show nothing, and their HTML form does.

    python scripts/drop_widgets.py notebooks/*.ipynb
"""

import sys
from pathlib import Path

import nbformat

WIDGET = "application/vnd.jupyter.widget-view+json"


def drop(path: Path) -> int:
    """Take them out of one notebook; returns how many there were."""
    notebook = nbformat.read(path, as_version=4)
    found = 0
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            found += output.get("data", {}).pop(WIDGET, None) is not None
    if notebook.metadata.pop("widgets", None) is not None or found:
        nbformat.write(notebook, path)
    return found


if __name__ == "__main__":
    for name in sys.argv[1:]:
        drop(Path(name))
