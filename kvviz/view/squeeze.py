"""JavaScript without what only people read: comments, and blanks around punctuation. Names stay as they are.

For the player's own style alone: semicolons everywhere, no template inside a template, a slash after an opening bracket,
a comma, a colon or an equals sign begins a regular expression, and a template that begins with a new line is a style
sheet.
"""

from __future__ import annotations

import re

_TOKEN = re.compile(
    r"""(?P<comment>/\*.*?\*/|//[^\n]*)|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|`(?:\\.|[^`\\])*`"""
    r"""|(?<=[(,:=])/(?:\\.|[^/\\\n])+/|(?<=[(,:=] )/(?:\\.|[^/\\\n])+/""",
    re.DOTALL,
)
_HERE = "\0"  # stands for a text


def squeeze(source: str) -> str:
    """The same program, shorter. Raises ValueError where a template is inside another."""
    texts: list[str] = []

    def keep(found: re.Match[str]) -> str:
        if found["comment"]:
            return ""
        text = found.group()
        if text[0] == "`" and text.count("{") != text.count("}"):
            raise ValueError(f"a template inside another: {text}")
        texts.append(_sheet(text) if text.startswith("`\n") else text)
        return _HERE

    code = _TOKEN.sub(keep, source)
    code = re.sub(r"(?<=[\w)\]]) ([+-]=?) (?=[\w(\[])", r"\1", code)  # but a + +b keeps its blanks
    code = re.sub(r"\s+(?=[^\w\s$+\-])|(?<=[^\w\s$+\-])\s+", "", code)
    rest = iter(texts)
    return re.sub(_HERE, lambda _: next(rest), code).strip()


def _sheet(styles: str) -> str:
    return re.sub(r"(\$\{.*?\})|\s*([{};:,])\s*", lambda found: found[1] or found[2], styles)
