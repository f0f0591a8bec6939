"""What several tests share: the browser, its pages, and one thread for small tensors."""

import os
import shutil

import pytest

from tests.player.browser import opener

CHROMIUM_FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip


@pytest.fixture(scope="session")
def chromium():
    """A running Chromium (Playwright's Browser). Without one on this machine the test is skipped; in CI it fails."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    if path is None:
        told = "no Chromium here (set CHROMIUM=/path/to/it)"
        pytest.fail(told) if os.environ.get("CI") else pytest.skip(told)
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=path, args=CHROMIUM_FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium, tmp_path):
    """open_page(view or HTML, ...) -> its page: see tests/player/browser.py."""
    yield from opener(chromium, tmp_path)


@pytest.fixture
def one_thread():
    """A thread costs more than it computes where tensors are small."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
