"""Notebook 08: what a gather writes, a page size for a given waste, and two partial attentions made one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kvviz.exercises import Exercise, Verdict

TOKEN, LAYERS, CONTEXT = 46_080, 30, 4096  # bytes of a token of SmolLM2 in fp32
MEAN, MOST = 300, 0.05


def exercises() -> list[Exercise]:
    """The exercises of notebook 08."""
    return [
        Exercise(
            "08.1", "What a gather writes", 1, 3,
            f"SmolLM2 in fp32: {TOKEN:,} bytes a token, in {LAYERS} layers together. {CONTEXT:,} tokens lie in scattered pages, "
            "and each layer gathers them once for every new token. How many bytes do the gathers of one new token write?",
            _gathered,
            "180 MiB, written and then read again, for one token. A view writes none of them.",
            ["A gather copies keys and values of all tokens.", "What is the size of the whole cache?"],
        ),
        Exercise(
            "08.2", "A page size for short sequences", 2, 5,
            f"A server's sequences have {MEAN} tokens on average. The last page of each is half empty on average. Which is the "
            f"largest page size, a power of two, that wastes at most {MOST:.0%} of the slots in use?",
            _page_size,
            "8 ÷ 308 is 2.6 %. The next one, 32, wastes 16 ÷ 316, just over 5 %.",
            ["Half a page is wasted for each sequence.",
             f"Waste = (p / 2) ÷ ({MEAN} + p / 2) for pages of p tokens."],
        ),
        Exercise(
            "08.3", "Two halves of one attention", 3, 12,
            "Two workers read half of the pages each, with the running softmax. Each ends with (high, total, out): the "
            "largest score, the sum of the exponents, and the weighted sum of values, not yet divided. high and total have "
            "the shape [heads, 1], out [heads, numbers]. Write merge(a, b): the same three for all pages together.\n"
            "Call check(merge).",
            _merge,
            "This is how long contexts are read by many cores of a GPU at once: each takes some pages, and the parts are "
            "merged at the end.",
            ["The new high is the larger of the two, head by head.",
             "Exponents that were taken with another high are too large by exp(new high - old high).",
             "Multiply total and out of each side by exp(its high - new high), then add."],
        ),
    ]  # fmt: skip


def _gathered(answer: int) -> Verdict:
    right = TOKEN * CONTEXT
    if answer == right:
        return None
    known = {
        TOKEN: "This is one token; a gather copies all of them.",
        right // LAYERS: "This is one layer.",
        right // 2: "Keys and values are both gathered.",
        right * 2: "This counts what is read, too.",
    }
    return known.get(answer, f"{answer:,} is {'more' if answer > right else 'less'} than they write.")


def _page_size(answer: int) -> Verdict:
    def waste(page: int) -> float:
        return page / 2 / (MEAN + page / 2)

    if answer < 1 or answer != int(answer) or int(answer) & (int(answer) - 1):
        return "A power of two: 1, 2, 4, 8, …"
    if waste(int(answer)) > MOST:
        return f"With pages of {int(answer)} the waste is {waste(int(answer)):.1%}."
    if waste(2 * int(answer)) <= MOST:
        return f"It wastes {waste(int(answer)):.1%}, but {2 * int(answer)} would do, too."
    return None


def _merge(function: Callable[[Any, Any], Any]) -> Verdict:
    generator = torch.Generator().manual_seed(0)
    heads, dim = 4, 8
    for offset in (0.0, 300.0):  # the second: exponents of such scores are infinite
        scores = torch.randn(heads, 60, generator=generator) * 4 + torch.tensor([[0.0], [1.0], [0.0], [-1.0]]) * offset
        scores[0, :20] += 9  # a head whose largest score is on one side, and one with it on the other
        scores[2, 20:] += 9
        values = torch.randn(heads, 60, dim, generator=generator)
        wanted = _part(scores, values)
        parts = [_part(scores[:, s], values[:, s]) for s in (slice(0, 20), slice(20, 35), slice(35, 60))]
        before = [x.clone() for part in parts for x in part]
        got = function(function(parts[0], parts[1]), parts[2])
        if not isinstance(got, (tuple, list)) or len(got) != 3:
            return "merge should return three tensors: (high, total, out)."
        if any(not torch.equal(x, y) for x, y in zip(before, (x for part in parts for x in part), strict=True)):
            return "It changes the tensors that it is given."
        if [tuple(x.shape) for x in got] != [tuple(x.shape) for x in wanted]:
            return f"The shapes are {[tuple(x.shape) for x in got]}, they should be {[tuple(x.shape) for x in wanted]}."
        if not all(bool(torch.isfinite(x).all()) for x in got):
            return "With large scores it overflows: subtract a high before exp()."
        for name, mine, right in zip(("high", "total", "out"), got, wanted, strict=True):
            if not torch.allclose(mine, right, rtol=1e-4, atol=1e-5):
                return {
                    "high": "high should be the larger of the two, head by head.",
                    "total": "total is off: both sums must be brought to the new high before they are added.",
                    "out": "out is off: both weighted sums must be brought to the new high, and are not divided yet.",
                }[name]
    return None


def _part(scores: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    high = scores.amax(-1, keepdim=True)
    weights = (scores - high).exp()
    return high, weights.sum(-1, keepdim=True), torch.einsum("ht,htd->hd", weights, values)
