"""The README and the documents say what is true: commands and options exist, links lead somewhere,
the worked analysis works."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import typer.main
from typer.testing import CliRunner

from headwise import Corpus, Example, HeadModel, make_atlas
from headwise.analyses import registry
from headwise.analyses.contract import REGISTRY, known_analyses
from headwise.cli import app
from headwise.testing import planted_model
from little import little_model

ROOT = Path(__file__).parents[1]
TEXTS = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
COMMAND = typer.main.get_command(app)


def commands(text: str) -> list[str]:
    """Every `headwise …` that is printed as code, in blocks and in lines; a comment behind it is
    cut off."""
    blocks = [
        line for block in re.findall(r"```\w*\n(.*?)```", text, re.S) for line in block.splitlines()
    ]
    spans = re.findall(r"`(headwise [^`]+)`", re.sub(r"```.*?```", "", text, flags=re.S))
    return [line.split("  #")[0].strip() for line in blocks + spans if line.startswith("headwise ")]


def names_of(command: str) -> None:
    """Refuse a command or option that does not exist."""
    words = shlex.split(command)[1:]
    known = COMMAND.commands  # type: ignore[attr-defined]
    assert words[0] in known or words[0].startswith("--"), command
    if words[0] in known and "..." not in words:
        context = typer.Context(known[words[0]], info_name=words[0])
        extra: list[str] = []
        with suppress(Exception):  # in prose an option may be named without its value
            extra = known[words[0]].make_parser(context).parse_args(words[1:])[1]
        assert not extra, f"{command}: {' '.join(extra)} is more than the command takes"
    taken = known.get(words[0], COMMAND).params
    options = {name for one in taken for name in (*one.opts, *one.secondary_opts)} | {
        "--help",
        "-h",
    }
    assert {word.partition("=")[0] for word in words if word.startswith("--")} <= options, command


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_commands_and_options_exist_and_links_lead_somewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for command in commands(text):
        names_of(command)
    for target in re.findall(r"\]\((?!https?:|#)([^)\s#]+)(?:#[^)]*)?\)", text):
        assert (path.parent / target).exists() or os.path.normpath(
            path.parent / target
        ) in made_pages(), target


def made_pages() -> set[str]:
    """Pages of the site that are made from the code: tools/docs_site. That anchors exist is for
    mkdocs to say."""
    names = [f"analyses/{name}" for name in (*known_analyses(), "index")]
    names += [f"reference/{name}" for name in ("commands", "architectures", "labels", "api/index")]
    return {str(ROOT / "docs" / f"{name}.md") for name in (*names, "gallery")}


def test_help_examples_exist() -> None:
    found = 0
    for command in COMMAND.commands.values():  # type: ignore[attr-defined]
        for line in re.findall(r"^\s*(headwise \S.*)$", command.help or "", re.M):
            names_of(line)
            found += 1
    assert found > 10


def test_the_page_of_capabilities_has_every_analysis_and_every_command() -> None:
    text = (ROOT / "docs" / "capabilities.md").read_text(encoding="utf-8")
    table = "\n".join(line for line in text.splitlines() if line.startswith("|"))
    for name in known_analyses():
        assert f"`{name}`" in table, name
    for name in COMMAND.commands:  # type: ignore[attr-defined]
        assert f"`headwise {name}`" in table, name


def test_the_worked_analysis_works_as_printed() -> None:
    text = (ROOT / "docs" / "adding-an-analysis.md").read_text(encoding="utf-8")
    (code,) = (
        block
        for block in re.findall(r"```python\n(.*?)```", text, re.S)
        if "class LongestWord" in block
    )
    before = known_analyses()
    try:
        space: dict[str, object] = {"__name__": "longest_word"}
        exec(compile(code, "longest_word.py", "exec", dont_inherit=True), space)
        planted = planted_model([["previous", "self"]], words=["a", "cat", "sleeps"])
        model = HeadModel.open(planted.model, tokenizer=planted.tokenizer)
        found = make_atlas(
            model, Corpus.from_examples([Example(words=("a", "cat", "sleeps"))]), ["longest_word"]
        )["longest_word"]
    finally:
        REGISTRY.clear()
        REGISTRY.update(before)
    # [CLS] a cat sleeps [SEP]: of five rows, [SEP] alone looks back at the longest word, and that
    # word alone at itself.
    assert found["mass"].values.tolist() == [[pytest.approx(0.2, abs=1e-4)] * 2]
    assert found["mass_n"].values.tolist() == [[1, 1]]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of packages that can be imported; afterwards none of them is known."""
    before = known_analyses()
    (tmp_path / "site").mkdir()
    monkeypatch.syspath_prepend(tmp_path / "site")
    yield tmp_path / "site"
    monkeypatch.undo()
    REGISTRY.clear()
    REGISTRY.update(before)
    sys.modules.pop("longest_word", None)
    registry._load_all.cache_clear()


