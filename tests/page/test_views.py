"""Views of notebooks: complete in themselves, pictures where no script runs, and the numbers they
were made of."""

from __future__ import annotations

import base64
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.text import Text
from site_of import small_atlas

from headwise import Atlas, HeadModel, draw
from headwise.core.errors import MissingExtraError, ParameterError
from headwise.page import view as viewing
from headwise.page import views
from headwise.page.view import View
from headwise.page.views import view_of
from headwise.plots import figures_for
from headwise.testing.models import random_model

TEXT = "the cat saw the dog"
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def model() -> Any:
    module, tokenizer = random_model()
    with HeadModel.open(module, tokenizer=tokenizer) as opened:
        yield opened


@pytest.fixture(scope="module")
def atlas() -> Atlas:
    return small_atlas()


def data_in(html: str) -> dict[str, Any]:
    """What the script of a view draws."""
    found = re.search(r"const data=(\{.*?\});for\(const el", html, re.S)
    assert found
    data: dict[str, Any] = json.loads(found[1])
    return data


def weights_in(example: dict[str, Any], *shape: int) -> np.ndarray:
    codes = np.frombuffer(base64.b64decode(example["maps"]), "<u2").reshape(
        *shape, len(example["tokens"]), -1
    )
    return codes / 65535


def test_a_trace_shows_the_maps_of_its_inputs(model: HeadModel) -> None:
    trace = model.trace([TEXT, "a dog"])
    assert trace.tokens[1] == model.batch("a dog").tokens[0]
    bundle = trace._repr_mimebundle_()
    assert base64.b64decode(bundle["image/png"]).startswith(PNG)
    assert "data:image/png;base64," in bundle["text/html"]
    assert bundle["text/plain"] == repr(trace)
    assert list(trace._repr_mimebundle_(include={"text/plain"})) == ["text/plain"]
    data = data_in(bundle["text/html"])
    for example, text in zip(data["examples"], (TEXT, "a dog"), strict=True):
        assert example["tokens"] == model.batch(text).tokens[0]
        np.testing.assert_allclose(
            weights_in(example, 2, 3), model.attention(text).values, atol=1e-5
        )
    assert "image/png" not in model.trace(TEXT, {"outputs"})._repr_mimebundle_()


def test_heads_are_drawn_on_a_sentence(model: HeadModel, tmp_path: Path) -> None:
    view = draw(model, TEXT, ["L1H2", "L0H0"])
    data = data_in(view._repr_mimebundle_()["text/html"])
    assert data["places"] == [[1, 2], [0, 0]]
    np.testing.assert_allclose(
        weights_in(data["examples"][0], 2)[0], model.attention(TEXT, "L1H2").values, atol=1e-5
    )
    assert isinstance(view.figure, Figure)
    assert view.save(tmp_path / "heads.svg").read_text().startswith("<?xml")
    assert data_in(draw(model, TEXT).html)["places"] is None
    assert draw(model, TEXT, "L0H1", what="previous_layer").data is not None
    with pytest.raises(ParameterError, match=r"ends in \.svg"):
        view.save(tmp_path / "heads.gif")
    with pytest.raises(ParameterError, match="no head L5H0"):
        draw(model, TEXT, ["L5H0"])


def test_a_measure_of_pairs_does_not_say_that_they_are_examples(atlas: Atlas) -> None:
    figure = atlas.plot("dependency.accuracy.obj").figure
    said = " ".join(text.get_text() for text in figure.findobj(Text))
    assert "n = 441." in said
    assert "examples" not in said


@pytest.mark.parametrize("heads", [(), ("L0H1",)])
def test_a_drawing_says_what_its_weights_are(model: HeadModel, heads: tuple[str, ...]) -> None:
    for what, words in (
        ("attention", "attention weight"),
        ("previous_layer", "contribution of the previous layer"),
    ):
        figure = draw(model, TEXT, heads, what=what).figure
        said = " ".join(text.get_text() for text in figure.findobj(Text)).replace("\n", " ")
        assert words in said
        assert ("attention weight" in said) == (what == "attention")


def test_maps_too_large_are_a_picture_that_says_so(
    model: HeadModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "MOST_BYTES", 100)
    view = view_of(model.trace(TEXT))
    assert view.data is None
    assert "too large" in view.html
    assert "<script" not in view.html


def test_an_atlas_is_coloured_by_any_measure(atlas: Atlas) -> None:
    data = data_in(atlas._repr_mimebundle_()["text/html"])
    assert (len(data["words"]), len(data["words"][0])) == (atlas.layers, atlas.heads)
    entropy = next(one for one in data["measures"] if one["name"] == "surface.entropy")
    true = atlas["surface"]["entropy"].transpose("layer", "head").values
    np.testing.assert_allclose(np.array(entropy["values"], dtype=float), true, rtol=1e-4)
    view = atlas.plot("surface.entropy")
    assert data_in(view.html)["colour"] == "surface.entropy"
    assert isinstance(view.figure, Figure)
    assert data_in(atlas.plot("entropy").html)["colour"] == "surface.entropy"
    assert isinstance(atlas.plot().figure, Figure)
    spec = next(one for one in figures_for("surface") if one.applies(atlas["surface"]))
    drawn = atlas.plot(f"surface-{spec.name}")
    assert (drawn.title, drawn.data) == (spec.title, None)
    assert isinstance(drawn.figure, Figure)
    with pytest.raises(ParameterError, match=r"Did you mean 'surface.entropy'\?"):
        atlas.plot("surface.entropi")


