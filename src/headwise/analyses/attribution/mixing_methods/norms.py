"""Norms of the vectors that are mixed: each head's weighted values (Kobayashi et al. 2020), and a
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
from headwise.analyses.attribution.sketch import normalise_rows
from headwise.analyses.attribution.tangent_tensor import NoForwardDerivative, TangentTensor
from headwise.core.errors import ModelError
from headwise.models import HeadModel
from headwise.models.structure import Norm, TransformerBlock, find_blocks
from headwise.models.tap import Call
from headwise.models.view import TraceWatcher
from headwise.text.encode import Batch

# Functions that apply a linear map, by one of which the output projection is recognised.
LINEAR_MAPS = ("linear", "addmm", "matmul", "__matmul__", "einsum")


def norm_mixing(traced: MixingInput) -> Mixing:
    """Return the method `norm`: of heads `‖α_ji f(x_i)‖`, of layers the norm of all that token i
    adds to token j in the attention block, residual and norm included."""
    heads, projected = norm_weighted(traced.model, traced.batch, traced.attention)
    note = "attention × norm of the value"
    if projected:
        note += " after the output projection"
    try:
        layers = shares(block_norms(traced.model, traced.batch), traced)
    except ModelError as error:
        return Mixing(heads, None, f"{note}; not by layer: {error}")
    return Mixing(heads, layers, note)


# --- layers: whole attention blocks ---------------------------------------------------------------


def block_norms(model: HeadModel, batch: Batch) -> Tensor:
    """Return `‖ Σ_h α_ji f_h(x_i) + [i = j] x_j ‖` as it leaves the attention block, `[example,
    layer, receiving, source]`.

    What the heads write goes through the model's own norms with their actual scale: the one after
    the output projection (Gemma 2) and the one that takes the sum (post-norm models), `γ ⊙ (z −
    mean z) / s`. Biases of the output projection and of norms belong to no token and are left out.
    """
    norms = []
    for block, inputs in _block_inputs(model, batch):
        norms.append(block_parts(block, inputs).norm(dim=-1))
    return torch.stack(norms, dim=1)


def block_parts(block: TransformerBlock, inputs: _BlockInputs) -> Tensor:
    """Return the vectors whose norms `block_norms` takes, `[example, receiving, source, width]`.

    With what the biases add they sum to what leaves the attention block.
    """
    matrix, bias = block.written(inputs.value)
    head_matrices = matrix.view(inputs.value.shape[1], -1, matrix.shape[-1])  # head, d_head, width
    # e: example, h: head, j: receiving, i: source, d: d_head, w: width
    parts = torch.einsum("ehji,ehid,hdw->ejiw", inputs.weights, inputs.value, head_matrices)
    total = parts.sum(2) + bias
    if block.writing is not None:
        parts = _normed_part(block.writing, parts, total[:, :, None])
        total = _normed_part(block.writing, total, total) + block.writing.bias.double()
    factor = block.factor if block.attention is not None else 1.0
    parts = parts * factor
    total = total * factor + inputs.hidden
    tokens = torch.arange(parts.shape[1], device=parts.device)
    parts[:, tokens, tokens] += inputs.hidden  # the residual
    if block.summed is not None:
        parts = _normed_part(block.summed, parts, total[:, :, None])
    return parts


def _normed_part(norm: Norm, part: Tensor, total: Tensor) -> Tensor:
    """Return a part of a sum after the norm of the sum, with the scale of the sum held fixed."""
    return norm.gain.double() * norm.middle(part) / norm.scale(total)


@dataclass(frozen=True, slots=True, eq=False)
class _BlockInputs:
    """The inputs of an attention block, in float64: `weights[example, head, receiving, source]`,
    `value[example, head, source, d_head]` repeated for groups, `hidden[example, token, width]`."""

    weights: Tensor
    value: Tensor
    hidden: Tensor


def _block_inputs(model: HeadModel, batch: Batch) -> list[tuple[TransformerBlock, _BlockInputs]]:
    blocks = find_blocks(model)
    for number, block in enumerate(blocks):
        if block.attention is None and block.summed is None:
            raise ModelError(
                f"how layer {number} of {model.name} adds what its heads write is not known."
            )
    watcher = TraceWatcher(frozenset({"attention", "hidden"}))
    model.forward(batch, watcher)
    layers = sorted(watcher.layers, key=lambda layer: layer.layer)
    inputs = []
    for block, layer in zip(blocks, layers, strict=True):
        assert layer.value is not None
        assert layer.hidden is not None
        row_blocks = [rows.weights for rows in watcher.blocks[layer.layer]]
        weights = torch.cat(row_blocks, dim=2).double()
        group_size = weights.shape[1] // layer.value.shape[1]
        value = layer.value.double().repeat_interleave(group_size, dim=1)
        inputs.append((block, _BlockInputs(weights, value, layer.hidden.double())))
    return inputs


# --- heads: weighted values -----------------------------------------------------------------------


def norm_weighted(model: HeadModel, batch: Batch, attention: Tensor) -> tuple[Tensor, bool]:
    """Return `‖α_ji f(x_i)‖` of each head, rows divided by their sum, and whether the output
    projection is in `f`.

    The first is `[example, layer, head, receiving, source]`, with `f(x) = (x W_V + b_V) W_O`, the
    head's own part of the output projection. That matrix is recognised by what the model does with
    the values of each head: it is the first linear map that their tangents go through after the
    attention. Where a model has none (or its code takes no tangents), f is the value alone, and the
    second result is False.
    """
    value_pass: _ProjectedValueNorms | _ValueNorms = _ProjectedValueNorms(model)
    with torch.no_grad():
        try:
            value_pass.run(batch)
        except (NoForwardDerivative, StopIteration):
            value_pass = _ValueNorms(model)
            value_pass.run(batch)
    value_norms = torch.stack(value_pass.norms, dim=1)[:, :, :, None, :]
    mask = token_pair_mask(batch)[:, None, None]
    rows = normalise_rows(attention.double() * value_norms * mask)
    return rows, isinstance(value_pass, _ProjectedValueNorms)


class _ValueNorms(HookedPass):
    """Norms of the values of each head and token, `[example, head, token]`, layer by layer."""

    def __init__(self, model: HeadModel) -> None:
        super().__init__(model)
        self.norms: list[Tensor] = []

    def on_head_outputs(self, layer: int, call: Call, output: Tensor) -> None:
        _, value = call.repeated()
        self.norms.append(value.double().norm(dim=-1))


class _ProjectedValueNorms(HookedPass):
    """Norms of the values after each head's part of the output projection.

    The head outputs are passed on with tangents; tangent h holds the values of head h alone. The
    first linear map they meet is the output projection: there the norms are taken, and the tangents
    end.
    """

    def __init__(self, model: HeadModel) -> None:
        super().__init__(model)
        self.norms: list[Tensor] = []
        self.waiting = False  # for the output projection of the last layer that attended
        self.n_examples = 0

    def run(self, batch: Batch) -> None:
        self.n_examples = len(batch)
        super().run(batch)

    def attend_layer(self, layer: int, call: Call) -> tuple[Tensor, Tensor | None]:
        if self.waiting:
            raise NoForwardDerivative("no linear map followed the attention")
        _, value = call.repeated()
        output, weights = super().attend_layer(layer, call)
        n_examples, n_heads, n_tokens, size = value.shape
        tangents = value.new_zeros(n_heads, n_examples, n_tokens, n_heads, size)
        heads = torch.arange(n_heads, device=value.device)
        tangents[heads, :, :, heads] = value.transpose(0, 1)
        self.waiting = True
        return _ProjectionDetector(output, tangents, self), weights

    def on_projection(self, result: TangentTensor) -> Tensor:
        """Take the norms from the tangents of the projection's result; return its value."""
        norms = result.tangent.double().norm(dim=-1)  # head, example, token, as the model has them
        if norms.ndim == 2:  # GPT-2 flattens examples and tokens
            norms = norms.unflatten(1, (self.n_examples, -1))
        elif self.sites.tokens_first:
            norms = norms.transpose(1, 2)
        self.norms.append(norms.transpose(0, 1))
        self.waiting = False
        if len(self.norms) == self.sites.layers:
            raise StopPass
        return result.primal


class _ProjectionDetector(TangentTensor):
    """A tensor with tangents that reports the first linear map it goes through."""

    value_pass: _ProjectedValueNorms

    @staticmethod
    def __new__(
        cls, primal: Tensor, tangent: Tensor, value_pass: _ProjectedValueNorms
    ) -> _ProjectionDetector:
        detector = TangentTensor.__new__(cls, primal, tangent)
        assert isinstance(detector, _ProjectionDetector)
        detector.value_pass = value_pass
        return detector

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        leaves = tree_leaves((args, kwargs or {}))
        detectors = [leaf for leaf in leaves if isinstance(leaf, _ProjectionDetector)]
        result = TangentTensor.__torch_function__(func, types, args, kwargs)
        if not detectors or not isinstance(result, TangentTensor):
            return result
        value_pass = detectors[0].value_pass
        if getattr(func, "__name__", "") in LINEAR_MAPS:
            return value_pass.on_projection(result)
        return _ProjectionDetector(result.primal, result.tangent, value_pass)
