"""Precision of tangents (float32, tf32 products on a GPU, or half precision) and compiled kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

import torch
from torch import Tensor

from headwise.core.context import temporarily
from headwise.stats.products import FASTER

_COMPILED: ContextVar[bool] = ContextVar("headwise_compiled_kernels", default=False)
PRODUCTS = ("float32", "tf32", "half")
_PRODUCTS: ContextVar[str] = ContextVar("headwise_products_of_tangents", default="float32")


@contextmanager
def matrix_products(kind: str) -> Iterator[None]:
    """Set for a `with` block how tangents are multiplied: in IEEE float32, in tf32 on a GPU, or
    stored and multiplied in half precision (float16, sums in float32).

    The model's own values stay in IEEE float32. Tangents are linear: their rounding does not move
    the point at which the derivative is taken.
    """
    before = torch.get_float32_matmul_precision()
    token = _PRODUCTS.set(kind)
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
        _PRODUCTS.reset(token)


def compiled_kernels(wanted: bool = True) -> AbstractContextManager[bool]:
    """Let torch compile memory-bound functions of tangents for a `with` block; worth it for many
    sentences."""
    return temporarily(_COMPILED, wanted)


def use_compiled() -> bool:
    """Return whether compiled kernels are used here."""
    return _COMPILED.get()


@cache
def compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return the function compiled into one kernel, which reads each tangent once."""
    return torch.compile(function, dynamic=True)


def in_half() -> bool:
    """Return whether tangents are stored in half precision here."""
    return _PRODUCTS.get() == "half"


def in_tf32() -> bool:
    """Return whether a GPU may multiply tangents in tf32 here."""
    return _PRODUCTS.get() == "tf32"


def type_of_tangents(dtype: torch.dtype) -> torch.dtype:
    """Return the type in which tangents of values of this type are stored."""
    return torch.float16 if in_half() else dtype


def match_type(value: Any, tangent: Tensor) -> Any:
    """Return a factor of tangents in their type; anything but a tensor of floats as it is."""
    if isinstance(value, Tensor) and value.is_floating_point():
        return value.to(tangent.dtype)
    return value


def multiply_tangents(product: Callable[..., Tensor], *args: Tensor) -> Tensor:
    """Apply a product to tangents in the precision that is set.

    An error of tf32 in one tangent stays there; in the model's own values it would change all.
    """
    if in_half():
        return product(*(arg.to(torch.float16) for arg in args))
    if not in_tf32() or not args[0].is_cuda:
        return FASTER.get(product, product)(*args)
    torch.set_float32_matmul_precision("high")
    try:
        return product(*args)
    finally:
        torch.set_float32_matmul_precision("highest")
