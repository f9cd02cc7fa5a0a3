"""Fast derivatives of the functions that transformers are made of; imported for its effect on
`bundle.TANGENT_RULES`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
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

# fmt: off
# Linear in their first argument, whatever the others are.
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
    """Makes a function the rule of all functions of these names."""

    def register(function: Rule) -> Rule:
        for name in names:
            TANGENT_RULES[name] = function
        return function

    return register


rule(*LINEAR)(linear_map)


@rule("view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "view_as", "reshape_as")
def _reshaped(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x = args[0]
    if not isinstance(x, TangentTensor) or any(
        isinstance(other, TangentTensor) and i for i, other in enumerate(args)
    ):
        return NotImplemented
    primal = func(x.primal, *args[1:], **kwargs)
    if primal.dtype != x.dtype:
        return NotImplemented
    return TangentTensor(primal, x.tangent.reshape(len(x.tangent), *primal.shape))


@rule("transpose", "permute", "t")
def _turned(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x = args[0]
    if not isinstance(x, TangentTensor) or kwargs:
        return NotImplemented
    dims = (0, 1) if len(args) == 1 else args[1] if isinstance(args[1], list | tuple) else args[1:]
    own = [d + 1 if d >= 0 else d + x.ndim + 1 for d in dims]
    tangent = (
        x.tangent.permute(0, *own) if func.__name__ == "permute" else x.tangent.transpose(*own)
    )
    return TangentTensor(func(x.primal, *args[1:]), tangent)


@rule("to", "float", "double", "contiguous", "clone")
def _copied(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x = args[0]
    if not isinstance(x, TangentTensor):
        return NotImplemented
    primal = func(x.primal, *(primal_of(a) for a in args[1:]), **kwargs)
    # Tangents are never written to, so a copy may share them; in what order they lie in memory is
    # nobody's business.
    if not primal.is_floating_point():
        return primal
    return TangentTensor(primal, x.tangent.to(primal.device, type_of_tangents(primal.dtype)))


@rule("expand", "expand_as", "broadcast_to")
def _expanded(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x = args[0]
    if not isinstance(x, TangentTensor) or kwargs:
        return NotImplemented
    primal = func(x.primal, *(primal_of(a) for a in args[1:]))
    return TangentTensor(primal, _whole(lifted(x, primal.ndim), primal))


@rule("__getitem__")
def _getitem(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    value, index = args
    if not isinstance(value, TangentTensor):
        return NotImplemented
    parts = index if isinstance(index, tuple) else (index,)
    plain = (part is None or part is Ellipsis or isinstance(part, int | slice) for part in parts)
    if all(plain) and not any(isinstance(part, bool) for part in parts):
        return TangentTensor(value.primal[index], value.tangent[(slice(None), *parts)])
    return linear_map(func, args, kwargs)


@rule("dropout", "alpha_dropout")
def _dropout(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    training = kwargs.get("training", args[2] if len(args) > 2 else True)
    probability = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
    return args[0] if args and (not training or probability == 0) else NotImplemented


@rule(*ELEMENTWISE)
def _elementwise(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if (
        not args
        or not isinstance(args[0], TangentTensor)
        or any(isinstance(x, Tensor) for x in (*args[1:], *kwargs.values()))
    ):
        return NotImplemented
    kwargs = kwargs | ({"inplace": False} if "inplace" in kwargs else {})
    x = args[0].primal
    value, slope, *_ = torch.func.jvp(
        lambda y: func(y, *args[1:], **kwargs), (x,), (torch.ones_like(x),)
    )
    return TangentTensor(value, scaled(args[0].tangent, slope))


def scaled(tangent: Tensor, slope: Tensor) -> Tensor:
    """Tangents times the slopes of their places."""
    if use_compiled():
        return compiled(_plain_scaled)(tangent, slope)
    return tangent * slope.to(tangent.dtype)


def _plain_scaled(tangent: Tensor, slope: Tensor) -> Tensor:
    return (tangent * slope).to(tangent.dtype)


@rule("pow", "__pow__")
def _pow(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if len(args) != 2 or not isinstance(args[0], TangentTensor) or isinstance(args[1], Tensor):
        return NotImplemented
    x, power = args[0], args[1]
    return TangentTensor(
        x.primal**power, x.tangent * match_type(power * x.primal ** (power - 1), x.tangent)
    )


def lifted(value: TangentTensor, ndim: int) -> Tensor:
    """Tangents with as many dimensions after the first as the result has, for broadcasting."""
    tangent = value.tangent
    if tangent.ndim == ndim + 1:
        return tangent
    return tangent.view(len(tangent), *(1,) * (ndim + 1 - tangent.ndim), *tangent.shape[1:])


def _whole(tangent: Tensor, primal: Tensor) -> Tensor:
    return (
        tangent
        if tangent.shape[1:] == primal.shape
        else tangent.expand(len(tangent), *primal.shape)
    )


def _sum(
    signs: tuple[int, int], func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    if len(args) != 2 or kwargs:
        return NotImplemented
    (a, b), (first, second) = args, signs
    primal = func(primal_of(a), primal_of(b))
    signed = [(x, sign) for x, sign in ((a, first), (b, second)) if isinstance(x, TangentTensor)]
    (x, sign), *rest = signed
    tangent = lifted(x, primal.ndim)
    if rest:
        y, other = rest[0]
        tangent = torch.add(tangent, lifted(y, primal.ndim), alpha=sign * other)
    tangent = -tangent if sign < 0 else tangent
    return TangentTensor(primal, _whole(tangent, primal))


rule("add", "__add__", "__radd__")(partial(_sum, (1, 1)))
rule("sub", "__sub__")(partial(_sum, (1, -1)))
rule("rsub", "__rsub__")(partial(_sum, (-1, 1)))


@rule("mul", "__mul__", "__rmul__", "multiply")
def _mul(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if len(args) != 2 or kwargs:
        return NotImplemented
    a, b = args
    primal = func(primal_of(a), primal_of(b))
    if isinstance(a, TangentTensor) and isinstance(b, TangentTensor):
        # The second product goes into the first: three tensors of tangents at once would set the
        # peak of a composed activation.
        tangent = lifted(a, primal.ndim) * match_type(b.primal, a.tangent)
        tangent = tangent.addcmul_(match_type(a.primal, b.tangent), lifted(b, primal.ndim))
    else:
        moving, fixed = (a, b) if isinstance(a, TangentTensor) else (b, a)
        tangent = lifted(moving, primal.ndim) * match_type(fixed, moving.tangent)
    return TangentTensor(primal, _whole(tangent, primal))


@rule("div", "__truediv__", "true_divide")
def _div(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if (
        len(args) != 2
        or kwargs
        or not isinstance(args[0], TangentTensor)
        or isinstance(args[1], TangentTensor)
    ):
        return NotImplemented
    primal = args[0].primal / args[1]
    return TangentTensor(
        primal, _whole(lifted(args[0], primal.ndim) / match_type(args[1], args[0].tangent), primal)
    )


@rule("masked_fill")
def _masked_fill(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if (
        len(args) != 3
        or not isinstance(args[0], TangentTensor)
        or isinstance(args[2], TangentTensor)
    ):
        return NotImplemented
    primal = args[0].primal.masked_fill(args[1], args[2])
    return TangentTensor(
        primal, _whole(lifted(args[0], primal.ndim).masked_fill(args[1], 0), primal)
    )


@rule("cat", "concat", "concatenate")
def _cat(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    parts = args[0] if args else kwargs.get("tensors")
    dim = kwargs.get("dim", args[1] if len(args) > 1 else 0)
    if not isinstance(parts, list | tuple) or not isinstance(dim, int) or "out" in kwargs:
        return NotImplemented
    some = next(p for p in parts if isinstance(p, TangentTensor)).tangent
    # torch lets an empty vector stand among anything
    parts = [p for p in parts if isinstance(p, TangentTensor) or p.numel() or p.ndim > 1]
    primal = torch.cat([primal_of(p) for p in parts], dim)
    tangents = [
        p.tangent if isinstance(p, TangentTensor) else some.new_zeros(1).expand(len(some), *p.shape)
        for p in parts
    ]
    return TangentTensor(primal, torch.cat(tangents, dim + 1 if dim >= 0 else dim))


@rule("linear")
def _linear(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x, weight, bias = _named(args, kwargs, ("input", "weight", "bias"))
    if (
        not isinstance(x, TangentTensor)
        or isinstance(weight, TangentTensor)
        or isinstance(bias, TangentTensor)
    ):
        return NotImplemented
    return TangentTensor(func(x.primal, weight, bias), multiply_tangents(func, x.tangent, weight))


@rule("addmm")
def _addmm(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if kwargs or [isinstance(x, TangentTensor) for x in args] != [False, True, False]:
        return NotImplemented
    bias, x, weight = args
    return TangentTensor(
        torch.addmm(bias, x.primal, weight), multiply_tangents(torch.matmul, x.tangent, weight)
    )


@rule("layer_norm")
def _layer_norm(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x, shape, weight, bias, epsilon = _named(
        args, kwargs, ("input", "normalized_shape", "weight", "bias", "eps")
    )
    if not isinstance(x, TangentTensor) or len(shape) != 1:
        return NotImplemented
    epsilon = 1e-5 if epsilon is None else epsilon
    value = x.primal
    primal = torch.nn.functional.layer_norm(value, shape, weight, bias, epsilon)
    centred = value - value.mean(-1, keepdim=True)
    scale = (centred.square().mean(-1, keepdim=True) + epsilon).rsqrt()
    return TangentTensor(
        primal,
        norm_tangent(x.tangent, centred * scale, scale if weight is None else scale * weight),
    )


def norm_tangent(tangent: Tensor, normed: Tensor, scale: Tensor) -> Tensor:
    """`scale · (t − mean t − x̂ · mean(t·x̂))`: the derivative of a layer norm at x̂ along t."""
    if use_compiled():
        return compiled(_plain_norm)(tangent, normed, scale)
    # Both means at once, as products with the two vectors (1, x̂)/d of each token: one reading of
    # the tangents instead of three.
    width = normed.shape[-1]
    rows = tangent.flatten(1, -2).transpose(0, 1)  # token, tangent, width
    flat = normed.reshape(-1, width)
    both = torch.stack([torch.ones_like(flat), flat], dim=-1).div_(width)
    means = torch.bmm(rows, match_type(both, tangent))  # token, tangent, 2
    means = means.transpose(0, 1).reshape(*tangent.shape[:-1], 2)
    out = tangent - means[..., :1]
    return out.addcmul_(match_type(normed, tangent), means[..., 1:], value=-1).mul_(
        match_type(scale, tangent)
    )


def _plain_norm(tangent: Tensor, normed: Tensor, scale: Tensor) -> Tensor:
    moved = tangent.to(normed.dtype)
    out = scale * (
        moved - moved.mean(-1, keepdim=True) - normed * (moved * normed).mean(-1, keepdim=True)
    )
    return out.to(tangent.dtype)


@rule("softmax")
def _softmax(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x = args[0] if args else None
    dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
    if not isinstance(x, TangentTensor) or dim is None:
        return NotImplemented
    weights = func(x.primal, *args[1:], **kwargs)
    dim = dim if dim < 0 else dim - x.primal.ndim
    moved = x.tangent.to(type_of_tangents(weights.dtype))
    if use_compiled() and dim == -1:
        return TangentTensor(weights, compiled(_plain_softmax)(moved, weights))
    moved = moved * match_type(weights, moved)
    return TangentTensor(
        weights, moved.addcmul_(match_type(weights, moved), moved.sum(dim, keepdim=True), value=-1)
    )


def _plain_softmax(tangent: Tensor, weights: Tensor) -> Tensor:
    moved = tangent * weights
    return (moved - weights * moved.sum(-1, keepdim=True)).to(tangent.dtype)


@rule("matmul", "__matmul__", "bmm")
def _matmul(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if len(args) != 2 or kwargs or any(x.ndim < 2 for x in args):
        return NotImplemented
    a, b = args
    primal = func(primal_of(a), primal_of(b))
    if not isinstance(b, TangentTensor):
        return TangentTensor(primal, by_left(a.tangent, b))
    if not isinstance(a, TangentTensor):
        return TangentTensor(primal, by_right(a, b.tangent))
    left, right = by_left(a.tangent, b.primal), by_right(a.primal, b.tangent)
    if primal.ndim != 4:
        return TangentTensor(primal, left + right)
    # Written token by token, [tangent, example, query, head, ...], as the layers around attention
    # want it.
    tangents, examples, heads, queries, size = left.shape
    out = left.new_empty(tangents, examples, queries, heads, size).transpose(2, 3)
    return TangentTensor(primal, torch.add(left, right, out=out))


def by_left(tangent: Tensor, matrix: Tensor) -> Tensor:
    """`tangent[t, ..., n, c] @ matrix[..., c, k]`, tangents among the rows of one large product
    where shapes allow."""
    if matrix.ndim == 2 or tangent.shape[1:-2] != matrix.shape[:-2]:
        return multiply_tangents(torch.matmul, tangent, matrix)
    count, rows = tangent.shape[0], tangent.shape[-2]
    batch = matrix.shape[:-2]
    order = (*range(1, tangent.ndim - 2), 0, tangent.ndim - 2, tangent.ndim - 1)
    merged = tangent.permute(order).reshape(-1, count * rows, tangent.shape[-1])
    out = multiply_tangents(torch.bmm, merged, matrix.reshape(-1, *matrix.shape[-2:]))
    out = out.view(*batch, count, rows, matrix.shape[-1])
    last = len(batch)
    return out.permute(last, *range(last), last + 1, last + 2)


def by_right(matrix: Tensor, tangent: Tensor) -> Tensor:
    """`matrix[..., n, c] @ tangent[t, ..., c, k]`."""
    if tangent.shape[1:-2] != matrix.shape[:-2]:
        return multiply_tangents(torch.matmul, matrix, tangent)
    return by_left(tangent.transpose(-1, -2), matrix.transpose(-1, -2)).transpose(-1, -2)


def _named(
    args: tuple[Any, ...], kwargs: dict[str, Any], names: tuple[str, ...]
) -> tuple[Any, ...]:
    given = dict(zip(names, args, strict=False)) | kwargs
    return tuple(given.get(name) for name in names)
