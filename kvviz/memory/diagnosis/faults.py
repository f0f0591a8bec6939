"""What is wrong with a run: each fault is looked for by what only it does to memory, and told with its bytes.

    kept            finished steps leave blocks behind, again and again
    views           tensors show less than the storages that they keep alive
    autograd        blocks that no tensor of the program shows, while a graph is there
    fragmentation   reserved memory is free, and living blocks pin it
    does not fit    what is in use and the request are more than the device has
    idle            of a file without a history: much is reserved, and free

None of them is reported for less than a tenth of what the run added to what was there before (MATERIAL).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np

from kvviz.memory.diagnosis.moment import Moment, failed_requests
from kvviz.memory.diagnosis.steps import Kept, Steps
from kvviz.memory.lifetimes import BlockSpans, rows
from kvviz.memory.report import Finding, bytes_text, count_text
from kvviz.memory.settings import SMALL_REQUEST
from kvviz.memory.trace import Trace
from kvviz.memory.whose import site, whose

MATERIAL = 0.1
CUT = 0.02  # of the peak, where a trace is a part of a run: what that part added says little
SMALLEST = 16 << 10  # bytes: less is nobody's problem
GRANULAR = 64 << 20  # reserved comes in segments of up to 20 MiB for each kind of request: a few of them are normal
WASTED = 0.2  # of the reserved peak: what was never active at a time
CAUSE = 0.25  # a fault with this share of the fragmented bytes is named before the fragmentation that it makes
NAMED = 3  # call sites or owners that a sentence lists


@dataclass
class Case:
    """A trace on one device, and what the faults are looked for in."""

    trace: Trace
    device: int

    @cached_property
    def steps(self) -> Steps:
        return Steps(self.trace, self.device)

    @cached_property
    def added(self) -> int:
        """Most bytes that were active at a time, less those at the start."""
        active = self.trace.curves(self.device).active
        return int(active.max() - active[0])

    def material(self, size: int) -> bool:
        floor = CUT * int(self.trace.curves(self.device).active.max()) if self.trace.about.get("cut") else 0
        return size >= max(SMALLEST, MATERIAL * self.added, floor)

    @cached_property
    def failed(self) -> int | None:
        """Index of the event at which memory ran out first."""
        events = failed_requests(self.trace, self.device)
        return int(events[0]) if len(events) else None

    @cached_property
    def capacity(self) -> int | None:
        """Bytes that PyTorch could get: the device's, or, at an out of memory, what it had and what was left."""
        known = self.trace.about.get("capacity")
        if self.failed is None:
            return known
        left = int(self.trace.events.address[self.failed])  # of an OOM event
        had = int(self.trace.curves(self.device).reserved[self.failed])
        return min(known or had + left, had + left) if left else known or had

    @cached_property
    def moment(self) -> Moment:
        """When memory ran out; else when most was reserved and, of these moments, most of it free."""
        if self.failed is not None:
            return Moment(self.trace, self.failed, self.device)
        curves = self.trace.curves(self.device)
        full = np.flatnonzero(curves.reserved == curves.reserved.max())
        return Moment(self.trace, int(full[np.argmin(curves.active[full])]), self.device)

    @cached_property
    def shown(self) -> dict[int, int] | None:
        """Address -> bytes that tensors showed in the end; None where nobody looked (a file, a replay)."""
        seen = self.trace.about.get("tensors")
        return None if not isinstance(seen, dict) else {int(a): int(size) for a, size in seen["shown"]}

    @cached_property
    def unseen(self) -> np.ndarray:
        """A mask over the blocks: alive in the end, made by this run, shown by no tensor, while there is a graph."""
        blocks = self.trace.lifetimes(self.device).blocks
        if self.shown is None or not self.trace.about["tensors"]["graphs"]:
            return np.zeros(len(blocks), "?")
        seen = np.isin(blocks.address, np.array(list(self.shown), "u8"))
        return (blocks.freed == len(self.trace)) & (blocks.born >= 0) & ~seen

    @cached_property
    def kept(self) -> list[Kept]:
        """What accumulates, step by step, without what autograd keeps: owners each by itself, call sites together."""
        found: list[Kept] = []
        sites: list[Kept] = []
        for kept in self.steps.kept(self.unseen):
            if kept.owner and "cache" in kept.name and not self.steps.marked:
                kept = self._old(kept)  # the newest state of a cache may lie in several windows of one step
            if not len(kept.blocks) or not kept.accumulates:
                continue
            (found if kept.owner else sites).append(kept)
        if sites:
            found.append(sites[0] if len(sites) == 1 else self._together(sites))
        return sorted((k for k in found if self.material(k.bytes)), key=lambda k: -k.bytes)

    def _old(self, kept: Kept) -> Kept:
        blocks = rows(kept.blocks, np.flatnonzero(kept.outlived))
        return replace(kept, blocks=blocks, steps=self.steps.of_each_step(blocks), outlived=kept.outlived[kept.outlived])

    def _together(self, sites: list[Kept]) -> Kept:
        names = [f.name for f in fields(BlockSpans)]
        columns = {name: np.concatenate([getattr(k.blocks, name) for k in sites]) for name in names}
        blocks = BlockSpans(**columns)
        outlived = np.concatenate([k.outlived for k in sites])
        return Kept(count_text(len(sites), "call site"), 0, blocks, self.steps.of_each_step(blocks), outlived)


