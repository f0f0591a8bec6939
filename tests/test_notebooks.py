"""What every stored notebook keeps: outputs there, small, no widget state, no machine's paths; checked cells that check."""

import importlib.util
import json
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").rglob("*.ipynb"))
LESSONS = [path for path in NOTEBOOKS if path.parent.name == "notebooks"]


def read(path: pathlib.Path) -> dict:
    return json.loads(path.read_text())


def code_cells(path: pathlib.Path) -> list[dict]:
    return [cell for cell in read(path)["cells"] if cell["cell_type"] == "code"]


def text(cell: dict) -> str:
    return "".join(cell["source"])


@pytest.fixture(params=NOTEBOOKS, ids=lambda p: p.relative_to(ROOT / "notebooks").as_posix())
def notebook(request):
    return request.param


def test_stored_as_it_ran(notebook):
    cells = code_cells(notebook)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert outputs and not [o for o in outputs if o["output_type"] == "error"]
    assert notebook.stat().st_size < 1_000_000
    assert "widgets" not in read(notebook)["metadata"]
    assert not [o for o in outputs if "application/vnd.jupyter.widget-view+json" in o.get("data", {})]


def test_no_machine_in_it(notebook):
    for path in (str(ROOT), str(pathlib.Path.home()), "/tmp/", "site-packages"):
        assert path not in notebook.read_text()


def test_checked_cells_have_something_to_check(notebook):
    """nbval passes a cleared cell without a word; a cell that asks to be checked must hold a result."""
    for cell in code_cells(notebook):
        if "NBVAL_CHECK_OUTPUT" in text(cell):
            assert cell["outputs"] and cell["execution_count"], text(cell)


@pytest.mark.parametrize("path", LESSONS, ids=lambda p: p.name)
def test_a_lesson_is_complete(path):
    cells = read(path)["cells"]
    prose = "\n".join(text(cell) for cell in cells if cell["cell_type"] == "markdown")
    for part in ("**You will be able to**", "**Time**", "<!-- colab -->", "Predict first", "## Exercises", "## In short"):
        assert part in prose, part
    code = "\n".join(text(cell) for cell in code_cells(path))
    assert "NBVAL_CHECK_OUTPUT" in code and "kvviz.exercise(" in code
    for cell in code_cells(path):  # a picture in a lesson has a still twin for readers without scripts
        for output in cell["outputs"]:
            if "<script" in "".join(output.get("data", {}).get("text/html", "")):
                assert "image/png" in output["data"]
    number = path.name.partition("_")[0]
    assert (path.parent / "solutions" / f"{number}.ipynb").exists()


def stamping():
    spec = importlib.util.spec_from_file_location("stamp", ROOT / "scripts" / "stamp.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_stamp_writes_renews_and_takes_back():
    stamp = stamping().stamp
    title, setup = text(read(LESSONS[0])["cells"][0]), text(code_cells(LESSONS[0])[0])
    once = stamp(title, "some-one/kv.viz", LESSONS[0].name)
    assert f"colab.research.google.com/github/some-one/kv.viz/blob/main/notebooks/{LESSONS[0].name}" in once
    assert 'REPO = "some-one/kv.viz"' in stamp(setup, "some-one/kv.viz", "x")
    assert "other/two" in stamp(once, "other/two", "x") and "some-one" not in stamp(once, "other/two", "x")
    assert stamp(once, "", "x") == title and stamp(stamp(setup, "a/b", "x"), "", "x") == setup
    assert stamping().main("no slash") == 2
