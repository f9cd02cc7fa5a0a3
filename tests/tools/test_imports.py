"""Benchmarks and tools, most of which no test runs, take from headwise what is there."""

from __future__ import annotations

import ast
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted([*(ROOT / "benchmarks").rglob("*.py"), *(ROOT / "tools").rglob("*.py")])
WITH_GPU = ("kernels", "launch", "kernel", "divergence_kernel")  # they import Triton


def lacking(source: str) -> list[str]:
    """What is imported from headwise, or named in full, and is not there."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [(node.module, alias.name) for alias in node.names]
    own = [(module, name) for module, name in found if module.split(".")[0] == "headwise"]
    return [f"{module} {name}".strip() for module, name in own if not _exists(module, name)]


def _exists(module: str, name: str) -> bool:
    if not _is_module(module):
        return False
    if module.rpartition(".")[2] in WITH_GPU or not name:
        return True
    return hasattr(import_module(module), name) or _is_module(f"{module}.{name}")


def _is_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # what it would be in is none
        return False


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_what_scripts_import_exists(path: Path) -> None:
    assert lacking(path.read_text(encoding="utf-8")) == []


def test_what_is_not_there_is_seen() -> None:
    source = "from headwise.stats.tests import z_test, gone\nimport headwise.nowhere\nfrom headwise.no.where import x\n"
    assert lacking(source) == [
        "headwise.stats.tests gone",
        "headwise.nowhere",
        "headwise.no.where x",
    ]
