"""The page: one file that needs nothing else, with everything given in it, escaped."""

from __future__ import annotations

import base64
import gzip
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from matplotlib.figure import Figure
from PIL import Image

from headwise.atlas import Atlas
from headwise.atlas.representation import html_card
from headwise.core.errors import OutputError, ParameterError
from headwise.page import (
    HeadGrid,
    PageFigure,
    PageHead,
    PageTable,
    Section,
    render_page,
    write_page,
)
from headwise.page.report import write_report
from headwise.page.write import _cell
from headwise.plots import figure, heatmap, registry

_SIZE = 'width="237.6pt" height="20pt"'
SVG = (
    f'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg" {_SIZE}><g id="figure_1"/></svg>'
)
EVIL = "<script>alert('x')</script>&\"quoted\""


class Reader(HTMLParser):
    """Collects tags, addresses, ids and text, and checks that tags close in order."""

    void = frozenset({"meta", "img", "br", "link", "hr", "input"})

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.void:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def all(self, attribute: str) -> list[str]:
        return [
            attributes[attribute] or "" for _, attributes in self.tags if attribute in attributes
        ]

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))


def page(**changes: object) -> str:
    figure = PageFigure(
        "Entropy by layer",
        "Each point is one head.",
        SVG,
        ["figures/entropy.svg", "figures/a b.pdf"],
        "Clark et al. 2019, Fig 4",
    )
    table = PageTable(
        "Every head",
        ["head", "entropy", "n"],
        [("L0H0", 1.23456, 200), ("L0H1", float("nan"), 0)],
        "tables/surface.csv",
    )
    section = Section(
        "surface",
        "Where heads look",
        "Clark et al. 2019",
        "One.\n\nTwo with `code`.",
        [figure, figure],
        [table],
        "Def.",
        ["Cut."],
    )
    grid = HeadGrid(
        [
            PageHead("L0H0", 0, "prev", "position", cells=["previous token 0.90"]),
            PageHead("L0H1", 0, "det", "syntax", "cls", True, ["cls 0.80"]),
        ],
        ["attention goes to"],
        {
            "position": "looks beside itself",
            "syntax": "follows a relation",
            "broad": "looks everywhere",
        },
        "tables/heads.csv",
    )
    given: dict[str, object] = {
        "title": "wiki-bert",
        "grid": grid,
        "subtitle": "over 200 pairs",
        "facts": [("Examples", "200")],
        "notes": ["3 examples were cut."],
        "highlights": [("L2H3", "previous token: 0.93")],
        "sections": [section],
        "provenance": {
            "model": {"name": "wiki-bert", "hash": "ab12"},
            "analyses": ["surface", "offsets"],
            "seed": 0,
            "none": None,
        },
        "citations": ["Clark et al. (2019). https://aclanthology.org/W19-4828/."],
        "files": [("the atlas", "atlas.nc")],
        **changes,
    }
    return render_page(**given)  # type: ignore[arg-type]


def test_everything_given_is_on_the_page() -> None:
    reader = Reader(page())
    head = (
        "wiki-bert",
        "over 200 pairs",
        "Examples 200",
        "3 examples were cut.",
        "L2H3 previous token: 0.93",
    )
    section = (
        "Where heads look",
        "Two with code",
        "Def.",
        "Cut.",
        "Entropy by layer",
        "Each point is one head.",
    )
    rows = (
        "Clark et al. 2019, Fig 4",
        "L0H0 1.235 200",
        "L0H1 – 0",
        "hash ab12",
        "surface, offsets",
        "seed 0",
    )
    grid = ("H0 H1 L0 prev det cls", "L0H1 cls 0.80", "position 1 head: looks beside itself")
    for expected in (*head, *section, *rows, *grid):
        assert expected in reader.text, expected


def test_nothing_is_loaded_from_elsewhere() -> None:
    html = page()
    reader = Reader(html)
    assert not [
        tag for tag, _ in reader.tags if tag in ("script", "link", "iframe", "object", "embed")
    ]
    assert all(address.startswith("data:image/svg+xml;base64,") for address in reader.all("src"))
    outside = [address for address in reader.all("href") if re.match(r"[a-z]+:|//", address)]
    assert outside == ["https://aclanthology.org/W19-4828/"]
    style = re.search(r"<style>(.*?)</style>", html, re.S)
    assert style is not None
    assert "url(" not in style.group(1)
    assert "@import" not in style.group(1)
    assert "default-src 'none'" in html


