"""Packages keep to their layers: who may import whom is the table of docs/architecture.md, and this
test compares it with every module."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "headwise"
TABLE_ROW = re.compile(
    r"^\| (base|data|analysis|experiment|interface|testing) \| `(\w+)` \|.*\|([^|]*)\|$",
    re.MULTILINE,
)
MODULE_PATH = re.compile(r"headwise(\.\w+)+\.?")
MODULES = sorted(SOURCE.rglob("*.py"))
MOST_PARAMETERS = 7
# Triton kernels take what they are launched with, commands an option each. Of the others, these
# have many keywords: what is public is found by `help`, and a call of attention has what
# transformers passes to it.
KERNELS = (
    "models/statistics/kernels.py",
    "stats/divergence_kernel.py",
    "analyses/attribution/kernel.py",
)
MANY_PARAMETERS = {
    "HeadModel.from_pretrained",
    "draw_head",
    "make_atlas",
    "option",
    "planted_model",
    "Call.__init__",
    "Session.__init__",
    "call_part",
    "track",
}


class Import(NamedTuple):
    """One import of something of headwise; `name` is empty for `import headwise.x`."""

    line: int
    module: str
    name: str


@cache
def allowed_imports() -> dict[str, set[str]]:
    """package -> the packages it may import, as the table says."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = {}
    for _, package, allowed in TABLE_ROW.findall(text):
        table[package] = set(re.findall(r"`(\w+)`", allowed))
    return table


@cache
def imports_in(source: str) -> list[Import]:
    """Everything a module takes from headwise, wherever in the file it does so.

    A string that is the path of a module (`import_module("headwise.page.views")`) counts as an
    import: a layer that loads another by name depends on it all the same."""
    tree = ast.parse(source)
    imports = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports += [Import(node.lineno, alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            for alias in node.names:
                imports.append(Import(node.lineno, node.module or "", alias.name))
        elif isinstance(node, ast.Constant) and MODULE_PATH.fullmatch(str(node.value)):
            imports.append(Import(node.lineno, str(node.value).rstrip("."), ""))
    return [each for each in imports if each.module.split(".")[0] == "headwise"]


def package_of(module: str, name: str = "") -> str:
    """`stats` for `headwise.stats.tests` and for `from headwise import stats`; empty for the top
    level's own names."""
    parts = [*module.split("."), name]
    if len(parts) > 1 and parts[1] in allowed_imports():
        return parts[1]
    return ""


@cache
def imports_between_packages() -> dict[str, dict[str, str]]:
    """package -> package it imports -> one place that does."""
    places: dict[str, dict[str, str]] = defaultdict(dict)
    for path in MODULES:
        file = path.relative_to(SOURCE)
        if len(file.parts) == 1:
            # `headwise/__init__.py` and `__main__.py` lie above all layers.
            continue
        importer = file.parts[0]
        for line, module, name in imports_in(path.read_text(encoding="utf-8")):
            imported = package_of(module, name)
            if imported and imported != importer:
                places[importer].setdefault(imported, f"{file}:{line}")
    return places


def assert_no_cycle(graph: Mapping[str, Iterable[str]]) -> None:
    """Take away what imports nothing that is left, until nothing is left."""
    remaining = {node: set(imported) for node, imported in graph.items()}
    while remaining:
        free = [node for node, imported in remaining.items() if not imported & set(remaining)]
        assert free, f"a cycle among {sorted(remaining)}"
        for node in free:
            del remaining[node]


def test_the_table_names_every_package() -> None:
    packages = set()
    for path in SOURCE.iterdir():
        if path.is_dir() and (path / "__init__.py").exists():
            packages.add(path.name)
    assert set(allowed_imports()) == packages
    assert len(packages) <= 14


def test_packages_import_only_what_the_table_allows() -> None:
    violations = []
    for importer, places in imports_between_packages().items():
        for imported, place in places.items():
            if imported not in allowed_imports()[importer]:
                violations.append(f"{place}: {importer} imports {imported}")
    assert not violations, "\n".join(violations)


def test_packages_have_no_cycle() -> None:
    assert_no_cycle(allowed_imports())
    assert_no_cycle(imports_between_packages())


def test_analyses_have_no_cycle() -> None:
    analyses = SOURCE / "analyses"
    graph: dict[str, set[str]] = defaultdict(set)
    for path in analyses.glob("*/**/*.py"):
        importer = path.relative_to(analyses).parts[0]
        for _, module, name in imports_in(path.read_text(encoding="utf-8")):
            parts = [*module.split("."), name]
            if parts[1] == "analyses" and len(parts) > 2 and (analyses / parts[2]).is_dir():
                graph[importer].add(parts[2])
        graph[importer] -= {importer, ""}
    assert_no_cycle(graph)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_modules_keep_their_private_names(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    package = ".".join(("headwise", *path.relative_to(SOURCE).parts[:-1]))
    for line, module, name in imports_in(source):
        private = any(
            part.startswith("_") and not part.startswith("__")
            for part in (*module.split("."), name)
        )
        assert not private or module.startswith(package), (
            f"line {line}: {module}.{name} is private to its package"
        )


def functions_with_many_parameters(source: str) -> set[str]:
    """Functions and methods of more than seven parameters."""
    tree = ast.parse(source)
    class_of_method = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for member in node.body:
                class_of_method[id(member)] = f"{node.name}."
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            parameters = [each for each in arguments if each.arg not in ("self", "cls")]
            if len(parameters) > MOST_PARAMETERS:
                names.add(class_of_method.get(id(node), "") + node.name)
    return names


def test_functions_take_few_parameters() -> None:
    names = set[str]()
    for path in MODULES:
        file = path.relative_to(SOURCE).as_posix()
        if file not in KERNELS and not file.startswith("cli/"):
            names |= functions_with_many_parameters(path.read_text(encoding="utf-8"))
    assert names == MANY_PARAMETERS, "more than seven go into a frozen dataclass of options"
    example = "class A:\n    def f(self, a, b, c, d, e, f, g, *, h): ...\n    def g(self, a): ..."
    assert functions_with_many_parameters(example) == {"A.f"}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from headwise.stats.tests import z_test", [(1, "headwise.stats.tests", "z_test")]),
        ("def f():\n    import headwise.run.plan as plan", [(2, "headwise.run.plan", "")]),
        ("import numpy", []),
        ('import_module("headwise.page.views")', [(1, "headwise.page.views", "")]),
        ('HOME = "headwise.analyses"', [(1, "headwise.analyses", "")]),
        ('import_module(f"headwise.cli.{name}")', [(1, "headwise.cli", "")]),
        ('"""See headwise.page for more."""', []),
    ],
)
def test_imports_are_seen_wherever_they_stand(
    source: str, expected: list[tuple[int, str, str]]
) -> None:
    assert imports_in(source) == expected
