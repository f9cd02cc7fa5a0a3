"""A tensor that carries many directional derivatives (tangents): forward mode in which the value is
computed only once.

With torch's dual numbers, tangents as rows of the batch, the same value is computed again for every
row. Here the value has no tangent dimension at all, so that a pass costs one matrix product for each
tangent and layer and little else. Functions with a rule (`tangent_rules.py`) are fast; every other
function is differentiated by torch, one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from headwise.analyses.attribution.precision import type_of_tangents

# (function, args, kwargs) -> its result with tangents, or NotImplemented
Rule = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
TANGENT_RULES: dict[str, Rule] = {}  # by the name of the function
_IN_PLACE_OPERATORS = {
    "__iadd__": "add",
    "__isub__": "sub",
    "__imul__": "mul",
    "__itruediv__": "div",
}


class NoForwardDerivative(Exception):
    """Some function cannot take tangents; the caller uses dual numbers instead."""


class TangentTensor(Tensor):
    """A value with tangents: `primal[...]` and `tangent[tangent, ...]`. To a model it looks like
    the primal."""

    primal: Tensor
    tangent: Tensor

    @staticmethod
    def __new__(cls, primal: Tensor, tangent: Tensor) -> TangentTensor:
        tensor = Tensor._make_wrapper_subclass(
            cls, primal.shape, strides=primal.stride(), dtype=primal.dtype, device=primal.device
        )
        tensor.primal = primal
        tensor.tangent = tangent
        return tensor

    # Read often: going through __torch_function__ would cost more than the answer.
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
            return _read_attribute(func, args[0])
        if is_in_place(name):
            return _compute_in_place(cls, func, types, args, kwargs)
        rule = TANGENT_RULES.get(name)
        if rule is not None:
            result = rule(func, args, kwargs)
            if result is not NotImplemented:
                return result
        return differentiate(func, args, kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise NoForwardDerivative(f"{func} is called below the level of torch functions")


def primal_of(value: Any) -> Any:
    """Return the primal of a tensor with tangents; anything else as it is."""
    return value.primal if isinstance(value, TangentTensor) else value


def is_in_place(name: str) -> bool:
    """Return whether a function of this name writes to its first argument."""
    if name == "__setitem__" or name in _IN_PLACE_OPERATORS:
        return True
    return name.endswith("_") and not name.endswith("__")


def _read_attribute(func: Callable[..., Any], value: TangentTensor) -> Any:
    """Return an attribute such as `.T` or `.mT`; with tangents unless it is `.data` or `.grad`."""
    result = func(value.primal)
    if not isinstance(result, Tensor) or not result.is_floating_point():
        return result
    if getattr(func.__self__, "__name__", "") in ("data", "grad"):  # type: ignore[attr-defined]
        return result
    return TangentTensor(result, torch.func.vmap(func)(value.tangent))


def _compute_in_place(
    cls: type[TangentTensor],
    func: Callable[..., Any],
    types: Sequence[type],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Compute the result out of place and put it into the first argument."""
    target = args[0]
    name = func.__name__
    if not isinstance(target, TangentTensor):
        raise NoForwardDerivative(f"{name} writes tangents into a plain tensor")
    out_of_place_name = _IN_PLACE_OPERATORS.get(name, name.rstrip("_"))
    out_of_place = getattr(Tensor, out_of_place_name, None)
    if name != "__setitem__" and out_of_place is not None:
        result = cls.__torch_function__(out_of_place, types, args, kwargs)
    else:

        def on_a_copy(first: Tensor, *rest: Any, **options: Any) -> Tensor:
            first = first.clone()
            func(first, *rest, **options)
            return first

        result = differentiate(on_a_copy, args, kwargs)
    is_same_kind = (
        isinstance(result, TangentTensor)
        and result.shape == target.shape
        and result.dtype == target.dtype
    )
    if not is_same_kind:
        raise NoForwardDerivative(f"{name} changes a tensor's shape or type in place")
    target.primal = result.primal
    target.tangent = result.tangent
    return None if name == "__setitem__" else target


def linear_map(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Apply a function that is linear in its first argument, no other of which has tangents."""
    first, *rest = args
    other_leaves, _ = tree_flatten((rest, kwargs))
    if not isinstance(first, TangentTensor):
        return NotImplemented
    if any(isinstance(leaf, TangentTensor) for leaf in other_leaves):
        return NotImplemented
    primal = func(first.primal, *rest, **kwargs)
    if isinstance(primal, Tensor) and not primal.is_floating_point():
        return primal
    mapped = torch.func.vmap(lambda t: func(t, *rest, **kwargs), randomness="different")
    tangent = mapped(first.tangent)
    if isinstance(primal, Tensor):
        return TangentTensor(primal, tangent)
    return type(primal)(TangentTensor(p, t) for p, t in zip(primal, tangent, strict=True))


def differentiate(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Apply any function: its value once, its tangents by torch's own derivative, all at once."""
    leaves, spec = tree_flatten((args, kwargs))
    positions = [i for i, leaf in enumerate(leaves) if isinstance(leaf, TangentTensor)]
    inputs: list[TangentTensor] = [leaves[i] for i in positions]

    def call(*values: Tensor) -> Any:
        filled = list(leaves)
        for i, value in zip(positions, values, strict=True):
            filled[i] = value
        call_args, call_kwargs = tree_unflatten(filled, spec)
        return func(*call_args, **call_kwargs)

    primals = tuple(tensor.primal for tensor in inputs)
    primal = call(*primals)
    outputs, output_spec = tree_flatten(primal)
    moving = []  # outputs that can have a derivative
    for i, output in enumerate(outputs):
        if isinstance(output, Tensor) and output.is_floating_point():
            moving.append(i)
    if not moving:
        return primal

    def moving_outputs(*values: Tensor) -> tuple[Tensor, ...]:
        flat, _ = tree_flatten(call(*values))
        return tuple(flat[i] for i in moving)

    def derivative(*directions: Tensor) -> Any:
        return torch.func.jvp(moving_outputs, primals, directions)[1]

    try:
        # torch requires tangents of the value's own type; the result goes back to theirs.
        directions = [tensor.tangent.to(tensor.dtype) for tensor in inputs]
        tangents = torch.func.vmap(derivative)(*directions)
    except (RuntimeError, NotImplementedError, ValueError, TypeError) as error:
        if isinstance(error, torch.OutOfMemoryError) or "memory" in str(error):
            raise
        raise NoForwardDerivative(f"{getattr(func, '__name__', func)}: {error}") from error
    for i, tangent in zip(moving, tangents, strict=True):
        outputs[i] = TangentTensor(outputs[i], tangent.to(type_of_tangents(tangent.dtype)))
    return tree_unflatten(outputs, output_spec)
