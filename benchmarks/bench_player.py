"""From a PyTorch memory snapshot to the first picture of block map and timeline: time, size, memory, and time per step.

    python -m benchmarks.bench_player FILE …                    snapshot files (see benchmarks/view_snapshots.py)
    python -m benchmarks.bench_player FILE … --viewer FOLDER    beside PyTorch's own viewer, in the same run

FOLDER holds MemoryViz.js (pytorch/torch/utils/viz) and d3.js (npm: d3@5, dist/d3.js). Nothing of it is part of kvviz. Of
that viewer: the time from the navigation to the first frame that shows its state view, or its timeline; a step is a press
of the arrow key. It gets --limit seconds for each.

first_s is load + build + write + show: kvviz.load(FILE); block_map(trace) and its page as text, the still picture in it;
writing the file; from the navigation of a running browser to the first frame that shows both. Importing kvviz (import_s)
and starting the browser are apart. cpu_s: of the processor, for load and build, where a machine does other things, too.
step: seek to far events in no order, draw, and read one pixel back. memory: the resident memory of the page's own
process, from /proc: peak_mb the most it ever was, after_mb after the steps. Medians of the rounds; times are of this
machine.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from benchmarks.browser import launch, show, steps

MAKE = """
import json, sys, time
began = time.perf_counter()
import kvviz
kvviz.load, kvviz.block_map
imported, started = time.perf_counter(), time.process_time()
trace = kvviz.load(sys.argv[1])
loaded = time.perf_counter()
view = kvviz.block_map(trace)
page = view.page
built, spent = time.perf_counter(), time.process_time()
open(sys.argv[2], "w", encoding="utf-8", newline="\\n").write(page)
wrote = time.perf_counter()
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) / 1024
print(json.dumps({"events": len(trace), "import_s": imported - began, "load_s": loaded - imported,
    "build_s": built - loaded, "cpu_s": spent - started, "write_s": wrote - built, "html_bytes": len(page), "python_mb": peak}))
"""


def ours(file: Path, folder: Path, browser: Any, count: int) -> dict[str, float]:
    page_file = folder / "map.html"
    made = subprocess.run(
        [sys.executable, "-c", MAKE, str(file), str(page_file)], capture_output=True, text=True, check=True
    )
    result = json.loads(made.stdout)
    page, first = show(browser, page_file)
    result["show_s"] = first / 1000
    result["first_s"] = sum(result[name] for name in ("load_s", "build_s", "write_s", "show_s"))
    result["peak_mb"] = memory(browser, "VmHWM")
    result["step_p50_ms"], result["step_p95_ms"] = steps(page, count)
    result["after_mb"] = memory(browser, "VmRSS")
    page.close()
    page_file.unlink()
    return result


def memory(browser: Any, what: str) -> float:
    """MiB of the largest of the browser's processes for pages. VmRSS: resident now. VmHWM: at the most."""
    session = browser.new_browser_cdp_session()
    processes = session.send("SystemInfo.getProcessInfo")["processInfo"]
    session.detach()
    found = []
    for process in (p["id"] for p in processes if p["type"] == "renderer"):
        status = Path(f"/proc/{process}/status").read_text()
        found.append(next(int(line.split()[1]) for line in status.splitlines() if line.startswith(what)) / 1024)
    return max(found)


VIEWER = """<!doctype html><meta charset="utf-8"><script src="d3.js"></script>
<script type="module">
import { add_remote_files } from "./MemoryViz.js";
document.querySelectorAll("select")[1].value = VIEW;
add_remote_files([{ name: "a", url: "/snapshot" }]);
</script>"""
VIEWS = {"state": ("Allocator State History", "svg rect"), "timeline": ("Active Memory Timeline", "svg polygon")}
DRAWN = """([what, limit]) => new Promise((done) => {
  const look = () => document.querySelector(what) ? requestAnimationFrame(() => done(performance.now()))
    : performance.now() > limit ? done(NaN) : setTimeout(look, 5);
  look();
})"""
PRESSES = """async (count) => {
  const took = [];
  for (let k = 0; k < count; k++) {
    const began = performance.now();
    document.body.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowUp", bubbles: true }));
    await new Promise((drawn) => requestAnimationFrame(() => setTimeout(drawn)));
    took.push(performance.now() - began);
  }
  return took;
}"""


