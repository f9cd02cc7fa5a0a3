"""How tangents are computed: in float32, with a GPU's products in tf32, or in half precision; and
compiled kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

import torch
from torch import Tensor

from headwise.core.context import temporarily

_COMPILED: ContextVar[bool] = ContextVar("headwise_compiled_kernels", default=False)
PRODUCTS = ("float32", "tf32", "half")
_PRODUCTS: ContextVar[str] = ContextVar("headwise_products_of_tangents", default="float32")


@contextmanager
def matrix_products(kind: str) -> Iterator[None]:
    """For a `with` block: tangents are multiplied in IEEE float32, in tf32 on a GPU, or kept and
    multiplied in half precision (float16, sums in float32); the model's own values stay in IEEE
    float32.

    Tangents are a linear matter: they can be as coarse as their own rounding, which does not move
    the point they are taken at."""
    before = torch.get_float32_matmul_precision()
    token = _PRODUCTS.set(kind)
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
        _PRODUCTS.reset(token)


def compiled_kernels(wanted: bool = True) -> AbstractContextManager[bool]:
    """For a `with` block: let torch compile what is read more often than need be. It pays for many
    sentences."""
    return temporarily(_COMPILED, wanted)


def use_compiled() -> bool:
    """Whether compiled kernels are wanted here."""
    return _COMPILED.get()


@cache
def compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The same in one kernel, which reads each tangent once."""
    return torch.compile(function, dynamic=True)


def in_half() -> bool:
    """Whether tangents are kept in half precision here."""
    return _PRODUCTS.get() == "half"


def in_tf32() -> bool:
    """Whether a GPU may multiply tangents in tf32 here."""
    return _PRODUCTS.get() == "tf32"


def type_of_tangents(dtype: torch.dtype) -> torch.dtype:
    """The type in which tangents of values of this type are kept."""
    return torch.float16 if in_half() else dtype


def like(value: Any, tangent: Tensor) -> Any:
    """A factor of tangents in their type; what is no tensor of numbers as it is."""
    return (
        value.to(tangent.dtype)
        if isinstance(value, Tensor) and value.is_floating_point()
        else value
    )


def of_tangents(product: Callable[..., Tensor], *args: Tensor) -> Tensor:
    """A product of tangents. An error of tf32 in one stays there; in the model's own values it
    would move them all."""
    if in_half():
        return product(*(arg.to(torch.float16) for arg in args))
    if not in_tf32() or not args[0].is_cuda:
        return product(*args)
    torch.set_float32_matmul_precision("high")
    try:
        return product(*args)
    finally:
        torch.set_float32_matmul_precision("highest")
