"""Totals of a page log after each of its events, from what lived when."""

from __future__ import annotations

import numpy as np

from kvviz.cache.pagelog import Entries, Lengths


def steps(group: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Each value less the one before it in its group; the first of a group as it is."""
    order = np.argsort(group, kind="stable")
    steps = np.empty(len(values), "i8")
    before = np.concatenate([[0], values[order][:-1]]) if len(values) else values
    first = np.concatenate([[True], np.diff(group[order]) != 0]) if len(values) else np.zeros(0, "?")
    steps[order] = values[order] - np.where(first, 0, before)
    return steps


def counted(group: np.ndarray, entries: Entries, events: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """How many entries a group has after each of its births and deaths; by how many that changed; at which event."""
    gone = entries.died < events
    at = np.concatenate([entries.born, entries.died[gone]])
    group = np.concatenate([group, group[gone]])
    step = np.concatenate([np.ones(len(entries.born), "i8"), np.full(int(gone.sum()), -1)])
    order = np.lexsort((step, at, group))
    at, group, step = at[order], group[order], step[order]
    total = np.cumsum(step)
    first = np.flatnonzero(np.diff(group, prepend=-1))
    before = np.repeat((total - step)[first], np.diff(np.append(first, len(group))))
    return total - before, step, at


def in_use(entries: Entries, events: int) -> np.ndarray:
    """Pages in at least one table after 0 … events events."""
    holders, step, at = counted(entries.page, entries, events)
    change = (holders > 0).astype("i8") - (holders - step > 0)
    return np.cumsum(np.bincount(at + 1, change, events + 2)[: events + 1]).astype("i8")


def visible(lengths: Lengths, window: int | None, events: int) -> np.ndarray:
    """Visible tokens of all sequences after 0 … events events."""
    seen = lengths.length - lengths.first
    seen = np.where(lengths.length < 0, 0, seen if window is None else np.minimum(seen, window))
    return np.cumsum(np.bincount(lengths.event + 1, steps(lengths.sequence, seen), events + 2)[: events + 1]).astype(
        "i8"
    )