def test_what_is_left_out_of_a_view_is_said(atlas: Atlas, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "MOST_NUMBERS", 2 * atlas.layers * atlas.heads)
    view = atlas.plot("surface.max_weight")
    assert view.data["measures"][0]["name"] == "surface.max_weight"
    assert len(view.data["measures"]) == 2
    assert "left out of this view" in view.html


def test_a_card_is_short_and_has_all(atlas: Atlas) -> None:
    card = atlas.head("L3H2")
    assert len(repr(card).splitlines()) < 20
    assert card.short().iloc[0]["rank"] == 1
    html = card._repr_mimebundle_()["text/html"]
    shown, _, folded = html.partition("<details>")
    assert shown.count("<tr") < 15
    for value in card.table["value"].dropna().head(20):
        assert f"{value:.3f}" in folded
    assert "<script" not in html


def test_text_of_others_is_text(model: HeadModel) -> None:
    bad = "</script><script>alert(1)</script><img src=x>"
    values = xr.DataArray(np.ones((2, 2)), dims=("layer", "head"), attrs={"units": bad})
    atlas = Atlas({"surface": xr.Dataset({"entropy": values})}, {"model": {"name": bad}})
    for html in (
        atlas._repr_mimebundle_()["text/html"],
        draw(model, f"the {bad} cat", ["L0H0"]).html,
        atlas.head(0, 0)._repr_html_(),
    ):
        assert html.count("</script>") == html.count("<script>") <= 1
        assert "<img src=x>" not in html.partition("<script>")[0]


