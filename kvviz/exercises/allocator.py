"""Notebook 02: rounding and segments, the choice of a block, and a segment that nothing can give back."""

from __future__ import annotations

from collections.abc import Callable

from kvviz.exercises import Exercise, Verdict
from kvviz.memory.allocator import CachingAllocator

MIB = 1 << 20


def exercises() -> list[Exercise]:
    """The exercises of notebook 02."""
    return [
        Exercise(
            "02.1", "What is reserved?", 1, 4,
            "A fresh allocator serves three requests: 700 KiB, 3 MiB, 12 MiB. How many MiB are reserved after them?",
            _reserved,
            "2 MiB for the small one, 20 MiB for the middle one; and the 12 MiB fit into what is left of the 20.",
            ["Small requests, up to 1 MiB, share segments of 2 MiB.", "Requests under 10 MiB share segments of 20 MiB.",
             "A cached block that is large enough is used before a new segment is taken."],
        ),
        Exercise(
            "02.2", "Which hole?", 2, 4,
            "Free blocks of 8 MiB, 5 MiB and 6 MiB lie in one segment, in this order of addresses. A request of 5.5 MiB "
            "comes. Which block serves it? Answer with its size in MiB.",
            _which,
            "Best fit: the smallest one that is large enough. It is not split: the half MiB left over is too little.",
            ["The first one that fits is not what this allocator looks for."],
        ),
        Exercise(
            "02.3", "Pin it down", 3, 10,
            "Write a function that takes a fresh CachingAllocator and uses malloc() and free() so that in the end at most "
            "6 MiB are allocated, at least 100 MiB are reserved, and empty_cache() gives nothing back.\n"
            "Call check(your_function).",
            _pin,
            "A few small survivors hold whole segments. Notebook 03 shows what this does to a real run.",
            ["A segment can be given back only when no block in it is in use.",
             "Requests of just over 1 MiB share segments of 20 MiB: fill some, then free nearly everything.",
             "Keep one block in each of five segments."],
        ),
    ]  # fmt: skip


def _reserved(answer: float) -> Verdict:
    if answer == 22:
        return None
    known = {
        15: "This is about what was asked for, not what was taken from the device.",
        16: "This is about what was asked for, not what was taken from the device.",
        34: "A new segment for the 12 MiB? Look at what is left of the 20 MiB.",
    }
    return known.get(int(answer), f"{answer} MiB is too {'much' if answer > 22 else 'little'}.")


def _which(answer: float) -> Verdict:
    if answer == 6:
        return None
    return {8: "That is the first fit.", 5: "It is too small."}.get(int(answer), "It is one of 8, 5 and 6.")


def _pin(program: Callable[[CachingAllocator], object]) -> Verdict:
    allocator = CachingAllocator(1 << 30)
    program(allocator)
    if allocator.allocated > 6 * MIB:
        return f"{allocator.allocated / MIB:.1f} MiB are still allocated."
    if allocator.reserved < 100 * MIB:
        return f"Only {allocator.reserved / MIB:.0f} MiB are reserved."
    before = allocator.reserved
    allocator.empty_cache()
    if allocator.reserved != before:
        return f"empty_cache() gave {(before - allocator.reserved) / MIB:.0f} MiB back."
    return None
