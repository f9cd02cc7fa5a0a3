"""Importing the figures of every analysis and experiment, so that they register themselves."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType

import headwise.analyses
import headwise.experiments
from headwise.analyses.registry import known_analyses


@cache
def load_figures() -> None:
    """Import every module of figures or tables once.

    Adding a file `figures.py` to an analysis, or installing a package with one, is all it takes to
    add a figure.
    """
    for package in (headwise.analyses, headwise.experiments):
        for folder in iter_modules(package.__path__):
            if folder.ispkg:
                _import_figures(import_module(f"{package.__name__}.{folder.name}"))
    # The figures of installed packages are imported with their analyses.
    known_analyses()


def _import_figures(package: ModuleType) -> None:
    """Import the modules of a package whose names end in `figures` or `tables`."""
    names = [module.name for module in iter_modules(package.__path__)]
    # In a fixed order: figures are shown in the order in which they register.
    for name in sorted(names):
        if name.endswith(("figures", "tables")):
            import_module(f"{package.__name__}.{name}")
