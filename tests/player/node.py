"""Scripts in node: the player's data without a browser."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def run_node(*arguments: str) -> str:
    """What a script printed. Without node on this machine the test is skipped."""
    program = shutil.which("node")
    if program is None:
        pytest.skip("no node here, so the player's data is not checked outside a browser")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
