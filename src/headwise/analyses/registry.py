"""The list of analyses: those of this package, those that a program registered, and those of
installed packages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from headwise.analyses.released import PAPER, check_reading
from headwise.core.errors import ParameterError, unknown

if TYPE_CHECKING:
    from headwise.analyses.contract import Analysis

ENTRY_POINTS = "headwise.analyses"
REGISTRY: dict[str, type[Analysis]] = {}


def register(cls: type[Analysis]) -> None:
    """Take an analysis into the list. Its name must be free; the same class made again (a cell run
    twice) is new."""
    before = REGISTRY.get(cls.name)
    if before is not None and (before.__module__, before.__qualname__) != (
        cls.__module__,
        cls.__qualname__,
    ):
        raise ParameterError(
            f"Two analyses are called '{cls.name}' ({before.__module__} and {cls.__module__}): "
            "give one of them another name."
        )
    REGISTRY[cls.name] = cls


@cache
def _load_all() -> None:
    """Import the folders of this package and what installed packages declare, which registers
    theirs."""
    for module in iter_modules(import_module("headwise.analyses").__path__):
        if module.ispkg:
            import_module(f"headwise.analyses.{module.name}.analysis")
    for entry in entry_points(group=ENTRY_POINTS):
        try:
            entry.load()
        except Exception as error:  # a package of somebody else's may fail in any way
            raise ParameterError(
                f"The analysis '{entry.name}' of an installed package cannot be loaded "
                f"({type(error).__name__}: {error}); repair or remove the package that declares {entry.value}."
            ) from error


def known_analyses() -> dict[str, type[Analysis]]:
    """Every analysis by name."""
    _load_all()
    return dict(sorted(REGISTRY.items()))


def make_analysis(name: str, parameters: Mapping[str, Any] | None = None) -> Analysis:
    """An analysis by name, with checked parameters."""
    registry = known_analyses()
    if name not in registry:
        raise ParameterError(unknown("analysis", name, registry))
    cls = registry[name]
    allowed = [f.name for f in fields(cls)]  # type: ignore[arg-type]
    for given in parameters or {}:
        if given not in allowed:
            raise ParameterError(unknown(f"parameter of {name}", given, allowed))
    try:
        return cls(**(parameters or {}))
    except ParameterError as error:
        raise ParameterError(f"{name}: {error}") from error


def has_reading(name: str) -> bool:
    """Whether the code released for an analysis does something else than the paper says.

    >>> has_reading("roles"), has_reading("surface")
    (True, False)
    """
    cls = known_analyses().get(name)
    return cls is not None and "reading" in {f.name for f in fields(cls)}  # type: ignore[arg-type]


def choose_analyses(
    names: Sequence[str | Analysis] | None = None,
    parameters: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    reading: str = PAPER,
) -> list[Analysis]:
    """Analyses by name with their parameters; None for all that are automatic. One made already
    stays as it is.

    `reading` is that of every analysis that has such a parameter and is not given it (see
    `headwise.analyses.released`)."""
    check_reading(reading)
    wanted: Sequence[str | Analysis] = (
        names
        if names is not None
        else [name for name, cls in known_analyses().items() if cls.automatic]
    )
    called = [item if isinstance(item, str) else item.name for item in wanted]
    twice = next((name for name in called if called.count(name) > 1), None)
    if twice is not None:
        raise ParameterError(f"The analysis '{twice}' is named twice; name it once.")
    given = dict(parameters or {})
    if reading != PAPER:
        for name in (item for item in wanted if isinstance(item, str) and has_reading(item)):
            given[name] = {"reading": reading, **given.get(name, {})}
    chosen = [
        make_analysis(item, given.pop(item, None)) if isinstance(item, str) else item
        for item in wanted
    ]
    if given:
        raise ParameterError(
            f"`parameters` names '{min(given)}', which is not among the analyses of this run ({', '.join(called)})."
        )
    return chosen
