"""The player's data against a slow re-computation and against Trace.at; its own unit tests in node."""

import json
from pathlib import Path

import numpy as np
import pytest

from kvviz.view.bundle import KINDS, player_source, script, to85
from kvviz.view.layout import bar, flow
from kvviz.view.scene import Scene, format_bytes
from tests.player.node import HERE, run_node
from tests.player.traces import BASE, MIB, SlowMemory, random_trace, showcase


@pytest.fixture(scope="module")
def node():
    return run_node


def test_unit_tests_in_node(node):
    node("--test", str(HERE / "data.test.mjs"))


@pytest.mark.parametrize("kind", KINDS)
def test_joined_source_is_one_small_module(node, tmp_path, kind):
    source = player_source(kind)
    (tmp_path / "player.mjs").write_text(source)
    node("--check", str(tmp_path / "player.mjs"))
    assert "import " not in source and "export " not in source and "KINDS." in source
    assert len(source.encode()) < 120_000
    assert len(script("a", kind, "[]")) < 50_000, "what each picture in a page carries of it"


def test_the_programs_digits_are_bytes_again(node):
    rng = np.random.default_rng(0)
    data = [rng.integers(0, 256, n, "u1").tobytes() for n in range(40)] + [b"\xff" * n for n in range(1, 9)]
    boot = (HERE.parents[1] / "kvviz/view/player/boot.js").as_uri()
    told = node(
        "--input-type=module", "-e", f"import {{from85}} from '{boot}';"
        "console.log(JSON.stringify(JSON.parse(process.argv[1]).map((t) => [...from85(t)])))",
        json.dumps([to85(d) for d in data]),
    )  # fmt: skip
    assert [bytes(values) for values in json.loads(told)] == data
    assert not set(to85(bytes(range(256)) * 99)) & set("<>&$`\"'\\") - {">"}


@pytest.mark.parametrize("seed", range(10))
def test_every_state_equals_a_slow_count(node, tmp_path, seed):
    _compare(node, tmp_path, *random_trace(seed))


