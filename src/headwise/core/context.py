"""Context variables that have a value for the time of a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def temporarily(variable: ContextVar[T], value: T) -> Iterator[T]:
    """Set a context variable for the time of a block."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)
