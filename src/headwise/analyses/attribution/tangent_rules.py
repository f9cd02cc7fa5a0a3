"""Fast derivatives of the functions that transformers are made of; importing this module adds them to
`tangent_tensor.TANGENT_RULES`.

A rule takes a torch function with its arguments and returns the result as a `TangentTensor`, or
NotImplemented where it does not apply; torch's own derivative is then used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from headwise.analyses.attribution.precision import (
    compiled,
    match_type,
    multiply_tangents,
    type_of_tangents,
    use_compiled,
)
from headwise.analyses.attribution.tangent_tensor import (
    TANGENT_RULES,
    Rule,
    TangentTensor,
    linear_map,
    primal_of,
)

Args = tuple[Any, ...]
Kwargs = dict[str, Any]
# fmt: off
# Functions that are linear in their first argument, whatever the others are.
LINEAR = (
    "chunk", "split", "split_with_sizes", "unbind", "type", "type_as", "repeat", "repeat_interleave", "swapaxes",
    "swapdims", "movedim", "narrow", "select", "index_select", "gather", "roll", "neg", "__neg__", "sum", "mean",
    "diagonal", "tril", "triu", "flip",
)
# Functions of each element alone.
ELEMENTWISE = (
    "gelu", "silu", "relu", "tanh", "sigmoid", "exp", "sqrt", "rsqrt", "reciprocal", "softplus", "log", "log1p", "erf",
    "square", "sin", "cos", "elu", "leaky_relu", "mish", "hardswish",
)
# fmt: on


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Return a decorator that makes a function the rule of all torch functions of these names."""

    def register(function: Rule) -> Rule:
        for name in names:
            TANGENT_RULES[name] = function
        return function

    return register


rule(*LINEAR)(linear_map)


# --- shape ----------------------------------------------------------------------------------------


