"""Serve the lessons in JupyterLab, say at which address, and stay until it ends. Run by `make lab`.

PORT (default: 8888 or the next free one) and LAB_ARGS (more options for `jupyter lab`) come from the environment.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from jupyter_core.paths import jupyter_runtime_dir

HERE = Path(__file__).resolve().parent.parent


def has_screen() -> bool:
    """Whether a browser can open here."""
    if os.environ.get("SSH_CONNECTION"):
        return False
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def command(notebook: Path) -> list[str]:
    options = [f"--ServerApp.open_browser={has_screen()}", f"--ServerApp.root_dir={notebook.parent}"]
    options += ["--ServerApp.log_level=WARN", "--ExtensionApp.log_level=WARN"]  # the address is said below, once
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        options.append("--allow-root")
    if port := os.environ.get("PORT"):
        options += [f"--ServerApp.port={port}", "--ServerApp.port_retries=0"]
    options += shlex.split(os.environ.get("LAB_ARGS", ""))
    return [sys.executable, "-m", "jupyter", "lab", str(notebook), *options]


def no_news() -> None:
    """A first start asks whether to fetch Jupyter's news, on top of the lesson. Answer no, in this environment only."""
    settings = Path(sys.prefix) / "share" / "jupyter" / "lab" / "settings" / "overrides.json"
    if not settings.exists():
        settings.parent.mkdir(parents=True, exist_ok=True)
        answer = {"fetchNews": "false", "checkForUpdates": False}
        settings.write_text(json.dumps({"@jupyterlab/apputils-extension:notification": answer}, indent=1))


def address(server: subprocess.Popen[bytes], notebook: Path) -> str | None:
    """The address of the notebook once the server answers, or None when it ended instead."""
    # the server writes its real port and token here, whatever the options and the user's configuration said
    record = Path(jupyter_runtime_dir()) / f"jpserver-{server.pid}.json"
    while server.poll() is None:
        try:
            info = json.loads(record.read_text())
            urllib.request.urlopen(f"{info['url']}api", timeout=2)
        except (OSError, ValueError):
            time.sleep(0.2)
            continue
        query = f"?token={info['token']}" if info["token"] else ""
        within = Path(os.path.relpath(notebook, info["root_dir"])).as_posix()
        return f"{info['url']}lab/tree/{within}{query}"
    return None


def interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    notebooks = sorted((HERE / "notebooks").glob("00*.ipynb"))
    if not notebooks:
        print("kvviz: there is no notebook 00 in notebooks/", file=sys.stderr)
        return 1
    no_news()
    environment = {"JUPYTER_TOKEN": secrets.token_hex(24), **os.environ}
    # a session of its own: Ctrl-C reaches only this process, and the server is asked to stop once, without a question
    server = subprocess.Popen(command(notebooks[0]), cwd=HERE, env=environment, start_new_session=True)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    try:
        where = address(server, notebooks[0])
        if where:
            print(f"\nkvviz: JupyterLab is ready. Open\n\n    {where}\n\nStop it with Ctrl-C here.\n", flush=True)
        code = server.wait()
        if not where:
            hint = f"is port {os.environ['PORT']} taken?" if os.environ.get("PORT") else "see above"
            print(f"kvviz: JupyterLab ended before it was ready; {hint}", file=sys.stderr)
        return code
    except KeyboardInterrupt:
        server.terminate()
        server.wait()
        print("\nkvviz: JupyterLab has stopped")
        return 0


if __name__ == "__main__":
    sys.exit(main())
