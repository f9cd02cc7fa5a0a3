"""Checks of parameters: one sentence that names the parameter, what is allowed and what came."""

from __future__ import annotations

from collections.abc import Iterable

from headwise.core.errors import ParameterError


def one_of(name: str, value: object, allowed: Iterable[object]) -> None:
    """Refuse a parameter that is not among the allowed values."""
    allowed = list(allowed)
    if value not in allowed:
        raise ParameterError(f"`{name}` must be one of {', '.join(map(str, allowed))}; it is {value!r}.")


def at_least(name: str, value: float, low: float) -> None:
    """Refuse a parameter below a limit, or one that is no number."""
    if isinstance(value, str) or not value >= low:
        raise ParameterError(f"`{name}` must be at least {low}; it is {value!r}.")
