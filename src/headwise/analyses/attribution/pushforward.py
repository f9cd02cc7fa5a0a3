"""Pushes tangents from the model's input to every head: by bundles, or by dual numbers where a
model takes none."""

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
AGREEMENT = 1e-3  # largest relative difference between the two ways on the first batch of a model
_WAYS: WeakKeyDictionary[HeadModel, str] = WeakKeyDictionary()


def make_dual(value: Tensor, tangent: Tensor) -> Tensor:
    """A dual number, inside `dual_level`."""
    found: Tensor = _ad.make_dual(value.contiguous(), tangent)
    return found


def tangent_of(value: Tensor) -> Tensor:
    """The tangent of a dual number; zeros for a tensor that has none."""
    found: Tensor | None = _ad.unpack_dual(value).tangent
    return torch.zeros_like(value) if found is None else found


class _TangentPass(HookedPass):
    """Puts tangents on E[0] and hands on those of head outputs (and of hidden states, where asked
    for)."""

    def __init__(
        self,
        model: HeadModel,
        tangents: Tensor,
        heads: TangentCallback,
        layers: TangentCallback | None,
        rows: int,
    ) -> None:
        super().__init__(model, rows)
        self.tangents, self.heads, self.layers = tangents, heads, layers

    def dual(self, hidden: Tensor) -> Tensor:
        raise NotImplementedError

    def tangent(self, value: Tensor) -> Tensor:
        raise NotImplementedError

    def on_layer_input(self, layer: int, hidden: Tensor) -> Tensor | None:
        if layer == 0:
            return self.dual(hidden)
        if self.layers is not None:
            self.layers(layer - 1, self.tangent(hidden))
        return None

    def on_head_outputs(self, layer: int, call: Call, output: Tensor) -> None:
        self.heads(layer, self.tangent(output))
        if layer == self.sites.layers - 1 and self.layers is None:
            raise StopPass

    def on_last_output(self, hidden: Tensor) -> None:
        if self.layers is not None:
            self.layers(self.sites.layers - 1, self.tangent(hidden))
            raise StopPass


class TangentTensorPass(_TangentPass):
    """By bundles: one pass for all tangents."""

    def dual(self, hidden: Tensor) -> Tensor:
        return TangentTensor(hidden, self.tangents.to(type_of_tangents(hidden.dtype)))

    def tangent(self, value: Tensor) -> Tensor:
        return (
            value.tangent
            if isinstance(value, TangentTensor)
            else value.new_zeros(len(self.tangents), *value.shape)
        )

    def attend_layer(self, layer: int, call: Call) -> tuple[Tensor, Tensor | None]:
        output = _by_kernel(call)
        if output is None:
            return super().attend_layer(layer, call)
        self.on_head_outputs(layer, call, output)
        return output.transpose(1, 2).contiguous(), None


def _by_kernel(call: Call) -> TangentTensor | None:
    """The head outputs with their tangents from one kernel; None where there is none for such a
    call: rules do then."""
    parts = call.query, call.key, call.value
    query, key, value = parts
    if not (query.is_cuda and has_kernels() and type(call) is Call and call.softcap is None):
        return None
    if not (
        in_half() or in_tf32()
    ):  # products of IEEE float32 take longer here than in the library
        return None
    if not all(
        isinstance(x, TangentTensor) and x.dtype == torch.float32 for x in parts
    ) or isinstance(call.bias, TangentTensor):
        return None
    if query.shape[2] != key.shape[2] or query.shape[-1] != value.shape[-1]:
        return None
    from headwise.analyses.attribution.kernel import (
        LONGEST,
        attention_tangents,
    )  # Triton is there only beside a GPU

    tangents = [x.tangent for x in parts if isinstance(x, TangentTensor)]
    if max(query.shape[2:]) > LONGEST.get(tangents[0].dtype, 0):
        return None
    plain = copy(call)
    plain.query, plain.key, plain.value = (x.primal for x in parts if isinstance(x, TangentTensor))
    repeated_key, repeated_value = plain.repeated()
    weights, _ = plain.weights(repeated_key, 0, query.shape[2])
    moved = attention_tangents(
        (plain.query, plain.key, plain.value),
        (tangents[0], tangents[1], tangents[2]),
        weights,
        call.scaling,
    )
    return TangentTensor(weights @ repeated_value, moved)


class DualNumberPass(_TangentPass):
    """By torch's dual numbers: every tangent is a further row of the batch."""

    def dual(self, hidden: Tensor) -> Tensor:
        return make_dual(hidden, self.tangents.flatten(0, 1).to(hidden.dtype))

    def tangent(self, value: Tensor) -> Tensor:
        return tangent_of(value).reshape(len(self.tangents), -1, *value.shape[1:])


def push_tangents(
    model: HeadModel,
    batch: Batch,
    tangents: Tensor,
    heads: TangentCallback,
    layers: TangentCallback | None = None,
) -> None:
    """Push `tangents[tangent, example, token, width]` on E[0] through the model.

    `heads(layer, [tangent, example, head, token, d_head])` is called for every layer,
    `layers(layer, [tangent, example, token, width])` for what leaves it.
    """
    if forward_mode(model, batch) == "tangent_tensor":
        with torch.no_grad():
            TangentTensorPass(model, tangents, heads, layers, 1).run(batch)
    else:
        push_tangents_by_dual_numbers(model, batch, tangents, heads, layers)


def push_tangents_by_dual_numbers(
    model: HeadModel,
    batch: Batch,
    tangents: Tensor,
    heads: TangentCallback,
    layers: TangentCallback | None = None,
) -> None:
    """The same by dual numbers, every tangent as further rows of the batch."""
    with torch.no_grad(), forward_ad.dual_level():
        DualNumberPass(model, tangents, heads, layers, len(tangents)).run(batch)


def forward_mode(model: HeadModel, batch: Batch) -> str:
    """`bundle` where it gives what dual numbers give on two tokens of this batch, else `dual`;
    found once a model."""
    if model not in _WAYS:
        _WAYS[model] = "tangent_tensor" if _bundles_agree(model, batch) else "dual_numbers"
    return _WAYS[model]


def _bundles_agree(model: HeadModel, batch: Batch) -> bool:
    first = batch.select([int(batch.lengths.argmax())])
    tokens = first.ids.shape[1]
    generator = torch.Generator().manual_seed(0)
    tangents = torch.zeros(2, 1, tokens, model.hidden)
    for row, token in enumerate((0, int(first.lengths[0]) - 1)):
        tangents[row, 0, token] = torch.randn(model.hidden, generator=generator)
    tangents = tangents.to(model.device)
    ours: dict[int, Tensor] = {}
    theirs: dict[int, Tensor] = {}

    def keep(into: dict[int, Tensor]) -> TangentCallback:
        return lambda layer, tangent: into.__setitem__(
            layer, tangent[..., : int(first.lengths[0]), :].clone()
        )

    with matrix_products("float32"):
        push_tangents_by_dual_numbers(model, first, tangents, keep(theirs))
        try:
            with torch.no_grad():
                TangentTensorPass(model, tangents, keep(ours), None, 1).run(first)
        except NoForwardDerivative:
            return False
    return ours.keys() == theirs.keys() and all(
        (ours[k] - true).abs().max() <= AGREEMENT * true.abs().max().clamp(min=1e-30)
        for k, true in theirs.items()
    )
