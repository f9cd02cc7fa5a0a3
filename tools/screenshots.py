"""Take the pictures of docs/ and README from pages that are there: `python tools/screenshots.py
ENCODER DECODER COMPARISON`, each an index.html; and that of docs/explore.md from the address of a
running explorer of a decoder: `python tools/screenshots.py ADDRESS`. Needs the package playwright and the
system's Chromium."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from PIL import Image
from playwright.sync_api import sync_playwright

OUT = Path(__file__).parents[1] / "docs" / "pictures"
WIDE, TALL, NARROW = (1280, 900), (1280, 1060), (390, 844)
MOST_BYTES = 300_000
TRUE_COLOUR_BYTES = 190_000
SENTENCE = "Once upon a time, a little girl gave the old book to"


def main(encoder: str, decoder: str, comparison: str) -> None:
    """Write every picture; fails where one is too large to lie in the repository."""
    shots: list[tuple[str, str, str, tuple[int, int], bool, list[str]]] = [
        ("../picture.png", encoder, "#L4H0&colour=words", TALL, False, ["#heads"]),
        ("grid-and-card.webp", encoder, "#L4H0&colour=dependency.accuracy.obj", WIDE, False, []),
        ("compare.webp", encoder, "#L4H0&compare=L4H0,L6H8,L3H0,L0H2", WIDE, False, ["#compare"]),
        (
            "narrow.webp",
            encoder,
            "#L4H0&colour=surface.entropy&view=lines&special=hide",
            NARROW,
            False,
            ["#card"],
        ),
        ("dark.webp", encoder, "#L4H0&colour=surface.entropy", WIDE, True, []),
        ("distances.webp", encoder, "#L4H0&colour=surface.mass.sep", WIDE, False, ["#listed"]),
        ("decoder.webp", decoder, "", WIDE, False, ["#heads"]),
        ("comparison.webp", comparison, "#L2H1", TALL, False, ["#heads"]),
    ]
    with chromium() as browser:
        for name, page, state, size, dark, scroll in shots:
            take(browser, name, Path(page).resolve().as_uri() + state, size, dark, scroll)


def explorer(address: str) -> None:
    """The explorer of a decoder with its atlas, at the second token that it writes."""
    shown = {"text": SENTENCE, "head": "L18H6"}
    with chromium() as browser:
        tab = browser.new_page(viewport={"width": 1280, "height": 960}, reduced_motion="reduce")
        tab.goto(f"{address}#{urlencode(shown)}")
        tab.wait_for_selector(".contributions .bars")
        tab.click(".write")
        tab.wait_for_selector(".steps [data-step]", timeout=120_000)
        tab.click(".next")
        tab.wait_for_selector(".predictions .written")
        tab.wait_for_timeout(1_000)
        for part in (".head-card", ".contributions"):
            tab.wait_for_selector(f"{part}:not(.busy)")
        tab.mouse.move(0, 0)
        keep(tab, OUT.parent / "explore.webp")


@contextmanager
def chromium() -> Iterator[Any]:
    """The system's browser."""
    browser_path = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    with sync_playwright() as running:
        browser = running.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        yield browser
        browser.close()


def take(
    browser: Any, name: str, address: str, size: tuple[int, int], dark: bool, scroll: list[str]
) -> None:
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
    keep(tab, OUT / name)
    context.close()


def keep(tab: Any, path: Path) -> None:
    """A picture of what is seen; of a large PNG 200 colours, which blur those of few cells."""
    picture = Image.open(io.BytesIO(tab.screenshot())).convert("RGB")
    if path.suffix == ".webp":
        # Without loss, and a third smaller than a PNG.
        picture.save(path, lossless=True, quality=100, method=6)
    else:
        picture.save(path, optimize=True)
    if path.suffix == ".png" and path.stat().st_size > TRUE_COLOUR_BYTES:
        picture.quantize(200).save(path, optimize=True)
    if path.stat().st_size > MOST_BYTES:
        raise SystemExit(f"{path} has {path.stat().st_size} bytes, more than {MOST_BYTES}.")


if __name__ == "__main__":
    if sys.argv[1].startswith("http"):
        explorer(sys.argv[1])
    else:
        main(*sys.argv[1:4])
