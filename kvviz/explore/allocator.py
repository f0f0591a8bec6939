"""AllocatorExplorer: one workload under two settings of PyTorch's allocator, side by side."""

from __future__ import annotations

import io
from dataclasses import fields, replace
from functools import cache, lru_cache
from typing import Any, ClassVar

import numpy as np
from PIL import Image

from kvviz.errors import InvalidRequest
from kvviz.explore.explorer import Explorer, Outcome
from kvviz.explore.panels import Panel
from kvviz.explore.programs import MIB, PROGRAMS
from kvviz.explore.setting import Setting, Settings
from kvviz.explore.told import name, numbers, words
from kvviz.explore.workloads import Recording, Run, workloads
from kvviz.memory.trace import Events, Trace
from kvviz.view import poster
from kvviz.view.charts import thin
from kvviz.view.html import View
from kvviz.view.scene import Scene

AS_RECORDED = "as recorded"
GC_LIMIT = "per_process_memory_fraction:0.99"
AGAINST = (
    "", "expandable_segments:True", *(f"max_split_size_mb:{m}" for m in (20, 64, 128, 256, 512)),
    "max_split_size_mb:128,expandable_segments:True", *(f"roundup_power2_divisions:{d}" for d in (2, 4, 8)),
    *(f"garbage_collection_threshold:{t},{GC_LIMIT}" for t in (0.6, 0.8)),
)  # fmt: skip
CAPACITIES = (256, 512, 700, 1024, 2048, 4096, 8192, 16384, 24576, 40960, 81920)  # MiB
MAPPED = 10_000  # events of a recorded run that its map shows: a longer one would make every change slow
POINTS = 120  # in each line of the chart
MANY = 20_000  # events from which on a recorded form has few states, since each is a replay


class AllocatorExplorer(Explorer):
    """A workload, settings of PyTorch's allocator, and what they change: A's map beside B's, and the three numbers.

        explorer = kvviz.AllocatorExplorer()                 # small programs
        explorer = kvviz.AllocatorExplorer(trace)            # a recorded run; or a list or dict of such
        explorer.max_split_size_mb.value = 20                # as if a reader moved B's slider
        explorer.outcome.figures["b_reserved"]               # bytes

    A's settings are `against`: the defaults, or those of the recorded run; any string as in PYTORCH_CUDA_ALLOC_CONF may
    be given. capacity: MiB, 0 for 24 GiB, or the recorded device's. A workload may be a function of a CachingAllocator.

    Everything is the model of PyTorch's allocator, exact to the byte. Programs are looked at when they have ended,
    recorded runs when most is allocated, and both, if they run out of memory, when they do.
    """

    title = "What the allocator's settings change"
    label_width: ClassVar[int] = 215
    settings: ClassVar[Settings] = {
        "workload": Setting("workload", tuple(PROGRAMS), next(iter(PROGRAMS)), tuple(PROGRAMS), tuple(PROGRAMS), True),
        "capacity": Setting("capacity", (0, *CAPACITIES), 0, (0, 700), ("24 GiB", *(f"{c:,} MiB" for c in CAPACITIES))),
        "against": Setting("A: settings", AGAINST, "", (), tuple(map(name, AGAINST)), True),
        "expandable_segments": Setting("B: expandable_segments", (False, True), False, (False, True), ("off", "on")),
        "max_split_size_mb": Setting(
            "B: max_split_size_mb",
            (0, 20, 64, 128, 256, 512),
            0,
            (0, 20),
            ("off", "20", "64", "128", "256", "512"),
        ),
        "roundup_power2_divisions": Setting(
            "B: roundup_power2_divisions", (0, 2, 4, 8), 0, (0, 4), ("off", "2", "4", "8")
        ),
        "garbage_collection_threshold": Setting(
            "B: garbage_collection_threshold", (0, 0.6, 0.8), 0, (), ("off", "0.6", "0.8")
        ),
    }

    def __init__(self, given: Any = None, /, **chosen: Any):
        self.workloads = workloads(PROGRAMS if given is None else given)
        self._run = lru_cache(maxsize=16)(self._run_anew)  # A stays while B changes
        super().__init__(self._offer(chosen.get("against")), **chosen)

    def _offer(self, against: Any) -> Settings:
        """The settings, as they suit the workloads and what is asked for as A."""
        names, runs = tuple(self.workloads), [w for w in self.workloads.values() if isinstance(w, Recording)]
        if against is not None and not isinstance(against, str):
            raise InvalidRequest(f'against is a string such as "max_split_size_mb:64", not {against!r}')
        offered = dict(self.settings)
        confs = ((AS_RECORDED,) if runs else ()) + AGAINST
        confs += () if against is None or against in confs else (against,)
        offered["against"] = offered["against"]._replace(
            values=confs, texts=tuple(map(name, confs)), first=AS_RECORDED if runs else ""
        )
        offered["workload"] = Setting("workload", names, names[0], names, names, True)
        if runs:
            own = AS_RECORDED if len(runs) == len(names) else f"24 GiB, or {AS_RECORDED}"
            texts = (own, *self.settings["capacity"].texts[1:])
            # a device of 700 MiB would mean nothing to a recorded run
            offered["capacity"] = offered["capacity"]._replace(texts=texts, recorded=())
        if any(len(run.trace) > MANY for run in runs):
            for setting in ("max_split_size_mb", "roundup_power2_divisions"):
                offered[setting] = offered[setting]._replace(recorded=())
        return offered

    def _run_anew(self, workload: str, conf: str, capacity: int) -> Run:
        return self.workloads[workload].run(conf, capacity)

    def measure(self, workload: str, capacity: int, against: str, **settings: Any) -> Outcome:
        source = self.workloads[workload]
        if against == AS_RECORDED:
            against = source.conf if isinstance(source, Recording) else ""
        a, b = self._run(workload, against, capacity), self._run(workload, conf_of(**settings), capacity)
        figures = {f"{which}_{key}": value for which, run in (("a", a), ("b", b)) for key, value in run.figures.items()}
        note = f"PyTorch's allocator, modelled{', a replay' * source.recorded}"
        return Outcome(moving(b, "B"), [_chart(a, b)], note, figures, words(a, b), moving(a, "A"), numbers(a, b))

    def forms(self, view: View) -> dict[str, Any]:
        """Without the still picture: drawing it takes longer than all the rest, and here a player runs."""
        lively = View(view.title, view.words, _blank(), data=view.data, kind=view.kind)
        return {"text/plain": repr(view), "text/html": lively.html}