def test_inside_links_lead_somewhere_and_ids_are_unique() -> None:
    reader = Reader(page())
    ids = reader.all("id")
    assert len(ids) == len(set(ids))
    for address in reader.all("href"):
        if address.startswith("#"):
            assert address[1:] in ids
    assert {"atlas.nc", "figures/entropy.svg", "figures/a%20b.pdf", "tables/surface.csv"} <= set(
        reader.all("href")
    )


def test_figures_are_images_of_their_own_with_alternative_text() -> None:
    images = [attributes for tag, attributes in Reader(page()).tags if tag == "img"]
    assert len(images) == 2
    for image in images:
        assert base64.b64decode((image["src"] or "").split(",")[1]).decode() == SVG
        assert image["alt"] == "Entropy by layer. Each point is one head."
        assert image["width"] == str(round(237.6 * 4 / 3 * 1.3))


def test_names_are_escaped_everywhere() -> None:
    figure = PageFigure(EVIL, EVIL, SVG, (), EVIL)
    section = Section(
        "surface",
        EVIL,
        EVIL,
        EVIL + " `" + EVIL + "`",
        [figure],
        [PageTable(EVIL, [EVIL], [[EVIL]], note=EVIL)],
        EVIL,
        [EVIL],
    )
    html = page(
        grid=HeadGrid([PageHead(EVIL, 0, EVIL, "other", EVIL, False, [EVIL])], [EVIL], {"other": EVIL}),
        title=EVIL, subtitle=EVIL, facts=[(EVIL, EVIL)], notes=[EVIL], highlights=[(EVIL, EVIL)], sections=[section],
        provenance={EVIL: EVIL, "nested": {EVIL: [EVIL]}}, citations=[EVIL + " https://a.example/<b>"],
        files=[(EVIL, "atlas.nc")],
    )  # fmt: skip
    reader = Reader(html)
    assert "<script" not in html
    assert "script" not in {tag for tag, _ in reader.tags}
    assert reader.text.count("alert('x')") >= 15


def test_links_to_files_stay_inside_the_folder() -> None:
    for bad in ("/etc/passwd", "../up.csv", "https://a.example/x.csv", "javascript:alert(1)", ""):
        with pytest.raises(ParameterError, match="relative path"):
            page(files=[("x", bad)])


def test_every_head_of_the_grid_leads_to_its_numbers() -> None:
    html = page()
    reader = Reader(html)
    assert {"#head-L0H0", "#head-L0H1"} <= set(
        reader.all("href")
    )  # that these exist is asked of all inside links
    assert "looks everywhere" not in html  # no head is of that kind
    assert "<strong>det</strong>" in html
    assert "L0H1: cls 0.80" in reader.all("title")
    assert "What each head does" not in page(grid=None)


def test_section_names_must_differ() -> None:
    with pytest.raises(ParameterError, match="different names"):
        page(sections=[Section("a", "A"), Section("a", "B")])


def test_long_tables_are_cut_and_say_so() -> None:
    table = PageTable("Long", ["i"], [[i] for i in range(1000)], "tables/long.csv")
    html = page(grid=None, sections=[Section("a", "A", tables=[table])])
    assert html.count("<tr>") == 401
    assert "The first 400 of 1000 rows; the CSV file has them all." in Reader(html).text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (float("nan"), "–"),
        (3, "3"),
        (12345, "12,345"),
        (0.12345, "0.123"),
        (-1.5, "−1.5"),
        (1e-9, "1.00e-09"),
        ("a-b", "a-b"),
        (True, "True"),
        (0.0, "0"),
    ],
)
def test_cells(value: object, text: str) -> None:
    assert _cell(value) == text


