"""The page in a real browser: what a reader does with it, by clicks and keys; and hostile text,
none of which runs."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr
from PIL import Image
from site_of import (
    BEST,
    INDUCTION_HEAD,
    NEAREST,
    compared,
    decoder_atlas,
    decoder_samples,
    samples,
    small_atlas,
    write_site,
)
from test_page import page as page_of

from browsing import needs_browser
from headwise import Atlas
from headwise.atlas.representation import html_card
from headwise.page import HeadGrid, PageFigure, PageHead, PageTable, Section, report
from headwise.page.sections import Drawing
from headwise.plots import save_figure

MARK = "document.documentElement.setAttribute('data-ran', 'yes')"
HOSTILE = (
    f'<script>{MARK}</script><img src=x onerror="{MARK}"><svg onload="{MARK}"></svg>'
    f"\"><iframe srcdoc='<script>parent.{MARK}</script>'></iframe>' onmouseover='{MARK}' ]]>--><style>x</style>"
)

pytestmark = needs_browser


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_site(tmp_path_factory.mktemp("site"), small_atlas(), samples())


@pytest.fixture
def visit(chromium: Any, site: Path) -> Iterator[Any]:
    """Opens the page at an address, as `visit("#L1H2", dark=True)`; in the end nothing has left it,
    nothing failed."""
    pages, said, asked = [], [], []

    def go(
        state: str = "", path: Path = site, dark: bool = False, size: tuple[int, int] = (1400, 1000)
    ) -> Any:
        context = chromium.new_context(
            viewport={"width": size[0], "height": size[1]},
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",
            accept_downloads=True,
        )
        tab = context.new_page()
        tab.set_default_timeout(10_000)
        tab.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
        tab.on("pageerror", lambda error: said.append(f"error: {error}"))
        tab.on("request", lambda request: asked.append(request.url))
        tab.goto(path.as_uri() + state)
        tab.wait_for_selector("html[data-ready]")
        pages.append(tab)
        return tab

    yield go
    for tab in pages:
        tab.context.close()
    assert said == []
    assert [url for url in asked if not url.startswith(("file:", "blob:", "data:"))] == []


def colour_by(tab: Any, text: str) -> int:
    """Colour by the first measure that a search finds; gives the clicks it took."""
    tab.click("#colour-button")
    tab.keyboard.type(text)
    tab.click("#colour-list li:first-child")
    return 2


def test_a_stranger_finds_the_best_head_sees_it_its_likes_and_its_table(visit: Any) -> None:
    tab = visit()
    clicks = colour_by(tab, "obj")
    assert "obj" in tab.inner_text("#colour-name")
    tab.click("#legend a.head >> nth=0")
    clicks += 1
    best = f"L{BEST[0]}H{BEST[1]}"
    assert tab.inner_text("#card-title").startswith(best)
    assert clicks <= 3
    assert tab.is_visible("#card .map .hw-matrix")  # on a sentence: no click more
    near = tab.eval_on_selector_all(
        "#card .near a", "links => links.slice(0, 3).map(link => link.textContent)"
    )
    assert tuple(near) == NEAREST  # no click more
    with tab.expect_download() as found:
        tab.click("#card-csv")  # one
    rows = list(csv.DictReader(Path(found.value.path()).read_text(encoding="utf-8").splitlines()))
    one = next(
        r
        for r in rows
        if (r["analysis"], r["variable"], r["item"]) == ("dependency", "accuracy", "obj")
    )
    assert float(one["value"]) == pytest.approx(0.87, abs=1e-4)
    assert float(one["low"]) == pytest.approx(0.84, abs=1e-4)
    assert float(one["p_adjusted"]) == pytest.approx(1e-12, rel=1e-3)
    assert (float(one["against"]), one["rank"]) == (0.39, "1")


def test_the_card_tells_values_intervals_tests_and_definitions(visit: Any) -> None:
    tab = visit(f"#L{BEST[0]}H{BEST[1]}")
    tab.click("details[data-group=dependency] summary")
    row = tab.inner_text("details[data-group=dependency] tr.significant >> nth=0")
    assert re.search(
        r"obj.*0\.870\s+0\.840 to 0\.900\s+0\.390 best baseline\s+1e−12\s+1", row, re.S
    ), row
    tab.click("details[data-group=surface] summary")
    tab.click("details[data-group=surface] button.name >> nth=0")
    meaning = tab.inner_text("details[data-group=surface] .meaning")
    assert "nats" in meaning
    assert "surface.entropy" in meaning


def test_the_scale_counts_the_heads_of_each_value_and_marks_the_chosen_one(visit: Any) -> None:
    tab, entropy = visit("#L3H2&colour=surface.entropy"), small_atlas()["surface"]["entropy"].values
    told = tab.locator("#legend rect.count title").all_text_contents()
    bins = [[float(part) for part in re.findall(r"[\d.]+", text)] for text in told]
    counts, edges = np.histogram(entropy, 40)
    assert [int(count) for count, _, _ in bins] == counts.tolist()
    np.testing.assert_allclose([low for _, low, _ in bins], edges[:-1], atol=0.006)
    boxes = tab.eval_on_selector_all(
        "#legend rect.band, #legend .hw-here", "all => all.map(one => one.getBBox().x)"
    )
    share = (entropy[3, 2] - entropy.min()) / np.ptp(entropy)
    assert boxes[-1] == pytest.approx(260 * share, abs=0.1)
    tab.click("td[data-head=L0H0] a")
    moved = tab.eval_on_selector("#legend .hw-here", "one => one.getBBox().x")
    assert moved == pytest.approx(260 * (entropy[0, 0] - entropy.min()) / np.ptp(entropy), abs=0.1)


def test_filter_and_sort_keep_the_heads_they_should(visit: Any) -> None:
    tab, atlas = visit(), small_atlas()
    entropy = atlas["surface"]["entropy"].values
    found = atlas["dependency"]["accuracy"].sel(relation="obj").max("direction").values
    for text, kept in {
        "entropy < 2.5 and obj > 0.3": (entropy < 2.5) & (found > 0.3),
        "not (entropy < 2.5 or obj <= 0.3)": ~((entropy < 2.5) | (found <= 0.3)),
        "2 * entropy - 1 >= 3": 2 * entropy - 1 >= 3,
        "layer = 3": np.broadcast_to((np.arange(6) == 3)[:, None], entropy.shape),
    }.items():
        tab.fill("#filter", text)
        tab.wait_for_function("text => location.hash.includes(encodeURIComponent(text))", arg=text)
        assert f"{kept.sum()} of 48 heads" in tab.inner_text("#filter-said"), text
        assert tab.locator("#grid td.dim").count() == 48 - kept.sum()
    for wrong in (
        "entropy <",
        "nothing_such > 1",
        "alert(1)",
        "entropy < 1 ]",
        "((((",
        "constructor.constructor > 1",
    ):
        tab.fill("#filter", wrong)
        tab.wait_for_selector("#filter-said.wrong")
        assert tab.locator("#grid td.dim").count() == 0
        tab.fill("#filter", "layer < 3")
        tab.wait_for_selector("#filter-said:not(.wrong)")
    tab.fill("#filter", "")
    colour_by(tab, "entropy")
    numbers = "rows => rows.map(row => Number(row.children[2].textContent))"
    down = tab.eval_on_selector_all("#list tbody tr", numbers)
    assert down == sorted(down, reverse=True)
    assert down[0] == pytest.approx(entropy.max(), abs=0.01)
    tab.click("#list thead th:nth-child(3) button")
    up = tab.eval_on_selector_all("#list tbody tr", numbers)
    assert up == sorted(up)
    assert tab.get_attribute("#list thead th:nth-child(3)", "aria-sort") == "ascending"


def test_heads_are_compared_side_by_side(visit: Any) -> None:
    tab = visit()
    for name in ("L0H0", "L1H1", "L2H2"):
        tab.click(f"td[data-head={name}] a", modifiers=["Shift"])
    assert tab.locator("#compare thead a.head").all_inner_texts() == ["L0H0", "L1H1", "L2H2"]
    assert tab.locator("#compare canvas").count() == 3
    rows = tab.locator("#compare tbody.differ tr").all_inner_texts()
    numbers = [tuple(row.split("\t")[1:]) for row in rows]
    assert len(rows) == 18  # of 19 leading measures, one says of these heads what another says
    assert len(set(numbers)) == len(numbers)
    for k in range(3, 8):
        tab.click(f"td[data-head=L3H{k}] a", modifiers=["Shift"])
    assert tab.locator("#compare thead a.head").count() == 8
    tab.click("#compare .out >> nth=0")
    assert tab.locator("#compare thead a.head").count() == 7


def test_the_address_shows_what_its_sender_saw(visit: Any) -> None:
    tab = visit()
    colour_by(tab, "obj")
    tab.click("td[data-head=L2H5] a")
    tab.click("td[data-head=L4H1] a", modifiers=["Shift"])
    tab.check("#as-lines")
    tab.check("#hide-special")
    tab.select_option("#card select", "1")
    tab.fill("#filter", "entropy < 3")
    tab.wait_for_function("() => location.hash.includes('filter')")
    address = tab.evaluate("location.hash")
    assert address.startswith("#L2H5&colour=dependency.accuracy.obj")
    other = visit(address)
    seen = "[...document.querySelectorAll('#card, #grid, #compare, #legend')].map(e => e.innerText)"
    assert other.evaluate(seen) == tab.evaluate(seen)
    assert other.evaluate("location.hash") == address
    assert other.locator("svg.hw-lines").count() == 1
    other.evaluate("location.hash = 'L0H1'")
    other.wait_for_function(
        "() => document.getElementById('card-title').textContent.startsWith('L0H1')"
    )


def test_the_first_screen_shows_the_strongest_head_and_ranks_by_strength(visit: Any) -> None:
    tab = visit()
    assert tab.inner_text("#card-title").startswith(f"L{BEST[0]}H{BEST[1]}")
    assert tab.get_attribute(f"td[data-head=L{BEST[0]}H{BEST[1]}]", "aria-selected") == "true"
    assert re.search(
        r"label rests on\s+accuracy on obj 0\.870; best baseline 0\.390", tab.inner_text("#card dl")
    )
    assert "overlap" in tab.inner_text("#card dl")
    assert tab.is_visible("#card .hw-matrix")
    first = tab.inner_text("#list tbody tr >> nth=0").split("\t")
    assert first == [
        "L3H2",
        "obj",
        "0.480",
        "0.870",
        "0.390 best baseline",
        "accuracy on obj",
    ]
    assert tab.get_attribute("#list thead th:nth-child(3)", "aria-sort") == "descending"
    # The filter that is offered as an example can be used, and keeps the head that is shown.
    example = tab.get_attribute("#filter", "placeholder")
    assert "obj > 0.7" in example
    tab.fill("#filter", example)
    tab.wait_for_selector("#filter-said:not(.wrong):not(:empty)")
    assert "dim" not in (tab.get_attribute("td[data-head=L3H2]", "class") or "")
    assert tab.locator("#grid td.dim").count() > 0
    with tab.expect_download() as saved:
        tab.click("#list-csv")
    lines = Path(saved.value.path()).read_text(encoding="utf-8").splitlines()
    assert lines[0] == "head,does,margin,value,bar,bar_is,measured"
    assert lines[1] == "L3H2,obj,0.48,0.87,0.39,best baseline,accuracy on obj"


@pytest.fixture(scope="module")
def decoder_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_site(tmp_path_factory.mktemp("decoder"), decoder_atlas(), decoder_samples())


def test_a_sinks_map_is_shown_without_the_first_token(visit: Any, decoder_site: Path) -> None:
    name = f"L{INDUCTION_HEAD[0]}H{INDUCTION_HEAD[1]}"
    tab = visit("", decoder_site)
    assert tab.inner_text("#card-title").startswith(name)  # what a test found, not the sink
    label = "document.querySelector('#card .hw-matrix').getAttribute('aria-label')"
    assert tab.is_checked("#hide-first")
    assert "5 by 5 tokens" in tab.evaluate(label)
    assert "scaled to sum to 1" in tab.inner_text("#first-note")
    box = tab.locator("#card .hw-frame").bounding_box()
    # The row `time` gives `a` 0.03 of the 0.04 it leaves.
    tab.mouse.move(box["x"] + 1.5 / 5 * box["width"], box["y"] + 2.5 / 5 * box["height"])
    said = tab.inner_text("#card .said")
    assert said.startswith("time → a: ")
    assert float(said.rsplit(" ", 1)[1]) == pytest.approx(0.75, abs=0.02)
    tab.uncheck("#hide-first")
    assert "6 by 6 tokens" in tab.evaluate(label)
    assert "first=show" in tab.evaluate("location.hash")
    other = visit("#L0H0", decoder_site)  # no sink: the whole map
    assert not other.is_checked("#hide-first")
    other.check("#hide-first")
    assert "first=hide" in other.evaluate("location.hash")
    assert "5 by 5 tokens" in other.evaluate(label)
    encoder = visit("#L0H0")
    assert encoder.locator("#hide-first").count() == 0


def test_a_map_is_saved_as_svg_png_and_csv_with_its_colour_bar(
    visit: Any, decoder_site: Path
) -> None:
    tab = visit("", decoder_site)
    name = f"L{INDUCTION_HEAD[0]}H{INDUCTION_HEAD[1]}"

    def saved(button: str) -> tuple[str, bytes]:
        with tab.expect_download() as download:
            tab.focus(button)
            tab.keyboard.press("Enter")  # by the keyboard, too
        return download.value.suggested_filename, Path(download.value.path()).read_bytes()

    file, svg = saved("#map-svg")
    assert file == f"{name}-map-1.svg"
    root = ElementTree.fromstring(svg)
    texts = ["".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts[0] == f"tiny decoder {name}: induction"
    assert "attention weight, excluding the first token" in texts
    assert {"0", "0.1", "0.5", "1"} <= set(texts)  # the colour bar
    assert "upon" in texts
    assert "Once" not in texts
    assert b"var(--" not in svg
    file, png = saved("#map-png")
    assert file.endswith(".png")
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    assert picture.width == 3 * float(root.get("width"))
    colours = {colour for _, colour in picture.getcolors(1 << 24)}
    assert (255, 255, 255) in colours
    # Somewhere in it is the darkest colour of the bar.
    assert min(sum(colour) for colour in colours) < 260
    file, table = saved("#map-csv")
    rows = list(csv.DictReader(table.decode().splitlines()))
    assert list(rows[0]) == ["head", "query_position", "query", "key_position", "key", "weight"]
    by_pair = {(int(r["query_position"]), int(r["key_position"])): float(r["weight"]) for r in rows}
    assert len(by_pair) == 15  # five tokens that see themselves and what is before
    assert by_pair[3, 2] == pytest.approx(0.75, abs=0.02)
    for query in range(1, 6):
        assert sum(w for (q, _), w in by_pair.items() if q == query) == pytest.approx(1, abs=1e-3)
    tab.uncheck("#hide-first")
    _, table = saved("#map-csv")
    rows = list(csv.DictReader(table.decode().splitlines()))
    assert len(rows) == 21
    assert float(rows[1]["weight"]) == pytest.approx(0.96, abs=0.01)


def test_on_a_phone_fingers_tap_and_the_grid_says_that_it_scrolls(
    chromium: Any, decoder_site: Path
) -> None:
    context = chromium.new_context(
        viewport={"width": 360, "height": 740},
        has_touch=True,
        is_mobile=True,
        reduced_motion="reduce",
    )
    tab = context.new_page()
    tab.set_default_timeout(10_000)
    tab.goto(decoder_site.as_uri())
    tab.wait_for_selector("html[data-ready]")
    how = tab.inner_text(".how")
    assert "Tap a head" in how
    assert "lick" not in how
    assert "Tap the picture" in tab.inner_text("#card .said")
    assert tab.is_visible("#swipe")
    assert "more-right" in tab.get_attribute(".scroll.grid", "class")
    tab.evaluate("document.querySelector('.scroll.grid').scrollLeft = 10000")
    tab.wait_for_selector(".scroll.grid:not(.more-right)")
    tab.tap("td[data-head=L1H7] a")
    tab.wait_for_function("() => document.getElementById('card').getBoundingClientRect().top < 100")
    assert tab.inner_text("#card-title").startswith("L1H7")
    tab.locator("#card .hw-frame").scroll_into_view_if_needed()
    box = tab.locator("#card .hw-frame").bounding_box()
    tab.touchscreen.tap(box["x"] + 1.5 / 6 * box["width"], box["y"] + 2.5 / 6 * box["height"])
    # A tap tells the number, and it stays after the finger is lifted.
    tab.wait_for_function(
        "() => document.querySelector('#card .said').textContent.includes('a → upon')"
    )
    assert tab.evaluate("document.documentElement.scrollWidth") <= 360
    context.close()
    wide = chromium.new_page(viewport={"width": 1400, "height": 900})
    wide.goto(decoder_site.as_uri())
    wide.wait_for_selector("html[data-ready]")
    assert not wide.is_visible("#swipe")
    assert "Click a head" in wide.inner_text(".how")
    wide.close()


def test_how_it_was_made_is_five_facts_and_the_rest_on_demand(visit: Any, tmp_path: Path) -> None:
    provenance = {
        "model": {"name": "tiny", "weight_hash": "ab" * 32},
        "corpus": {"name": "made up", "examples": 1200, "tokens": 9000, "licence": "CC0"},
        "headwise": "0.1.0",
        "torch": "2",
        "transformers": "5",
        "seed": 7,
        "device": "cpu",
        "dtype": "float32",
        "limits": {"surface": None},
    }
    page = write_site(tmp_path, small_atlas(), samples(), provenance=provenance)
    tab = visit("", page)
    facts = tab.locator("#provenance > .provenance dt").all_inner_texts()
    assert facts == ["Model", "Corpus", "Software", "Seed", "Computed on"]
    said = tab.inner_text("#provenance > .provenance")
    assert "made up: 1,200 examples, 9,000 tokens (CC0)" in said
    assert not tab.is_visible("#provenance details .provenance")
    tab.click("#provenance details summary")
    assert tab.is_visible("#provenance details .provenance")


def test_evidence_that_fits_the_label_comes_first(visit: Any, tmp_path: Path) -> None:
    atlas = small_atlas()
    shape = (atlas.layers, atlas.heads)
    relation = np.full((*shape, 2), "nsubj", dtype="<U20")
    relation[..., 1] = "obj"
    texts = np.full((*shape, 2, 1), "a subject", dtype="<U20")
    texts[..., 1, :] = "its «object» ⟦eats⟧"
    dims = ("layer", "head")
    examples = xr.Dataset(
        {
            "sharp_text": ((*dims, "rank"), np.full((*shape, 1), "anything")),
            "sharp_weight": ((*dims, "rank"), np.full((*shape, 1), 0.99)),
            "relation": ((*dims, "choice"), relation),
            "relation_text": ((*dims, "choice", "rank"), texts),
            "relation_weight": ((*dims, "choice", "rank"), np.full((*shape, 2, 1), 0.8)),
        }
    )
    with_examples = Atlas({**atlas, "examples": examples}, atlas.provenance)
    tab = visit("", write_site(tmp_path, with_examples, samples()))
    assert tab.inner_text("#label-examples") == "its «object» ⟦eats⟧ 0.800"
    headings = tab.locator("#card h3").all_inner_texts()
    assert headings.index("Strongest examples of its objects (obj)") + 1 == headings.index(
        "Largest weights on any token"
    )
    tab.click("td[data-head=L0H0] a")  # no relation: the largest weights alone
    assert tab.locator("#label-examples").count() == 0
    assert "anything" in tab.inner_text("#sharp-examples")


AXE = Path(os.environ.get("AXE_CORE", "node_modules/axe-core")) / "axe.min.js"


@pytest.mark.skipif(not AXE.is_file(), reason="axe-core is not installed (npm install axe-core)")
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("state", ["", "#L3H2&colour=surface.entropy&compare=L0H0,L1H1&view=lines"])
def test_axe_finds_no_serious_violation(
    chromium: Any, site: Path, decoder_site: Path, state: str, dark: bool
) -> None:
    for page in (site, decoder_site):
        context = chromium.new_context(
            color_scheme="dark" if dark else "light", reduced_motion="reduce", bypass_csp=True
        )
        tab = context.new_page()
        tab.goto(page.as_uri() + state)
        tab.wait_for_selector("html[data-ready]")
        tab.evaluate("document.querySelectorAll('details').forEach(box => { box.open = true; })")
        tab.evaluate(AXE.read_text(encoding="utf-8"))
        violations = tab.evaluate("axe.run().then(result => result.violations)")
        serious = [
            (violation["id"], violation["nodes"][0]["html"])
            for violation in violations
            if violation["impact"] in ("serious", "critical")
        ]
        assert serious == []
        context.close()


def test_switching_heads_is_quick(visit: Any) -> None:
    tab = visit()
    switch = """name => new Promise(done => {
        const link = document.querySelector(`td[data-head=${name}] a`), start = performance.now();
        link.click();
        requestAnimationFrame(() => setTimeout(() => done(performance.now() - start)));
    })"""
    # Processor time of the page's thread: what else the machine does makes the clock slower.
    session = tab.context.new_cdp_session(tab)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def milliseconds_spent() -> float:
        metrics = session.send("Performance.getMetrics")["metrics"]
        return 1000 * next(each["value"] for each in metrics if each["name"] == "TaskDuration")

    times = []
    for n in range(24):
        before = milliseconds_spent()
        tab.evaluate(switch, f"L{n % 6}H{n % 8}")
        times.append(milliseconds_spent() - before)
    assert np.median(times) < 60


def test_maps_hide_special_tokens_join_words_and_give_numbers(visit: Any) -> None:
    tab, (sample, _) = visit("#L1H2"), samples()
    label = "document.querySelector('#card .hw-matrix').getAttribute('aria-label')"
    assert "12 by 12 tokens" not in tab.evaluate(label)
    assert "11 by 11 tokens" in tab.evaluate(label)
    tab.check("#hide-special")
    assert "10 by 10 tokens" in tab.evaluate(label)
    tab.check("#as-words")
    assert "9 by 9 tokens" in tab.evaluate(label)
    tab.uncheck("#as-words")
    tab.uncheck("#hide-special")
    box, size = tab.locator("#card .hw-frame").bounding_box(), len(sample.tokens)
    for row, key in ((2, 1), (5, 10), (10, 0)):
        tab.mouse.move(
            box["x"] + (key + 0.5) / size * box["width"],
            box["y"] + (row + 0.5) / size * box["height"],
        )
        said = tab.inner_text("#card .said")
        assert said.startswith(f"{sample.tokens[row]} → {sample.tokens[key]}: ")
        assert float(said.rsplit(" ", 1)[1]) == pytest.approx(
            sample.attention[1, 2, row, key], abs=0.01
        )
    tab.check("#as-lines")
    tab.hover("svg.hw-lines .hw-looks >> nth=3")
    assert "→" in tab.inner_text("#card .said")


def test_keys_walk_the_grid_and_the_picker(visit: Any) -> None:
    tab = visit("#L0H0")
    tab.focus("#grid a[tabindex='0']")
    for key in (
        "ArrowDown",
        "ArrowDown",
        "ArrowRight",
        "ArrowLeft",
        "ArrowRight",
        "End",
        "ArrowRight",
        "ArrowUp",
    ):
        tab.keyboard.press(key)
    assert tab.evaluate("document.activeElement.closest('td').dataset.head") == "L1H7"
    assert tab.inner_text("#card-title").startswith("L1H7")
    tab.keyboard.press("c")
    assert tab.evaluate("location.hash").startswith("#L1H7&compare=L1H7")
    tab.focus("#colour-button")
    tab.keyboard.press("Enter")
    tab.keyboard.type("max weight")
    tab.keyboard.press("ArrowDown")
    tab.keyboard.press("ArrowUp")
    tab.keyboard.press("Enter")
    assert "max weight" in tab.inner_text("#colour-name")
    assert tab.evaluate("document.activeElement.id") == "colour-button"
    # For those who hear the page: a table with names, and what a cell says.
    assert tab.get_attribute("#grid", "role") == "grid"
    assert tab.locator("#grid tbody th[scope=row]").count() == 6
    assert re.match(
        r"L0H0: .*, max weight 0\.\d+", tab.get_attribute("td[data-head=L0H0] a", "aria-label")
    )


def test_the_map_of_distances_and_the_grid_point_at_each_other(visit: Any) -> None:
    tab = visit()
    tab.hover("td[data-head=L2H3] a")
    tab.wait_for_function(
        "() => document.getElementById('distance-map').dataset.pointed === 'L2H3'"
    )
    tab.locator("#distance-map").scroll_into_view_if_needed()
    # On a busy machine the page may still scroll after it was measured: measure and point again.
    for _ in range(40):
        x, y = tab.evaluate("document.getElementById('distance-map').placeOf('L5H0')")
        box = tab.locator("#distance-map").bounding_box()
        tab.mouse.move(box["x"] + x + 1, box["y"] + y)
        tab.mouse.move(box["x"] + x, box["y"] + y)
        if tab.evaluate("document.querySelector('td.pointed') !== null"):
            break
        tab.wait_for_timeout(250)
    name = tab.evaluate("document.querySelector('td.pointed').dataset.head")
    near = tab.evaluate("name => document.getElementById('distance-map').placeOf(name)", name)
    assert abs(near[0] - x) + abs(near[1] - y) < 16
    tab.mouse.click(box["x"] + x, box["y"] + y)
    assert tab.inner_text("#card-title").startswith(name)


def test_figures_open_by_paper_and_are_saved_from_the_page(visit: Any) -> None:
    tab = visit()
    image = tab.locator("img[data-svg]").first
    assert image.get_attribute("src") is None  # folded: nothing is unpacked
    tab.click("details.paper > summary")
    tab.wait_for_function("() => document.querySelector('img[data-svg]').naturalWidth > 0")
    with tab.expect_download() as found:
        tab.click("figure .downloads a >> nth=0")
    assert Path(found.value.path()).read_text(encoding="utf-8").startswith("<svg")
    with tab.expect_download() as found:
        tab.click("#list-csv")
    assert Path(found.value.path()).read_text(encoding="utf-8").startswith("head,does")
    other = visit("#analysis-two")
    assert other.locator("details.paper").first.evaluate("box => box.open")


def test_in_the_dark_and_on_a_phone_everything_can_be_read(visit: Any) -> None:
    tab = visit("#L1H2", dark=True, size=(390, 844))
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    assert tab.is_visible("#card .hw-matrix")
    luminance = """element => { const [r, g, b] = getComputedStyle(element).color.match(/[\\d.]+/g).map(Number);
        return (r + g + b) / 765; }"""
    assert tab.eval_on_selector("h1", luminance) > 0.7
    colour_by(tab, "obj")
    tab.click("td[data-head=L3H2] a")
    tab.wait_for_function("() => document.getElementById('card').getBoundingClientRect().top < 100")
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390


def test_three_models_stand_on_one_page_each_in_its_own_row(
    visit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("draw_section", "draw_sample"):
        monkeypatch.setattr(
            report, name, lambda _, what, formats: Drawing(Section(str(what)[:20], "A section"))
        )
    two = compared()
    names = {"model": ["new", "newest"], "model_all": ["old", "new", "newest"]}
    groups = {}
    for group, dataset in two.items():  # the third is as the second, but for its name
        for dim, labels in names.items():
            if dim in dataset.dims:
                dataset = dataset.isel({dim: [*range(dataset.sizes[dim]), -1]}).assign_coords(
                    {dim: labels}
                )
        if "mass_change" in dataset:  # a decoder's first token is its `cls` too
            dataset = dataset.isel(token_type=[0, 0, 1]).assign_coords(
                token_type=["first", "cls", "other"]
            )
        groups[group] = dataset
    given = [
        replace(sample, model=name) for sample in samples(3, 4)[:1] for name in names["model_all"]
    ]
    path = report.write_report(Atlas(groups, two.provenance), tmp_path, given).page
    tab = visit("#L1H2", path)
    tab.click("details[data-group=change_surface] summary")
    tab.wait_for_selector(
        "table.changes tr.significant"
    )  # it is filled once it has opened, and all at once
    rows = [
        text.split("\t")[:2]
        for text in tab.locator("table.changes tr.significant").all_inner_texts()
    ]
    assert rows == [["mass: first", "new"], ["mass: first", "newest"]]
    assert tab.locator("#card .models button").all_inner_texts() == names["model_all"]
    assert re.search(
        r"label in old\s+broad.*label in new\s+to cls.*label in newest\s+to cls",
        tab.inner_text("#card dl"),
        re.S,
    )


def test_two_models_stand_on_one_page_with_what_changed(
    visit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("draw_section", "draw_sample"):  # figures are not asked for here, and take long
        monkeypatch.setattr(
            report, name, lambda _, what, formats: Drawing(Section(str(what)[:20], "A section"))
        )
    given = [replace(sample, model=name) for sample in samples(3, 4)[:1] for name in ("old", "new")]
    path = report.write_report(compared(), tmp_path, given).page
    tab = visit("", path)
    assert "What changed from old to new" in tab.inner_text("h1")
    assert "cosine to · new" in tab.inner_text("#colour-name")  # the grid of differences
    assert "0.500" in tab.inner_text("td[data-head=L1H2]")
    tab.click("#what-changed-most td a.head")
    assert tab.inner_text("#card-title").startswith("L1H2")
    card = tab.inner_text("#card dl")
    assert re.search(r"label in old\s+broad: cls 0.20\s+label in new\s+to cls: cls 0.20", card), (
        card
    )
    tab.click("details[data-group=change_surface] summary")
    row = tab.inner_text("table.changes tr.significant")
    before = (
        compared()["change_surface"]["mass_mean"]
        .sel(model_all="old", layer=1, head=2, token_type="cls")
        .item()
    )
    assert row.split("\t")[0] == "mass: cls"
    assert row.split("\t")[1:3] == [f"{before:.3f}", "0.800"]
    assert tab.locator("table.changes tr.significant").count() == 1
    assert "new: " in tab.inner_text("#card select")
    assert tab.locator("#card .models button").all_inner_texts() == [
        "old",
        "new",
    ]  # the same sentence in both
    tab.click("#card .models button >> nth=1")
    assert tab.locator("#card .models [aria-pressed=true]").all_inner_texts() == ["new"]
    assert "sentence=1" in tab.evaluate("location.hash")
    tab.click("#card .models button >> nth=0")
    tab.click("#colour-button")
    tab.click("#colour-list li:first-child")
    assert tab.evaluate("location.hash").endswith("colour=words")
    assert "cls" in tab.inner_text("td[data-head=L1H2] small")  # what it does in the other


def test_no_hostile_name_word_or_token_runs_or_breaks_the_page(visit: Any, tmp_path: Path) -> None:
    evil = HOSTILE + "\u202e\u2066 \U0001f9ff\U00020000"
    atlas = small_atlas(evil, relation=evil)
    given = samples(more=(evil, "x" * 10_000, "\u202eright to left", "\U0001f9ff" * 40))
    path = write_site(tmp_path, atlas, given, title=evil)
    tab = visit("#L3H2&colour=dependency.accuracy." + "x", path)
    colour_by(tab, "script")
    tab.click("details[data-group=dependency] summary")
    tab.click("details[data-group=dependency] button.name >> nth=0")
    for name in ("L0H0", "L3H2"):
        tab.click(f"td[data-head={name}] a", modifiers=["Shift"])
    tab.check("#as-lines")
    tab.fill("#filter", HOSTILE[:60])
    tab.wait_for_selector("#filter-said.wrong")
    assert tab.evaluate("document.documentElement.dataset.ran") is None
    assert tab.locator("iframe").count() == 0
    assert "<script>document" in tab.inner_text("#colour-name")
    assert tab.evaluate("document.documentElement.scrollWidth") <= 1400


def shown(chromium: Any, folder: Path, html: str) -> str:
    """The document as it stands once the browser has loaded it and run what runs, in three seconds
    of its clock."""
    path = folder / "page.html"
    path.write_text(html, encoding="utf-8")
    tab = chromium.new_page()
    tab.clock.install()
    tab.goto(path.as_uri())
    tab.clock.run_for(3000)
    text = str(tab.content())
    tab.close()
    assert "</html>" in text
    return text


def test_no_text_runs_in_a_browser(chromium: Any, tmp_path: Path) -> None:
    for running in (
        HOSTILE,
        f"<script>setTimeout(() => {{ {MARK} }}, 2900)</script>",
    ):  # this is how it looks
        assert (
            "data-ran"
            in shown(chromium, tmp_path, f"<html><body>{running}</body></html>").split(">")[0]
        )
    drawn, axes = plt.subplots()
    axes.set_title(HOSTILE.replace("$", ""))
    axes.set_xlabel(HOSTILE)
    axes.text(0, 0, HOSTILE, url=f"javascript:{MARK}")
    path = next(p for p in save_figure(drawn, tmp_path, "hostile") if p.suffix == ".svg")
    svg = path.read_text(encoding="utf-8")
    plt.close(drawn)
    figure = PageFigure(HOSTILE, HOSTILE, svg, (), HOSTILE)
    table = PageTable(HOSTILE, [HOSTILE], [[HOSTILE]])
    section = Section(
        "a", HOSTILE, HOSTILE, f"{HOSTILE} `{HOSTILE}`", [figure], [table], HOSTILE, [HOSTILE]
    )
    head = PageHead(HOSTILE, 0, HOSTILE, "other", HOSTILE, False, [HOSTILE])
    html = page_of(
        grid=HeadGrid([head], [HOSTILE], {"other": HOSTILE}),
        title=HOSTILE, subtitle=HOSTILE, facts=[(HOSTILE, HOSTILE)], notes=[HOSTILE], highlights=[(HOSTILE, HOSTILE)],
        sections=[section], provenance={HOSTILE: [HOSTILE]}, citations=[f"{HOSTILE} https://a.example/{HOSTILE}"],
        files=[(HOSTILE, "atlas.nc")],
    )  # fmt: skip
    inline = svg[svg.index("<svg") :] + html_card(HOSTILE, [(HOSTILE, HOSTILE)])
    got = shown(chromium, tmp_path, html.replace("</body>", f"{inline}</body>"))
    assert "data-ran" not in got.split("<head")[0]
    assert "<iframe" not in got
    assert got.count("document.documentElement") > 10  # the text is there, as text