def theirs(file: Path, viewer: Path, browser: Any, limit: float) -> dict[str, float]:
    """The other viewer's figures; not a number where it shows nothing in time."""
    result: dict[str, float] = {}
    with serving(file, viewer) as address:
        for name, (_, what) in VIEWS.items():
            context = browser.new_context(viewport={"width": 1280, "height": 900})
            page = context.new_page()
            page.set_default_timeout((limit + 60) * 1000)
            try:
                page.goto(f"{address}/{name}", wait_until="commit")
                result[f"{name}_s"] = page.evaluate(DRAWN, [what, limit * 1000]) / 1000
                result[f"{name}_peak_mb"] = memory(browser, "VmHWM")
                if name == "state":
                    took = sorted(page.evaluate(PRESSES, 5))
                    result["state_step_ms"] = took[len(took) // 2]
            except Exception as problem:  # the page ran out of memory, or of time
                print(f"    {name}: {str(problem).splitlines()[0]}", flush=True)
                result.setdefault(f"{name}_s", math.nan)
            context.close()
    return result


@contextmanager
def serving(file: Path, viewer: Path) -> Iterator[str]:
    """The viewer's files on this machine's own address, its imports from a network turned into ones from d3.js."""
    source = (viewer / "MemoryViz.js").read_text(encoding="utf-8")
    source = re.sub(r"import \* as d3 from .*;", "const d3 = window.d3;", source)
    source = re.sub(r"import {(.*)} from .*;", r"const {\1} = window.d3;", source)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.strip("/")
            if name == "snapshot":
                kind, body = "application/octet-stream", file.read_bytes()
            elif name in VIEWS:
                kind, body = "text/html", VIEWER.replace("VIEW", json.dumps(VIEWS[name][0])).encode()
            elif name == "d3.js":
                kind, body = "text/javascript", (viewer / "d3.js").read_bytes()
            else:
                kind, body = "text/javascript", source.encode()
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def report(rounds: list[dict[str, float]]) -> dict[str, float]:
    """Print and return the medians."""
    result = {name: statistics.median(r.get(name, math.nan) for r in rounds) for name in rounds[0]}
    for name, value in result.items():
        print(
            f"    {name:16} {value:12,.2f}" if value < 1e5 or value != value else f"    {name:16} {value:12,.0f}",
            flush=True,
        )
    return result


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("files", nargs="*", type=Path)
    options.add_argument("--viewer", type=Path, help="folder with MemoryViz.js and d3.js")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--steps", type=int, default=200)
    options.add_argument("--limit", type=float, default=60, help="seconds for a picture of the other viewer")
    given = options.parse_args()
    if not given.files:
        print("left out: it needs snapshot files, see benchmarks/view_snapshots.py")
        return
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        for file in given.files:
            print(f"{file.name}: {file.stat().st_size:,} B", flush=True)
            mine, others = [], []
            for _ in range(given.rounds):
                browser = launch(playwright)
                mine.append(ours(file, Path(folder), browser, given.steps))
                browser.close()
                if given.viewer and not any(math.isnan(other["state_s"]) for other in others):
                    browser = launch(playwright)
                    others.append(theirs(file, given.viewer, browser, given.limit))
                    browser.close()
            result = report(mine)
            if others:
                print("  PyTorch's viewer", flush=True)
                other = report(others)
                for name, most in (("state_s", 0.2), ("timeline_s", 1)):
                    ratio = result["first_s"] / other[name]
                    print(f"    first_s is {ratio:.2f} of its {name}; at most {most} is wanted", flush=True)


if __name__ == "__main__":
    main()
