"""Pushes tangents from the model's input to every head in forward mode: by tensors with tangents, or
by torch's dual numbers where a model's code does not take those."""

from __future__ import annotations

from copy import copy
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor

import headwise.analyses.attribution.tangent_rules  # noqa: F401  (registers the rules)
from headwise.analyses.attribution.hooked_pass import HookedPass, StopPass, TangentCallback
from headwise.analyses.attribution.precision import (
    in_half,
    in_tf32,
    matrix_products,
    type_of_tangents,
)
from headwise.analyses.attribution.tangent_tensor import NoForwardDerivative, TangentTensor
from headwise.models import HeadModel
from headwise.models.tap import Call
from headwise.stats.gpu import has_kernels
from headwise.text.encode import Batch

_ad: Any = forward_ad  # torch gives it no types
# The largest relative difference of both modes on the first batch of a model.
AGREEMENT = 1e-3
TANGENT_TENSOR = "tangent_tensor"
DUAL_NUMBERS = "dual_numbers"
_MODES: WeakKeyDictionary[HeadModel, str] = WeakKeyDictionary()


def make_dual(value: Tensor, tangent: Tensor) -> Tensor:
    """Return a dual number; to be called inside `dual_level`."""
    dual: Tensor = _ad.make_dual(value.contiguous(), tangent)
    return dual


def tangent_of(value: Tensor) -> Tensor:
    """Return the tangent of a dual number; zeros for a tensor without one."""
    tangent: Tensor | None = _ad.unpack_dual(value).tangent
    return torch.zeros_like(value) if tangent is None else tangent


class _TangentPass(HookedPass):
    """Puts tangents on E[0] and hands those of head outputs (and of hidden states) to callbacks."""

    def __init__(
        self,
        model: HeadModel,
        tangents: Tensor,
        on_heads: TangentCallback,
        on_layers: TangentCallback | None,
        rows: int,
    ) -> None:
        super().__init__(model, rows)
        self.tangents = tangents
        self.on_heads = on_heads
        self.on_layers = on_layers

    def with_tangents(self, hidden: Tensor) -> Tensor:
        """Return the model's input with the tangents on it."""
        raise NotImplementedError

    def tangents_of(self, value: Tensor) -> Tensor:
        """Return the tangents that arrived at a value, `[tangent, example, ...]`."""
        raise NotImplementedError

    def on_layer_input(self, layer: int, hidden: Tensor) -> Tensor | None:
        if layer == 0:
            return self.with_tangents(hidden)
        if self.on_layers is not None:
            self.on_layers(layer - 1, self.tangents_of(hidden))
        return None

    def on_head_outputs(self, layer: int, call: Call, output: Tensor) -> None:
        self.on_heads(layer, self.tangents_of(output))
        if layer == self.sites.layers - 1 and self.on_layers is None:
            raise StopPass

    def on_last_output(self, hidden: Tensor) -> None:
        if self.on_layers is not None:
            self.on_layers(self.sites.layers - 1, self.tangents_of(hidden))
            raise StopPass


class TangentTensorPass(_TangentPass):
    """By `TangentTensor`: one pass for all tangents, the value computed once."""

    def with_tangents(self, hidden: Tensor) -> Tensor:
        return TangentTensor(hidden, self.tangents.to(type_of_tangents(hidden.dtype)))

    def tangents_of(self, value: Tensor) -> Tensor:
        if isinstance(value, TangentTensor):
            return value.tangent
        return value.new_zeros(len(self.tangents), *value.shape)

    def attend_layer(self, layer: int, call: Call) -> tuple[Tensor, Tensor | None]:
        output = _attend_by_kernel(call)
        if output is None:
            return super().attend_layer(layer, call)
        self.on_head_outputs(layer, call, output)
        return output.transpose(1, 2).contiguous(), None


