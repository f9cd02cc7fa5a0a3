"""Norms of what is really mixed: of each head's weighted values (Kobayashi et al. 2020), and of a
whole attention block with residual and norm (Kobayashi et al. 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

import headwise.analyses.attribution.tangent_rules  # noqa: F401  (registers the rules)
from headwise.analyses.attribution.hooked_pass import HookedPass, StopPass, token_pair_mask
from headwise.analyses.attribution.mixing_methods.base import Mixing, MixingInput, shares
from headwise.analyses.attribution.sketch import normalised
from headwise.analyses.attribution.tangent_tensor import NoForwardDerivative, TangentTensor
from headwise.core.errors import ModelError
from headwise.models import HeadModel
from headwise.models.structure import Norm, TransformerBlock, find_blocks
from headwise.models.tap import Call
from headwise.models.trace import TraceWatcher
from headwise.text.encode import Batch


def norm_mixing(seen: MixingInput) -> Mixing:
    """The reading `norm`: of heads `‖α_ji f(x_i)‖`, of layers the norm of all that token i adds to
    token j in the attention block, residual and norm included."""
    heads, projected = norm_weighted(seen.model, seen.batch, seen.attention)
    note = f"attention × norm of the value{' after the output projection' if projected else ''}"
    try:
        return Mixing(heads, shares(block_norms(seen.model, seen.batch), seen), note)
    except ModelError as error:
        return Mixing(heads, None, f"{note}; not by layer: {error}")


def block_norms(model: HeadModel, batch: Batch) -> Tensor:
    """`‖ Σ_h α_ji f_h(x_i) + [i = j] x_j ‖` as it leaves the attention block, `[example, layer,
    receiving, source]`.

    What the heads write goes through the model's own norms with their actual scale: the one after
    the output projection (Gemma 2) and the one that takes the sum (post-norm models), `γ ⊙ (z −
    mean z) / s`. Biases of the output projection and of norms belong to no token and are left out.
    """
    found = []
    for block, layer in _block_inputs(model, batch):
        found.append(block_parts(block, layer).norm(dim=-1))
    return torch.stack(found, dim=1)


def block_parts(block: TransformerBlock, layer: _Inputs) -> Tensor:
    """The vectors whose norms `block_norms` takes, `[example, receiving, source, width]`: with what
    the biases add they sum to what leaves the attention block."""
    matrix, bias = block.written(layer.value)
    outputs = matrix.view(layer.value.shape[1], -1, matrix.shape[-1])  # head, d_head, width
    written = torch.einsum("ehji,ehid,hdw->ejiw", layer.weights, layer.value, outputs)
    own = written.sum(2) + bias
    if block.writing is not None:
        written, own = (
            _through(block.writing, written, own[:, :, None]),
            _normed(block.writing, own),
        )
    factor = block.factor if block.attention is not None else 1.0
    written, own = written * factor, own * factor + layer.hidden
    place = torch.arange(written.shape[1], device=written.device)
    written[:, place, place] += layer.hidden
    return written if block.summed is None else _through(block.summed, written, own[:, :, None])


def _through(norm: Norm, part: Tensor, whole: Tensor) -> Tensor:
    """A part of a sum after the norm of the sum, the scale held."""
    return norm.gain.double() * norm.middle(part) / norm.scale(whole)


def _normed(norm: Norm, whole: Tensor) -> Tensor:
    return _through(norm, whole, whole) + norm.bias.double()


@dataclass(frozen=True, slots=True, eq=False)
class _Inputs:
    """What an attention block works on, in float64: `weights[example, head, receiving, source]`,
    `value[example, head, source, d_head]` repeated for groups, `hidden[example, token, width]`."""

    weights: Tensor
    value: Tensor
    hidden: Tensor


def _block_inputs(model: HeadModel, batch: Batch) -> list[tuple[TransformerBlock, _Inputs]]:
    blocks, watch = find_blocks(model), TraceWatcher(frozenset({"attention", "hidden"}))
    unread = next(
        (i for i, b in enumerate(blocks) if b.attention is None and b.summed is None), None
    )
    if unread is not None:
        raise ModelError(
            f"how layer {unread} of {model.name} adds what its heads write is not known."
        )
    model.forward(batch, watch)
    found = []
    for block, layer in zip(blocks, sorted(watch.layers, key=lambda one: one.layer), strict=True):
        assert layer.value is not None
        assert layer.hidden is not None
        weights = torch.cat([rows.weights for rows in watch.blocks[layer.layer]], dim=2).double()
        value = layer.value.double().repeat_interleave(
            weights.shape[1] // layer.value.shape[1], dim=1
        )
        found.append((block, _Inputs(weights, value, layer.hidden.double())))
    return found


def norm_weighted(model: HeadModel, batch: Batch, attention: Tensor) -> tuple[Tensor, bool]:
    """`‖α_ji f(x_i)‖` of each head, rows divided by their sum, and whether the output projection is
    in `f`.

    The first is `[example, layer, head, receiving, source]`, with `f(x) = (x W_V + b_V) W_O`, the
    head's own part of the output projection. That matrix is found by what the model does with the
    values of each head: the first linear map their tangents go through after the attention. Where a
    model has none (or its code takes no tangents), f is the value alone, and the second result is
    False."""
    reading: _Projected | _Values = _Projected(model)
    with torch.no_grad():
        try:
            reading.run(batch)
        except (NoForwardDerivative, StopIteration):
            reading = _Values(model)
            reading.run(batch)
    norms, projected = torch.stack(reading.norms, dim=1), isinstance(reading, _Projected)
    return normalised(
        attention.double() * norms[:, :, :, None, :] * token_pair_mask(batch)[:, None, None]
    ), projected


class _Values(HookedPass):
    """Norms of the values of each head and token, `[example, head, token]`, layer by layer."""

    def __init__(self, model: HeadModel) -> None:
        super().__init__(model)
        self.norms: list[Tensor] = []

    def on_head_outputs(self, layer: int, call: Call, output: Tensor) -> None:
        self.norms.append(call.repeated()[1].double().norm(dim=-1))


class _Projected(HookedPass):
    """Norms of the values after each head's part of the output projection.

    The head outputs go on as bundles whose tangent h is the values of head h alone. The first
    linear map they meet is the output projection; there the norms are taken, and the bundle ends.
    """

    def __init__(self, model: HeadModel) -> None:
        super().__init__(model)
        self.norms: list[Tensor] = []
        self.waiting = False

    def attend_layer(self, layer: int, call: Call) -> tuple[Tensor, Tensor | None]:
        if self.waiting:
            raise NoForwardDerivative("no linear map followed the attention")
        _, value = call.repeated()
        output, weights = super().attend_layer(layer, call)
        examples, heads, tokens, size = value.shape
        tangents = value.new_zeros(heads, examples, tokens, heads, size)
        own = torch.arange(heads, device=value.device)
        tangents[own, :, :, own] = value.transpose(0, 1)
        self.waiting = True
        return _Probe(output, tangents, self), weights

    def run(self, batch: Batch) -> None:
        self.examples = len(batch)
        super().run(batch)

    def seen(self, result: TangentTensor) -> Tensor:
        """The projection's result: its tangents give the norms, its value goes on."""
        norms = result.tangent.double().norm(
            dim=-1
        )  # head, example, token; or as the model lays them out
        if norms.ndim == 2:  # GPT-2 flattens examples and tokens
            norms = norms.unflatten(1, (self.examples, -1))
        elif self.sites.tokens_first:
            norms = norms.transpose(1, 2)
        self.norms.append(norms.transpose(0, 1))
        self.waiting = False
        if len(self.norms) == self.sites.layers:
            raise StopPass
        return result.primal


class _Probe(TangentTensor):
    """A bundle that reports the first linear map it goes through."""

    passage: _Projected

    @staticmethod
    def __new__(cls, primal: Tensor, tangent: Tensor, passage: _Projected) -> _Probe:
        out = TangentTensor.__new__(cls, primal, tangent)
        assert isinstance(out, _Probe)
        out.passage = passage
        return out

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        found = [a for a in tree_leaves((args, kwargs or {})) if isinstance(a, _Probe)]
        result = TangentTensor.__torch_function__(func, types, args, kwargs)
        if not found or not isinstance(result, TangentTensor):
            return result
        passage = found[0].passage
        if getattr(func, "__name__", "") in ("linear", "addmm", "matmul", "__matmul__", "einsum"):
            return passage.seen(result)
        return _Probe(result.primal, result.tangent, passage)
