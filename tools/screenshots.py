"""Take the pictures of docs/page.md from pages that are there: `python tools/screenshots.py ENCODER DECODER
COMPARISON`, each an index.html. Needs the package playwright and the system's Chromium."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

OUT = Path(__file__).parents[1] / "docs" / "pictures"
WIDE, NARROW = (1280, 900), (390, 844)
MOST_BYTES = 300_000


def main(encoder: str, decoder: str, comparison: str) -> None:
    """Write every picture; fails where one is too large to lie in the repository."""
    shots: list[tuple[str, str, str, tuple[int, int], bool, list[str]]] = [
        ("grid-and-card", encoder, "#L4H0&colour=dependency.accuracy.obj", WIDE, False, []),
        ("compare", encoder, "#L4H0&compare=L4H0,L6H8,L3H0,L0H2", WIDE, False, ["#compare"]),
        ("narrow", encoder, "#L4H0&colour=surface.entropy&view=lines&special=hide", NARROW, False, ["#card"]),
        ("dark", encoder, "#L4H0&colour=surface.entropy", WIDE, True, []),
        ("distances", encoder, "#L4H0&colour=surface.mass.sep", WIDE, False, ["#listed"]),
        ("decoder", decoder, "#L7H6&colour=surface.mass.first", WIDE, False, []),
        ("comparison", comparison, "#L9H11", WIDE, False, []),
    ]
    OUT.mkdir(exist_ok=True)
    browser_path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with sync_playwright() as running:
        browser = running.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        for name, page, state, size, dark, scroll in shots:
            take(browser, name, Path(page).resolve().as_uri() + state, size, dark, scroll)
        browser.close()


def take(browser: Any, name: str, address: str, size: tuple[int, int], dark: bool, scroll: list[str]) -> None:
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]},
        color_scheme="dark" if dark else "light",
        reduced_motion="reduce",
    )
    tab = context.new_page()
    tab.goto(address)
    tab.wait_for_selector("html[data-ready]")
    for place in scroll:
        tab.eval_on_selector(place, "element => element.scrollIntoView({ block: 'start' })")
    tab.wait_for_timeout(300)
    path = OUT / f"{name}.png"
    tab.screenshot(path=path)
    context.close()
    if path.stat().st_size > MOST_BYTES:
        raise SystemExit(f"{path} has {path.stat().st_size} bytes, more than {MOST_BYTES}.")


if __name__ == "__main__":
    main(*sys.argv[1:4])
