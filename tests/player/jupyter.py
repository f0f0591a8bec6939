"""A Jupyter server for a test: on a free port, with a folder of its own and nothing of this user's settings."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LAB_PATIENCE = 240_000  # ms that a kernel and its page may take on a busy machine
IDLE = """() => {
  const panel = window.jupyterapp && jupyterapp.shell.currentWidget;
  const session = panel && panel.sessionContext && panel.sessionContext.session;
  return !!(session && session.kernel && session.kernel.status === 'idle');
}"""

KERNEL = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}  # or a page asks for one


def environment(root: Path) -> dict[str, str]:
    """For `jupyter` commands that belong to the server of this folder."""
    folders = {f"JUPYTER_{k}_DIR": str(root / k.lower()) for k in ("CONFIG", "DATA", "RUNTIME")}
    own = folders | {"JUPYTERLAB_WORKSPACES_DIR": str(root / "workspaces")}
    return os.environ | own | {"JUPYTER_PATH": str(Path(sys.prefix) / "share" / "jupyter")}


def wait_until_idle(page) -> None:
    """Until the notebook that is open has a kernel, and it has nothing to do."""
    page.wait_for_function(IDLE, timeout=LAB_PATIENCE)


@contextmanager
def server(root: Path, app: str = "lab") -> Iterator[str]:
    """The address of a server of `root`. app: "lab" or "notebook"."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    command = [
        sys.executable, "-m", "jupyter", app, "--no-browser", "--allow-root", f"--port={port}",
        "--ServerApp.port_retries=0", "--IdentityProvider.token=", "--expose-app-in-browser",
        f"--ServerApp.root_dir={root}", "--LabApp.extension_manager=readonly", "--log-level=WARN",
    ]  # fmt: skip
    log = root / "server.log"
    with log.open("w") as out:
        running = subprocess.Popen(command, env=environment(root), stdout=out, stderr=out)
        try:
            address = f"http://127.0.0.1:{port}"
            deadline = time.monotonic() + LAB_PATIENCE / 1000
            while True:
                assert running.poll() is None and time.monotonic() < deadline, log.read_text()
                try:
                    urllib.request.urlopen(f"{address}/api/status", timeout=1)
                    break
                except (urllib.error.URLError, OSError):
                    time.sleep(0.25)
            yield address
        finally:
            running.terminate()
            try:
                running.wait(60)
            except subprocess.TimeoutExpired:  # it waits for its kernels, and they may be busy
                running.kill()
                running.wait()