def faults(case: Case) -> list[Finding]:
    """All that is found, the weightiest first."""
    programs = [f for f in (*(kept(case, k) for k in case.kept), views(case), autograd(case)) if f is not None]
    programs.sort(key=lambda finding: -finding.bytes)
    device = [f for f in (fragmentation(case), does_not_fit(case), idle(case)) if f is not None]
    causes = [f for f in programs if not device or f.bytes >= CAUSE * device[0].bytes]
    return causes + device + [f for f in programs if f not in causes]


def kept(case: Case, found: Kept) -> Finding:
    steps, leaving = case.steps, found.leaving
    usual = int(np.median(found.steps[leaving]))
    names = ""
    if steps.marked:
        ends = {mark.event: mark.name for mark in case.trace.marks}
        told = [ends[int(steps.edges[k + 1])] for k in leaving.tolist() if int(steps.edges[k + 1]) in ends]
        names = f" ({', '.join(told[:NAMED])}{', …' if len(told) > NAMED else ''})" if told else ""
    sites = Counter[str]()
    for stack, size in zip(found.blocks.stack.tolist(), found.blocks.size.tolist(), strict=True):
        if stack >= 0:
            sites[site(case.trace, stack)] += size
    asked = f" Asked for at {_listed(sites)}." if sites and (found.owner or len(sites) > 1) else ""
    text = (
        f"{bytes_text(found.bytes)} in {count_text(len(found.blocks), 'block')} of “{found.name}” are still allocated in "
        f"the end, though the steps that made them are over: {len(leaving)} of {steps.counted(len(found.steps))}"
        f"{names} left {bytes_text(usual)} each in the median, and none of it was freed. Something of the program still "
        f"refers to them; kvviz.holders(…) says what, in the program itself.{asked}"
    )
    return Finding("kept caches" if "cache" in found.name else "kept memory", text, found.bytes, "kept")


def views(case: Case) -> Finding | None:
    if not case.shown:
        return None
    blocks = case.trace.lifetimes(case.device).blocks
    alive = np.flatnonzero((blocks.freed == len(case.trace)) & (blocks.born >= 0))  # what was there before is not this run's
    more, count, whole, by = 0, 0, 0, Counter[str]()
    for k in alive.tolist():
        size, shows = int(blocks.requested[k]), case.shown.get(int(blocks.address[k]))
        if shows is not None and shows < size:
            more, count, whole = more + size - shows, count + 1, whole + size
            by[whose(case.trace, int(blocks.owner[k]), int(blocks.stack[k]))] += size - shows
    if not count or not case.material(more):
        return None
    text = (
        f"{bytes_text(more)} are kept by views: {count_text(count, 'storage')} of {bytes_text(whole)} in all, of which the "
        f"tensors that are left show {bytes_text(whole - more)}. A slice keeps its whole storage alive until it is cloned. "
        f"Whose: {_listed(by)}."
    )
    return Finding("sliced, not cloned", text, more, "views")


