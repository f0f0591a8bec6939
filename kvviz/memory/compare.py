"""compare(): two runs side by side, by what they hold and where it was asked for; never by address."""

from __future__ import annotations

from collections import Counter

import numpy as np

from kvviz.memory.check import traced
from kvviz.memory.report import Finding, Report, bytes_text, count_text
from kvviz.memory.state import State
from kvviz.memory.trace import Action, Trace
from kvviz.memory.whose import site

MOST = 8  # lines of a table: the largest differences


def compare(a: Trace, b: Trace, device: int = 0) -> Report:
    """What `b` does otherwise than `a`: totals, and at their peaks the blocks by owner, call site and size.

    Two runs of one program differ in every address and in no size: then the report has no finding. Differences are
    given in both directions, `b` less `a`, in bytes.
    """
    findings = [*_totals(traced(a), traced(b), device)]
    for title, key in (("owner", _by_owner), ("call site", _by_site), ("block size", _by_size)):
        findings += _table(title, key(a, device), key(b, device))
    findings += _requests(a, b, device)
    head = f"{a.origin} ({len(a):,} events) against {b.origin} ({len(b):,} events)"
    return Report(f"Comparison: {head}", findings, nothing="No difference in sizes, owners or call sites.")


def _totals(a: Trace, b: Trace, device: int) -> list[Finding]:
    out = []
    for name in ("allocated", "reserved"):
        x, y = (int(getattr(t.curves(device), name).max()) for t in (a, b))
        if x != y:
            out.append(Finding(f"peak {name}", f"{bytes_text(x)} → {bytes_text(y)} ({_signed(y - x)})", y - x))
    x, y = (int((t.events.action[t.events.device == device] == Action.OOM).sum()) for t in (a, b))
    if x != y:
        out.append(Finding("out of memory", f"{x} → {y} times", 0))
    return out


def _table(title: str, a: Counter, b: Counter) -> list[Finding]:
    change = {key: b[key] - a[key] for key in {*a, *b} if a[key] != b[key]}
    ranked = sorted(change, key=lambda key: (-abs(change[key]), str(key)))
    out = [
        Finding(
            f"at the peak, {title} {key}",
            f"{bytes_text(a[key])} → {bytes_text(b[key])} ({_signed(change[key])})",
            change[key],
        )
        for key in ranked[:MOST]
    ]
    if len(ranked) > MOST:
        rest = sum(change[key] for key in ranked[MOST:])
        out.append(Finding(f"at the peak, {count_text(len(ranked) - MOST, f'more {title}')}", _signed(rest), rest))
    return out


def _requests(a: Trace, b: Trace, device: int) -> list[Finding]:
    """All requests of the runs, by size: what one asked for and the other did not."""
    x, y = (
        Counter(t.events.requested[(t.events.action == Action.ALLOC) & (t.events.device == device)].tolist())
        for t in (a, b)
    )
    more, fewer = y - x, x - y
    if not more and not fewer:
        return []

    def text(sizes: Counter) -> str:
        largest = max(sizes, key=lambda size: size * sizes[size])
        return f"{sum(sizes.values()):,} requests, most of it {sizes[largest]:,} × {bytes_text(largest)}"

    out = [Finding("only in the second", text(more), sum(s * n for s, n in more.items()))] if more else []
    return out + ([Finding("only in the first", text(fewer), -sum(s * n for s, n in fewer.items()))] if fewer else [])


def _at_peak(trace: Trace, device: int) -> np.ndarray:
    peak = int(np.argmax(trace.curves(device).allocated))
    blocks = trace.at(peak, device).blocks
    return blocks[blocks["state"] == State.ALLOCATED]


def _by_owner(trace: Trace, device: int) -> Counter:
    blocks = _at_peak(trace, device)
    return _sum((trace.owners[o] for o in blocks["owner"].tolist()), blocks["size"].tolist())


def _by_site(trace: Trace, device: int) -> Counter:
    blocks = _at_peak(trace, device)
    return _sum((site(trace, s) for s in blocks["stack"].tolist()), blocks["size"].tolist())


def _by_size(trace: Trace, device: int) -> Counter:
    sizes = _at_peak(trace, device)["size"].tolist()
    return _sum((f"{size:,} B" for size in sizes), sizes)


def _sum(keys, sizes) -> Counter:  # type: ignore[no-untyped-def]
    total: Counter = Counter()
    for key, size in zip(keys, sizes, strict=True):
        total[key] += size
    return total


def _signed(change: int) -> str:
    return f"{'+' if change >= 0 else '−'}{bytes_text(abs(change))}"
