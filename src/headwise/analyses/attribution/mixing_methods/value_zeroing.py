"""Value zeroing: how much a layer's output turns when one token's values are set to zero (Mohebbi
et al. 2023)."""

from __future__ import annotations

import torch
from torch import Tensor

from headwise.analyses.attribution.hooked_pass import HookedPass
from headwise.analyses.attribution.mixing_methods.base import Mixing, MixingInput, shares
from headwise.core.errors import ModelError
from headwise.models import HeadModel
from headwise.models.tap import Call
from headwise.text.encode import Batch

MEMORY = 256 * 2**20  # bytes of hidden states in flight
# Tensors of a hidden state's size alive at once in a layer: inner activations, queries, weights.
LIVE_STATES = 24
ZeroedValue = tuple[int | None, int]  # head (None: all heads) and token


def value_zeroing_mixing(traced: MixingInput) -> Mixing:
    """Return the method `value_zeroing`: `1 − cos(E[l+1,j] without v_i, E[l+1,j])`, the attention
    weights unchanged.

    By layer the values of token i are zero in all heads, by head in that head alone; both measure
    what leaves the layer. As many passes as there are tokens, and as many again for each head.
    """
    model = traced.model
    batch = traced.batch
    if any(model.sites.by_module.get(entry) is not None for entry in model.sites.entries):
        raise ModelError(
            f"The layers of {model.name} are no modules of their own, so what leaves them cannot "
            "be observed."
        )
    layers = torch.zeros_like(traced.attention[:, :, 0])
    heads = torch.zeros_like(traced.attention) if traced.requested_heads() else None
    head_numbers = sorted({head for _, head in traced.requested_heads()})
    with torch.no_grad():
        intact = _HiddenStates(model)
        intact.run(batch)
        for head in (None, *head_numbers):
            if head is None:
                target = layers
            else:
                assert heads is not None
                target = heads[:, :, head]
            for zeroed in _groups(head, model, batch):
                zeroed_pass = _ZeroedPass(model, intact.hidden, zeroed)
                zeroed_pass.run(batch)
                # layer, copy, example, receiving -> example, layer, receiving, copy
                distances = torch.stack(zeroed_pass.distances).permute(2, 0, 3, 1)
                tokens = [token for _, token in zeroed]
                target[..., tokens] = distances
    visible = traced.visible.double()
    head_shares = None
    if heads is not None:
        head_shares = shares(heads * visible, traced)
    return Mixing(head_shares, shares(layers * visible[:, :, 0], traced))


class _HiddenStates(HookedPass):
    """A plain pass that keeps the hidden states: what enters each layer, and what leaves the
    last."""

    def __init__(self, model: HeadModel) -> None:
        super().__init__(model)
        self.hidden: list[Tensor] = []

    def on_layer_input(self, layer: int, hidden: Tensor) -> Tensor | None:
        self.hidden.append(hidden)
        return None

    def on_last_output(self, hidden: Tensor) -> None:
        self.hidden.append(hidden)


class _ZeroedPass(HookedPass):
    """A pass with copies of a batch, each with the values of one token set to zero.

    Every layer gets the intact hidden states as input again, so that one pass gives the effect
    within each layer. `distances[layer][copy, example, token]` is the cosine distance of what
    leaves the layer from what leaves it in the intact pass.
    """

    def __init__(
        self, model: HeadModel, intact_hidden: list[Tensor], zeroed: list[ZeroedValue]
    ) -> None:
        super().__init__(model, rows=len(zeroed))
        self.intact_hidden = intact_hidden
        self.zeroed = zeroed
        self.distances: list[Tensor] = []

    def on_layer_input(self, layer: int, hidden: Tensor) -> Tensor | None:
        if layer:
            self._compare(hidden)
        return self.intact_hidden[layer].repeat(self.rows, 1, 1)

    def on_last_output(self, hidden: Tensor) -> None:
        self._compare(hidden)

    def attend_layer(self, layer: int, call: Call) -> tuple[Tensor, Tensor | None]:
        key, value = call.repeated()
        weights, _ = call.weights(key, 0, call.sizes[2])
        value = value.clone()
        copies = value.view(self.rows, -1, *value.shape[1:])
        for copy, (head, token) in enumerate(self.zeroed):
            if head is None:
                copies[copy, :, :, token] = 0
            else:
                copies[copy, :, head, token] = 0
        return (weights.to(value.dtype) @ value).transpose(1, 2).contiguous(), weights

    def _compare(self, hidden: Tensor) -> None:
        intact = self.intact_hidden[len(self.distances) + 1]
        copies = hidden.reshape(self.rows, -1, *hidden.shape[1:])
        self.distances.append(cosine_distance(copies, intact[None]))


def cosine_distance(a: Tensor, b: Tensor) -> Tensor:
    """Return `1 − cos` over the last axis, as half the squared distance of unit vectors: accurate
    where it is small."""
    unit_a = torch.nn.functional.normalize(a.double(), dim=-1)
    unit_b = torch.nn.functional.normalize(b.double(), dim=-1)
    return (unit_a - unit_b).square().sum(-1) / 2


def _groups(head: int | None, model: HeadModel, batch: Batch) -> list[list[ZeroedValue]]:
    """Return the values to zero, one for each token, in groups that fit into memory."""
    n = batch.ids.shape[1]
    bytes_per_copy = batch.ids.numel() * 4 * (LIVE_STATES * model.hidden + model.heads * n)
    size = max(1, MEMORY // bytes_per_copy)
    zeroed: list[ZeroedValue] = [(head, token) for token in range(int(batch.lengths.max()))]
    return [zeroed[start : start + size] for start in range(0, len(zeroed), size)]