def test_writing_reads_svg_files_and_leaves_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "x.svg").write_text(SVG)
    section = Section("a", "A", figures=[PageFigure("X", "c", Path("figures/x.svg"))])
    for _ in range(2):
        write_page(tmp_path / "index.html", title="T", sections=[section])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["figures", "index.html"]
    html = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert base64.b64encode(SVG.encode()).decode() in html
    assert html == render_page(title="T", sections=[section], folder=tmp_path)
    missing = Section("a", "A", figures=[PageFigure("X", "c", Path("figures/none.svg"))])
    with pytest.raises(OutputError, match="cannot be read"):
        write_page(tmp_path / "index.html", title="T", sections=[missing])


def test_a_page_that_cannot_be_written_leaves_no_debris(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be written"):
        write_page(tmp_path / "file" / "index.html", title="T")
    (tmp_path / "index.html").mkdir()
    with pytest.raises(OutputError, match="cannot be written"):
        write_page(tmp_path / "index.html", title="T")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "index.html"]


def test_an_almost_empty_page_is_whole() -> None:
    reader = Reader(render_page(title="T"))
    assert [tag for tag, _ in reader.tags if tag == "h1"] == ["h1"]


def test_the_card_is_escaped_and_self_contained() -> None:
    html = html_card(EVIL, [(EVIL, EVIL)])
    reader = Reader(html)
    assert "<script" not in html
    assert "http" not in html
    assert reader.text.count("alert('x')") == 3


def test_a_group_that_nobody_has_heard_of_gets_a_section_with_its_figures(tmp_path: Path) -> None:
    made = xr.Dataset(
        {"loudness": (("layer", "head"), np.array([[0.25, 0.75]]))},
        attrs={"title": "How loud heads are"},
    )
    known = xr.Dataset(
        {"mean_distance": (("source", "layer", "head"), np.ones((1, 1, 2)))},
        {"source": ["attention"]},
    )
    spec = ("made_up", "loud")
    try:

        @figure(
            "made_up",
            name="loud",
            title="Loudness of heads",
            caption="Higher is louder.",
            needs=("loudness",),
        )
        def loud(dataset: xr.Dataset) -> Figure:
            return heatmap(dataset["loudness"])

        half_written = (
            tmp_path / ".sample.safetensors.999999999.headwise-tmp"
        )  # by a process that is gone
        half_written.write_text("half")
        html = write_report(Atlas({"made_up": made, "offsets": known}), tmp_path).page.read_text()
        assert not half_written.exists()
    finally:
        registry._FIGURES.pop(spec)
    reader = Reader(html)
    assert (tmp_path / "figures" / "made_up-loud.svg").exists()
    assert (tmp_path / "tables" / "made_up.csv").read_text().count("loudness") == 2
    for expected in (
        "How loud heads are",
        "Loudness of heads",
        "Higher is louder.",
        "Measures: loudness.",
    ):
        assert expected in reader.text, expected
    assert html.index('id="analysis-offsets"') < html.index(
        'id="analysis-made-up"'
    )  # after those in the reading order


def test_a_grid_of_thousands_of_heads_shows_colours_and_says_so() -> None:
    heads = [
        PageHead(
            f"L{layer}H{head}", layer, "sink" if head % 2 else "–", "sink" if head % 2 else "other"
        )
        for layer in range(80)
        for head in range(64)
    ]
    grid = HeadGrid(
        heads,
        ["attention"],
        {"sink": "it rests", "other": "none"},
        groups=[("kv 0", 32), ("kv 1", 32)],
    )
    page = render_page(title="many", grid=grid)
    assert "There are 5120 heads" in page
    assert page.count('<tr id="head-') == 400
    assert 'title="L79H63: sink"' in page
    assert page.count('class="group">kv ') == 2
    linked = set(re.findall(r'href="#(head-[^"]+)"', page))
    assert linked == set(re.findall(r'id="(head-[^"]+)"', page))
    few = HeadGrid(heads[:64], ["attention"], {"sink": "it rests"}, layers={0: "sliding"})
    assert "<small>sliding</small>" in render_page(title="few", grid=few)


def test_what_does_not_apply_is_named_once_at_the_end() -> None:
    page = render_page(
        title="x", absent=["surface (position=1): a causal model cannot look ahead."]
    )
    assert page.count("a causal model cannot look ahead") == 1
    assert page.index("Not computed</h2>") < page.index("a causal model cannot look ahead")