@rule("view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "view_as", "reshape_as")
def _reshape(func: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:
    x = args[0]
    if not isinstance(x, TangentTensor):
        return NotImplemented
    if any(isinstance(argument, TangentTensor) for argument in args[1:]):
        return NotImplemented
    primal = func(x.primal, *args[1:], **kwargs)
    if primal.dtype != x.dtype:
        return NotImplemented
    return TangentTensor(primal, x.tangent.reshape(len(x.tangent), *primal.shape))


@rule("transpose", "permute", "t")
def _permute(func: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:
    x = args[0]
    if not isinstance(x, TangentTensor) or kwargs:
        return NotImplemented
    if len(args) == 1:
        dims: Any = (0, 1)
    elif isinstance(args[1], list | tuple):
        dims = args[1]
    else:
        dims = args[1:]
    # Tangents have one more dimension in front.
    tangent_dims = [dim + 1 if dim >= 0 else dim + x.ndim + 1 for dim in dims]
    if func.__name__ == "permute":
        tangent = x.tangent.permute(0, *tangent_dims)
    else:
        tangent = x.tangent.transpose(*tangent_dims)
    return TangentTensor(func(x.primal, *args[1:]), tangent)


@rule("to", "float", "double", "contiguous", "clone")
def _copy(func: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:
    x = args[0]
    if not isinstance(x, TangentTensor):
        return NotImplemented
    primal = func(x.primal, *(primal_of(argument) for argument in args[1:]), **kwargs)
    if not primal.is_floating_point():
        return primal
    # Tangents are never written to, so that a copy may share them; their memory layout does not
    # matter.
    return TangentTensor(primal, x.tangent.to(primal.device, type_of_tangents(primal.dtype)))


@rule("expand", "expand_as", "broadcast_to")
def _expand(func: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:
    x = args[0]
    if not isinstance(x, TangentTensor) or kwargs:
        return NotImplemented
    primal = func(x.primal, *(primal_of(argument) for argument in args[1:]))
    return TangentTensor(primal, _expand_to(aligned_tangent(x, primal.ndim), primal))


@rule("__getitem__")
def _getitem(func: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:
    value, index = args
    if not isinstance(value, TangentTensor):
        return NotImplemented
    parts = index if isinstance(index, tuple) else (index,)
    if all(map(_is_basic_index, parts)):
        return TangentTensor(value.primal[index], value.tangent[(slice(None), *parts)])
    return linear_map(func, args, kwargs)


def _is_basic_index(part: Any) -> bool:
    """Return whether an index shifts by the tangent dimension without further ado."""
    if part is None or part is Ellipsis:
        return True
    return isinstance(part, int | slice) and not isinstance(part, bool)


@rule("cat", "concat", "concatenate")
def _cat(func: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:
    parts = args[0] if args else kwargs.get("tensors")
    dim = kwargs.get("dim", args[1] if len(args) > 1 else 0)
    if not isinstance(parts, list | tuple) or not isinstance(dim, int) or "out" in kwargs:
        return NotImplemented
    some_tangent = next(part for part in parts if isinstance(part, TangentTensor)).tangent
    primals = []
    tangents = []
    for part in parts:
        if isinstance(part, TangentTensor):
            tangents.append(part.tangent)
        elif part.numel() or part.ndim > 1:
            zero = some_tangent.new_zeros(1)
            tangents.append(zero.expand(len(some_tangent), *part.shape))
        else:
            continue  # torch accepts an empty vector beside tensors of any shape
        primals.append(primal_of(part))
    primal = torch.cat(primals, dim)
    return TangentTensor(primal, torch.cat(tangents, dim + 1 if dim >= 0 else dim))


def aligned_tangent(value: TangentTensor, ndim: int) -> Tensor:
    """Return tangents with `ndim` dimensions after the first, so that they broadcast like a result
    with that many."""
    tangent = value.tangent
    n_missing = ndim + 1 - tangent.ndim
    if n_missing == 0:
        return tangent
    return tangent.view(len(tangent), *(1,) * n_missing, *tangent.shape[1:])


def _expand_to(tangent: Tensor, primal: Tensor) -> Tensor:
    """Expand tangents to the shape of the result."""
    if tangent.shape[1:] == primal.shape:
        return tangent
    return tangent.expand(len(tangent), *primal.shape)


# --- element by element ---------------------------------------------------------------------------


@rule("dropout", "alpha_dropout")
def _dropout(func: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:
    training = kwargs.get("training", args[2] if len(args) > 2 else True)
    probability = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
    if args and (not training or probability == 0):
        return args[0]
    return NotImplemented


@rule(*ELEMENTWISE)
def _elementwise(func: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:
    if not args or not isinstance(args[0], TangentTensor):
        return NotImplemented
    if any(isinstance(argument, Tensor) for argument in (*args[1:], *kwargs.values())):
        return NotImplemented
    if "inplace" in kwargs:
        kwargs = kwargs | {"inplace": False}
    x = args[0].primal
    value, slope, *_ = torch.func.jvp(
        lambda y: func(y, *args[1:], **kwargs), (x,), (torch.ones_like(x),)
    )
    return TangentTensor(value, scale_tangent(args[0].tangent, slope))


def scale_tangent(tangent: Tensor, slope: Tensor) -> Tensor:
    """Multiply tangents by the derivative at each element."""
    if use_compiled():
        return compiled(_scale_tangent)(tangent, slope)
    return tangent * slope.to(tangent.dtype)


def _scale_tangent(tangent: Tensor, slope: Tensor) -> Tensor:
    """The same, for the compiler."""
    return (tangent * slope).to(tangent.dtype)


@rule("pow", "__pow__")
def _pow(func: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:
    if len(args) != 2 or not isinstance(args[0], TangentTensor) or isinstance(args[1], Tensor):
        return NotImplemented
    x, power = args
    slope = power * x.primal ** (power - 1)
    return TangentTensor(x.primal**power, x.tangent * match_type(slope, x.tangent))


@rule("add", "__add__", "__radd__")
def _add(func: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:
    return _signed_sum(func, args, kwargs, first_sign=1, second_sign=1)


@rule("sub", "__sub__")
def _sub(func: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:
    return _signed_sum(func, args, kwargs, first_sign=1, second_sign=-1)


@rule("rsub", "__rsub__")
def _rsub(func: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:
    return _signed_sum(func, args, kwargs, first_sign=-1, second_sign=1)


def _signed_sum(
    func: Callable[..., Any], args: Args, kwargs: Kwargs, *, first_sign: int, second_sign: int
) -> Any:
    if len(args) != 2 or kwargs:
        return NotImplemented
    a, b = args
    primal = func(primal_of(a), primal_of(b))
    if isinstance(a, TangentTensor) and isinstance(b, TangentTensor):
        a_tangent = aligned_tangent(a, primal.ndim)
        b_tangent = aligned_tangent(b, primal.ndim)
        tangent = torch.add(a_tangent, b_tangent, alpha=first_sign * second_sign)
        sign = first_sign
    elif isinstance(a, TangentTensor):
        tangent = aligned_tangent(a, primal.ndim)
        sign = first_sign
    else:
        tangent = aligned_tangent(b, primal.ndim)
        sign = second_sign
    if sign < 0:
        tangent = -tangent
    return TangentTensor(primal, _expand_to(tangent, primal))


@rule("mul", "__mul__", "__rmul__", "multiply")
def _mul(func: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:
    if len(args) != 2 or kwargs:
        return NotImplemented
    a, b = args
    primal = func(primal_of(a), primal_of(b))
    if isinstance(a, TangentTensor) and isinstance(b, TangentTensor):
        # The second product is added into the first: three tensors of tangents at once would set
        # the memory peak of a composed activation.
        tangent = aligned_tangent(a, primal.ndim) * match_type(b.primal, a.tangent)
        b_tangent = aligned_tangent(b, primal.ndim)
        tangent = tangent.addcmul_(match_type(a.primal, b.tangent), b_tangent)
    elif isinstance(a, TangentTensor):
        tangent = aligned_tangent(a, primal.ndim) * match_type(b, a.tangent)
    else:
        tangent = aligned_tangent(b, primal.ndim) * match_type(a, b.tangent)
    return TangentTensor(primal, _expand_to(tangent, primal))


@rule("div", "__truediv__", "true_divide")
def _div(func: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:
    if len(args) != 2 or kwargs:
        return NotImplemented
    x, divisor = args
    if not isinstance(x, TangentTensor) or isinstance(divisor, TangentTensor):
        return NotImplemented
    primal = x.primal / divisor
    tangent = aligned_tangent(x, primal.ndim) / match_type(divisor, x.tangent)
    return TangentTensor(primal, _expand_to(tangent, primal))


@rule("masked_fill")
def _masked_fill(func: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:
    if len(args) != 3:
        return NotImplemented
    x, mask, value = args
    if not isinstance(x, TangentTensor) or isinstance(value, TangentTensor):
        return NotImplemented
    primal = x.primal.masked_fill(mask, value)
    tangent = aligned_tangent(x, primal.ndim).masked_fill(mask, 0)
    return TangentTensor(primal, _expand_to(tangent, primal))


# --- norms and softmax ----------------------------------------------------------------------------


@rule("layer_norm")
def _layer_norm(func: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:
    names = ("input", "normalized_shape", "weight", "bias", "eps")
    x, shape, weight, bias, epsilon = _arguments(args, kwargs, names)
    if not isinstance(x, TangentTensor) or len(shape) != 1:
        return NotImplemented
    if epsilon is None:
        epsilon = 1e-5
    value = x.primal
    primal = torch.nn.functional.layer_norm(value, shape, weight, bias, epsilon)
    centred = value - value.mean(-1, keepdim=True)
    scale = (centred.square().mean(-1, keepdim=True) + epsilon).rsqrt()
    normed = centred * scale
    if weight is not None:
        scale = scale * weight
    return TangentTensor(primal, norm_tangent(x.tangent, normed, scale))


def norm_tangent(tangent: Tensor, normed: Tensor, scale: Tensor) -> Tensor:
    """Return `scale · (t − mean t − x̂ · mean(t·x̂))`: the derivative of a layer norm at x̂ along
    t."""
    if use_compiled():
        return compiled(_norm_tangent)(tangent, normed, scale)
    # Both means at once, as products with the two vectors (1, x̂)/d of each token: tangents are
    # read once instead of three times.
    width = normed.shape[-1]
    by_token = tangent.flatten(1, -2).transpose(0, 1)  # token, tangent, width
    flat = normed.reshape(-1, width)
    vectors = torch.stack([torch.ones_like(flat), flat], dim=-1).div_(width)
    means = torch.bmm(by_token, match_type(vectors, tangent))  # token, tangent, 2
    means = means.transpose(0, 1).reshape(*tangent.shape[:-1], 2)
    result = tangent - means[..., :1]
    result = result.addcmul_(match_type(normed, tangent), means[..., 1:], value=-1)
    return result.mul_(match_type(scale, tangent))


def _norm_tangent(tangent: Tensor, normed: Tensor, scale: Tensor) -> Tensor:
    """The same, for the compiler."""
    t = tangent.to(normed.dtype)
    projection = normed * (t * normed).mean(-1, keepdim=True)
    result = scale * (t - t.mean(-1, keepdim=True) - projection)
    return result.to(tangent.dtype)


@rule("softmax")
def _softmax(func: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:
    x = args[0] if args else None
    dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
    if not isinstance(x, TangentTensor) or dim is None:
        return NotImplemented
    weights = func(x.primal, *args[1:], **kwargs)
    if dim >= 0:
        dim = dim - x.primal.ndim  # counted from the end, it holds for tangents too
    tangent = x.tangent.to(type_of_tangents(weights.dtype))
    if use_compiled() and dim == -1:
        return TangentTensor(weights, compiled(_softmax_tangent)(tangent, weights))
    weighted = tangent * match_type(weights, tangent)
    total = weighted.sum(dim, keepdim=True)
    result = weighted.addcmul_(match_type(weights, weighted), total, value=-1)
    return TangentTensor(weights, result)


def _softmax_tangent(tangent: Tensor, weights: Tensor) -> Tensor:
    """The derivative of a softmax over the last dimension, for the compiler."""
    weighted = tangent * weights
    return (weighted - weights * weighted.sum(-1, keepdim=True)).to(tangent.dtype)


# --- products -------------------------------------------------------------------------------------


@rule("linear")
def _linear(func: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:
    x, weight, bias = _arguments(args, kwargs, ("input", "weight", "bias"))
    if not isinstance(x, TangentTensor):
        return NotImplemented
    if isinstance(weight, TangentTensor) or isinstance(bias, TangentTensor):
        return NotImplemented
    return TangentTensor(func(x.primal, weight, bias), multiply_tangents(func, x.tangent, weight))


@rule("addmm")
def _addmm(func: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:
    if kwargs or [isinstance(argument, TangentTensor) for argument in args] != [False, True, False]:
        return NotImplemented
    bias, x, weight = args
    primal = torch.addmm(bias, x.primal, weight)
    return TangentTensor(primal, multiply_tangents(torch.matmul, x.tangent, weight))


@rule("matmul", "__matmul__", "bmm")
def _matmul(func: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:
    if len(args) != 2 or kwargs or any(argument.ndim < 2 for argument in args):
        return NotImplemented
    a, b = args
    primal = func(primal_of(a), primal_of(b))
    if not isinstance(b, TangentTensor):
        return TangentTensor(primal, tangent_times_matrix(a.tangent, b))
    if not isinstance(a, TangentTensor):
        return TangentTensor(primal, matrix_times_tangent(a, b.tangent))
    left = tangent_times_matrix(a.tangent, b.primal)
    right = matrix_times_tangent(a.primal, b.tangent)
    if primal.ndim != 4:
        return TangentTensor(primal, left + right)
    # Laid out token by token, [tangent, example, query, head, ...], as the layers around attention
    # read it.
    n_tangents, n_examples, n_heads, n_queries, size = left.shape
    result = left.new_empty(n_tangents, n_examples, n_queries, n_heads, size).transpose(2, 3)
    return TangentTensor(primal, torch.add(left, right, out=result))


def tangent_times_matrix(tangent: Tensor, matrix: Tensor) -> Tensor:
    """Return `tangent[t, ..., n, c] @ matrix[..., c, k]`, with the tangents among the rows of one
    large product where shapes allow."""
    if matrix.ndim == 2 or tangent.shape[1:-2] != matrix.shape[:-2]:
        return multiply_tangents(torch.matmul, tangent, matrix)
    n_tangents = tangent.shape[0]
    n_rows = tangent.shape[-2]
    batch_shape = matrix.shape[:-2]
    order = (*range(1, tangent.ndim - 2), 0, tangent.ndim - 2, tangent.ndim - 1)
    merged = tangent.permute(order).reshape(-1, n_tangents * n_rows, tangent.shape[-1])
    result = multiply_tangents(torch.bmm, merged, matrix.reshape(-1, *matrix.shape[-2:]))
    result = result.view(*batch_shape, n_tangents, n_rows, matrix.shape[-1])
    n_batch_dims = len(batch_shape)
    return result.permute(n_batch_dims, *range(n_batch_dims), n_batch_dims + 1, n_batch_dims + 2)


def matrix_times_tangent(matrix: Tensor, tangent: Tensor) -> Tensor:
    """Return `matrix[..., n, c] @ tangent[t, ..., c, k]`."""
    if tangent.shape[1:-2] != matrix.shape[:-2]:
        return multiply_tangents(torch.matmul, matrix, tangent)
    transposed = tangent_times_matrix(tangent.transpose(-1, -2), matrix.transpose(-1, -2))
    return transposed.transpose(-1, -2)


def _arguments(args: Args, kwargs: Kwargs, names: tuple[str, ...]) -> tuple[Any, ...]:
    """Return the arguments of these names, given by position or by name; None if missing."""
    by_name = dict(zip(names, args, strict=False)) | kwargs
    return tuple(by_name.get(name) for name in names)
