"""A page of states of the player to look through, light beside dark: build/gallery/index.html.

Run by `make gallery`.
"""

from __future__ import annotations

import html
from pathlib import Path

from kvviz.view.theme import DARK, LIGHT, SANS
from tests.player.gallery import STATES, State

ROOT = Path(__file__).resolve().parents[2]

# the page says which theme by its address, the player follows the attribute, and the keys are pressed once it stands
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{name}</title>
<style>
body {{ margin: 0; padding: 8px; background: {light[paper]}; color: {light[text]}; font-family: {sans}; }}
[data-theme=dark] body {{ background: {dark[paper]}; color: {dark[text]}; color-scheme: dark; }}
h1 {{ position: absolute; clip-path: inset(50%); width: 1px; overflow: hidden; }}
</style>
<script>document.documentElement.dataset.theme = location.search.slice(1) || "light";</script></head>
<body><main><h1>{name}</h1>
{body}
</main>
<script type="module">
for (const host of document.querySelectorAll(".kvviz-player")) {{
  while (!host.dataset.ready) await new Promise(requestAnimationFrame);
  const box = host.shadowRoot.querySelector(".box");
  for (const key of {keys}) {{
    box.dispatchEvent(new KeyboardEvent("keydown", {{ key, bubbles: true, composed: true }}));
    await new Promise(requestAnimationFrame);
  }}
}}
document.body.dataset.done = "1";
</script></body></html>
"""
INDEX = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>The player's states</title>
<style>
body {{ margin: 0 auto; padding: 16px; max-width: 2600px; font: 15px/1.5 {sans}; }}
body {{ color: {light[text]}; background: {light[panel]}; }}
section > div {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 560px), 1fr)); gap: 8px; }}
iframe {{ width: 100%; height: 640px; border: 1px solid {light[rule]}; border-radius: 8px; background: {light[paper]}; }}
iframe + iframe {{ background: {dark[paper]}; }}
h2 {{ font-size: 17px; margin: 28px 0 4px; }} h2 small {{ font-weight: 400; color: {light[muted]}; }}
nav {{ display: flex; flex-wrap: wrap; gap: 4px 16px; }}
</style></head>
<body><nav aria-label="States">{links}</nav>
<main><h1>The player's states</h1>{sections}</main></body></html>
"""


def page(state: State) -> str:
    """One state as a page; with ?dark at its address in the dark theme."""
    name = html.escape(state.name)
    return PAGE.format(name=name, body=state.make().html, keys=list(state.keys), sans=SANS, light=LIGHT, dark=DARK)


def section(key: str, state: State) -> str:
    name = html.escape(state.name)
    frames = "".join(
        f'<iframe loading="lazy" title="{name}, {theme}" src="{key}.html?{theme}"></iframe>'
        for theme in ("light", "dark")
    )
    return (
        f'<section id="{key}"><h2>{name} <small>{html.escape(state.look)} · <a href="{key}.html">alone</a></small></h2>'
        f"<div>{frames}</div></section>"
    )


def build(folder: Path) -> Path:
    """Write all states and the page around them; returns that page."""
    folder.mkdir(parents=True, exist_ok=True)
    for key, state in STATES.items():
        (folder / f"{key}.html").write_text(page(state), encoding="utf-8")
    links = "".join(f'<a href="#{key}">{html.escape(state.name)}</a>' for key, state in STATES.items())
    sections = "".join(section(key, state) for key, state in STATES.items())
    index = folder / "index.html"
    index.write_text(INDEX.format(links=links, sections=sections, sans=SANS, light=LIGHT, dark=DARK), encoding="utf-8")
    return index


if __name__ == "__main__":
    print(f"kvviz: {build(ROOT / 'build' / 'gallery')}")
