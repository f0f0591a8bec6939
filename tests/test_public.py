"""The public face: what `import kvviz` offers, and that it costs no more than it must."""

import ast
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import kvviz
from kvviz import KvvizError
from kvviz.errors import brief

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


def allocator() -> kvviz.CachingAllocator:
    made = kvviz.CachingAllocator(1 << 30)
    made.malloc(512)
    return made


def paged(**more) -> kvviz.PagedKVCache:
    return kvviz.PagedKVCache(1, 1, 4, tokens=8, **more)


HUGE = 10**5000  # Python refuses to print it
WRONG = {
    "sample": lambda: kvviz.sample(["a"]),
    "sample, huge": lambda: kvviz.sample(HUGE),
    "load": lambda: kvviz.load(None),
    "load, a null byte": lambda: kvviz.load("\0"),
    "save": lambda: allocator().trace.save(None),
    "sweep": lambda: kvviz.sweep(allocator().trace, None),
    "sweep, a list of lists": lambda: kvviz.sweep(allocator().trace, [["a"]]),
    "capacity": lambda: kvviz.CachingAllocator(HUGE),
    "malloc": lambda: allocator().malloc(HUGE),
    "malloc, less": lambda: allocator().malloc(-HUGE),
    "free": lambda: allocator().free(["a"]),
    "free, huge": lambda: allocator().free(HUGE),
    "record_stream": lambda: allocator().record_stream(["a"], 1),
    "record_stream, stream": lambda: allocator().record_stream(allocator().malloc(512) - 512, ["a"]),
    "set_memory_fraction": lambda: allocator().set_memory_fraction(None),
    "paged, layers": lambda: kvviz.PagedKVCache(np.zeros(2), 1, 4),
    "paged, layers, less": lambda: kvviz.PagedKVCache(-HUGE, 1, 4),
    "paged, device": lambda: paged(device=10**30),
    "select": lambda: paged().select(None),
    "reorder": lambda: paged().reorder(None),
    "rollback": lambda: kvviz.QuantizedPagedKVCache(1, 1, 32, tokens=32).rollback(None),
    "plan": lambda: kvviz.plan("llama-3-8b", batch=np.zeros(2)),
    "workload, mix": lambda: kvviz.serve.workload(["a"]),
    "workload, spread": lambda: kvviz.serve.workload(spread=None),
    "workload, rate": lambda: kvviz.serve.workload(rate=float("inf")),
    "workload, seed": lambda: kvviz.serve.workload(seed=["a"]),
    "shared_prefixes, tokens": lambda: kvviz.serve.shared_prefixes(3, 50, tokens=None),
    "shared_prefixes, seed": lambda: kvviz.serve.shared_prefixes(3, 50, seed=["a"]),
    "read_trace": lambda: kvviz.serve.read_trace(None),
    "PageExplorer": lambda: kvviz.PageExplorer(True),
    "WindowExplorer": lambda: kvviz.WindowExplorer({"a": 1}),
}


@pytest.mark.parametrize("ask", WRONG.values(), ids=WRONG.keys())
def test_a_thing_of_a_wrong_type_gets_one_clear_line(ask):
    with pytest.raises(KvvizError) as caught:
        ask()
    assert "\n" not in str(caught.value) and 10 < len(str(caught.value)) < 300


def test_what_was_given_is_told_in_one_line():
    assert brief(["a"]) == "['a']" and brief(HUGE) == "an int of thousands of digits"
    assert brief("x" * 99, 20) == "'" + "x" * 18 + "…"
    assert "\n" not in brief(np.zeros((9, 9)))
