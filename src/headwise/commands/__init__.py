"""The commands, one module for each family; a module's `register(app)` adds its own."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

import typer

FIRST = ("atlas", "draw", "info")


def register_all(app: typer.Typer) -> None:
    """Add every command, those a newcomer needs first; modules import what they need only when called, so that `headwise --help` is quick."""
    for name in sorted((module.name for module in iter_modules(__path__)), key=lambda name: (name not in FIRST, name)):
        register = getattr(import_module(f"{__name__}.{name}"), "register", None)
        if register is not None:
            register(app)
