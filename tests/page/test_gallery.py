"""The gallery: one page of several atlases, searched in a browser."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from site_of import small_atlas

from browsing import needs_browser
from headwise import Atlas, gallery
from headwise.core.errors import OutputError, ParameterError
from headwise.core.folders import MANIFEST

HEADS = ("layer", "head")


def planted(name: str, layers: int, heads: int, seed: int, **best: float) -> Atlas:
    """An atlas whose scores of induction are small but for the planted heads, `L3H1=0.8`."""
    random = np.random.default_rng(seed)
    prefix = random.uniform(0, 0.05, (layers, heads))
    p_value = np.ones((layers, heads))
    for head, score in best.items():
        layer, number = map(int, re.findall(r"\d+", head))
        prefix[layer, number] = score
        p_value[layer, number] = 1e-6
    low = random.uniform(0, 0.05, (layers, heads))
    variables: dict[str, Any] = {}
    for measure, values in (("prefix_matching", prefix), ("duplicate", low), ("previous", low)):
        variables[measure] = (HEADS, values, {"units": "share of attention"})
        p = p_value if measure == "prefix_matching" else np.ones_like(p_value)
        variables[f"{measure}_p_adjusted"] = (HEADS, p)
        variables[f"{measure}_low"] = (HEADS, values * 0.9)
        variables[f"{measure}_high"] = (HEADS, values * 1.1)
    induction = xr.Dataset(variables, attrs={"induces": 1})
    entropy = random.uniform(1, 3, (layers, heads))
    surface = xr.Dataset({"entropy": (HEADS, entropy, {"units": "nats"})})
    about = {"model": {"name": name}, "corpus": {"name": "toy <b>text</b>", "examples": 20}}
    return Atlas({"induction": induction, "surface": surface}, about)


@pytest.fixture(scope="module")
def atlases() -> list[Atlas]:
    return [
        planted("small", 6, 6, 0, L4H1=0.61),
        planted("deep <script>", 30, 9, 1, L18H6=0.85, L17H3=0.71),
        planted("wide", 12, 12, 2, L5H5=0.74),
        planted("small", 6, 6, 3, L2H2=0.4),
        small_atlas(),
    ]


@pytest.fixture(scope="module")
def page(atlases: list[Atlas], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gallery")
    first = folder / "first"
    first.mkdir()
    atlases[0].save(first / "atlas.nc")
    (first / "index.html").write_text("<title>the page of small</title>")
    (first / "private.txt").write_text("not of headwise")
    manifest = {"files": ["index.html", "figures/entropy.svg", "../../etc/passwd"]}
    (first / MANIFEST).write_text(json.dumps(manifest))
    (first / "figures").mkdir()
    (first / "figures" / "entropy.svg").write_text("<svg/>")
    return gallery([first, *atlases[1:], first], folder / "out", title="All of ours")


def test_the_folder_is_all_that_a_server_needs(page: Path) -> None:
    files = {path.relative_to(page.parent).as_posix() for path in page.parent.rglob("*.*")}
    assert {"index.html", "small/index.html", "small/atlas.nc", "small/figures/entropy.svg"} < files
    assert not any("private" in name or "passwd" in name for name in files)
    text = page.read_text(encoding="utf-8")
    assert "<h1>All of ours</h1>" in text
    assert text.count('class="atlas-card"') == 5  # the one that was named twice, once
    assert "<script>" not in text.partition("</header>")[2].partition("headwise-data")[0]
    assert re.search(r"(?:src|href)=.https?:", text) is None


def test_what_exists_is_not_replaced_unless_it_may_be(page: Path, atlases: list[Atlas]) -> None:
    before = page.read_bytes()
    with pytest.raises(OutputError, match="exists"):
        gallery(atlases[:1], page.parent)
    assert page.read_bytes() == before
    with pytest.raises(ParameterError, match="at least one atlas"):
        gallery([], page.parent / "none")


def test_the_same_atlases_give_the_same_bytes(atlases: list[Atlas], tmp_path: Path) -> None:
    first = gallery(atlases, tmp_path / "a").read_bytes()
    assert gallery(atlases, tmp_path / "b").read_bytes() == first
    rest = gallery(atlases[1:], tmp_path / "a", overwrite=True).read_bytes()
    assert rest != first


# --- in a browser ---------------------------------------------------------------------------------


@pytest.fixture
def tab(chromium: Any, page: Path) -> Iterator[Any]:
    """The open page; in the end nothing failed and nothing was asked of a network."""
    said: list[str] = []
    context = chromium.new_context(viewport={"width": 1300, "height": 1000})
    opened = context.new_page()
    opened.set_default_timeout(20_000)
    opened.on("console", lambda message: said.append(message.text))
    opened.on("pageerror", lambda error: said.append(str(error)))
    opened.on(
        "request", lambda request: said.append(request.url) if "http" in request.url else None
    )
    opened.goto(page.as_uri())
    yield opened
    context.close()
    assert said == []


def found(tab: Any) -> list[list[str]]:
    """The rows of the answer: head, model, value."""
    rows = tab.eval_on_selector_all(
        "#results tbody tr", "rows => rows.map(row => [...row.cells].map(cell => cell.innerText))"
    )
    return [[row[1], row[2], row[3]] for row in rows]


@needs_browser
def test_the_best_induction_heads_of_all(tab: Any) -> None:
    tab.fill("#query", "best induction heads of all")
    assert found(tab)[:5] == [
        ["L18H6", "deep <script>", "0.850"],
        ["L5H5", "wide", "0.740"],
        ["L17H3", "deep <script>", "0.710"],
        ["L4H1", "small", "0.610"],
        ["L2H2", "small (2)", "0.400"],
    ]
    assert "prefix matching" in tab.inner_text("#answer")
    links = tab.eval_on_selector_all("#results a", "all => all.map(a => a.getAttribute('href'))")
    assert links[0] == "small/index.html#L4H1&colour=induction.prefix_matching"
    framed = tab.eval_on_selector_all(".hits", "all => all.map(path => path.getAttribute('d'))")
    assert "M6 18h1v1h-1z" in framed[1]


@needs_browser
def test_search_answers_within_fifty_milliseconds(tab: Any) -> None:
    searches = [
        "induction",
        "lowest entropy",
        "best induction heads of all",
        "L3H1",
        "xyzzy",
        "obj",
    ]
    for text in searches:  # once to compile
        tab.fill("#query", text)
    times = []
    for text in searches * 3:
        tab.fill("#query", text)
        times.append(float(tab.evaluate("document.documentElement.dataset.searchMs")))
    assert statistics.median(times) < 50


@needs_browser
def test_words_select_models_heads_order_and_measures(tab: Any) -> None:
    tab.fill("#query", "induction wide")
    assert {row[1] for row in found(tab)} == {"wide"}
    tab.fill("#query", "lowest entropy")
    values = [float(row[2]) for row in found(tab)]
    assert values == sorted(values)
    tab.fill("#query", "L4H1")
    assert {row[0] for row in found(tab)} == {"L4H1"}
    tab.fill("#query", "xyzzy")
    assert "Nothing here is called" in tab.inner_text("#answer")
    assert not tab.is_visible("#results")


@needs_browser
def test_keys_links_and_an_address_that_keeps_the_search(tab: Any, page: Path) -> None:
    tab.keyboard.press("/")
    tab.keyboard.type("induction")
    assert tab.evaluate("location.hash") == "#q=induction"
    tab.keyboard.press("Escape")
    assert not tab.is_visible("#results")
    tab.goto(page.as_uri() + "#q=lowest%20entropy")
    tab.reload()
    assert tab.input_value("#query") == "lowest entropy"
    assert len(found(tab)) == 50
    tab.click(".counts button:has-text('induction') >> nth=0")
    assert found(tab)[0][0] == "L18H6"
