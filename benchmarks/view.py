"""Measures the pictures: how long a block map takes to make, to show, and to step through; how large it is.

python -m benchmarks.view            on made-up runs of a realistic size; or call measure(trace)
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.view_workload import busy_trace, decode_trace
from kvviz.memory.trace import Trace
from kvviz.view import block_map

CHROMIUM = "/usr/bin/chromium"
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
LIMITS = {"build_s": 1.5, "html_bytes": 600_000, "first_ms": 1000, "step_p95_ms": 16}

# In the page: seek, draw, and read one pixel back, which waits until the drawing is really done.
_STEPS = """(count) => {
  const player = document.querySelector(".kvviz-player").kvviz, pen = player.mapPen, took = [];
  for (let k = 0; k < count; k++) {
    const event = Math.floor(((k * 7919) % count) / count * player.model.n);   // far jumps, in no order
    const began = performance.now();
    player.seek(event);
    pen.getImageData(0, 0, 1, 1);
    took.push(performance.now() - began);
  }
  return took;
}"""
# The time of the first frame that was put on screen with the player in it, since the page began to load.
_FIRST = """() => new Promise((done) => {
  const look = () => document.querySelector('.kvviz-player[data-ready="1"]')
    ? requestAnimationFrame(() => done(performance.now())) : requestAnimationFrame(look);
  look();
})"""


def measure(trace: Trace, repeats: int = 3, steps: int = 200) -> dict[str, Any]:
    """Medians of `repeats`: build_s, html_bytes, first_ms (from the page load), model_ms, step_p50_ms, step_p95_ms.

    The browser's figures are missing where there is no Chromium.
    """
    trace.lifetimes()  # a trace works these out once, for whoever asks first
    builds = []
    for _ in range(repeats):
        began = time.perf_counter()
        view = block_map(trace)
        size = len(view.html)
        builds.append(time.perf_counter() - began)
    result: dict[str, Any] = {
        "events": len(trace), "blocks": len(trace.lifetimes().blocks), "build_s": statistics.median(builds),
        "html_bytes": size, "png_bytes": len(view.png),
    }  # fmt: skip
    if not Path(CHROMIUM).exists():
        return result
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page_file = view.save_html(Path(folder) / "map.html")
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        runs = []
        for _ in range(repeats):
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            page.goto(page_file.as_uri(), wait_until="commit")
            first = page.evaluate(_FIRST)
            took = sorted(page.evaluate(_STEPS, steps))
            model = page.evaluate("document.querySelector('.kvviz-player').kvviz.timing.model")
            runs.append((first, model, took[len(took) // 2], took[int(len(took) * 0.95)]))
            page.close()
        browser.close()
    names = ("first_ms", "model_ms", "step_p50_ms", "step_p95_ms")
    return result | {name: statistics.median(run[k] for run in runs) for k, name in enumerate(names)}


def main() -> None:
    for name, trace in (("decode", decode_trace()), ("random", busy_trace())):
        result = measure(trace)
        print(f"{name}: " + ", ".join(f"{key} {value:,.4g}" for key, value in result.items()))
        for key, limit in LIMITS.items():
            if result.get(key, 0) > limit:
                print(f"    {key} is over its limit of {limit:,}")


if __name__ == "__main__":
    main()
