"""A plan that says "fits" is allocated on PyTorch's own allocator, on a card of 24 GiB; one that says it does not, fails."""

import pytest

import kvviz
from tests.cuda_stub.oracle import in_child

TOKENS = 32_768


def allocated(terms: list[tuple[str, int]]) -> tuple[int, int, str]:
    """Ask for each term as one tensor; (allocated, reserved, the term that failed)."""
    import torch

    held, failed = [], ""
    for name, size in terms:
        try:
            held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            failed = name
            break
    return torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), failed


@pytest.mark.parametrize(
    ("weights", "cache"),
    [("int4", "int4"), ("int4", "int8"), ("int8", "int4"), ("int8", "int8"), ("int4", "bf16"), ("bf16", "bf16")],
)
def test_13b_with_32k_tokens_on_24_gib(weights, cache):
    plan = kvviz.plan("llama-2-13b", "24GiB", TOKENS, dtype=weights, kv_dtype=cache)
    terms = [(term.name, term.bytes) for term in plan.terms]
    used, reserved, failed = in_child(allocated, terms, STUBCUDA_TOTAL_MIB=24576)
    assert bool(failed) == (not plan.fits), failed
    if plan.fits:
        rounding = len(terms) << 20  # a rest of up to 1 MiB is not split off
        assert plan.bytes <= used <= plan.bytes + rounding and reserved <= 24 << 30
