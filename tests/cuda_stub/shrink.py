"""A failing workload made small: operations are left out as long as the failure stays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tests.cuda_stub.workloads import Workload


def shrink(workload: Workload, fails: Callable[[Workload], bool], tries: int = 600) -> Workload:
    """The workload with ever smaller parts left out (delta debugging), at most `tries` runs."""
    operations = workload.operations
    part = len(operations) // 2
    while part and tries > 0:
        begin, left_out = 0, False
        while begin < len(operations) and tries > 0:
            rest = operations[:begin] + operations[begin + part :]
            tries -= 1
            if fails(replace(workload, operations=rest)):
                operations, left_out = rest, True
            else:
                begin += part
        if not left_out or part > len(operations):
            part = min(part, len(operations)) // 2
    return replace(workload, operations=operations)
