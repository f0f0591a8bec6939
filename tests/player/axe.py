"""axe-core over a page: what a reader with a screen reader, a keyboard or weak sight would stumble over."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest


@cache
def _source() -> str:
    carried = pytest.importorskip("axe_playwright_python", reason="axe-core is not installed (pip install kvviz[test])")
    return (Path(carried.__file__).parent / "axe.min.js").read_text(encoding="utf-8")


def violations(page) -> list[str]:
    """One line for each element that breaks one of axe's rules; all rules, and the size of what is touched."""
    if not page.evaluate("() => Boolean(window.axe)"):
        page.evaluate(_source())
    found = page.evaluate("axe.run(document, {resultTypes: ['violations'], rules: {'target-size': {enabled: true}}})")
    return [
        f"{broken['id']}: {node['html'][:160]} {(node['any'] + node['all'] + node['none'] or [{}])[0].get('message', '')}"
        for broken in found["violations"]
        for node in broken["nodes"]
    ]
