"""The documentation site: it builds without a warning, every link in it leads somewhere, and it
asks nothing of the network."""

from __future__ import annotations

import inspect
import logging
import sys
import warnings
from dataclasses import fields
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest
import torch
from click.testing import CliRunner

from docs_site import analyses
from docs_site import labels as label_page
from docs_site.docstrings import notes, parameters, sections
from headwise.analyses.contract import Analysis, known_analyses
from headwise.atlas import behaviours
from headwise.plots import figures_for

ROOT = Path(__file__).parents[1]
FETCHED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src"}
OWN = {
    name: cls for name, cls in known_analyses().items() if cls.__module__.startswith("headwise.")
}


class Reader(HTMLParser):
    """Ids, links, and what a browser fetches by itself."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag in FETCHED and FETCHED[tag] in given:
            self.fetched.append(given[FETCHED[tag]])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="mkdocs is not installed")
    pytest.importorskip("material", reason="mkdocs-material is not installed")
    pytest.importorskip("mkdocstrings", reason="mkdocstrings is not installed")
    out, gallery = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("gallery")
    for name in ("surface-entropy", "dependency-table"):
        (gallery / f"{name}.png").write_bytes((ROOT / "docs" / "picture.png").read_bytes())
    # Not `--quiet`: warnings that are not said do not count as such, and `--strict` would let them
    # pass.
    arguments = [
        "build",
        "--strict",
        "--site-dir",
        str(out),
        "--config-file",
        str(ROOT / "mkdocs.yml"),
    ]
    # In this process, which has imported all that the pages are made from: that takes as long as
    # the pages.
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setenv("HEADWISE_DOCS_QUICK", "1")
        patch.setenv("HEADWISE_DOCS_GALLERY", str(gallery))
        patch.setenv("NO_MKDOCS_2_WARNING", "1")
        patch.setattr(sys, "path", [*sys.path])  # the hooks add to it
        for name, value in {"handlers": [], "propagate": False}.items():
            patch.setattr(logging.getLogger("mkdocs"), name, value)
        done = CliRunner().invoke(import_module("mkdocs.__main__").cli, arguments)
    assert done.exit_code == 0, done.output
    assert "WARNING" not in done.output
    return out


@pytest.mark.slow
def test_links_and_anchors_lead_somewhere_and_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    pages = {path: Reader(path) for path in site.rglob("*.html")}
    assert len(pages) > 50
    for path, page in pages.items():
        if path.name == "404.html":  # its links are from the root of a server
            continue
        assert not [address for address in page.fetched if address.startswith(("http", "//"))], path
        for link in (*page.links, *page.fetched):
            if link.startswith(("http:", "https:", "mailto:", "javascript:", "data:")):
                continue
            address, anchor = urldefrag(unquote(link))
            target = (path.parent / address).resolve() if address else path
            assert target.exists(), f"{path.relative_to(site)}: {link}"
            if anchor and target in pages:
                assert anchor in pages[target].ids, f"{path.relative_to(site)}: {link}"
    for style in site.rglob("*.css"):
        assert "url(http" not in style.read_text(encoding="utf-8").replace('"', "").replace(
            "'", ""
        ), style


@pytest.mark.slow
def test_the_pages_have_what_they_are_made_from(site: Path) -> None:
    for name in OWN:
        assert (site / "analyses" / f"{name}.html").exists(), name
    surface = (site / "analyses" / "surface.html").read_text(encoding="utf-8")
    for part in (
        "Assumptions",
        "Pitfalls",
        "Cost",
        "mass_from_sep",
        "token_type",
        "../gallery/surface-entropy.png",
    ):
        assert part in surface, part
    commands = (site / "reference" / "commands.html").read_text(encoding="utf-8")
    assert "--heads-from" in commands
    assert "make_atlas" in (site / "reference" / "api" / "index.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", OWN)
def test_every_analysis_says_what_its_page_needs(name: str) -> None:
    cls: type[Analysis] = OWN[name]
    parts = sections(cls)
    said = notes(parts.get("Notes", ""))
    for word in ("Question", "Assumes", "Pitfalls", "Cost"):
        assert len(said.get(word, "")) > 20, (
            f"the docstring of {cls.__name__} has no `{word}: ...` among its Notes"
        )
    assert said["Question"].endswith("?")
    named = {
        one.strip() for names, _, _ in parameters(parts["Parameters"]) for one in names.split(",")
    }
    assert named == {field.name for field in fields(cls)}, (
        f"the docstring of {cls.__name__} has others"
    )  # type: ignore[arg-type]
    assert all(spec.caption for spec in figures_for(name))


def test_numbers_of_what_is_asked_of_decoders_have_units() -> None:
    """What the table of variables shows; tests/analyses/test_battery.py looks at the others."""
    threads = torch.get_num_threads()
    found = analyses.planted_results(analyses.asked_of_decoders())
    torch.set_num_threads(threads)
    assert set(found) == {
        "circuits",
        "copy_suppression",
        "function_vectors",
        "induction",
        "logits",
        "opening_token",
        "retrieval",
        "successors",
        "sinks",
    }
    units = {
        key: unit
        for name, dataset in found.items()
        for key, unit in analyses.units_of(name, dataset).items()
    }
    lacking = [name for name, unit in units.items() if not unit]
    assert len(lacking) < 0.03 * len(units), f"say the unit of {', '.join(lacking)}"


def test_the_page_of_labels_has_every_threshold() -> None:
    """A rule that gets a threshold gets a row."""
    thresholds = [name for name in vars(behaviours) if name.startswith(("MIN_", "MAX_"))]
    assert {"MIN_SHARE", "MIN_SINK", "MIN_ACCURACY"} <= set(thresholds)
    source = inspect.getsource(label_page)
    assert [name for name in thresholds if f"behaviours.{name}" not in source] == []
    assert f"| {behaviours.MIN_SINK} |" in label_page.page()
