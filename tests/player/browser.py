"""Pictures in a real browser: what the browser's tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

READY = '.kvviz-player[data-ready="1"]'
PLAYER = "document.querySelector('.kvviz-player').kvviz"
MAP = "document.querySelector('.kvviz-player').shadowRoot.querySelector('canvas.map')"


def opener(chromium, folder: Path) -> Iterator:
    """For a fixture: open_page(view or HTML, **context options) -> a page whose errors, messages and requests are noted."""
    contexts = []

    def open_page(shown, ready=True, width=1280, **options):
        context = chromium.new_context(viewport={"width": width, "height": 1000}, **options)
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
        return page

    yield open_page
    for context in contexts:
        context.close()


def at_event(page, event: int, total: int) -> None:
    """Wait until the picture stands after `event` events."""
    page.wait_for_selector(f"canvas[aria-label*='after event {event} of {total}:']")


def pixels(page) -> str:
    return page.evaluate(f"{MAP}.toDataURL()")


def seek(page, event: int) -> None:
    page.evaluate(f"i => {PLAYER}.seek(i)", event)


def figures(page) -> dict[str, str]:
    return dict(zip(page.locator("dt").all_text_contents(), page.locator("dd").all_text_contents(), strict=True))
