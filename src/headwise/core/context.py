"""Context variables that hold a value for as long as a block runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def temporarily(variable: ContextVar[T], value: T) -> Iterator[T]:
    """Within, the variable has this value; afterwards the one it had."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)
