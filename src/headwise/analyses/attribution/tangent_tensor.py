"""A tensor that carries many directional derivatives: the value is computed once, only its tangents
come in numbers.

Dual numbers with the tangents as batch rows compute the same value again for every row. Here the
value has no tangent dimension at all, so a pass costs one matrix product for each tangent and layer
and little else. Functions with a rule (`rules.py`) are fast; every other function is differentiated
by torch itself, on its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from headwise.analyses.attribution.precision import type_of_tangents

Rule = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
TANGENT_RULES: dict[str, Rule] = {}


class NoForwardDerivative(Exception):
    """Some function cannot take a bundle; the caller goes by dual numbers instead."""


class TangentTensor(Tensor):
    """A value with tangents, `primal[...]` and `tangent[tangent, ...]`; looks like the primal to a
    model."""

    primal: Tensor
    tangent: Tensor

    @staticmethod
    def __new__(cls, primal: Tensor, tangent: Tensor) -> TangentTensor:
        out = Tensor._make_wrapper_subclass(
            cls, primal.shape, strides=primal.stride(), dtype=primal.dtype, device=primal.device
        )
        out.primal, out.tangent = primal, tangent
        return out

    # Read often; a detour over __torch_function__ would cost more than the answer.
    shape = property(lambda self: self.primal.shape)
    dtype = property(lambda self: self.primal.dtype)
    device = property(lambda self: self.primal.device)
    ndim = property(lambda self: self.primal.ndim)

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"TangentTensor({list(self.primal.shape)}, {len(self.tangent)} tangents)"

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "detach":
            return args[0].primal
        if name == "__set__":
            raise NoForwardDerivative("an attribute of a tensor is set")
        if name == "__get__":
            return _attribute(func, args[0])
        if is_in_place(name):
            return _in_place(cls, func, types, args, kwargs)
        rule = TANGENT_RULES.get(name)
        if rule is not None:
            out = rule(func, args, kwargs)
            if out is not NotImplemented:
                return out
        return differentiate(func, args, kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise NoForwardDerivative(f"{func} reaches below the functions that bundles know")


def primal_of(value: Any) -> Any:
    """The value of a bundle; anything else as it is."""
    return value.primal if isinstance(value, TangentTensor) else value


def is_in_place(name: str) -> bool:
    """Whether a function of this name writes to its first argument."""
    return (
        (name.endswith("_") and not name.endswith("__"))
        or name in _IN_PLACE_OPERATORS
        or name == "__setitem__"
    )


_IN_PLACE_OPERATORS = {
    "__iadd__": "add",
    "__isub__": "sub",
    "__imul__": "mul",
    "__itruediv__": "div",
}


def _attribute(func: Callable[..., Any], value: TangentTensor) -> Any:
    found = func(value.primal)
    if not isinstance(found, Tensor) or not found.is_floating_point():
        return found
    if getattr(func.__self__, "__name__", "") in ("data", "grad"):  # type: ignore[attr-defined]
        return found
    return TangentTensor(found, torch.func.vmap(func)(value.tangent))


def _in_place(
    cls: type[TangentTensor],
    func: Callable[..., Any],
    types: Sequence[type],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Compute anew and put the result in the place of the first argument."""
    target, name = args[0], func.__name__
    if not isinstance(target, TangentTensor):
        raise NoForwardDerivative(f"{name} writes tangents into a plain tensor")
    plain = _IN_PLACE_OPERATORS.get(name, name.rstrip("_"))
    other = getattr(Tensor, plain, None)
    if name != "__setitem__" and other is not None:
        result = cls.__torch_function__(other, types, args, kwargs)
    else:

        def copied(first: Tensor, *rest: Any, **options: Any) -> Tensor:
            first = first.clone()
            func(first, *rest, **options)
            return first

        result = differentiate(copied, args, kwargs)
    if (
        not isinstance(result, TangentTensor)
        or result.shape != target.shape
        or result.dtype != target.dtype
    ):
        raise NoForwardDerivative(f"{name} changes a tensor's shape or type in place")
    target.primal, target.tangent = result.primal, result.tangent
    return None if name == "__setitem__" else target


def linear_map(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The rule of functions that are linear in their first argument, all others being no tensors
    with tangents."""
    first, *rest = args
    if not isinstance(first, TangentTensor) or any(
        isinstance(leaf, TangentTensor) for leaf in tree_flatten((rest, kwargs))[0]
    ):
        return NotImplemented
    primal = func(first.primal, *rest, **kwargs)
    if isinstance(primal, Tensor) and not primal.is_floating_point():
        return primal
    tangent = torch.func.vmap(lambda t: func(t, *rest, **kwargs), randomness="different")(
        first.tangent
    )
    if isinstance(primal, Tensor):
        return TangentTensor(primal, tangent)
    return type(primal)(TangentTensor(p, t) for p, t in zip(primal, tangent, strict=True))


def differentiate(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Any function: its value once, its tangents by torch's own derivative, all at once."""
    leaves, spec = tree_flatten((args, kwargs))
    where = [i for i, leaf in enumerate(leaves) if isinstance(leaf, TangentTensor)]
    bundles: list[TangentTensor] = [leaves[i] for i in where]

    def call(*values: Tensor) -> Any:
        filled = list(leaves)
        for i, value in zip(where, values, strict=True):
            filled[i] = value
        own_args, own_kwargs = tree_unflatten(filled, spec)
        return func(*own_args, **own_kwargs)

    primals = tuple(b.primal for b in bundles)
    primal = call(*primals)
    outputs, out_spec = tree_flatten(primal)
    moving = [
        i for i, out in enumerate(outputs) if isinstance(out, Tensor) and out.is_floating_point()
    ]
    if not moving:
        return primal

    def moved(*values: Tensor) -> tuple[Tensor, ...]:
        found = tree_flatten(call(*values))[0]
        return tuple(found[i] for i in moving)

    def along(*directions: Tensor) -> Any:
        return torch.func.jvp(moved, primals, directions)[1]

    try:
        # torch wants tangents of the value's own type; they go back to theirs.
        tangents = torch.func.vmap(along)(*(b.tangent.to(b.dtype) for b in bundles))
    except (RuntimeError, NotImplementedError, ValueError, TypeError) as error:
        if isinstance(error, torch.OutOfMemoryError) or "memory" in str(error):
            raise
        raise NoForwardDerivative(f"{getattr(func, '__name__', func)}: {error}") from error
    for i, tangent in zip(moving, tangents, strict=True):
        outputs[i] = TangentTensor(outputs[i], tangent.to(type_of_tangents(tangent.dtype)))
    return tree_unflatten(outputs, out_spec)
