"""These tests run over the stub CUDA runtime: `make test-cuda`. Anywhere else they are not collected."""

import os

from tests.cuda_stub import oracle

if not oracle.present():
    collect_ignore_glob = ["test_*.py"]


def pytest_report_header():
    if oracle.present():
        import torch

        return f"PyTorch's own allocator over a stub CUDA runtime: torch {torch.__version__}, no GPU in use"
    return None


def pytest_generate_tests(metafunc):
    """One test for each random workload. Fresh seeds each time; KVVIZ_FUZZ_SEED=N begins at N again."""
    if "workload_seed" in metafunc.fixturenames:
        run = bytes.fromhex(os.environ.get("PYTEST_XDIST_TESTRUNUID", os.urandom(3).hex()))  # workers must agree
        first = int(os.environ.get("KVVIZ_FUZZ_SEED") or int.from_bytes(run[:3], "big") * 1000)
        count = int(os.environ.get("KVVIZ_FUZZ_WORKLOADS", "40"))
        metafunc.parametrize("workload_seed", range(first, first + count))
