"""The house keeps its plan: who may import whom is the table of docs/architecture.md, held against
every module."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "headwise"
ROW = re.compile(
    r"^\| (ground|first|second|third|roof|beside) \| `(\w+)` \|.*\|([^|]*)\|$", re.MULTILINE
)
MODULES = sorted(PACKAGE.rglob("*.py"))
MOST_PARAMETERS = 7
# Kernels take what they are launched with, commands an option each. Of the others, these are given
# by name: what is public is found by `help`, and a call of attention has what transformers hands
# over.
KERNELS = (
    "models/statistics/kernels.py",
    "stats/divergence_kernel.py",
    "analyses/attribution/kernel.py",
)
LONG = {
    "HeadModel.open",
    "draw_head",
    "option",
    "planted_model",
    "Call.__init__",
    "Session.__init__",
    "call_part",
}


@cache
def plan() -> dict[str, set[str]]:
    """room -> the rooms it may import, as the table says."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    return {room: set(re.findall(r"`(\w+)`", allowed)) for _, room, allowed in ROW.findall(text)}


@cache
def imports(source: str) -> list[tuple[int, str, str]]:
    """(line, module, name) of everything a module takes from headwise, wherever in the file it does
    so."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            found += [(node.lineno, node.module or "", alias.name) for alias in node.names]
    return [item for item in found if item[1].split(".")[0] == "headwise"]


def room_of(module: str, name: str = "") -> str:
    """`stats` for `headwise.stats.tests` and for `from headwise import stats`; nothing for the top
    level's own names."""
    parts = [*module.split("."), name]
    return parts[1] if len(parts) > 1 and parts[1] in plan() else ""


@cache
def edges() -> dict[str, dict[str, str]]:
    """room -> room it imports -> one place that does."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for path in MODULES:
        place = path.relative_to(PACKAGE)
        own = place.parts[0] if len(place.parts) > 1 else ""
        for line, module, name in imports(path.read_text(encoding="utf-8")):
            other = room_of(module, name)
            if own and other and own != other:
                found[own].setdefault(other, f"{place}:{line}")
    return found


def test_the_table_names_the_rooms_there_are() -> None:
    rooms = {
        path.name for path in PACKAGE.iterdir() if path.is_dir() and (path / "__init__.py").exists()
    }
    assert set(plan()) == rooms
    assert len(rooms) <= 14


def test_rooms_import_only_what_the_table_allows() -> None:
    wrong = [
        f"{where}: {own} imports {other}"
        for own, others in edges().items()
        for other, where in others.items()
        if other not in plan()[own]
    ]
    assert not wrong, "\n".join(wrong)


def test_rooms_have_no_cycle() -> None:
    for graph in (plan(), {own: set(others) for own, others in edges().items()}):
        left = {room: set(others) for room, others in graph.items()}
        while left:
            free = [room for room, others in left.items() if not others & set(left)]
            assert free, f"a cycle among {sorted(left)}"
            for room in free:
                del left[room]


def test_questions_have_no_cycle() -> None:
    left: dict[str, set[str]] = defaultdict(set)
    for path in (PACKAGE / "analyses").glob("*/**/*.py"):
        own = path.relative_to(PACKAGE / "analyses").parts[0]
        for _, module, name in imports(path.read_text(encoding="utf-8")):
            parts = [*module.split("."), name]
            if (
                parts[1] == "analyses"
                and len(parts) > 2
                and (PACKAGE / "analyses" / parts[2]).is_dir()
            ):
                left[own].add(parts[2])
        left[own].discard(own)
    while left:
        free = [question for question, others in left.items() if not others & set(left)]
        assert free, f"a cycle among {dict(left)}"
        for question in free:
            del left[question]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_modules_keep_their_private_names(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    package = ".".join(("headwise", *path.relative_to(PACKAGE).parts[:-1]))
    for line, module, name in imports(source):
        private = any(
            part.startswith("_") and not part.startswith("__")
            for part in (*module.split("."), name)
        )
        assert not private or module.startswith(package), (
            f"line {line}: {module}.{name} is private to its package"
        )


def long_functions(source: str) -> set[str]:
    """Functions and methods of more than seven parameters."""
    found = set()
    tree = ast.parse(source)
    owners = {
        id(own): f"{node.name}."
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for own in node.body
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            if len([one for one in given if one.arg not in ("self", "cls")]) > MOST_PARAMETERS:
                found.add(owners.get(id(node), "") + node.name)
    return found


def test_functions_take_few_parameters() -> None:
    found = set[str]()
    for path in MODULES:
        place = path.relative_to(PACKAGE).as_posix()
        if place not in KERNELS and not place.startswith("cli/"):
            found |= long_functions(path.read_text(encoding="utf-8"))
    assert found == LONG, "more than seven go into a frozen options object"
    assert long_functions(
        "class A:\n    def f(self, a, b, c, d, e, f, g, *, h): ...\n    def g(self, a): ..."
    ) == {"A.f"}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from headwise.stats.tests import z_test", [(1, "headwise.stats.tests", "z_test")]),
        ("def f():\n    import headwise.run.plan as plan", [(2, "headwise.run.plan", "")]),
        ("import numpy", []),
    ],
)
def test_imports_are_read_wherever_they_stand(
    source: str, found: list[tuple[int, str, str]]
) -> None:
    assert imports(source) == found
