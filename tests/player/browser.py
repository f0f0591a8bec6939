"""Pictures in a real browser: what the browser's tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from kvviz.view.theme import owners

READY = '.kvviz-player[data-ready="1"]'
PATIENCE = 60_000  # ms: a busy machine is slow, not wrong
PLAYER = "document.querySelector('.kvviz-player').kvviz"
MAP = "document.querySelector('.kvviz-player').shadowRoot.querySelector('canvas.map')"


def opener(chromium, folder: Path) -> Iterator:
    """For a fixture: open_page(view or HTML, **context options) -> a page whose errors, messages and requests are noted."""
    contexts = []

    def open_page(shown, ready=True, width=1280, **options):
        context = chromium.new_context(viewport={"width": width, "height": 1000}, **options)
        context.set_default_timeout(PATIENCE)
        contexts.append(context)
        page = context.new_page()
        page.troubles, page.requests = [], []
        page.on("pageerror", lambda error: page.troubles.append(str(error)))
        page.on("console", lambda message: page.troubles.append(message.text) if message.type == "error" else None)
        page.on("request", lambda request: page.requests.append(request.url))
        file = folder / "page.html"
        file.write_text(shown, encoding="utf-8") if isinstance(shown, str) else shown.save_html(file)
        page.goto(Path(file).as_uri())
        if ready:
            page.wait_for_selector(READY)
            drawn(page)
        return page

    yield open_page
    for context in contexts:
        context.close()


def drawn(page) -> None:
    """Wait until what was asked for is on the canvas, and a size that changed with it was taken in."""
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done())))")


def player(page, script: str, argument=None):
    """The value of a JavaScript expression that may name player, map, model, zoom, timeline, argument."""
    names = f"const player = {PLAYER}, {{ map, model, zoom, timeline }} = player;"
    return page.evaluate(f"argument => {{ {names} return {script} }}", argument)


def at_event(page, event: int, total: int) -> None:
    """Wait until the picture stands after `event` events."""
    page.wait_for_selector(f"canvas[aria-label*='after event {event} of {total}:']")


def wait_for_count(found, count: int) -> None:
    """Until a locator finds so many."""
    from playwright.sync_api import expect  # here: who has no browser still collects the tests

    expect(found).to_have_count(count, timeout=PATIENCE)


def pixels(page) -> str:
    return page.evaluate(f"{MAP}.toDataURL()")


def seek(page, event: int) -> None:
    page.evaluate(f"i => {PLAYER}.seek(i)", event)


def figures(page) -> dict[str, str]:
    return dict(zip(page.locator("dt").all_text_contents(), page.locator("dd").all_text_contents(), strict=True))


def rgb(names) -> dict[str, list[int]]:
    """What the map paints the blocks of these owners with."""
    return {o.name: [int(o.color[k : k + 2], 16) for k in (1, 3, 5)] for o in owners(names)}


def spot(page, place: int) -> list[float]:
    """Left and top px, on the block map, of the stretch that begins at a place of the axis."""
    return player(
        page,
        "map.screen.project(argument, argument + 1) && [map.screen.left[0], map.screen.top(map.screen.line[0])]",
        place,
    )


def colors_at(page, x: float, y: float) -> list[list[int]]:
    """The colours of a column of the map's pixels, from y to y + 16 px."""
    return page.evaluate(
        f"""([x, y]) => {{ const d = {MAP}.getContext("2d").getImageData(x, y, 1, 16).data;
        return Array.from({{ length: 16 }}, (_, k) => [...d.slice(4 * k, 4 * k + 3)]) }}""",
        [x, y],
    )
