"""Notebook 03: how large a device must be, which settings undo the smallest case, and an order that avoids it."""

from __future__ import annotations

from collections.abc import Callable

from kvviz.errors import InvalidRequest, OutOfMemory
from kvviz.exercises import Exercise, Verdict
from kvviz.memory.allocator import CachingAllocator

MIB = 1 << 20


def exercises() -> list[Exercise]:
    """The exercises of notebook 03."""
    return [
        Exercise(
            "03.1", "A larger card", 1, 4,
            "The program of the smallest case (530 MiB taken and freed, then 270 MiB twice), with the default settings. How "
            "many MiB must the device have at least, so that it fits?",
            _device,
            "The segment of 530 stays pinned by the first 270, and the second 270 needs a segment of its own.",
            ["The segment of 530 MiB cannot be given back while the first 270 MiB lie in it."],
        ),
        Exercise(
            "03.2", "Another cure", 2, 5,
            "Find a settings string, other than max_split_size_mb:20, with which that program fits on 700 MiB.",
            _cure,
            "No cut is made, or it does no harm, or the pieces fit.",
            ["The notebook tries four settings; not only one of them helps.",
             "max_split_size_mb also takes other values. Which blocks must not be split?"],
        ),
        Exercise(
            "03.3", "The same requests in another order", 3, 10,
            "Write a function that takes a fresh CachingAllocator of 700 MiB and makes the same three requests (530, 270 and "
            "270 MiB, each freed at some time) in another order, with the default settings, without an out of memory.\n"
            "Call check(your_function).",
            _order,
            "What is freed before the large request comes can be given back, if nothing else lies in its segments.",
            ["Let the small ones be first.", "When the large request finds no room, all free segments are given back."],
        ),
    ]  # fmt: skip


def _smallest_case(device: int, conf: str = "") -> bool:
    allocator = CachingAllocator(device, conf)
    try:
        allocator.free(allocator.malloc(530 * MIB))
        allocator.malloc(270 * MIB)
        allocator.malloc(270 * MIB)
    except OutOfMemory:
        return False
    return True


def _device(answer: float) -> Verdict:
    if answer != int(answer):
        return "A whole number of MiB, please."
    if not _smallest_case(int(answer) * MIB):
        return f"On {answer} MiB it runs out of memory."
    return (
        None if not _smallest_case((int(answer) - 1) * MIB) else f"It fits, but it fits on {int(answer) - 1} MiB too."
    )


def _cure(answer: str) -> Verdict:
    if "max_split_size_mb:20" in [part.strip() for part in answer.split(",")]:
        return "This one you know already."
    try:
        return None if _smallest_case(700 * MIB, answer) else "With this it still runs out of memory."
    except InvalidRequest as problem:
        return f"The allocator refuses it: {problem}."


def _order(program: Callable[[CachingAllocator], object]) -> Verdict:
    allocator = CachingAllocator(700 * MIB)
    try:
        program(allocator)
    except OutOfMemory:
        return "Out of memory."
    events = allocator.trace.events
    asked = sorted(
        int(size) // MIB for size, action in zip(events.requested, events.action, strict=True) if action == 0
    )
    if sorted(asked) != [270, 270, 530]:
        return f"It should request 270, 270 and 530 MiB; it requests {sorted(asked)}."
    if asked[0] == 530:
        return "The 530 MiB come first here, as in the program that failed."
    if allocator.conf:
        return "The settings are no longer the default ones."
    return None if not allocator.allocated else "Not everything is freed in the end."
