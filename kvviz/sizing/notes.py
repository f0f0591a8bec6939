"""notes: what a plan takes for granted, and what to mind about it."""

from __future__ import annotations

import re
from collections import Counter

from kvviz.sizing.plan import Plan
from kvviz.sizing.terms import rank_heads


def notes(plan: Plan) -> list[str]:
    """A line each."""
    found = [_of_memory, _of_context, _of_window, _of_layers, _of_ranks, _of_scales, _of_weights]
    return [note for note in (find(plan) for find in found) if note]


def _of_memory(plan: Plan) -> str:
    if not re.search(r"[KMGT]B", plan.said, re.IGNORECASE):
        return ""
    said = plan.said.strip()
    return f"{said} are {plan.memory:,} bytes; a card sold as {said} has {re.sub('B', 'iB', said, flags=re.I)}: ask for those"


def _of_context(plan: Plan) -> str:
    made_for = plan.sizes.context
    if not made_for or plan.tokens <= made_for:
        return ""
    return (
        f"{plan.tokens:,} tokens are more than the {made_for:,} that the model was made for (max_position_embeddings)"
    )


def _of_window(plan: Plan) -> str:
    if plan.window is None or all(layer.window and layer.window <= plan.window for layer in plan.layers):
        return ""
    return f"a window of {plan.window:,} tokens is not the model's own: its answers change"


def _of_layers(plan: Plan) -> str:
    without = plan.sizes.layers - len(plan.layers)
    if not without:
        return ""
    return (
        f"{without} of {plan.sizes.layers} layers keep nothing of a token: they have a state of one size, which is not "
        "counted, use the keys and values of an earlier layer, or have no attention"
    )


def _of_ranks(plan: Plan) -> str:
    if plan.shards == 1:
        return ""
    uneven = [rank_heads(layer, plan.shards)[1] for layer in Counter(plan.layers) if layer.heads % plan.shards]
    split = "weights are taken to split evenly over ranks"
    return f"{split}; keys and values do not: {', '.join(uneven)} on the largest" if uneven else split


def _of_scales(plan: Plan) -> str:
    group = plan.kv.group
    if not group or plan.page_size % group == 0:
        return ""
    return (
        f"keys share a scale within a page, and {plan.page_size} tokens a page are no multiple of {group}: with "
        f"page_size={group} the cache is smaller"
    )


def _of_weights(plan: Plan) -> str:
    return f"{plan.weights.name} weights: {plan.weights.how}" if plan.weights.how else ""
