"""Report: findings in plain words, with their figures; readable as text, in a notebook and by programs."""

from __future__ import annotations

import html
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Finding:
    """One thing that was found. `what` names it, `text` says it with its figures, `bytes` is what it is about."""

    what: str
    text: str
    bytes: int = 0


@dataclass(frozen=True)
class Report:
    """A title and findings, the weightiest first. No finding: `nothing` says so."""

    title: str
    findings: list[Finding] = field(default_factory=list)
    nothing: str = "Nothing found."

    @property
    def text(self) -> str:
        """The whole report, a line each."""
        lines = [f"- {f.what}: {f.text}" for f in self.findings] or [self.nothing]
        return "\n".join([self.title, *lines])

    def __repr__(self) -> str:
        return self.text

    def __bool__(self) -> bool:
        return bool(self.findings)

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td style='text-align:left'>{html.escape(f.what)}</td>"
            f"<td style='text-align:left'>{html.escape(f.text)}</td></tr>"
            for f in self.findings
        )
        body = f"<table>{rows}</table>" if rows else f"<p>{html.escape(self.nothing)}</p>"
        return f"<p><b>{html.escape(self.title)}</b></p>{body}"


def bytes_text(size: int) -> str:
    """A size as people read it, exact enough to compare: 512 B, 45.0 KiB, 2.82 GiB."""
    for unit, limit in (("B", 1 << 10), ("KiB", 1 << 20), ("MiB", 1 << 30), ("GiB", 1 << 40)):
        if abs(size) < limit or unit == "GiB":
            value = size / (limit >> 10)
            return f"{value:,.0f} B" if unit == "B" else f"{value:,.{2 if unit == 'GiB' else 1}f} {unit}"
    raise AssertionError
