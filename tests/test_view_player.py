"""The player's data against a slow re-computation and against Trace.at; its own unit tests in node."""

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from kvviz.view.bundle import player_source
from kvviz.view.layout import flow
from kvviz.view.scene import Scene, format_bytes
from tests.player.traces import random_trace, showcase

HERE = Path(__file__).parent / "player"


@pytest.fixture(scope="module")
def node():
    """Run a script with node; returns what it printed."""
    program = shutil.which("node")
    if program is None:
        pytest.skip("no node here, so the player's data is not checked outside a browser")

    def run(*arguments: str) -> str:
        done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def test_unit_tests_in_node(node):
    node("--test", str(HERE / "data.test.mjs"))


def test_joined_source_is_one_small_module(node, tmp_path):
    source = player_source()
    (tmp_path / "player.mjs").write_text(source)
    node("--check", str(tmp_path / "player.mjs"))
    assert "import " not in source
    assert len(source.encode()) < 50_000


@pytest.mark.parametrize("seed", range(10))
def test_every_state_equals_a_slow_count(node, tmp_path, seed):
    trace, history = random_trace(seed)
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
def test_still_and_player_lay_out_alike(node, seed):
    scene = Scene(random_trace(seed)[0])
    cuts, widths = scene.axis.cuts.tolist(), [280, 1064, 3000]
    rng = np.random.default_rng(seed)
    ranges = [[int(a), int(rng.integers(1, 60_000)), bool(k % 2)] for k, a in enumerate(rng.integers(0, cuts[-1], 20))]
    told = json.dumps({"cuts": cuts, "unit": scene.unit, "widths": widths, "ranges": ranges})
    for width, theirs in zip(widths, json.loads(node(str(HERE / "layouts.mjs"), told)), strict=True):
        ours = flow(scene.axis.cuts, scene.unit, width)
        assert (ours.row_height, ours.height) == (theirs["rowHeight"], theirs["height"])
        assert [list(p) for p in ours.parts] == [
            [p[k] for k in ("start", "units", "x", "y", "w")] for p in theirs["parts"]
        ]
        for (start, units, apart), spans in zip(ranges, theirs["spans"], strict=True):
            assert [s._asdict() for s in ours.spans(start, units, apart)] == spans


def _states(node, folder: Path, trace) -> dict:
    (folder / "packed.bin").write_bytes(Scene(trace).pack("blocks", "t", "s"))
    return json.loads(node(str(HERE / "states.mjs"), str(folder / "packed.bin")))
