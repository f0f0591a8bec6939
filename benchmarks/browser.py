"""A page with a player in a real browser: when its first picture shows, and how long a step takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

CHROMIUM = "/usr/bin/chromium"
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip

_FIRST = """() => new Promise((done) => {
  const look = () => document.querySelector('.kvviz-player[data-ready="1"]')
    ? requestAnimationFrame(() => done(performance.now())) : requestAnimationFrame(look);
  look();
})"""
# Seek, draw, and read one pixel back, which waits until the drawing is really done.
_STEPS = """(count) => {
  const player = document.querySelector(".kvviz-player").kvviz, took = [];
  for (let k = 0; k < count; k++) {
    const event = Math.floor(((k * 7919) % count) / count * player.model.n);   // far jumps, in no order
    const began = performance.now();
    player.seek(event);
    player.mapPen.getImageData(0, 0, 1, 1);
    took.push(performance.now() - began);
  }
  return took;
}"""


def launch(playwright: Any) -> Any:
    return playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))


def show(browser: Any, file: Path) -> tuple[Any, float]:
    """The page, and the ms from its navigation to the first frame that was put on screen with the player in it."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(file.as_uri(), wait_until="commit")
    return page, page.evaluate(_FIRST)


def steps(page: Any, count: int) -> tuple[float, float]:
    """ms of a step: the median, and what 95 of 100 take at most."""
    took = sorted(page.evaluate(_STEPS, count))
    return took[len(took) // 2], took[int(len(took) * 0.95)]