def conf_of(
    expandable_segments: bool,
    max_split_size_mb: int,
    roundup_power2_divisions: int,
    garbage_collection_threshold: float,
) -> str:
    """B's settings as PYTORCH_CUDA_ALLOC_CONF has them."""
    return ",".join(
        [f"max_split_size_mb:{max_split_size_mb}"] * bool(max_split_size_mb)
        + ["expandable_segments:True"] * bool(expandable_segments)
        + [f"roundup_power2_divisions:{roundup_power2_divisions}"] * bool(roundup_power2_divisions)
        + [f"garbage_collection_threshold:{garbage_collection_threshold},{GC_LIMIT}"]
        * bool(garbage_collection_threshold)
    )


def moving(run: Run, which: str) -> View:
    """The block map at the run's moment; of a long run the events around it. Its still picture is drawn when asked for."""
    trace, moment, told = _around(run.trace, run.moment)
    scene = Scene(trace, run.device, moment, fold=False)  # one may fold where the other does not: hard to compare
    title = f"{which} · {name(run.conf)}"
    subtitle = f"{run.when[0].upper()}{run.when[1:]}{told} · colour = owner, hatch = reserved but inactive"
    words = f"{title}. {scene.words(mapped=True)}"

    def still() -> bytes:
        return poster.block_map(scene, title, subtitle)

    return View(title, words, still, data=scene.pack("blocks", title, subtitle, subtitle))


def _around(trace: Trace, moment: int) -> tuple[Trace, int, str]:
    """At most MAPPED events with the moment near their end, the moment among them, and words for what was left out."""
    if len(trace) <= MAPPED:
        return trace, moment, ""
    stop = min(len(trace), max(MAPPED, moment + MAPPED // 10))
    start = stop - MAPPED
    tail = trace.last(len(trace) - start)
    events = Events(*(getattr(tail.events, f.name)[:MAPPED] for f in fields(Events)))
    told = f" · events {start + 1:,} to {stop:,} of {len(trace):,}"
    marks = [mark for mark in tail.marks if mark.event <= MAPPED]
    part = replace(tail, events=events, marks=marks, warnings=[*trace.warnings, f"this map shows{told[2:]}"])
    return part, moment - start, told


def _chart(a: Run, b: Run) -> Panel:
    """Reserved of both over the program's acts, and what the program asked for, as far as the longer one got."""
    longer = max((a, b), key=lambda run: (run.refused is None, len(run.course[1])))
    lines = {"A": a.course[0], "B": b.course[0], "asked for": longer.course[1]}
    gib = max(int(y.max()) for y in lines.values()) >= 10 << 30
    unit = MIB << 10 if gib else MIB
    # the same acts of all lines, so that they have one x; each line's extremes stay, and its end
    acts = np.unique(np.concatenate([np.append(thin(y, POINTS), len(y) - 1) for y in lines.values()]))
    x = np.concatenate([[0], acts + 1])

    def steps(y: np.ndarray) -> list[float]:
        """The value after each act, all along the act."""
        return (np.repeat(y[acts[acts < len(y)]], 2) / unit).tolist()

    ends = {which: f"{which}: out of memory" for which, run in (("A", a), ("B", b)) if run.refused is not None}
    return Panel(
        f"Reserved, {'GiB' if gib else 'MiB'}", "requests and frees so far",
        np.repeat(x, 2)[1:-1].tolist(), {label: steps(y) for label, y in lines.items() if len(y)},
        choices=False, ends=ends, width=440, nested=True,
    )  # fmt: skip


@cache
def _blank() -> bytes:
    """Nothing, in about the shape of a map: it keeps the room until the player stands there."""
    out = io.BytesIO()
    Image.new("LA", (8, 6), (255, 0)).save(out, "PNG")
    return out.getvalue()
