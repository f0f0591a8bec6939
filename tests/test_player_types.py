"""The player's JSDoc types, checked by the TypeScript compiler: no error, and no exported function without types."""

import pathlib
import re
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parent.parent
PLAYER = ROOT / "kvviz" / "view" / "player"
FETCHED = ROOT / "build" / "typescript" / "node_modules" / "typescript" / "bin" / "tsc"


def node():
    """node of this machine, or the one that Playwright brings along."""
    found = shutil.which("node")
    if found is None:
        playwright = pytest.importorskip("playwright", reason="no node here, so the player's types are not checked")
        found = pathlib.Path(playwright.__file__).parent / "driver" / "node"
    return found


@pytest.fixture(scope="module")
def tsc():
    """tsc(*options) -> what it complains of, a line each."""
    if FETCHED.exists():
        command = [node(), FETCHED]
    elif found := shutil.which("tsc"):
        command = [found]
    else:
        pytest.skip("no TypeScript compiler, so the player's types are not checked (scripts/typescript.sh fetches it)")

    def run(*options):
        done = subprocess.run([*command, *map(str, options)], capture_output=True, text=True, timeout=120)
        assert done.returncode in (0, 2), done.stdout + done.stderr
        return done.stdout.splitlines()

    return run


def test_no_type_is_wrong(tsc):
    assert tsc("-p", PLAYER / "jsconfig.json") == []


def test_exported_functions_say_their_types(tsc):
    untyped = []
    for complaint in tsc("-p", PLAYER / "jsconfig.json", "--noImplicitAny", "--pretty", "false"):
        found = re.match(r"(.+\.js)\((\d+),\d+\): error TS70(?:06|19|31): (.+)", complaint)
        if found:
            line = pathlib.Path(found[1]).resolve().read_text(encoding="utf-8").splitlines()[int(found[2]) - 1]
            if line.startswith("export "):
                untyped.append(f"{pathlib.Path(found[1]).name}:{found[2]} {found[3]}")
    assert untyped == []


def test_the_compiler_sees_a_fault(tsc, tmp_path):
    (tmp_path / "a.js").write_text("/** @param {number} n */\nexport function half(n) { return n / 2; }\nhalf('two');\n")
    settings = (PLAYER / "jsconfig.json").read_text()
    (tmp_path / "jsconfig.json").write_text(settings)
    (complaint,) = tsc("-p", tmp_path / "jsconfig.json")
    assert "TS2345" in complaint and "a.js(3," in complaint