@pytest.mark.slow
@pytest.mark.usefixtures("only_svg")
def test_a_package_of_ones_own_made_word_by_word_is_on_the_page(
    tmp_path: Path, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built_in = little_model(tmp_path / "little")
    monkeypatch.setattr("headwise.models.demo.demo_model_path", lambda: built_in)
    text = (ROOT / "docs" / "adding-an-analysis.md").read_text(encoding="utf-8")
    (_, project), (_, code), (_, steps), (_, check) = re.findall(r"```(\w*)\n(.*?)```", text, re.S)[
        :4
    ]
    assert project.count("\n") + code.count("\n") < 60
    folder = tmp_path / "plugin"
    folder.mkdir()
    (folder / "pyproject.toml").write_text(project)
    (folder / "longest_word.py").write_text(code)
    steps_of = [shlex.split(step) for step in steps.strip().splitlines()]
    assert steps_of[0][:2] == ["pip", "install"]
    # Into a folder of its own instead of this environment; the rest in this process, which has
    # imported headwise.
    own = [
        "--no-deps",
        "--no-index",
        "--quiet",
        "--disable-pip-version-check",
        "--target",
        str(site),
    ]
    done = subprocess.run(
        [sys.executable, "-m", *steps_of[0], *own], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    importlib.invalidate_caches()
    registry._load_all.cache_clear()
    monkeypatch.chdir(folder)
    said = ""
    for name, *arguments in steps_of[1:]:
        assert name == "headwise"
        ran = CliRunner().invoke(app, arguments)
        assert ran.exit_code == 0, (arguments, ran.output, ran.exception)
        said += ran.output
    assert sys.modules["longest_word"].__file__ == str(site / "longest_word.py")
    exec(check, {})
    assert "longest_word" in said
    assert "Attention to the longest word" in (folder / "mine" / "index.html").read_text(
        encoding="utf-8"
    )
    assert (folder / "mine" / "figures" / "longest_word-heads.svg").exists()


def test_the_tutorial_names_every_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    text = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `([\w-]+)` \|", text, re.M)) == set(extras) - {"test"}


def test_reports_were_made_as_the_page_about_them_says() -> None:
    text = (ROOT / "docs" / "reproduce.md").read_text(encoding="utf-8")
    said = dict(re.findall(r"\(reproductions/(\w+)\.md\) with `--scale ([\d.]+)", text))
    reports = {
        path.stem: path.read_text(encoding="utf-8")
        for path in (ROOT / "docs" / "reproductions").glob("*.md")
    }
    made = {
        name: re.search(r"sample sizes ([\d.]+) times", report) for name, report in reports.items()
    }
    assert said == {name: scale[1] for name, scale in made.items() if scale}
    assert len(said) == 5


def test_the_page_on_random_weights_has_the_text_of_its_script() -> None:
    path = ROOT / "benchmarks" / "random_models.py"
    spec = importlib.util.spec_from_file_location("random_models", path)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    # Numbers and tables take minutes to compute: any will do here.
    pattern = re.sub(r"\\\{\w+\\\}", "(?:.+?)", re.escape(script.TEXT))
    page = (ROOT / "docs" / "random-weights.md").read_text(encoding="utf-8")
    assert re.fullmatch(pattern, page, re.S)