def test_a_widget_and_python_know_the_same_head(
    model: HeadModel, atlas: Atlas, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("anywidget", reason="the extra `notebook` is not installed")
    widget = atlas.widget()
    widget.selected = "L1H2"
    assert widget.data["layers"] == atlas.layers
    assert "export default" in widget._esm
    for other in (
        atlas._display_(),
        model.trace(TEXT).widget(),
    ):  # anywidget gives each a class of its own
        assert type(other).__name__ == type(widget).__name__ == "HeadsWidget"
    with pytest.raises(ParameterError, match="it has no widget"):
        atlas.head(0, 0).widget()
    monkeypatch.setattr(viewing, "find_spec", lambda name: None)
    viewing._widget_class.cache_clear()
    with pytest.raises(MissingExtraError, match=re.escape("headwise[notebook]")):
        atlas.widget()
    assert "data:image/png" in atlas._display_()._repr_html_()
    viewing._widget_class.cache_clear()


def test_other_things_have_no_view() -> None:
    with pytest.raises(ParameterError, match="A dict has no view"):
        view_of({})
    with pytest.raises(ParameterError, match="no picture"):
        _ = View("a table", table="<p>1</p>").figure


# A host that calls back while a value is set, as marimo does.
HOST = """async ([script, data]) => {
  const url = URL.createObjectURL(new Blob([script], { type: "text/javascript" }));
  const values = { data, selected: "" }, heard = [];
  window.host = { sets: 0, values, heard };
  const set = (name, value) => {
    if (++host.sets > 9) throw new Error("endless");
    values[name] = value;
    heard.forEach((f) => f());
  };
  const model = { get: (name) => values[name], set, save_changes: () => {}, on: (_, f) => heard.push(f) };
  const el = document.createElement("article");
  document.body.append(el);
  (await import(url)).default.render({ model, el });
}"""
SHADOW = """async ([script, css, data]) => {
  const url = URL.createObjectURL(new Blob([script], { type: "text/javascript" }));
  const root = document.body.appendChild(document.createElement("article")).attachShadow({ mode: "open" });
  const style = document.createElement("style"), el = document.createElement("div");
  style.textContent = css;
  root.append(style, el);
  window.host.root = root;
  const model = { get: (name) => ({ data, selected: "" })[name], set: () => {}, save_changes: () => {}, on: () => {} };
  (await import(url)).default.render({ model, el });
}"""
# What VS Code, JupyterLab and marimo set on the body, and whether that is dark; None where the
# system says.
HOSTS = (
    ("document.body.className = 'vscode-dark'", True),
    ("document.body.className = 'vscode-light'", False),
    ("document.body.className = 'vscode-high-contrast'", True),
    ("document.body.className = 'vscode-high-contrast-light vscode-high-contrast'", False),
    ("document.body.className = 'dark dark-theme'", True),
    ("document.body.className = 'light light-theme'", False),
    ("document.body.className = ''; document.body.dataset.jpThemeLight = 'false'", True),
    ("document.body.dataset.jpThemeLight = 'true'", False),
    ("delete document.body.dataset.jpThemeLight", None),
)
BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed here")
def test_a_view_is_pointed_at_and_is_a_picture_without_scripts(
    model: HeadModel, atlas: Atlas, tmp_path: Path
) -> None:
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="the package playwright is not installed"
    )
    hostile = "the cat <script>document.title = 'ran'</script>"
    parts = [
        model.trace([TEXT, "a dog"]),
        draw(model, hostile, ["L1H2", "L0H0"]),
        atlas,
        atlas.head("L3H2"),
    ]
    page = tmp_path / "notebook.html"
    cells = "".join(f"<section>{part._repr_mimebundle_()['text/html']}</section>" for part in parts)
    page.write_text(f"<meta charset=utf-8><title>notebook</title>{cells}", encoding="utf-8")
    said: list[str] = []
    asked: list[str] = []
    with playwright.sync_playwright() as running:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        browser = running.chromium.launch(executable_path=BROWSER, args=arguments)
        tab = browser.new_page()
        tab.on("console", lambda message: said.append(message.text))
        tab.on("pageerror", lambda error: said.append(str(error)))
        tab.on("request", lambda request: asked.append(request.url))
        tab.goto(page.as_uri())
        trace, drawn, whole, card = (f"section:nth-of-type({number})" for number in (1, 2, 3, 4))
        assert not tab.is_visible(f"{trace} img")  # the script has taken the picture's place
        tab.click(f"{trace} [data-head=L1H1]")
        assert "L1H1" in tab.inner_text(trace)
        tab.select_option(f"{trace} select[aria-label=example]", "1")
        read = tab.eval_on_selector_all(
            f"{trace} .hw-token[data-token]", "all => all.map(one => one.textContent)"
        )
        assert read == model.batch("a dog").tokens[0]
        tab.select_option(f"{drawn} select[aria-label=drawing]", "1")
        assert tab.is_visible(f"{drawn} .hw-matrix")
        tab.click(f"{whole} [data-head=L3H2]")
        assert "rank" in tab.inner_text(whole)
        number = next(
            i
            for i, one in enumerate(view_of(atlas).data["measures"])
            if one["name"] == "surface.max_weight"
        )
        tab.select_option(f"{whole} select", str(number))
        values = atlas["surface"]["max_weight"].transpose("layer", "head").values
        painted = tab.eval_on_selector_all(
            f"{whole} .hw-cell", "all => all.map(one => one.style.background)"
        )
        share = (values.ravel() - values.min()) / np.ptp(values)
        colours = [[int(part) for part in re.findall(r"\d+", one)] for one in painted]
        np.testing.assert_allclose(colours, 255 * colormaps["viridis"](share)[:, :3], atol=3)
        tab.click(f"{card} summary >> nth=0")
        assert tab.is_visible(f"{card} details details")
        assert tab.title() == "notebook"
        for kind in (model.trace(TEXT), atlas):  # as widgets
            tab.evaluate("() => document.querySelector('article')?.remove()")
            tab.evaluate(HOST, [viewing._module_script(), view_of(kind).data])
            tab.click("article [data-head=L1H1]")
            assert tab.evaluate("[host.values.selected, host.sets]") == ["L1H1", 1]
            tab.evaluate(
                "() => { host.values.selected = 'L0H1'; host.heard.forEach((f) => f()); }"
            )  # Python's word
            assert tab.get_attribute("article [data-head=L0H1]", "aria-pressed") == "true"
            assert tab.evaluate("host.sets") == 1
        for theme, dark in HOSTS:  # the host's theme counts, whatever the system's is
            for scheme in ("light", "dark"):
                tab.emulate_media(color_scheme=scheme)
                tab.evaluate(f"() => {{ {theme} }}")
                colour = tab.eval_on_selector(f"{trace} .hw", "one => getComputedStyle(one).color")
                light = sum(map(int, re.findall(r"\d+", colour)[:3])) > 380
                assert light == (scheme == "dark" if dark is None else dark), (theme, scheme)
        tab.emulate_media(color_scheme="light")
        tab.evaluate(SHADOW, [viewing._module_script(), viewing.view_style(), view_of(atlas).data])
        for theme, light in (
            ("dark dark-theme", True),
            ("light light-theme", False),
        ):  # of the text
            tab.evaluate("theme => { document.body.className = theme; }", theme)
            colour = tab.evaluate("() => getComputedStyle(host.root.querySelector('.hw')).color")
            assert (sum(map(int, re.findall(r"\d+", colour)[:3])) > 380) == light
        plain = browser.new_context(java_script_enabled=False).new_page()
        plain.goto(page.as_uri())
        assert plain.locator("section img").count() == 3
        assert all(plain.locator("section img").nth(number).is_visible() for number in range(3))
        browser.close()
    assert said == []
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
