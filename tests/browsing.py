"""The browser that tests of pages use: the system's, where there is one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed here")


@contextmanager
def running_browser() -> Iterator[Any]:
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="the package playwright is not installed"
    )
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=BROWSER, args=list(FLAGS))
        yield browser
        browser.close()
