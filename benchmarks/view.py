"""Measures the pictures: how long a block map takes to make, to show, and to step through; how large it is.

    python -m benchmarks.view            SmolLM2 (300 tokens of prompt, 64 decoded), and a made-up run of random sizes
    python -m benchmarks.view FILE …     traces that were saved with trace.save(FILE)

The target is for the first: made in under 1.5 s, under 600 kB, on screen within 1 s, a step in under 16 ms.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.browser import CHROMIUM, launch, show, steps
from benchmarks.view_workload import busy_trace
from kvviz.errors import ModelUnavailable
from kvviz.memory.file import load
from kvviz.memory.trace import Trace
from kvviz.view import block_map

LIMITS = {"build_s": 1.5, "html_bytes": 600_000, "first_ms": 1000, "step_p95_ms": 16}


def measure(trace: Trace, repeats: int = 3) -> dict[str, Any]:
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
        browser = launch(playwright)
        runs = []
        for _ in range(repeats):
            page, first = show(browser, page_file)
            took = steps(page, 200)
            model = page.evaluate("document.querySelector('.kvviz-player').kvviz.timing.model")
            runs.append((first, model, *took))
            page.close()
        browser.close()
    names = ("first_ms", "model_ms", "step_p50_ms", "step_p95_ms")
    return result | {name: statistics.median(run[k] for run in runs) for k, name in enumerate(names)}


def smollm2() -> Trace:
    """The default model's trace, recorded on the CPU. Raises kvviz.ModelUnavailable without the model."""
    import torch
    from transformers import DynamicCache

    import kvviz

    model, _ = kvviz.load_model(dtype=torch.bfloat16)
    cache = DynamicCache(config=model.config)
    with kvviz.record(device="cpu") as run:
        run.own(model, "weights")
        kvviz.decode(model, torch.arange(1000, 1300).reshape(1, 300), 65, cache)
        run.own(cache, "KV cache")
    return run.trace


def report(name: str, trace: Trace) -> None:
    result = measure(trace)
    print(f"{name}: {result['events']:,} events, {result['blocks']:,} blocks")
    for key, value in result.items():
        if key in ("events", "blocks"):
            continue
        limit = LIMITS.get(key)
        against = "" if limit is None else f"   limit {limit:,}{'' if value <= limit else '   OVER'}"
        print(
            f"    {key:12} {value:12,.4g}{against}"
            if isinstance(value, float)
            else f"    {key:12} {value:12,}{against}"
        )


def main(paths: list[str]) -> None:
    for path in paths:
        report(path, load(path))
    if paths:
        return
    try:
        report("SmolLM2", smollm2())
    except ModelUnavailable as missing:
        print(f"SmolLM2 is left out: {missing}")
    report("random sizes, 1,000 blocks alive (does not compress)", busy_trace())


if __name__ == "__main__":
    main(sys.argv[1:])
