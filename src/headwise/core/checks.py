"""Checks of parameters: one sentence that names the parameter, what is allowed and its value."""

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
# What Python makes of bytes in a file name that are no text.
_UNDECODED = re.compile("[\udc80-\udcff]")
SHOWN = 80  # characters of a value that a message repeats
TYPE_WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    type(None): "nothing",
    tuple: "a list",
}


def one_of(name: str, value: object, allowed: Iterable[object]) -> None:
    """Raise an error unless a parameter is among the allowed values."""
    allowed = list(allowed)
    if value not in allowed:
        raise ParameterError(
            f"`{name}` must be one of {', '.join(map(str, allowed))}; it is {shown(value)}."
        )


def at_least(name: str, value: float, low: float) -> None:
    """Raise an error if a parameter is below a limit, or no number."""
    is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not is_number or not value >= low:  # NaN is not at least anything
        raise ParameterError(f"`{name}` must be at least {low}; it is {shown(value)}.")


def above(name: str, value: float, low: float) -> None:
    """Raise an error unless a parameter is above a limit."""
    if not value > low:
        raise ParameterError(f"`{name}` must be greater than {low}; it is {shown(value)}.")


def shown(value: object) -> str:
    """Return a value as a message can show it, however long it is.

    >>> shown("x" * 200)[-4:]
    'xxx…'
    """
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > LARGEST:
        return f"a number of {value.bit_length():,} bits"
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


# --- by the annotations of a dataclass ------------------------------------------------------------


def check_types(options: Any) -> None:
    """Raise an error if a field of a frozen dataclass holds what its annotation does not allow.

    A whole number is accepted as a number, and a list as a tuple, which it becomes; a numpy number
    becomes a plain one. Numbers must be finite and fit into 64 bits. Annotations that are no plain
    type (protocols, `Any`) allow everything.

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
        if field.name not in hints:
            continue
        hint = hints[field.name]
        value = getattr(options, field.name)
        converted = _converted(value, hint)
        if converted is _WRONG:
            if isinstance(value, str) and _UNDECODED.search(value):
                raise ParameterError(
                    f"`{field.name}` must be text, and holds bytes that are none: {shown(value)}; "
                    "if it is the name of a file, give the file another name."
                )
            raise ParameterError(f"`{field.name}` must be {_in_words(hint)}; it is {shown(value)}.")
        if converted is not value:
            object.__setattr__(options, field.name, converted)


_WRONG = object()


@cache
def _hints(cls: type) -> dict[str, Any]:
    try:
        hints = get_type_hints(cls)
    except NameError:  # a name that only a type checker imports
        return {}
    return {name: hint for name, hint in hints.items() if get_origin(hint) is not ClassVar}


def _converted(value: object, hint: Any) -> object:
    """Return a value as its annotation asks for it; `_WRONG` if it does not allow it."""
    origin = get_origin(hint)
    arguments = get_args(hint)
    if origin in (Union, types.UnionType):
        for alternative in arguments:
            converted = _converted(value, alternative)
            if converted is not _WRONG:
                return converted
        return _WRONG
    if origin is Literal:
        return value if value in arguments else _WRONG
    if isinstance(value, np.generic):
        value = value.item()
    if hint is float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return value if is_number and abs(value) <= LARGEST else _WRONG  # type: ignore[arg-type]
    if hint is int:
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        return value if is_whole and abs(value) <= LARGEST else _WRONG  # type: ignore[arg-type]
    if hint is str:
        return value if isinstance(value, str) and not _NO_TEXT.search(value) else _WRONG
    if (origin or hint) is tuple:
        return _converted_tuple(value, arguments)
    plain_type = origin or hint
    is_protocol = getattr(plain_type, "_is_protocol", False)
    if plain_type is Any or not isinstance(plain_type, type) or is_protocol:
        return value
    return value if isinstance(value, plain_type) else _WRONG


def _converted_tuple(value: object, arguments: tuple[Any, ...]) -> object:
    if not isinstance(value, list | tuple):
        return _WRONG
    hints = arguments
    if not arguments:
        hints = (Any,) * len(value)
    elif arguments[1:] == (...,):
        hints = arguments[:1] * len(value)
    if len(hints) != len(value):
        return _WRONG
    converted = tuple(_converted(item, hint) for item, hint in zip(value, hints, strict=True))
    if any(item is _WRONG for item in converted):
        return _WRONG
    unchanged = isinstance(value, tuple) and all(map(operator.is_, value, converted))
    return value if unchanged else converted


def _in_words(hint: Any) -> str:
    """Return what an annotation allows, as a user would say it."""
    origin = get_origin(hint)
    arguments = get_args(hint)
    if origin in (Union, types.UnionType):
        *first, last = dict.fromkeys(_in_words(inner) for inner in arguments)
        return f"{', '.join(first)} or {last}" if first else last
    if origin is Literal:
        return f"one of {', '.join(map(str, arguments))}"
    if origin is tuple:
        return f"a list of which each is {_in_words(arguments[0])}"
    return TYPE_WORDS.get(hint, f"of type {getattr(hint, '__name__', hint)}")
