"""Notebook 00: what a token costs, what a bigger number type costs, and how to read a moment of a trace."""

from __future__ import annotations

from kvviz.exercises import Exercise, Verdict
from kvviz.memory.trace import Trace

LAYERS, KV_HEADS, HEAD_DIM = 30, 3, 64  # SmolLM2-135M
CONTEXT = 8192


def exercises() -> list[Exercise]:
    """The exercises of notebook 00."""
    return [
        Exercise(
            "00.1", "A full context", 1, 3,
            "SmolLM2 can read 8,192 tokens. How many bytes does its cache need for one sequence of that length, in fp32? "
            "Compute it in the cell below; do not look it up.",
            _full_context,
            "360 MiB: more than the model's weights would take in bf16 (257 MiB).",
            ["Each token adds keys and values, in every layer.",
             "2 × layers × KV heads × head size × bytes of a number, times the tokens."],
        ),
        Exercise(
            "00.2", "Half the bytes", 1, 2,
            "The same cache in bf16, whose numbers take 2 bytes. How many bytes does one token add?",
            _bf16_token,
            "Half of fp32. The number type is the cheapest lever on a cache; notebook 10 pulls it further.",
            ["Only one factor of the product changes."],
        ),
        Exercise(
            "00.3", "The moment of the peak", 2, 5,
            "Find how many bytes of the trace were cached but not in use at the moment when most was allocated: reserved "
            "less active, in the state right after the peak event.\nCall check(answer, run.trace).",
            _cached_at_peak,
            "These bytes belong to the process, no tensor uses them, and nvidia-smi would count them as used.",
            ["trace.peak_event is the index of the event that reached the peak.",
             "The state after that event is trace.at(trace.peak_event + 1).",
             "reserved and active are fields of that state."],
        ),
    ]  # fmt: skip


def _full_context(answer: int) -> Verdict:
    right = 2 * LAYERS * KV_HEADS * HEAD_DIM * 4 * CONTEXT
    if answer == right:
        return None
    known = {
        right // 2: "This is the half: keys and values are both kept, or an fp32 number has 4 bytes.",
        right * 3: "The attention has 9 query heads, but the cache keeps only the 3 KV heads.",
        right // CONTEXT: "This is one token. How many are there?",
    }
    return known.get(answer, f"{answer:,} is {'more' if answer > right else 'less'} than it needs.")


def _bf16_token(answer: int) -> Verdict:
    right = 2 * LAYERS * KV_HEADS * HEAD_DIM * 2
    if answer == right:
        return None
    return (
        "This is fp32." if answer == 2 * right else f"{answer:,} is {'more' if answer > right else 'less'} than it is."
    )


def _cached_at_peak(answer: int, trace: Trace) -> Verdict:
    state = trace.at(trace.peak_event + 1)
    if answer == state.reserved - state.active:
        return None
    if answer == trace.at(trace.peak_event).reserved - trace.at(trace.peak_event).active:
        return "This is the state before the peak event, one event too early."
    if answer == trace.at(-1).reserved - trace.at(-1).active:
        return "This is the end of the run, not its peak."
    return f"At the peak it is {'less' if answer > state.reserved - state.active else 'more'}."
