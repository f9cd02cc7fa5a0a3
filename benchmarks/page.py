"""How fast and how large the page is: first paint, switching the measure, bytes; of made-up
atlases, in Chromium.

    python benchmarks/page.py [PAGE.html ...]

With pages of atlases: first paint and switching to another head. A switch is timed by the clock,
from the click to the end of the next frame, and by the processor time of the page's thread, which a
busy machine disturbs least."""

from __future__ import annotations

import random
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

sys.path[:0] = [
    str(Path(__file__).parents[1] / "tests"),
    str(Path(__file__).parents[1] / "tests" / "page"),
]
from site_of import samples, small_atlas, write_site  # noqa: E402

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
SWITCH = """name => new Promise(done => {
    document.getElementById('colour-button').click();
    const search = document.getElementById('colour-search');
    search.value = name;
    search.dispatchEvent(new Event('input'));
    const start = performance.now();
    document.querySelector('#colour-list li').click();
    requestAnimationFrame(() => setTimeout(() => done(performance.now() - start)));
})"""  # from the click on a measure to the end of the next frame: script, style, layout and paint
SWITCH_HEAD = """name => new Promise(done => {
    const start = performance.now();
    document.querySelector(`td[data-head=${name}] a`).click();
    requestAnimationFrame(() => setTimeout(() => done(performance.now() - start)));
})"""
SWITCHES = 40
MEASURES = (
    "surface.entropy",
    "surface.mass.sep",
    "dependency.accuracy.obj",
    "surface.max_weight",
    "surface.mass.cls",
)


def measure_pages(browser: Any, paths: list[Path]) -> None:
    """Print a table: one row for each page, the first paint of five visits."""
    print(
        f"{'page MB':>8} {'first paint ms: median, most':>29} {'ready ms':>9} "
        f"{'switch ms by clock: median, most':>33} {'of a processor':>15}"
    )
    for path in paths:
        paints = []
        for visit in range(5):
            tab = browser.new_page(viewport={"width": 1400, "height": 1000})
            session = tab.context.new_cdp_session(tab)
            session.send("Performance.enable", {"timeDomain": "threadTicks"})
            tab.goto(path.resolve().as_uri())
            tab.wait_for_selector("html[data-ready]")
            paints.append(
                tab.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
            )
            if visit < 4:
                tab.close()
        ready = tab.evaluate("Number(document.documentElement.dataset.readyAt)")
        heads = tab.evaluate(
            "[...document.querySelectorAll('td[data-head]')].map(td => td.dataset.head)"
        )
        rng = random.Random(0)
        by_clock, of_processor = [], []
        for name in rng.choices(heads, k=SWITCHES):
            before = milliseconds_spent(session)
            by_clock.append(tab.evaluate(SWITCH_HEAD, name))
            tab.wait_for_timeout(50)  # what the switch starts, and ends after the frame
            of_processor.append(milliseconds_spent(session) - before)
        cells = [
            f"{statistics.median(times):.0f}, {max(times):.0f}"
            for times in (paints, by_clock, of_processor)
        ]
        print(
            f"{path.stat().st_size / 1e6:>8.2f} {cells[0]:>29} {ready:>9.0f} {cells[1]:>33} {cells[2]:>15}",
            flush=True,
        )
        tab.close()


def milliseconds_spent(session: Any) -> float:
    """Return the processor time that the page's thread has used in tasks."""
    metrics = session.send("Performance.getMetrics")["metrics"]
    return 1000 * next(each["value"] for each in metrics if each["name"] == "TaskDuration")


def main() -> None:
    """Print a table: one row for each size of model, or for each page that is named."""
    if sys.argv[1:]:
        with sync_playwright() as running:
            browser = running.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
            measure_pages(browser, [Path(name) for name in sys.argv[1:]])
            browser.close()
        return
    print(
        f"{'layers x heads':>16} {'page MB':>8} {'first paint ms':>15} {'ready ms':>9} {'switch ms: median, most':>24}"
    )
    with sync_playwright() as running, tempfile.TemporaryDirectory() as folder:
        browser = running.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
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
