"""How fast and how large the page is: first paint, switching the measure, bytes; of made-up
atlases, in Chromium."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

sys.path[:0] = [
    str(Path(__file__).parents[1] / "tests"),
    str(Path(__file__).parents[1] / "tests" / "page"),
]
from site_of import samples, small_atlas, write_site  # noqa: E402

SWITCH = """name => new Promise(done => {
    document.getElementById('colour-button').click();
    const search = document.getElementById('colour-search');
    search.value = name;
    search.dispatchEvent(new Event('input'));
    const start = performance.now();
    document.querySelector('#colour-list li').click();
    requestAnimationFrame(() => setTimeout(() => done(performance.now() - start)));
})"""  # from the click on a measure to the end of the next frame: script, style, layout and paint
MEASURES = (
    "surface.entropy",
    "surface.mass.sep",
    "dependency.accuracy.obj",
    "surface.max_weight",
    "surface.mass.cls",
)


def main() -> None:
    """Print a table: one row for each size of model."""
    print(
        f"{'layers x heads':>16} {'page MB':>8} {'first paint ms':>15} {'ready ms':>9} {'switch ms: median, most':>24}"
    )
    browser_path = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    with sync_playwright() as running, tempfile.TemporaryDirectory() as folder:
        browser = running.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        for layers, heads in ((12, 12), (36, 32), (80, 64)):
            atlas = small_atlas(layers=layers, heads=heads)
            path = write_site(Path(folder) / f"{layers}", atlas, samples(layers, heads))
            tab = browser.new_page(viewport={"width": 1400, "height": 1000})
            tab.goto(path.as_uri() + "#L0H0")
            tab.wait_for_selector("html[data-ready]")
            paint = tab.evaluate(
                "performance.getEntriesByName('first-contentful-paint')[0].startTime"
            )
            ready = tab.evaluate("Number(document.documentElement.dataset.readyAt)")
            times = sorted(tab.evaluate(SWITCH, name) for name in MEASURES * 3)
            size = path.stat().st_size / 1e6
            switch = f"{times[len(times) // 2]:.0f}, {times[-1]:.0f}"
            print(
                f"{f'{layers} x {heads}':>16} {size:>8.2f} {paint:>15.0f} {ready:>9.0f} {switch:>24}",
                flush=True,
            )
            tab.close()
        browser.close()


if __name__ == "__main__":
    main()
