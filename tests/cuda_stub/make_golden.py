"""Records tests/golden: what PyTorch's own allocator did with a few fixed workloads.

    tests/cuda_stub/run.sh tests/cuda_stub/make_golden.py

The same seeds give the same files, byte for byte, as long as the allocator behaves the same.
"""

import json
import pathlib
import random
import zlib
from dataclasses import replace

import numpy as np

from tests.cuda_stub.oracle import real_outcome
from tests.cuda_stub.workloads import MIB, InForce, Outcome, Workload, random_operations

FOLDER = pathlib.Path(__file__).parents[1] / "golden"
DEFAULTS = InForce(large=20, split=float("inf"), expandable=False)

# name: device MiB, streams, settings; then whether blocks are shared, and whether settings change in mid-run
GOLDEN: dict[str, tuple[int, int, str, bool, bool]] = {
    "plain": (6000, 1, "", False, False),
    "small_device": (600, 1, "", False, False),
    "two_streams": (2500, 2, "", True, False),
    "four_streams_manual": (1500, 4, "", True, False),
    "max_split": (2048, 2, "max_split_size_mb:64,max_non_split_rounding_mb:32", False, False),
    "roundup": (3072, 1, "roundup_power2_divisions:[32:4,128:2,>:8]", False, False),
    "garbage_collection": (6144, 2, "garbage_collection_threshold:0.6,per_process_memory_fraction:0.5", False, False),
    "expandable": (2500, 2, "expandable_segments:True", False, False),
    "expandable_max_split": (
        3072, 1, "expandable_segments:True,max_split_size_mb:32,large_segment_size_mb:32", False, False,
    ),
    "changing_settings_bump": (2500, 3, "", True, True),
    "throw_down": (600, 1, "throw_on_cudamalloc_oom:True", False, False),
}  # fmt: skip


def workload_of(name: str) -> Workload:
    capacity, streams, conf, shares, changes = GOLDEN[name]
    workload = Workload(
        capacity * MIB,
        conf,
        placement=next((p for p in ("bump", "down") if name.endswith(p)), "first-fit"),
        events="manual" if name.endswith("manual") else "immediate",
        streams=streams,
    )
    r = random.Random(name)
    operations = random_operations(r, workload, 1500, 1.2, shares, DEFAULTS if changes else None)
    return replace(workload, operations=operations)


def digest(outcome: Outcome) -> int:
    """One number for the segments and the trace at the end: the file need not hold them."""
    return zlib.crc32(repr((outcome.segments, outcome.trace)).encode())


def main() -> None:
    import torch

    about = f"recorded on the allocator of torch {torch.__version__}"
    for name in GOLDEN:
        workload = workload_of(name)
        outcome = real_outcome(workload)
        steps = np.diff(outcome.rows, axis=0, prepend=0).tolist()  # differences: they compress five times as well
        content = {"about": about, **vars(workload), "steps": steps, "digest": digest(outcome)}
        data = zlib.compress(json.dumps(content, separators=(",", ":")).encode(), 9)
        (FOLDER / f"{name}.json.z").write_bytes(data)
        ooms, retries = outcome.rows[-1, 6], outcome.rows[-1, 5]
        print(f"{name:24} {len(workload.operations)} operations, {retries} retries, {ooms} ooms, {len(data)} bytes")


if __name__ == "__main__":
    main()