def test_a_figure_of_thousands_of_points_is_a_bitmap_where_that_is_smaller(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    points = "".join(
        f'<circle cx="{x:.5f}" cy="{y:.5f}" r="1"/>' for x, y in rng.uniform(0, 200, (20_000, 2))
    )
    large = SVG.replace('<g id="figure_1"/>', points)
    Image.new("RGB", (990, 80), "white").save(tmp_path / "large.png")
    few = Section("a", "A", figures=[PageFigure("X", "c", SVG, ["large.png"])])
    many = Section("b", "B", figures=[PageFigure("Y", "c", large, ["large.png"])])
    html = render_page(title="T", folder=tmp_path, sections=[few, many], data={"measures": []})
    images = [attributes for tag, attributes in Reader(html).tags if tag == "img"]
    assert gzip.decompress(base64.b64decode(images[0]["data-svg"] or "")).decode() == SVG
    assert (images[1]["src"] or "").startswith("data:image/webp;base64,")
    assert "script-src 'sha256-" in html


@pytest.mark.parametrize(
    ("layers", "heads", "said"),
    [
        (30, 9, "L7H8</code> is the ninth head of the eighth layer"),
        (12, 12, "L7H9</code> is the tenth head of the eighth layer"),
        (2, 1, "L1H0</code> is the first head of the second layer"),
    ],
)
def test_the_example_of_a_name_is_a_head_of_this_model(layers: int, heads: int, said: str) -> None:
    rows = []
    for layer in range(layers):
        for head in range(heads):
            rows.append(PageHead(f"L{layer}H{head}", layer, "broad", "broad"))
    grid = HeadGrid(rows, [], {"broad": "broad"})
    assert said in page(grid=grid)
    assert said in page(grid=grid, data={"measures": []})


def test_coordinates_of_figures_are_to_a_hundredth_of_a_point_and_scales_are_exact(
    tmp_path: Path,
) -> None:
    exact = (
        '<g transform="translate(100.623652 -35.246719) scale(0.015625)">'
        '<path d="M 12.345678 -0.000123 L 7.5 1.234567e-05"/><use x="80.999999" y="3.14"/></g>'
    )
    rounded = (
        '<g transform="translate(100.62 -35.25) scale(0.015625)">'
        '<path d="M 12.35 -0 L 7.5 1.234567e-05"/><use x="81" y="3.14"/></g>'
    )
    (tmp_path / "a.svg").write_text(SVG.replace('<g id="figure_1"/>', exact))
    section = Section("a", "A", figures=[PageFigure("X", "c", Path("a.svg"))])
    html = render_page(title="T", folder=tmp_path, sections=[section], data={"measures": []})
    image = next(attributes for tag, attributes in Reader(html).tags if tag == "img")
    shown = gzip.decompress(base64.b64decode(image["data-svg"] or "")).decode()
    assert shown == SVG.replace('<g id="figure_1"/>', rounded)
    assert "100.623652" in (tmp_path / "a.svg").read_text()  # the file to download stays exact


def test_figures_are_svg_and_other_formats_come_on_demand(tmp_path: Path, monkeypatch) -> None:
    dataset = xr.Dataset(
        {"mean_distance": (("source", "layer", "head"), np.ones((1, 1, 2)))},
        {"source": ["attention"]},
    )
    atlas = Atlas({"offsets": dataset})

    def endings(folder: Path, **options) -> set[str]:
        write_report(atlas, folder, **options)
        return {path.suffix for path in (folder / "figures").iterdir()}

    assert endings(tmp_path / "plain") == {".svg"}
    assert endings(tmp_path / "all", formats=("pdf", "png")) == {".svg", ".pdf", ".png"}
    with pytest.raises(ParameterError, match="formats"):
        write_report(atlas, tmp_path / "no", formats=("gif",))
    # The page shows a figure of many points as a bitmap, which is made from a PNG.
    monkeypatch.setattr("headwise.page.sections.LARGE_FIGURE", 10)
    assert endings(tmp_path / "large") == {".svg", ".png"}
