"""kvviz's allocator against PyTorch's own: every address, every counter, every segment, every trace entry.

KVVIZ_FUZZ_WORKLOADS (40) and KVVIZ_FUZZ_OPERATIONS (1000) say how much is run; `make fuzz` runs 200 times 2,500.
"""

import os
import pathlib
from dataclasses import replace

import pytest

from kvviz.memory import allocator
from tests.cuda_stub.oracle import real_outcome
from tests.cuda_stub.shrink import shrink
from tests.cuda_stub.workloads import Workload, first_difference, model_outcome, random_workload

OPERATIONS = int(os.environ.get("KVVIZ_FUZZ_OPERATIONS", "1000"))
FAILING = pathlib.Path(__file__).parents[2] / "build" / "failing"


def difference(workload: Workload) -> str | None:
    return first_difference(real_outcome(workload), model_outcome(workload))


def differs(workload: Workload) -> bool:
    return difference(workload) is not None


def test_random_workload(workload_seed):
    workload = random_workload(workload_seed, OPERATIONS)
    found = difference(workload)
    if found is None:
        return
    small = shrink(workload, differs)
    FAILING.mkdir(parents=True, exist_ok=True)
    path = FAILING / f"{workload_seed}.jsonl"
    small.save(path)
    pytest.fail(
        f"seed {workload_seed}, conf {workload.conf!r}: {found}\n"
        f"shrunk to {len(small.operations)} operations: {difference(small)}\n"
        f"saved as {path}; test_saved_workloads runs it again until you delete it"
    )


def test_saved_workloads():
    """What has failed here before; a file goes when you delete it."""
    found = {path.name: difference(Workload.load(path)) for path in sorted(FAILING.glob("*.jsonl"))}
    assert not any(found.values()), found


def test_a_wrong_rule_is_found_and_shrunk_to_what_shows_it(monkeypatch, tmp_path):
    """The test of the test: a model that splits one step too late differs, and two operations are enough to see it."""
    workload = replace(random_workload(1, 300), conf="", capacity=8 << 30, events="immediate")
    assert not differs(workload)
    monkeypatch.setattr(allocator, "SMALLEST_BLOCK", 1 << 20)
    assert differs(workload)
    small = shrink(workload, differs)
    assert len(small.operations) <= 2
    small.save(tmp_path / "small.jsonl")
    assert Workload.load(tmp_path / "small.jsonl") == small
    assert differs(small)
