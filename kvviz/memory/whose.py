"""Whose a block is and where it was asked for, in the words of a report."""

from __future__ import annotations

import re

from kvviz.memory.trace import Trace

UNKNOWN_SITE = "an unknown call site"


def site(trace: Trace, stack: int) -> str:
    """A call site by its number; that of every layer is one: "torch.cat · model.layers.*.self_attn"."""
    return re.sub(r"(?<=\.)\d+(?=\.| ·|$)", "*", trace.stacks[stack]) if stack >= 0 else UNKNOWN_SITE


def whose(trace: Trace, owner: int, stack: int) -> str:
    """An owner where one is known, with its call site: "kv cache (torch.cat · model.layers.*.self_attn)"."""
    place = site(trace, stack) if stack >= 0 else ""
    name = trace.owners[owner]
    if owner == 0:
        return place or name
    return f"{name} ({place})" if place else name
