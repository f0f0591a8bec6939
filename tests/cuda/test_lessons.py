"""The lessons' cells on CUDA: every notebook runs on PyTorch's own allocator as it would on a GPU."""

import json
import pathlib

import pytest

from tests.cuda_stub.oracle import in_child

NOTEBOOKS = sorted((pathlib.Path(__file__).parents[2] / "notebooks").glob("[01]*.ipynb"))


def run_cells(path):
    """All code cells of a notebook in one name space; what the lessons' own variables say at the end."""
    cells = [c for c in json.loads(pathlib.Path(path).read_text())["cells"] if c["cell_type"] == "code"]
    space = {"__name__": "__main__"}
    for cell in cells:
        source = "".join(line for line in cell["source"] if not line.lstrip().startswith("%"))
        exec(compile(source, pathlib.Path(path).name, "exec"), space)
    return {
        "device": space.get("device"),
        "origin": space["run"].trace.origin if "run" in space else None,
        "grew": space["last"][0] - space["first"][0] if "first" in space and "per_token" in space else None,
        "per_token": space.get("per_token"),
    }


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_lesson_on_cuda(path):
    got = in_child(run_cells, str(path), STUBCUDA_BACKED=1)
    assert got["device"] == "cuda"
    if path.stem.startswith("00"):
        assert got["origin"] == "PyTorch's allocator, no GPU"
        assert got["grew"] == 63 * got["per_token"]
