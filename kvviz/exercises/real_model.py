"""Notebook 07: what windows save in a hybrid model, what left padding takes, and the promise of a sliding layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvviz.exercises import Exercise, Verdict

FULL, SLIDING, WINDOW, CONTEXT = 12, 12, 128, 32_768  # layers of each type, in the shape of gpt-oss-20b
ROW = 2 * 8 * 64 * 2  # bytes of a token in one layer: keys and values, 8 heads of 64 numbers, bf16
PROMPTS, NEW, PAGE = (12, 100, 303), 50, 16


def exercises() -> list[Exercise]:
    """The exercises of notebook 07."""
    return [
        Exercise(
            "07.1", "What the windows save", 1, 5,
            f"A hybrid model has {FULL + SLIDING} layers: {FULL} see all tokens, {SLIDING} see the last {WINDOW}. Each has 8 "
            f"KV heads of 64 numbers in bf16. One sequence of {CONTEXT:,} tokens is in its cache. How many bytes do the "
            "visible tokens need (logical)?",
            _hybrid,
            "771 MiB instead of 1,536: the sliding layers are as good as free, and half of the layers is what can be saved.",
            ["One token in one layer: 2 × 8 × 64 × 2 bytes.",
             f"{FULL} layers hold {CONTEXT:,} tokens, {SLIDING} layers hold {WINDOW}."],
        ),
        Exercise(
            "07.2", "A batch with padding", 2, 6,
            f"Three prompts of {', '.join(map(str, PROMPTS[:-1]))} and {PROMPTS[-1]} tokens go into one generate() call, padded "
            f"on the left, with max_new_tokens={NEW}; nobody ends early. How many pages of {PAGE} tokens are in use at the "
            "end, in all?",
            _batch,
            "22 pages for each of the three. Without the padding it would be 36 in all.",
            ["Padded positions take slots like any other token.",
             "The last new token is returned, but the model has not read it: it is not in the cache.",
             f"Each sequence has {PROMPTS[-1]} + {NEW} - 1 tokens in the cache."],
        ),
        Exercise(
            "07.3", "The promise of a sliding layer", 3, 10,
            "Write mask_sizes(seen, new, window) for a layer in which a query sees its last `window` keys, its own included. "
            "`seen` tokens came before, `new` tokens come now. It returns (how many keys the new queries need in all, the "
            "number of the first of them). Tokens count from 0.\nCall check(mask_sizes).",
            _mask_sizes,
            "The first new query decides how far back the keys must go, the last one where they end.",
            ["The first new query is token number `seen`. Which keys does it see?",
             "It sees seen - window + 1 … seen, as far as these are not below 0.",
             "The keys end with token number seen + new - 1."],
        ),
    ]  # fmt: skip


def _hybrid(answer: int) -> Verdict:
    right = ROW * (FULL * CONTEXT + SLIDING * WINDOW)
    if answer == right:
        return None
    known = {
        ROW * (FULL + SLIDING) * CONTEXT: "This is without the windows.",
        ROW * (FULL + SLIDING) * WINDOW: "This is as if all layers had the window.",
        ROW * FULL * CONTEXT: "The sliding layers hold something, too.",
        right // 2: "Keys and values are both kept, and a number in bf16 has 2 bytes.",
        right * 2: "This is fp32.",
    }
    return known.get(answer, f"{answer:,} is {'more' if answer > right else 'less'} than they need.")


def _batch(answer: int) -> Verdict:
    def pages(tokens: int) -> int:
        return -(-tokens // PAGE)

    longest = max(PROMPTS) + NEW - 1
    right = len(PROMPTS) * pages(longest)
    if answer == right:
        return None
    known = {
        sum(pages(prompt + NEW - 1) for prompt in PROMPTS): "This is what the tokens need without the padding.",
        pages(longest): "This is one of the three sequences.",
        len(PROMPTS) * pages(longest + 1): "One token too many: is the last new token in the cache?",
    }
    return known.get(answer, f"{answer} is too {'many' if answer > right else 'few'}.")


def _mask_sizes(function: Callable[[int, int, int], Any]) -> Verdict:
    for seen, new, window in (
        (0, 5, 8),
        (3, 1, 8),
        (20, 1, 8),
        (7, 1, 8),
        (8, 1, 8),
        (5, 6, 8),
        (20, 10, 8),
        (4, 2, 1),
    ):
        first = max(0, seen - window + 1)
        wanted = seen + new - first, first
        got = tuple(function(seen, new, window))
        if got == wanted:
            continue
        case = f"{seen} tokens seen, {new} new, a window of {window}"
        if abs(got[1] - first) == 1:
            return f"{case}: the first key is one off. No error need come of it: the logits are just wrong."
        return f"{case}: it should be {wanted}, not {got}."
    return None
