"""Report: findings in plain words, with their figures; readable as text, in a notebook and by programs."""

from __future__ import annotations

import html
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple


@dataclass(frozen=True)
class Finding:
    """One thing that was found. `what` names it, `text` says it with its figures, `bytes` is what it is about.

    kind: of a diagnosis, one of those in diagnosis/faults.py.
    """

    what: str
    text: str
    bytes: int = 0
    kind: str = ""


class Section(NamedTuple):
    """Facts that are no findings, under a heading, a line each; one that begins with spaces belongs to those before."""

    heading: str
    lines: list[str]


@dataclass(frozen=True)
class Report:
    """A title and findings, the weightiest first. No finding: `nothing` says so.

    sections: what else there is to say. figures: numbers by name, for programs; plain types only.
    """

    title: str
    findings: list[Finding] = field(default_factory=list)
    nothing: str = "Nothing found."
    sections: list[Section] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The whole report, a line each."""
        lines = [f"- {f.what}: {f.text}" for f in self.findings] or [self.nothing]
        for section in self.sections:
            lines += ["", section.heading, *(f"  - {line.strip()}" if line[0] == " " else f"- {line}" for line in section.lines)]
        return "\n".join(" ".join(line.splitlines()) for line in [self.title, *lines])  # a name may hold a new line

    def to_json(self) -> dict[str, Any]:
        """All of it in plain types."""
        return {
            "title": self.title,
            "findings": [asdict(finding) for finding in self.findings],
            "sections": [section._asdict() for section in self.sections],
            "figures": self.figures,
        }

    def __repr__(self) -> str:
        return self.text

    def __bool__(self) -> bool:
        return bool(self.findings)

    def _repr_html_(self) -> str:
        body = "".join(f"<p><b>{html.escape(f.what)}</b>: {html.escape(f.text)}</p>" for f in self.findings)
        body = body or f"<p>{html.escape(self.nothing)}</p>"
        for section in self.sections:
            lines = "".join(
                f"<li{' style=margin-left:2em' * line.startswith(' ')}>{html.escape(line)}</li>" for line in section.lines
            )
            body += f"<p><b>{html.escape(section.heading)}</b></p><ul>{lines}</ul>"
        return f"<p><b>{html.escape(self.title)}</b></p>{body}"


def count_text(count: int, what: str) -> str:
    """ "1 block", "1,200 blocks"."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def bytes_text(size: int) -> str:
    """A size as people read it, exact enough to compare: 512 B, 45.0 KiB, 2.82 GiB."""
    for unit, limit in (("B", 1 << 10), ("KiB", 1 << 20), ("MiB", 1 << 30), ("GiB", 1 << 40)):
        if abs(size) < limit or unit == "GiB":
            value = size / (limit >> 10)
            return f"{value:,.0f} B" if unit == "B" else f"{value:,.{2 if unit == 'GiB' else 1}f} {unit}"
    raise AssertionError
