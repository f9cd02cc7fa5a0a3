"""Every block of code in the documents is of a kind that a rule checks.

- `python`: run, block after block of a page in one space; a `text` block behind it is what it printed. The built-in
  model is a smaller one with its tokenizer and its heads, but where numbers of the built-in one are
  printed.
- `py`: another library's code: it must be Python.
- none or `bash`: what one types. `headwise` with commands and options that exist (tests/test_docs.py), `make` with a
  target, `python` with a script of the repository, `pip install` with extras that exist.
- `toml`, `json`, `yaml`: it must parse.
- `text` elsewhere: a drawing, or what a program says.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from headwise import make_atlas
from headwise.analyses.contract import REGISTRY, known_analyses
from headwise.analyses.roles.sieves.registry import forget_sieve, known_sieves
from little import little_model

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.S | re.M)
ELSEWHERE = {
    "docs/cluster.md": "tests/run/test_cluster.py has workers do the same",
    "docs/python.md": "tests/models/test_python_docs.py runs it on a model whose tokens are its words",
    "docs/adding-an-analysis.md": "tests/test_docs.py makes the package, tests/analyses/roles/test_sieves.py its roles",
}
MEASURED = {"docs/tutorial.md"}  # it prints what the heads of the built-in model do
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
    "optional-dependencies"
]
TARGETS = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
PLAIN = {
    "cd",
    "export",
    "git",
    "ray",
    "srun",
    "sbatch",
    "kubectl",
    "pre-commit",
}  # programs that are not ours


def blocks(path: Path) -> list[tuple[str, str]]:
    return BLOCK.findall(path.read_text(encoding="utf-8"))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def with_code(kind: str) -> list[Path]:
    return [path for path in PAGES if any(language == kind for language, _ in blocks(path))]


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_every_block_is_of_a_kind_that_is_checked(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count("\n```") + text.startswith("```") == 2 * len(blocks(path)), (
        "a block is open, or is indented"
    )
    for language, code in blocks(path):
        if language in ("", "bash"):
            for line in code.replace("\\\n", " ").splitlines():
                check_typed(line)
        elif language in ("python", "py"):
            compile(code, name_of(path), "exec", dont_inherit=True)
        elif language == "toml":
            tomllib.loads(code)
        elif language == "json":
            json.loads(code)
        else:
            assert language in ("text", "yaml"), f"no rule checks a block of {language}"


def check_typed(line: str) -> None:
    """A line that one types: what it names must exist."""
    words = shlex.split(line, comments=True)
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):  # VARIABLE=value before a command
        words = words[1:]
    if not words or words[0] == "headwise" or words[0] in PLAIN:  # headwise: tests/test_docs.py
        return
    if words[0] == "make":
        assert set(words[1:]) <= set(TARGETS), line
    elif words[0] == "python":
        script = next((word for word in words[1:] if not word.startswith("-")), "")
        assert words[1] in ("-m", "-c") or (ROOT / script).exists(), line
    else:
        assert words[:2] == ["pip", "install"], f"no rule checks {line!r}"
        named = [extra for word in words for extra in re.findall(r"^headwise\[(.*)\]", word)]
        assert {one for extra in named for one in extra.split(",")} <= set(EXTRAS), line


@pytest.fixture(scope="module")
def little(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return little_model(tmp_path_factory.mktemp("models") / "little")


@pytest.mark.slow
@pytest.mark.usefixtures("only_svg")
@pytest.mark.parametrize("path", with_code("python"), ids=name_of)
def test_code_runs_and_prints_what_the_page_says(
    path: Path, little: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name_of(path) in ELSEWHERE:
        pytest.skip(ELSEWHERE[name_of(path)])
    monkeypatch.chdir(tmp_path)
    if name_of(path) not in MEASURED:
        monkeypatch.setattr("headwise.models.demo.demo_model_path", lambda: little)
    analyses, roles = known_analyses(), set(known_sieves())
    if name_of(path) == "docs/formats.md":  # it opens an atlas that is there
        make_atlas(analyses=["surface"], limit=2).save("atlas/atlas.nc")
    space: dict[str, object] = {"__name__": "page"}
    said: str | None = None
    try:
        for language, code in blocks(path):
            if language == "text" and said is not None:
                assert said.split("\n") == code.split("\n")
            said = None
            if language == "python":
                with contextlib.redirect_stdout(io.StringIO()) as out:
                    exec(compile(code, name_of(path), "exec", dont_inherit=True), space)
                said = out.getvalue()
    finally:
        REGISTRY.clear()
        REGISTRY.update(analyses)
        for name in set(known_sieves()) - roles:
            forget_sieve(name)
