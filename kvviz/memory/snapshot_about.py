"""What a snapshot says beside segments and events: the torch release, the allocator's settings, annotations."""

from __future__ import annotations

from collections import Counter
from typing import Any

from kvviz.errors import InvalidRequest, TraceError
from kvviz.memory.settings import MIB, ROUNDUP_SLOTS, UNLIMITED, Settings, parse
from kvviz.memory.snapshot_columns import Budget, rows_of

LONGEST = 4096  # characters of settings that are read


def generation(snapshot: dict, placed: bool) -> str:
    """The torch releases that write such a file, as far as its keys tell."""
    if "host_segments" in snapshot or "host_traces" in snapshot:
        return "2.14 or later"
    if "external_annotations" in snapshot:
        return "2.5 to 2.13"
    if "allocator_settings" in snapshot:
        return "2.4"
    return "2.1 to 2.3" if placed else "2.0"


def recorded_settings(recorded: Any) -> tuple[str | None, Settings, bool, int | None, list[str]]:
    """The settings as text (None where the file has none) and read; whether the history overflowed; the number of
    events that it could hold; what to tell the reader."""
    if type(recorded) is not dict:
        return None, Settings(), False, None, []
    overflow = recorded.get("trace_alloc_overflowed") is True
    most = recorded.get("trace_alloc_max_entries", recorded.get("max_entries"))
    most = most if type(most) is int and most >= 0 else None
    text = next(
        (recorded[k] for k in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF") if type(recorded.get(k)) is str), ""
    )
    notes: list[str] = []
    try:
        if len(text) > LONGEST:
            raise InvalidRequest(f"{len(text):,} characters")
        given = parse(text)
    except InvalidRequest as problem:
        notes.append(f"the recorded settings are not all known ({' '.join(str(problem).split())[:120]})")
        text, given = text[:LONGEST], Settings()
    told = _from_values(recorded)
    if told is None:
        return text, given, overflow, most, notes
    # what was set in the program's own run counts, not the environment's text
    spelled, values = told
    if all(getattr(given, name) == value for name, value in values.items()):
        return text, given, overflow, most, notes
    try:
        return spelled, parse(spelled), overflow, most, notes
    except InvalidRequest as problem:
        return text, given, overflow, most, [*notes, f"the recorded settings contradict each other ({problem})"]


def _from_values(recorded: dict) -> tuple[str, dict[str, Any]] | None:
    """The settings that are recorded as values, spelled as text, and as fields of Settings; None where one is odd."""
    parts, values = [], dict[str, Any]()
    split = recorded.get("max_split_size", -1)
    expandable = recorded.get("expandable_segments", False)
    threshold = recorded.get("garbage_collection_threshold", 0.0)
    roundup = recorded.get("roundup_power2_divisions", {})
    if (
        type(split) is not int
        or type(expandable) is not bool
        or type(threshold) not in (int, float)
        or type(roundup) is not dict
    ):
        return None
    limited = 0 < split < UNLIMITED
    values["max_split"] = split if limited else UNLIMITED
    if limited:
        parts.append(f"max_split_size_mb:{split // MIB}")
    values["expandable"] = expandable
    if expandable:
        parts.append("expandable_segments:True")
    values["gc_threshold"] = float(threshold)
    if threshold:
        parts.append(f"garbage_collection_threshold:{threshold}")
    slots = tuple(roundup.get(str(1 << k), 0) for k in range(ROUNDUP_SLOTS))
    if not set(map(type, slots)) <= {int}:
        return None
    values["roundup_divisions"] = slots
    if any(slots):
        low = next(k for k, value in enumerate(slots) if value)
        inner = [f"{1 << k}:{value}" for k, value in enumerate(slots) if value]
        uniform = len(set(slots)) == 1
        parts.append(
            f"roundup_power2_divisions:{slots[0]}" if uniform else f"roundup_power2_divisions:[{','.join(inner)}]"
        )
        if low and not uniform:
            return None  # the list form fills all slots below its first key: such settings have no text
    return ",".join(parts), values


def annotations_of(recorded: Any, budget: Budget) -> tuple[list[tuple[int, str]], Counter]:
    """The key external_annotations as (time, text) in order of time, and how many are odd in which way.

    They are of the whole process, may be nested, and may lack their beginning or end.
    """
    odd: Counter = Counter()
    if recorded is None:
        return [], odd
    rows = rows_of(recorded, "external_annotations")
    budget.spend(len(rows))
    out, running = [], Counter[str]()
    for row in rows:
        name, time, stage = row.get("name"), row.get("time_us"), row.get("stage")
        if type(name) is not str or type(time) is not int or not 0 <= time < 1 << 63:
            raise TraceError("an annotation without a name or a time")
        name = name[:200]
        if stage == "END":
            if running[name]:
                running[name] -= 1
            else:
                odd["have an end without a start"] += 1
            out.append((time, f"end of {name}"))
        else:
            running[name] += stage == "START"
            out.append((time, name))
    unfinished = sum(running.values())
    if unfinished:
        odd["have a start without an end"] += unfinished
    return sorted(out, key=lambda pair: pair[0]), odd
