"""Checks of parameters: one sentence that names the parameter, what is allowed and what came."""

from __future__ import annotations

import operator
import re
import types
from collections.abc import Iterable
from dataclasses import fields
from functools import cache
from typing import Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from headwise.core.errors import ParameterError

LARGEST = 2**63 - 1  # whole numbers end in arrays, seeds and files, which hold no larger ones
_NO_TEXT = re.compile(r"[\0\ud800-\udfff]")  # no file, no path and no JSON of others holds these
SHOWN = 80  # characters of a value that a sentence can bear
WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    type(None): "nothing",
    tuple: "a list",
}


def one_of(name: str, value: object, allowed: Iterable[object]) -> None:
    """Refuse a parameter that is not among the allowed values."""
    allowed = list(allowed)
    if value not in allowed:
        raise ParameterError(
            f"`{name}` must be one of {', '.join(map(str, allowed))}; it is {shown(value)}."
        )


def at_least(name: str, value: float, low: float) -> None:
    """Refuse a parameter below a limit, or one that is no number."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float | np.number)
        or not value >= low
    ):
        raise ParameterError(f"`{name}` must be at least {low}; it is {shown(value)}.")


def above(name: str, value: float, low: float) -> None:
    """Refuse a parameter that is not above a limit."""
    if not value > low:
        raise ParameterError(f"`{name}` must be greater than {low}; it is {shown(value)}.")


def shown(value: object) -> str:
    """A value as a sentence can bear it.

    >>> shown("x" * 200)[-4:]
    'xxx…'
    """
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > LARGEST:
        return f"a number of {value.bit_length():,} bits"
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


# --- by the annotations of a dataclass ------------------------------------------------------------


def check_types(options: Any) -> None:
    """Refuse a frozen dataclass one of whose fields holds what its annotation does not allow.

    A whole number will do for a number, and a list for a tuple, which it becomes; a number of numpy
    becomes a plain one. Numbers must be finite and fit 64 bits. Annotations that are no plain type
    (protocols, `Any`) allow everything.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Choice:
    ...     reach: int | None = None
    >>> check_types(Choice("far"))
    Traceback (most recent call last):
    headwise.core.errors.ParameterError: `reach` must be a whole number or nothing; it is 'far'.
    """
    hints = _hints(type(options))  # type: ignore[arg-type]  # a class is hashable
    for field in fields(options):
        if field.name in hints:
            given = getattr(options, field.name)
            value = _fitted(given, hints[field.name])
            if value is _WRONG:
                allowed = _in_words(hints[field.name])
                raise ParameterError(f"`{field.name}` must be {allowed}; it is {shown(given)}.")
            if value is not given:
                object.__setattr__(options, field.name, value)


_WRONG = object()


@cache
def _hints(cls: type) -> dict[str, Any]:
    try:
        return {
            name: hint
            for name, hint in get_type_hints(cls).items()
            if get_origin(hint) is not ClassVar
        }
    except NameError:  # a name that only a type checker imports
        return {}


def _fitted(value: object, hint: Any) -> object:
    """The value as the annotation wants it, `_WRONG` where it is none such."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        found = (_fitted(value, inner) for inner in arguments)
        return next((one for one in found if one is not _WRONG), _WRONG)
    if origin is Literal:
        return value if value in arguments else _WRONG
    if isinstance(value, np.generic):
        value = value.item()
    if hint is float:
        real = isinstance(value, int | float) and not isinstance(value, bool)
        return value if real and abs(value) <= LARGEST else _WRONG  # type: ignore[arg-type]
    if hint is int:
        whole = isinstance(value, int) and not isinstance(value, bool)
        return value if whole and abs(value) <= LARGEST else _WRONG  # type: ignore[arg-type]
    if hint is str:
        return value if isinstance(value, str) and not _NO_TEXT.search(value) else _WRONG
    if (origin or hint) is tuple:
        return _fitted_tuple(value, arguments)
    kind = origin or hint
    if kind is Any or not isinstance(kind, type) or getattr(kind, "_is_protocol", False):
        return value
    return value if isinstance(value, kind) else _WRONG


def _fitted_tuple(value: object, arguments: tuple[Any, ...]) -> object:
    if not isinstance(value, list | tuple):
        return _WRONG
    inner = arguments[:1] * len(value) if arguments[1:] == (...,) else arguments
    if arguments and len(inner) != len(value):
        return _WRONG
    found = (
        tuple(_fitted(*pair) for pair in zip(value, inner, strict=True))
        if arguments
        else tuple(value)
    )
    if any(one is _WRONG for one in found):
        return _WRONG
    return value if isinstance(value, tuple) and all(map(operator.is_, value, found)) else found


def _in_words(hint: Any) -> str:
    """What an annotation allows, as a user would say it."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        told = list(dict.fromkeys(_in_words(inner) for inner in arguments))
        return f"{', '.join(told[:-1])} or {told[-1]}" if len(told) > 1 else told[0]
    if origin is Literal:
        return f"one of {', '.join(map(str, arguments))}"
    if origin is tuple:
        return f"a list of which each is {_in_words(arguments[0])}"
    return WORDS.get(hint, f"of type {getattr(hint, '__name__', hint)}")
