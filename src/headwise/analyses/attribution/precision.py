"""How a GPU may compute tangents: products in tf32 where asked for, and norms by one compiled kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

_COMPILED: ContextVar[bool] = ContextVar("headwise_compiled_kernels", default=False)
_TF32: ContextVar[bool] = ContextVar("headwise_tangents_in_tf32", default=False)


@contextmanager
def matrix_products(tf32: bool) -> Iterator[None]:
    """For a `with` block: tangents are multiplied in tf32 or in IEEE float32, everything else in IEEE float32."""
    before = torch.get_float32_matmul_precision()
    token = _TF32.set(tf32)
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
        _TF32.reset(token)


@contextmanager
def compiled_kernels(wanted: bool = True) -> Iterator[None]:
    """For a `with` block: let torch compile what is read more often than need be. It pays for many sentences."""
    token = _COMPILED.set(wanted)
    try:
        yield
    finally:
        _COMPILED.reset(token)


def use_compiled() -> bool:
    """Whether compiled kernels are wanted here."""
    return _COMPILED.get()


def of_tangents(product: Callable[..., Tensor], *args: Tensor) -> Tensor:
    """A product of tangents. An error of tf32 in one stays there; in the model's own values it would move them all."""
    if not _TF32.get() or not args[0].is_cuda:
        return product(*args)
    torch.set_float32_matmul_precision("high")
    try:
        return product(*args)
    finally:
        torch.set_float32_matmul_precision("highest")
