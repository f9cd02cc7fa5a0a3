"""Matrix products in float32 on a CPU by oneDNN, where that is faster than what torch calls.

Torch gives float32 products to MKL, which uses half the width of the vector units of an AMD
processor with AVX-512. oneDNN, which torch brings along, uses all of it: 2.2 times as fast there
(`docs/results/speed.md`). The results are the same up to rounding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode

# Below so many rows, or so many weights, setting up oneDNN's product costs more than it gains.
MIN_ROWS = 16
MIN_WEIGHTS = 2**14
CPU_INFO = Path("/proc/cpuinfo")
# What a product of both kinds may differ by, relative to the product of the norms.
AGREEMENT = 1e-5


@cache
def is_faster() -> bool:
    """Return whether oneDNN multiplies faster than MKL here: on an AMD processor with AVX-512.

    The processor decides, not a measurement, so that every run here computes the same bytes."""
    # `torch.backends` gives its functions no types.
    backends: Any = torch.backends
    if not (backends.mkldnn.is_available() and backends.mkl.is_available()):
        return False
    if not backends.cpu.get_cpu_capability().startswith("AVX512"):
        return False
    try:
        is_amd = "AuthenticAMD" in CPU_INFO.read_text()
    except OSError:  # elsewhere than on Linux
        return False
    return is_amd and _agrees()


def _agrees() -> bool:
    """Return whether oneDNN's product, which is not part of torch's public interface, exists in
    this version and is right."""
    x = torch.linspace(-1, 1, 24 * 40).reshape(24, 40)
    weight = torch.linspace(-1, 2, 56 * 40).reshape(56, 40)
    bias = torch.linspace(0, 1, 56)
    try:
        product = _multiply(x, weight, bias)
    except (RuntimeError, AttributeError, TypeError):
        return False
    expected = x @ weight.T + bias
    return bool((product - expected).abs().max() <= AGREEMENT * expected.abs().max())


def _multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return product


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return `x @ weight.T + bias` like `torch.nn.functional.linear`, faster where oneDNN is.

    Parameters
    ----------
    x : Tensor
        `[..., k]`.
    weight : Tensor
        `[n, k]`, in any memory layout.
    bias : Tensor, optional
        `[n]`.

    Examples
    --------
    >>> linear(torch.ones(2, 3), torch.ones(1, 3)).tolist()
    [[3.0], [3.0]]
    """
    if not _applies(x, weight, bias):
        return torch.nn.functional.linear(x, weight, bias)
    needs_gradient = x.requires_grad or weight.requires_grad
    needs_gradient |= bias is not None and bias.requires_grad
    if torch.is_grad_enabled() and needs_gradient:
        product: Tensor = _Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
        return product
    return _multiply(x.detach(), weight.detach(), None if bias is None else bias.detach())


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Return `a @ b` like `torch.matmul`, faster for a matrix `b` where oneDNN is."""
    if b.ndim == 2 and a.ndim >= 2:
        return linear(a, b.T)
    return torch.matmul(a, b)


def _applies(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Return whether oneDNN takes this product, and is faster."""
    if not is_faster() or weight.ndim != 2 or x.ndim < 2:
        return False
    if weight.numel() < MIN_WEIGHTS or x.numel() < MIN_ROWS * weight.shape[1]:
        return False
    for tensor in (x, weight) if bias is None else (x, weight, bias):
        # Subclasses (tangents, quantised weights) have products of their own.
        if type(tensor) is not Tensor and type(tensor) is not torch.nn.Parameter:
            return False
        if tensor.dtype != torch.float32 or tensor.device.type != "cpu":
            return False
        if tensor.layout != torch.strided:
            return False
    if x.shape[-1] != weight.shape[1] or (bias is not None and bias.shape != weight.shape[:1]):
        return False  # torch says what is wrong
    # Transforms of torch.func and dual numbers need torch's own function.
    inside_transform = torch._C._functorch.peek_interpreter_stack() is not None
    in_forward_mode = forward_ad._current_level >= 0
    return not (inside_transform or in_forward_mode or torch.is_autocast_enabled("cpu"))


class _Linear(torch.autograd.Function):
    """The product with its derivatives, which are such products again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _multiply(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        product: Callable[..., Tensor] = linear
        # Many gradients at once (`is_grads_batched`) are a kind of tensor that only torch multiplies.
        if torch._C._functorch.is_legacy_batchedtensor(gradient):
            product = torch.nn.functional.linear
        of_x = product(gradient, weight.T) if ctx.needs_input_grad[0] else None
        of_weight = None
        if ctx.needs_input_grad[1]:
            of_weight = product(
                gradient.reshape(-1, len(weight)).T, x.reshape(-1, weight.shape[1]).T
            )
        of_bias = gradient.reshape(-1, len(weight)).sum(0) if ctx.needs_input_grad[2] else None
        return of_x, of_weight, of_bias


# --- for code of others -------------------------------------------------------------------------


def _addmm(bias: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    if bias.ndim == 1:
        return linear(x, weight.T, bias)
    return torch.addmm(bias, x, weight)


# Torch's functions that models multiply by weights with, and what computes the same.
FASTER: dict[Any, Callable[..., Tensor]] = {
    torch.nn.functional.linear: linear,
    torch.matmul: matmul,
    Tensor.matmul: matmul,
    Tensor.__matmul__: matmul,
    torch.addmm: _addmm,
}


class _FasterProducts(TorchFunctionMode):
    """Replaces torch's products in the thread that entered it."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        faster = FASTER.get(func)
        # With other keywords than the product's own (alpha, out) it is torch's function.
        if faster is not None and not kwargs and not types:
            return faster(*args)
        return func(*args, **(kwargs or {}))


@contextmanager
def faster_products() -> Iterator[None]:
    """Let torch's own products, wherever a model calls them, be those of this module for a `with`
    block in this thread; nothing changes where they are no faster."""
    if not is_faster():
        yield
        return
    with _FasterProducts():
        yield
