"""The registry of analyses: of this package, of the running program, and of installed packages."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from headwise.analyses.released import PAPER, VARIANTS
from headwise.core.checks import one_of
from headwise.core.errors import ParameterError, unknown
from headwise.core.interrupts import Interrupted

if TYPE_CHECKING:
    from headwise.analyses.contract import Analysis

ENTRY_POINTS = "headwise.analyses"
REGISTRY: dict[str, type[Analysis]] = {}
# Why analyses of installed packages are missing, by the name that the package declares.
LEFT_OUT: dict[str, str] = {}
# The parameter of an analysis that chooses its variant; settings and atlas files hold this name.
VARIANT_PARAMETER = "reading"


def register(cls: type[Analysis]) -> None:
    """Register an analysis under its name.

    A class with the same module and name replaces the earlier one (a notebook cell run twice)."""
    registered = REGISTRY.get(cls.name)
    if registered is not None:
        same_module = registered.__module__ == cls.__module__
        if not same_module or registered.__qualname__ != cls.__qualname__:
            raise ParameterError(
                f"Two analyses are called '{cls.name}' "
                f"({registered.__module__} and {cls.__module__}): give one of them another name."
            )
    REGISTRY[cls.name] = cls


@cache
def _load_all() -> None:
    """Import the folders of this package and the modules that installed packages declare.

    Importing an analysis registers it. A package that fails is named in a warning and left out."""
    for module in iter_modules(import_module("headwise.analyses").__path__):
        if module.ispkg:
            import_module(f"headwise.analyses.{module.name}.analysis")
    for entry in entry_points(group=ENTRY_POINTS):
        registered = dict(REGISTRY)
        try:
            entry.load()
        except Interrupted:
            raise
        # A module of others may fail in any way, and may call sys.exit() too: the analyses of
        # headwise work without it.
        except BaseException as error:
            REGISTRY.clear()
            REGISTRY.update(registered)
            LEFT_OUT[entry.name] = (
                f"The analysis '{entry.name}' of an installed package is left out, because it "
                f"cannot be loaded ({type(error).__name__}: {error}); "
                f"fix or remove the package that declares {entry.value}."
            )
            warnings.warn(LEFT_OUT[entry.name], RuntimeWarning, stacklevel=2)


def known_analyses() -> dict[str, type[Analysis]]:
    """Return every analysis by name."""
    _load_all()
    return dict(sorted(REGISTRY.items()))


def make_analysis(name: str, parameters: Mapping[str, Any] | None = None) -> Analysis:
    """Return an analysis by name, with checked parameters."""
    registry = known_analyses()
    if name not in registry and name in LEFT_OUT:
        raise ParameterError(LEFT_OUT[name])
    if name not in registry:
        raise ParameterError(unknown("analysis", name, registry))
    cls = registry[name]
    parameters = dict(parameters or {})
    allowed = [field.name for field in fields(cls)]  # type: ignore[arg-type]
    for parameter in parameters:
        if parameter not in allowed:
            raise ParameterError(unknown(f"parameter of {name}", parameter, allowed))
    try:
        return cls(**parameters)
    except ParameterError as error:
        raise ParameterError(f"{name}: {error}") from error


def has_variant(name: str) -> bool:
    """Return whether the code released for an analysis differs from its paper.

    >>> has_variant("roles"), has_variant("surface")
    (True, False)
    """
    cls = known_analyses().get(name)
    if cls is None:
        return False
    parameters = [field.name for field in fields(cls)]  # type: ignore[arg-type]
    return VARIANT_PARAMETER in parameters


def choose_analyses(
    names: Sequence[str | Analysis] | None = None,
    parameters: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    variant: str = PAPER,
) -> list[Analysis]:
    """Return analyses by name with their parameters.

    Parameters
    ----------
    names : sequence of str or Analysis, optional
        Names, or analyses that stay as they are; default: all that are automatic.
    parameters : mapping, optional
        Parameters by analysis.
    variant : str, default "paper"
        The variant of every analysis that has one and whose parameters do not name one (see
        `headwise.analyses.released`).
    """
    one_of("variant", variant, VARIANTS)
    if names is None:
        names = [name for name, cls in known_analyses().items() if cls.automatic]
    chosen_names: list[str] = []
    for item in names:
        name = item if isinstance(item, str) else item.name
        if name in chosen_names:
            raise ParameterError(f"The analysis '{name}' is named twice; name it once.")
        chosen_names.append(name)

    remaining = {name: dict(values) for name, values in (parameters or {}).items()}
    chosen = []
    for item in names:
        if not isinstance(item, str):
            chosen.append(item)
            continue
        values = remaining.pop(item, {})
        if variant != PAPER and has_variant(item):
            # A variant among the analysis's own parameters wins.
            values = {VARIANT_PARAMETER: variant, **values}
        chosen.append(make_analysis(item, values))
    if remaining:
        raise ParameterError(
            f"`parameters` names '{min(remaining)}', which is not among the analyses of this run "
            f"({', '.join(chosen_names)})."
        )
    return chosen
