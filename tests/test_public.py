"""The public face: what `import kvviz` offers, and that it costs no more than it must."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import kvviz

HOME = Path(kvviz.__file__).parent


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def test_the_stub_for_type_checkers_names_the_same_homes():
    stub = ast.parse((HOME / "__init__.pyi").read_text())
    told = {
        name.asname or name.name: node.module
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }
    assert told == {"serve": "kvviz"} | {name: f"kvviz.{home}" for name, home in kvviz._HOME.items()}
    listed = next(node for node in stub.body if isinstance(node, ast.Assign))
    assert ast.literal_eval(listed.value) == kvviz.__all__ == sorted(told)


def test_every_name_is_there_and_stays_the_same_object():
    for name in kvviz.__all__:
        assert getattr(kvviz, name) is getattr(kvviz, name)
        assert name in dir(kvviz)
    scope: dict = {}
    exec("from kvviz import *", scope)
    assert set(kvviz.__all__) <= set(scope)
    assert kvviz.view.charts and kvviz.sizing.KNOWN and kvviz.serve.Engine  # parts, without an import of their own


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'kvviz' has no attribute 'blockmap'"):
        _ = kvviz.blockmap
    with pytest.raises(ImportError):
        exec("from kvviz import blockmap")


@pytest.mark.parametrize(
    "use",
    [
        "import kvviz; kvviz.load, kvviz.block_map, kvviz.page_map, kvviz.timeline",
        "import kvviz; kvviz.block_map(kvviz.sample('3b_12gb')).html; kvviz.diagnose",
        "import kvviz; kvviz.CachingAllocator(1 << 30).malloc(512)",
        "import kvviz.cli; assert kvviz.cli.main(['diagnose', '--help']) == 0",
    ],
)
def test_pictures_of_files_and_the_command_line_need_no_torch(use):
    assert run(f"{use}\nimport sys; print('torch' in sys.modules)").splitlines()[-1] == "False"


def test_a_run_brings_torch():
    assert run("import kvviz, sys; kvviz.record; print('torch' in sys.modules)") == "True"
