"""What lives at one moment, as rows that were there before the first event of a history that begins then."""

from __future__ import annotations

import numpy as np

from kvviz.memory.blocks import Block, SegmentInfo
from kvviz.memory.lifetimes import BlockSpans, Lifetimes, SegmentSpans


def entry_of(held: list[Block], segments: list[SegmentInfo]) -> Lifetimes:
    """`held`: blocks that are handed out, in the order of their making, which the rows keep; and all segments."""
    n, m = len(held), len(segments)
    blocks = BlockSpans(
        address=np.array([b.address for b in held], "u8"), size=np.array([b.size for b in held], "i8"),
        requested=np.array([b.requested for b in held], "i8"), stream=np.array([b.stream for b in held], "i8"),
        owner=np.zeros(n, "i8"), stack=np.full(n, -1), born=np.full(n, -1), freed=np.zeros(n, "i8"),
        died=np.zeros(n, "i8"),
    )  # fmt: skip
    spans = SegmentSpans(
        address=np.array([s.address for s in segments], "u8"), size=np.array([s.size for s in segments], "i8"),
        stream=np.array([s.stream for s in segments], "i8"), small=np.array([s.small for s in segments], "?"),
        expandable=np.array([s.expandable for s in segments], "?"), born=np.full(m, -1), died=np.zeros(m, "i8"),
    )  # fmt: skip
    return Lifetimes(blocks, spans)