def test_addresses_that_other_segments_had_before(node, tmp_path):
    memory = SlowMemory()
    memory.reserve(BASE, 20 * MIB)
    memory.alloc(BASE, 20 * MIB, 20 * MIB - 1)
    memory.free(BASE)
    memory.give_back(BASE)
    for k in (0, 2, 5, 9):  # smaller ones, with holes between, all inside the first
        memory.reserve(BASE + 2 * k * MIB, 2 * MIB)
        memory.alloc(BASE + 2 * k * MIB + 512, MIB, MIB)
    memory.reserve(BASE + 40 * MIB, 4 * MIB, expandable=True)
    memory.reserve(BASE + 44 * MIB, 4 * MIB, expandable=True)
    memory.alloc(BASE + 42 * MIB, 5 * MIB, 5 * MIB)
    _compare(node, tmp_path, memory.trace(), [SlowMemory().moment(), *memory.history])
    axis = Scene(memory.trace()).axis
    assert (axis.cuts * axis.unit // MIB).tolist() == [0, 4, 10, 18, 20, 28], "each byte that was ever reserved, once"


def test_a_part_that_begins_while_a_block_awaits_its_free(node, tmp_path):
    trace = next(t for t, _ in map(random_trace, range(20)) if _waiting(t))
    cut = _waiting(trace)[0]
    part, shown = trace.range(cut, len(trace)), _states(node, tmp_path, trace.range(cut, len(trace)))
    names = ("reserved", "allocated", "active", "requested")
    assert part.at(0).active > part.at(0).allocated, "something awaits its free"
    for i, state in enumerate(shown["states"]):
        whole = trace.at(cut + i)
        assert {n: state[n] for n in names} == {n: getattr(whole, n) for n in names}, f"event {i} of the part"


def _waiting(trace):
    """States in which a block awaits its free, and later gets it."""
    b = trace.lifetimes().blocks
    return [int(f) + 1 for f, d in zip(b.freed, b.died) if 0 <= f < d - 1 and d < len(trace)]


def _compare(node, tmp_path, trace, history):
    shown = _states(node, tmp_path, trace)
    assert len(shown["states"]) == len(trace) + 1 == len(history)
    assert shown["peak"] == trace.peak_event + 1
    for i, (state, truth) in enumerate(zip(shown["states"], history, strict=True)):
        official = trace.at(i)
        for name in ("reserved", "allocated", "active", "requested"):
            assert state[name] == getattr(truth, name) == getattr(official, name), f"{name} after event {i}"
        blocks = {(int(a, 16), size, asked, trace.owners.index(owner), waits)
                  for a, size, asked, owner, waits in state["blocks"]}  # fmt: skip
        assert blocks == truth.blocks, f"blocks after event {i}"
        # the official state joins touching ranges of an expandable segment, and so must the picture
        segments = [(int(a, 16), size) for a, size in state["segments"]]
        assert segments == list(
            zip(official.segments["address"].tolist(), official.segments["size"].tolist(), strict=True)
        )
        assert sum(state["owners"]) == truth.active


@pytest.mark.parametrize("seed", [1, 2])
def test_what_is_shown_says_the_state(node, tmp_path, seed):
    trace, _ = random_trace(seed)
    for i, state in enumerate(_states(node, tmp_path, trace)["states"]):
        official = trace.at(i)
        for name in ("reserved", "allocated", "requested"):
            assert state["figures"][name] == format_bytes(getattr(official, name), fixed=True)
        if official.reserved:
            share = 100 - 100 * official.active / official.reserved
            assert abs(float(state["figures"]["inactive"].removesuffix(" %")) - share) <= 0.0501
        assert f"after event {i} of {len(trace)}" in state["words"]


def test_the_event_line_tells_what_happened(node, tmp_path):
    trace = showcase()
    said = [state["happened"] for state in _states(node, tmp_path, trace)["states"]]
    assert said[0] == ["start before the first event"]
    assert said[1] == ["new segment 20 MiB · large pool"]
    assert said[5] == ["alloc 9 MiB · weights"]
    assert said[14] == ["alloc 64 KiB · KV cache · torch.cat · model.layers.3.self_attn · train.py:12"]
    assert any(line == ["map 20 MiB of an expandable segment"] for line in said)
    assert any(line[0].startswith("free requested 14 MiB · KV (preallocated) · born at event") for line in said)
    assert any(line[0].startswith("free completed 64 KiB") for line in said)
    assert ["segment given back 26 MiB"] in said
    assert all(len(line) == 1 for line in said)


@pytest.mark.parametrize("seed", [3, 4, 6])
@pytest.mark.parametrize("fold", ["none", "some", "all"])
def test_still_and_player_lay_out_alike(node, seed, fold):
    scene = Scene(random_trace(seed)[0])
    cuts, widths = scene.axis.cuts.tolist(), [280, 1064, 3000]
    rng = np.random.default_rng(seed)
    ranges = [[int(a), int(rng.integers(1, 60_000)), bool(k % 2)] for k, a in enumerate(rng.integers(0, cuts[-1], 20))]
    folded = None if fold == "none" else rng.random(len(cuts) - 1) < (0.5 if fold == "some" else 2)
    shares = sorted(rng.integers(1, 1 << 40, 5).tolist(), reverse=True) + [1]
    told = {"cuts": cuts, "unit": scene.unit, "widths": widths, "ranges": ranges, "shares": shares,
            "folded": None if folded is None else folded.tolist()}  # fmt: skip
    for width, theirs in zip(widths, json.loads(node(str(HERE / "layouts.mjs"), json.dumps(told))), strict=True):
        ours = flow(scene.axis.cuts, scene.unit, width, folded)
        assert (ours.row_height, ours.height, ours.top) == (theirs["rowHeight"], theirs["height"], theirs["top"])
        assert [list(p) for p in ours.parts] == [
            [p[k] for k in ("start", "units", "x", "y", "w")] for p in theirs["parts"]
        ]
        for (start, units, apart), spans in zip(ranges, theirs["spans"], strict=True):
            assert [s._asdict() for s in ours.spans(start, units, apart)] == spans
        kept = np.diff(cuts)[~folded] if folded is not None else np.diff(cuts)
        assert sum(part.units for part in ours.parts) == kept.sum(), "every byte that is not folded, once"
        assert all(part.y >= ours.top for part in ours.parts) and (ours.top > 0) == (folded is not None)
        assert theirs["astray"] < 1e-6, "a point on a part leads back to it"
        assert (theirs["above"] == -1) == (folded is not None), "on the bar there are no addresses"
        assert bar(shares, width) == theirs["bar"] and min(theirs["bar"]) >= 2
        assert sum(theirs["bar"]) == pytest.approx(width)


def _states(node, folder: Path, trace) -> dict:
    (folder / "packed.bin").write_bytes(Scene(trace).pack("blocks", "t", "s"))
    return json.loads(node(str(HERE / "states.mjs"), str(folder / "packed.bin")))
