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
LIVE = 24  # tensors of a hidden state's size alive at once in a layer: inner activations, queries, weights


class _Clean(HookedPass):
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


class _Zeroed(HookedPass):
    """Copies of a batch, each with the values of one token zero, in one head or all; every layer is
    entered by the clean hidden states again, so that one pass gives the effect within each layer.

    `turned[layer][copy, example, token]`: the cosine distance of what leaves the layer from what
    leaves it in the clean pass."""

    def __init__(
        self, model: HeadModel, clean: list[Tensor], copies: list[tuple[int | None, int]]
    ) -> None:
        super().__init__(model, rows=len(copies))
        self.clean, self.copies = clean, copies
        self.turned: list[Tensor] = []

    def on_layer_input(self, layer: int, hidden: Tensor) -> Tensor | None:
        if layer:
            self._take(hidden)
        return self.clean[layer].repeat(self.rows, 1, 1)

    def on_last_output(self, hidden: Tensor) -> None:
        self._take(hidden)

    def attend_layer(self, layer: int, call: Call) -> tuple[Tensor, Tensor | None]:
        key, value = call.repeated()
        weights, _ = call.weights(key, 0, call.sizes[2])
        value = value.clone()
        copies = value.view(self.rows, -1, *value.shape[1:])
        for copy, (head, token) in enumerate(self.copies):
            copies[copy, :, slice(None) if head is None else head, token] = 0
        return (weights.to(value.dtype) @ value).transpose(1, 2).contiguous(), weights

    def _take(self, hidden: Tensor) -> None:
        before = self.clean[len(self.turned) + 1]
        self.turned.append(
            cosine_distance(hidden.reshape(self.rows, -1, *hidden.shape[1:]), before[None])
        )


def cosine_distance(a: Tensor, b: Tensor) -> Tensor:
    """`1 − cos` over the last axis, as half the squared distance of unit vectors: exact where it is
    small."""
    unit = torch.nn.functional.normalize
    return (unit(a.double(), dim=-1) - unit(b.double(), dim=-1)).square().sum(-1) / 2


def value_zeroing_mixing(seen: MixingInput) -> Mixing:
    """The reading `value_zeroing`: `1 − cos(E[l+1,j] without v_i, E[l+1,j])`, the weights left as
    they are.

    By layer the values of token i are zero in all heads, by head in that head alone; both look at
    what leaves the layer. As many passes as there are tokens, and as many again for each head."""
    model, batch = seen.model, seen.batch
    if any(model.sites.of(entry) is not None for entry in model.sites.entries):
        raise ModelError(
            f"The layers of {model.name} are no modules of their own, so what leaves them is not seen."
        )
    tokens = range(int(batch.lengths.max()))
    layers = torch.zeros_like(seen.attention[:, :, 0])
    heads = torch.zeros_like(seen.attention) if seen.wanted() else None
    with torch.no_grad():
        plain = _Clean(model)
        plain.run(batch)
        for head in (None, *sorted({head for _, head in seen.wanted()})):
            target = layers if head is None else heads
            assert target is not None
            for copies in _chunks([(head, token) for token in tokens], model, batch):
                zeroed = _Zeroed(model, plain.hidden, copies)
                zeroed.run(batch)
                found = torch.stack(zeroed.turned).permute(
                    2, 0, 3, 1
                )  # example, layer, receiving, copy
                of_head = target if head is None else target[:, :, head]
                of_head[..., [token for _, token in copies]] = found
    visible = seen.visible.double()
    return Mixing(
        None if heads is None else shares(heads * visible, seen),
        shares(layers * visible[:, :, 0], seen),
    )


def _chunks(
    copies: list[tuple[int | None, int]], model: HeadModel, batch: Batch
) -> list[list[tuple[int | None, int]]]:
    each = batch.ids.numel() * 4 * (LIVE * model.hidden + model.heads * batch.ids.shape[1])
    size = max(1, MEMORY // each)
    return [copies[start : start + size] for start in range(0, len(copies), size)]
