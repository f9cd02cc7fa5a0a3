"""The package: wheel and sdist are whole, it runs where there is no source tree, and its version is
one."""

from __future__ import annotations

import importlib.util
import re
import tarfile
import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headwise import __version__
from headwise.analyses.papers import HEADWISE, current_citation, reference
from headwise.cli import app

ROOT = Path(__file__).parents[1]
FIVE = ("clark2019", "kovaleva2019", "pascual2021", "pande2021", "jo2020")


def test_every_place_has_the_same_version() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.*)$", citation, re.M) == [__version__]
    assert CliRunner().invoke(app, ["--version"]).output.strip() == f"headwise {__version__}"


def test_the_citation_has_the_five_papers() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    references = citation.partition("\nreferences:\n")[2]
    assert references.count("  - type: conference-paper\n") == 5
    for key in FIVE:
        bibtex = reference(key).bibtex
        (title,) = re.findall(r"^  title = {(.*)},", bibtex, re.M)
        (authors,) = re.findall(r"^  author = {(.*)},", bibtex, re.M)
        assert title.replace("{", "").replace("}", "") in references
        for author in authors.split(" and "):
            assert author.split()[-1] in references, author


def test_headwise_is_cited_alike_everywhere() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8").partition("references:")[0]
    facts = dict(re.findall(r'^([a-z-]+): "?([^"\n]*)"?$', citation, re.M))
    (author,) = re.findall(r'^  - name: "(.*)"$', citation, re.M)
    for text in (facts["title"], facts["version"], facts["license"], author):
        assert text in HEADWISE.citation
        assert text in HEADWISE.bibtex
    for arguments in (["cite"], ["cite", "surface"]):
        assert HEADWISE.citation in CliRunner().invoke(app, arguments).output
    assert HEADWISE.bibtex in CliRunner().invoke(app, ["cite", "surface", "--bibtex"]).output


def test_lists_of_authors_are_whole() -> None:
    # As printed in the papers: first, last and number of authors.
    expected = {
        "elhage2021": ("Nelson Elhage", "Chris Olah", 25),
        "olsson2022": ("Catherine Olsson", "Chris Olah", 26),
        "gu2024": ("Xiangming Gu", "Min Lin", 8),
        "wang2022": ("Kevin Wang", "Jacob Steinhardt", 5),
    }
    for key, (first, last, count) in expected.items():
        (authors,) = re.findall(r"^  author = {(.*)},", reference(key).bibtex, re.M)
        names = authors.split(" and ")
        assert (names[0], names[-1], len(names)) == (first, last, count), key
        assert all(name in reference(key).citation for name in names)
    # An atlas of an earlier version holds the cut list; the page cites the whole one.
    assert current_citation("Olsson et al. 2022", "cut") == reference("olsson2022").citation
    assert current_citation("Somebody 2030", "as it is") == "as it is"


@pytest.mark.slow
def test_it_installs_and_runs_without_the_source_tree(tmp_path: Path) -> None:
    pytest.importorskip("build", reason="the package build is not installed")
    pytest.importorskip("twine", reason="the package twine is not installed")
    pytest.importorskip("headwise_wiki_bert", reason="the built-in model is not installed")
    spec = importlib.util.spec_from_file_location(
        "check_package", ROOT / "tools" / "check_package.py"
    )
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    wheel, sdist = tool.build(tmp_path)
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
    assert not [name for name in names if not name.startswith(("headwise/", "headwise-"))]
    shipped = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src" / "headwise").rglob("*")
        if path.is_file()
    }
    lacking = {name for name in shipped if "__pycache__" not in name} - set(names)
    assert not lacking, f"package-data in pyproject.toml does not cover {sorted(lacking)}"
    with tarfile.open(sdist) as packed_source:
        assert any(name.endswith("/pyproject.toml") for name in packed_source.getnames())
    assert set(tool.run(tool.install(wheel, tmp_path / "venv"), tmp_path)) == {__version__}
