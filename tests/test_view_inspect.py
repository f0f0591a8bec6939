"""What the player's panels say, against the report of kvviz.diagnose and the totals of the trace."""

import json

import numpy as np
import pytest

from kvviz import CachingAllocator
from kvviz.memory.diagnosis.moment import Moment
from kvviz.memory.trace import Events, Trace
from kvviz.view.scene import Scene
from kvviz.view.theme import COLORS
from tests.player.node import HERE, run_node
from tests.player.traces import MIB, random_trace, settled, showcase


def test_unit_tests_in_node():
    run_node("--test", str(HERE / "inspect.test.mjs"))


def served(conf: str, seed: int) -> Trace:
    """A few hundred requests of PyTorch's own sizes, on the model of its allocator."""
    rng, memory, held = np.random.default_rng(seed), CachingAllocator(8 << 30, conf=conf), []
    for _ in range(250):
        if held and rng.random() < 0.45:
            memory.free(held.pop(int(rng.integers(len(held)))))
        else:
            size = rng.choice([700, 40_000, 900_000, 3 * MIB, 11 * MIB, 47 * MIB])
            held.append(memory.malloc(int(size), stream=int(rng.integers(2))))
    memory.synchronize()
    return memory.trace


TRACES = {
    "showcase": showcase, "settled": settled, "random 1": lambda: random_trace(1)[0], "random 4": lambda: random_trace(4)[0],
    "random 5": lambda: random_trace(5)[0], "segments": lambda: served("", 1),
    "expandable": lambda: served("expandable_segments:True", 2),
}  # fmt: skip


@pytest.mark.parametrize("name", TRACES)
def test_pins_and_breakdown_are_those_of_diagnose(tmp_path, name):
    trace = TRACES[name]()
    events = sorted({0, 1, len(trace), trace.peak_event + 1, *range(0, len(trace), 7)})
    told, pinned = tell(tmp_path, trace, events), 0
    for i, said in zip(events, told, strict=True):
        moment = Moment(trace, i, 0)
        assert said["pins"] == [[p.free, p.segments, p.blocks, p.bytes, p.by] for p in moment.pins], f"after event {i}"
        assert said["pinned"] == moment.pinned and said["free"] == moment.free
        assert said["largest"] == moment.state.largest_free
        assert said["owners"] == dict(moment.by_owner()) and said["sites"] == dict(moment.by_site())
        assert (said["active"], said["allocated"]) == (moment.state.active, moment.state.allocated)
        assert said["same"], "the cursor may stand anywhere"
        assert sorted(map(tuple, said["pools"])) == pools(moment)
        pinned += moment.pinned
    assert pinned, "a trace in which nothing is pinned shows nothing here"


def tell(folder, trace, events):
    (folder / "packed.bin").write_bytes(Scene(trace).pack("blocks", "t", "s"))
    return json.loads(run_node(str(HERE / "panels.mjs"), str(folder / "packed.bin"), *map(str, events)))


def pools(moment):
    """(address, 1 for the small pool + 2 for an expandable segment) of each active block."""
    segments, blocks = moment.state.segments, moment.state.blocks[moment.state.blocks["state"] != 0]
    home = segments[np.searchsorted(segments["address"], blocks["address"], side="right") - 1]
    kinds = home["small"].astype(int) + 2 * home["expandable"]
    return sorted(zip((hex(a) for a in blocks["address"].tolist()), kinds.tolist(), strict=True))


def test_a_time_where_the_trace_has_them(tmp_path):
    trace = random_trace(1)[0]
    count = len(trace)
    times = np.cumsum(np.full(count, 1000)) + 10**15  # one event a millisecond
    columns = {name: getattr(trace.events, name) for name in vars(trace.events)}
    timed = Trace(Events(**{**columns, "time_us": times}), entry=trace.entry, owners=trace.owners, stacks=trace.stacks)
    said = [state["time"] for state in tell(tmp_path, timed, [1, 51])]
    assert said == ["about 0 µs after the first event here", "about 50.0 ms after the first event here"]
    assert tell(tmp_path, trace, [1])[0]["time"] == "", "all its times are alike"
    columns["time_us"] = np.where(np.arange(count) < 3, 0, times)  # of the first ones nobody knows when they were
    late = Trace(Events(**columns), entry=trace.entry, owners=trace.owners, stacks=trace.stacks)
    assert [state["time"] for state in tell(tmp_path, late, [1, 51])] == [
        "about 0 µs after the first event here", "about 47.0 ms after the first event here"
    ]  # fmt: skip


def test_the_palette_is_that_of_the_stills():
    source = (HERE.parent.parent / "kvviz/view/player/colours.js").read_text()
    palette = source.partition("const PALETTE = ")[2].partition(";")[0]
    assert json.loads(palette) == list(COLORS)
