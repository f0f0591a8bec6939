"""Notebook 10: bytes of a page with its scales, a page size for int4, and a quantizer of one's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kvviz.exercises import Exercise, Verdict

LAYERS, KV_HEADS, DIM, PAGE = 32, 8, 128, 16  # Llama-3-8B's
MOST = 0.33


def exercises() -> list[Exercise]:
    """The exercises of notebook 10."""
    return [
        Exercise(
            "10.1", "Bytes of an int8 page", 1, 4,
            f"A model with {LAYERS} layers and {KV_HEADS} KV heads of {DIM} keeps its cache in int8, with one fp16 scale for "
            f"each token and head, for keys and for values. How many bytes has a page of {PAGE} tokens, all layers together?",
            _page_bytes,
            "1,040 KiB; in bf16 it would be 2,048 KiB. The scales are 1.5 % of it.",
            ["A token of one head: 128 codes of a byte, and 2 bytes of scale.",
             "Keys and values, all heads, all layers, all tokens of the page."],
        ),
        Exercise(
            "10.2", "A page size for int4", 2, 5,
            "SmolLM2 has KV heads of 64. int4 keys share an fp16 scale and an fp16 zero point by channel, for 32 tokens or for a "
            "page if that is smaller; int4 values have both for every 32 channels of a token. Which is the smallest page size, a "
            f"power of two, at which a full page takes at most {MOST:.0%} of a bf16 page?",
            _page_size,
            "640 bits a token and head, of 2,048: 31.25 %. With pages of 16 it is 34.4 %.",
            ["Values: 64 codes of 4 bits, and 2 groups with 32 bits each.",
             "Keys: 64 codes of 4 bits, and 64 times 32 bits spread over the tokens of a group.",
             "bf16: 2 · 64 · 16 bits, keys and values."],
        ),
        Exercise(
            "10.3", "A quantizer of your own", 3, 10,
            "Write quantize(x, bits): x is fp32, [rows, numbers], and each row has a scale and a zero point of its own. Return "
            "three tensors (codes, scale, zero) of the shapes [rows, numbers], [rows, 1] and [rows, 1], so that "
            "codes · scale + zero is x again, nowhere off by more than half a scale. The codes are whole numbers from 0 to "
            "2**bits - 1, and both ends are used. A row of equal numbers must come back exactly.\n"
            "Call check(quantize).",
            _quantize,
            "This is how int4 pages do it, by channel for keys and by token for values.",
            ["The smallest number of a row becomes code 0, so it is the zero point.",
             "The scale is (largest - smallest) divided by the number of steps, 2**bits - 1.",
             "Where all numbers are equal the scale is 0: divide by 1 there instead."],
        ),
    ]  # fmt: skip


def _page_bytes(answer: int) -> Verdict:
    right = 2 * LAYERS * KV_HEADS * PAGE * (DIM + 2)
    if answer == right:
        return None
    known = {
        2 * LAYERS * KV_HEADS * PAGE * DIM: "These are the codes; the scales take memory, too.",
        right // 2: "Keys and values both have codes and scales.",
        right // LAYERS: "This is one layer.",
        right // PAGE: "This is one token.",
        2 * LAYERS * KV_HEADS * PAGE * (DIM + 1): "fp16 takes two bytes.",
        2 * LAYERS * KV_HEADS * PAGE * DIM * 2: "This is a bf16 page.",
    }
    return known.get(answer, f"{answer:,} is {'more' if answer > right else 'less'} than it has.")


def _page_size(answer: int) -> Verdict:
    def part(page: int) -> float:
        keys, values = 64 * 4 + 64 * 32 / min(32, page), 64 * 4 + 2 * 32
        return (keys + values) / (2 * 64 * 16)

    if answer < 1 or answer != int(answer) or int(answer) & (int(answer) - 1):
        return "A power of two: 1, 2, 4, 8, …"
    if part(int(answer)) > MOST:
        return f"With pages of {int(answer)} it is {part(int(answer)):.1%}."
    if part(int(answer) // 2 or 1) <= MOST:
        return f"It is {part(int(answer)):.2%}, but pages of {int(answer) // 2} would do, too."
    return None


def _quantize(function: Callable[[torch.Tensor, int], Any]) -> Verdict:
    x = torch.randn(6, 40, generator=torch.Generator().manual_seed(0))
    x[1] *= 30
    x[2] *= 0.01
    x[3] += 50  # far from 0
    x[4] = 2.5
    x[5] = 0
    for bits in (4, 8, 2):
        before = x.clone()
        got = function(x, bits)
        if not torch.equal(x, before):
            return "It changes the tensor that it is given."
        if not isinstance(got, (tuple, list)) or len(got) != 3:
            return "quantize should return three tensors: (codes, scale, zero)."
        shapes = [tuple(part.shape) for part in got]
        if shapes != [(6, 40), (6, 1), (6, 1)]:
            return f"The shapes are {shapes}; they should be [(6, 40), (6, 1), (6, 1)] for x of (6, 40)."
        codes, scale, zero = (part.double() for part in got)
        if not bool(torch.isfinite(codes).all() and torch.isfinite(scale).all()):
            return "A row of equal numbers ends in a division by 0."
        if not torch.equal(codes, codes.round()):
            return "Codes should be whole numbers."
        if codes.min() < 0 or codes.max() > 2**bits - 1:
            return f"With {bits} bits codes should be 0 … {2**bits - 1}; they are {codes.min():g} … {codes.max():g}."
        off = (codes * scale + zero - x).abs()
        if bool((off[4:] > 0).any()):
            return "A row of equal numbers does not come back exactly."
        if bool((codes[:4].amin(-1) > 0).any() or (codes[:4].amax(-1) < 2**bits - 1).any()):
            return f"With {bits} bits not all rows use the codes 0 and {2**bits - 1}."
        if bool((off > 0.5 * scale + 1e-5 * x.abs().amax(-1, keepdim=True)).any()):
            return "Some numbers come back off by more than half a scale: round to the nearest code."
    return None