def autograd(case: Case) -> Finding | None:
    blocks = case.trace.lifetimes(case.device).blocks
    picked = np.flatnonzero(case.unseen)
    size = int(blocks.size[picked].sum())
    if not len(picked) or not case.material(size):
        return None
    by = Counter[str]()
    for k in picked.tolist():
        by[whose(case.trace, int(blocks.owner[k]), int(blocks.stack[k]))] += int(blocks.size[k])
    graphs = case.trace.about["tensors"]["graphs"]
    cache = sum(
        int(blocks.size[k]) for k in picked.tolist() if "cache" in case.trace.owners[int(blocks.owner[k])]
    )
    of_cache = f", {bytes_text(cache)} of it earlier states of the cache" if cache else ""
    text = (
        f"{bytes_text(size)} in {count_text(len(picked), 'block')} are alive and shown by no tensor of the program"
        f"{of_cache}: the graph that autograd builds for a backward pass keeps them, through "
        f"{count_text(graphs, 'tensor')} with a grad_fn. Without backward() no graph is needed. Whose: {_listed(by)}."
    )
    return Finding("kept by autograd", text, size, "autograd")


def fragmentation(case: Case) -> Finding | None:
    moment, curves = case.moment, case.trace.curves(case.device)
    by = f": {_pinned(moment)}" if moment.pins else ""
    pinned = f"{bytes_text(moment.pinned)} are free but pinned{by}."
    state = moment.state
    if case.failed is not None:
        request = int(case.trace.events.size[case.failed])
        left = int(case.trace.events.address[case.failed])
        if not moment.free or state.active + request > (case.capacity or state.reserved):
            return None
        more = f" and the device had {bytes_text(left)} left" if left else ""
        text = (
            f"{bytes_text(request)} were refused while {bytes_text(moment.free)} of what PyTorch had reserved were free"
            f"{more}: the largest free block {pool_of(request)}is {bytes_text(moment.largest_for(request))}. {pinned}"
        )
        return Finding("fragmentation at the out of memory", text, moment.free, "fragmentation")
    # what was reserved when the trace begins may have been in use before
    wasted = int(curves.reserved.max() - max(curves.active.max(), curves.reserved[0]))
    if wasted < max(GRANULAR, WASTED * int(curves.reserved.max())):
        return None
    text = (
        f"{bytes_text(wasted)} were reserved beyond all that was ever in use at a time: reserved peaked at "
        f"{bytes_text(int(curves.reserved.max()))}, active at {bytes_text(int(curves.active.max()))}. At {moment.where}, "
        f"{bytes_text(moment.free)} are free in pieces between blocks that stay, the largest "
        f"{bytes_text(state.largest_free)}: empty_cache() would give back {bytes_text(state.releasable)}, and {pinned}"
    )
    return Finding("fragmentation by survivors", text, wasted, "fragmentation")


def idle(case: Case) -> Finding | None:
    """A run that ends with much in the cache is a healthy one; a file that holds only this state was made to ask of it."""
    moment = case.moment
    if len(case.trace) > 1 or moment.free < max(GRANULAR, WASTED * moment.state.reserved):
        return None
    text = (
        f"{bytes_text(moment.free)} of {bytes_text(moment.state.reserved)} reserved are free: empty_cache() would give back "
        f"{bytes_text(moment.state.releasable)}, for other programs or for requests of other sizes; "
        f"{bytes_text(moment.pinned)} are pinned: {_pinned(moment)}."
    )
    return Finding("reserved, but free", text, moment.free, "idle")


def _pinned(moment: Moment) -> str:
    return "; ".join(
        f"{bytes_text(pin.free)} in {count_text(pin.segments, 'segment')} by {count_text(pin.blocks, 'block')} of {pin.whose} "
        f"({bytes_text(pin.bytes)})"
        for pin in moment.pins[:NAMED]
    )


def does_not_fit(case: Case) -> Finding | None:
    if case.failed is None or fragmentation(case) is not None:
        return None
    e, moment = case.trace.events, case.moment
    request = int(e.size[case.failed])
    device = f" of {bytes_text(case.capacity)}" if case.capacity else ""
    text = (
        f"{bytes_text(request)} were refused with {bytes_text(moment.state.active)} in use and {bytes_text(moment.free)} "
        f"free{device}: together this is more than there is, however it is laid out. In use: {_listed(moment.by_owner())}."
    )
    return Finding("more in use than the device has", text, request, "does not fit")


def pool_of(request: int) -> str:
    """ "of the pool for small requests ", where the largest free block of all would mislead."""
    return "of the pool for requests up to 1 MiB " if request <= SMALL_REQUEST else ""


def _listed(sizes: Counter[str]) -> str:
    ranked = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))
    rest = sum(size for _, size in ranked[NAMED:])
    told = [f"{name} {bytes_text(size)}" for name, size in ranked[:NAMED]]
    return ", ".join(told + ([f"{len(ranked) - NAMED} more {bytes_text(rest)}"] if rest else []))