def _attend_by_kernel(call: Call) -> TangentTensor | None:
    """Return the head outputs with their tangents from one kernel; None where the kernel does not
    apply, so that the rules are used."""
    query = call.query
    key = call.key
    value = call.value
    if not (query.is_cuda and has_kernels() and type(call) is Call and call.softcap is None):
        return None
    # Products in IEEE float32 take longer here than in torch's own library.
    if not (in_half() or in_tf32()):
        return None
    if isinstance(call.bias, TangentTensor):
        return None
    if query.shape[2] != key.shape[2] or query.shape[-1] != value.shape[-1]:
        return None
    primals = []
    tangents = []
    for tensor in (query, key, value):
        if not isinstance(tensor, TangentTensor) or tensor.dtype != torch.float32:
            return None
        primals.append(tensor.primal)
        tangents.append(tensor.tangent)
    # Imported here: Triton is installed only where there is a GPU.
    from headwise.analyses.attribution.kernel import LONGEST, attention_tangents

    if max(query.shape[2:]) > LONGEST.get(tangents[0].dtype, 0):
        return None
    plain_call = copy(call)
    plain_call.query, plain_call.key, plain_call.value = primals
    repeated_key, repeated_value = plain_call.repeated()
    weights, _ = plain_call.weights(repeated_key, 0, query.shape[2])
    output_tangents = attention_tangents(
        (primals[0], primals[1], primals[2]),
        (tangents[0], tangents[1], tangents[2]),
        weights,
        call.scaling,
    )
    return TangentTensor(weights @ repeated_value, output_tangents)


class DualNumberPass(_TangentPass):
    """By torch's dual numbers: every tangent is a further row of the batch."""

    def with_tangents(self, hidden: Tensor) -> Tensor:
        return make_dual(hidden, self.tangents.flatten(0, 1).to(hidden.dtype))

    def tangents_of(self, value: Tensor) -> Tensor:
        return tangent_of(value).reshape(len(self.tangents), -1, *value.shape[1:])


def push_tangents(
    model: HeadModel,
    batch: Batch,
    tangents: Tensor,
    on_heads: TangentCallback,
    on_layers: TangentCallback | None = None,
) -> None:
    """Push tangents on E[0] through the model.

    Parameters
    ----------
    model : HeadModel
        In float32 or better.
    batch : Batch
        The inputs, at which derivatives are taken.
    tangents : Tensor
        `[tangent, example, token, width]`.
    on_heads : callable
        Called for every layer with its number and the tangents of its head outputs, `[tangent,
        example, head, token, d_head]`.
    on_layers : callable, optional
        Called likewise with the tangents of what leaves the layer, `[tangent, example, token,
        width]`.
    """
    if forward_mode(model, batch) == TANGENT_TENSOR:
        with torch.no_grad():
            TangentTensorPass(model, tangents, on_heads, on_layers, 1).run(batch)
    else:
        push_tangents_by_dual_numbers(model, batch, tangents, on_heads, on_layers)


def push_tangents_by_dual_numbers(
    model: HeadModel,
    batch: Batch,
    tangents: Tensor,
    on_heads: TangentCallback,
    on_layers: TangentCallback | None = None,
) -> None:
    """Do what `push_tangents` does by dual numbers, every tangent as further rows of the batch."""
    with torch.no_grad(), forward_ad.dual_level():
        DualNumberPass(model, tangents, on_heads, on_layers, len(tangents)).run(batch)


def forward_mode(model: HeadModel, batch: Batch) -> str:
    """Return the forward mode of a model: `TANGENT_TENSOR` if it gives what dual numbers give for
    two tokens of this batch, else `DUAL_NUMBERS`; decided once for each model."""
    if model not in _MODES:
        agree = _modes_agree(model, batch)
        _MODES[model] = TANGENT_TENSOR if agree else DUAL_NUMBERS
    return _MODES[model]


def _modes_agree(model: HeadModel, batch: Batch) -> bool:
    longest = batch.select([int(batch.lengths.argmax())])
    length = int(longest.lengths[0])
    generator = torch.Generator().manual_seed(0)
    tangents = torch.zeros(2, 1, longest.ids.shape[1], model.hidden)
    tangents[0, 0, 0] = torch.randn(model.hidden, generator=generator)
    tangents[1, 0, length - 1] = torch.randn(model.hidden, generator=generator)
    tangents = tangents.to(model.device)

    def store_in(by_layer: dict[int, Tensor]) -> TangentCallback:
        def store(layer: int, head_tangents: Tensor) -> None:
            by_layer[layer] = head_tangents[..., :length, :].clone()

        return store

    fast: dict[int, Tensor] = {}
    reference: dict[int, Tensor] = {}
    with matrix_products("float32"):
        push_tangents_by_dual_numbers(model, longest, tangents, store_in(reference))
        try:
            with torch.no_grad():
                TangentTensorPass(model, tangents, store_in(fast), None, 1).run(longest)
        except NoForwardDerivative:
            return False
    if fast.keys() != reference.keys():
        return False
    for layer, expected in reference.items():
        difference = (fast[layer] - expected).abs().max()
        if not difference <= AGREEMENT * expected.abs().max().clamp(min=1e-30):
            return False
    return True
