"""scripts/bootstrap.sh makes .venv, does nothing when there is nothing to do, and says in one line what is missing."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TOOLS = ("bash", "sh", "env", "dirname", "cat", "cksum", "df", "awk", "grep", "head", "tail", "tee", "rm")

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="make needs a POSIX shell")


@pytest.fixture
def project(tmp_path):
    """A project folder, and a folder of programs that holds no Python."""
    (tmp_path / "scripts").mkdir()
    for name in ("pyproject.toml", "constraints.txt", "scripts/bootstrap.sh"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "bin").mkdir()
    for tool in TOOLS:
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool))
    return tmp_path


def program(project, name, body):
    path = project / "bin" / name
    path.unlink(missing_ok=True)  # not to write through the link
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def bootstrap(project, **variables):
    env = {key: value for key, value in os.environ.items() if not key.startswith("PIP_") and key != "KVVIZ_PYTHON"}
    env |= {"PATH": str(project / "bin")} | variables
    command = ["bash", "scripts/bootstrap.sh"]
    done = subprocess.run(command, cwd=project, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr.splitlines()


def assert_stops(project, *words, **variables):
    code, _, said = bootstrap(project, **variables)
    assert code != 0
    assert len(said) == 1, said
    for word in words:
        assert word in said[0]


def test_no_python(project):
    assert_stops(project, "Python 3.10 or newer", "no python3", "KVVIZ_PYTHON")


def test_only_an_old_python(project):
    program(project, "python3", '[ "$1" = --version ] && echo "Python 3.9.2" && exit 0\nexit 1')
    assert_stops(project, "Python 3.10 or newer", "Python 3.9.2")


def test_a_newer_python_under_another_name_is_found(project):
    program(project, "python3", "exit 1")
    program(project, "python3.12", 'case $2 in *ensurepip*) exit 1 ;; *print*) echo 3.12.1 ;; esac')
    assert_stops(project, "Python 3.12.1 has no venv module", "python3-venv")


def test_the_chosen_python_is_not_there_or_too_old(project):
    assert_stops(project, "/no/python", "no such program", KVVIZ_PYTHON="/no/python")
    old = str(program(project, "old", "exit 1"))
    assert_stops(project, old, "3.10 or newer", KVVIZ_PYTHON=old)


def test_a_full_disk(project):
    program(project, "df", 'echo header; echo "disk 9000 8988 12 99% /"')
    assert_stops(project, "3000 MB", "found 12 MB", KVVIZ_PYTHON=sys.executable)
    assert not (project / ".venv").exists()


@pytest.mark.parametrize(
    ("pip_says", "words"),
    [
        ("WARNING: Retrying … NewConnectionError … Connection refused", ["package index", "network"]),
        ("OSError: [Errno 28] No space left on device", ["disk is full"]),
        ("ERROR: No matching distribution found for torch==2.13.0", ["no build of the pinned torch", "KVVIZ_PYTHON"]),
        ("ERROR: something else", ["pip failed: ERROR: something else", "install.log"]),
    ],
)
def test_pip_fails(project, pip_says, words):
    fake_python(project, f"echo '{pip_says}'; exit 1")
    assert_stops(project, *words)
    assert not (project / ".venv" / "kvviz-stamp").exists(), "the next run must try again"


def fake_python(project, install):
    """A Python whose venv is a copy of itself and whose pip does as told."""
    body = f"""
        case "$*" in
            *platform*) echo 3.11.0 ;;
            *base_prefix*) grep -c mark "$0" ;;
            *"-m venv"*) mkdir -p .venv/bin; cp "$0" .venv/bin/python; chmod +x .venv/bin/python ;;
            *"pip install"*) {install} ;;
        esac"""
    for tool in ("mkdir", "cp", "chmod"):
        (project / "bin" / tool).symlink_to(shutil.which(tool))
    program(project, "python3", body)


def test_the_second_time_does_nothing_until_what_it_is_made_from_changes(project):
    fake_python(project, 'echo "Installing collected packages: a, b, c"; echo "$PIP_TARGET$PIP_INDEX_URL" >> asked')
    asked = project / "asked"
    variables = {"PIP_TARGET": "/somewhere", "PIP_INDEX_URL": "/index"}
    code, out, said = bootstrap(project, **variables)
    assert (code, said) == (0, [])
    assert "creating .venv with Python 3.11.0" in out
    assert "unpacking 3 packages" in out
    assert asked.read_text() == "/index\n", "the user's index is used, options for other installs are not"

    assert bootstrap(project) == (0, "", [])
    with (project / "constraints.txt").open("a") as file:
        file.write("# changed\n")
    code, out, _ = bootstrap(project)
    assert code == 0
    assert "updating .venv" in out
    assert len(asked.read_text().splitlines()) == 2


def test_a_venv_that_was_moved_is_made_anew(project):
    fake_python(project, "true")
    bootstrap(project)
    stamp = project / ".venv" / "kvviz-stamp"
    stamp.write_text(stamp.read_text().replace(str(project), "/old/place"))
    (project / ".venv" / "old").touch()
    _, out, _ = bootstrap(project)
    assert "making .venv anew: it was made in another folder" in out
    assert not (project / ".venv" / "old").exists()


def test_another_python_makes_the_venv_anew(project):
    fake_python(project, "true")
    bootstrap(project)
    same = project / "bin" / "python3"
    assert bootstrap(project, KVVIZ_PYTHON=str(same)) == (0, "", [])
    other = program(project, "other", same.read_text() + "# mark")
    _, out, _ = bootstrap(project, KVVIZ_PYTHON=str(other))
    assert "making .venv anew: KVVIZ_PYTHON is another Python" in out
    assert bootstrap(project) == (0, "", []), "without a choice, the one that is there is right"
