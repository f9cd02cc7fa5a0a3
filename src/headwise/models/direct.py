"""Direct contributions to a logit: with the final norm fixed at its actual scale, a logit is a sum
over the parts of the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
import xarray as xr
from torch import Tensor, nn

from headwise.core.errors import ModelError, ParameterError
from headwise.core.labels import head_name
from headwise.models.devices import weight_in
from headwise.models.forward_call import body_of, only_in_this_thread
from headwise.models.headmodel import HeadModel
from headwise.models.interventions import (
    Intervention,
    head_interventions,
    plan_interventions,
)
from headwise.models.residual_graph import apply_norm
from headwise.models.session import Session
from headwise.models.structure import Structure, find_structure
from headwise.models.view import AttentionRows, Layer
from headwise.stats.products import linear
from headwise.text.encode import Batch

COVARIANCE_TOKENS = 4096  # enough for a standard deviation to a percent
LENS_ROWS = 256  # rows whose logits are computed at a time
LENS_TOKENS = 2**14  # tokens of the vocabulary whose logits are computed at a time


@dataclass(frozen=True, slots=True, eq=False)
class Direct:
    """The contribution of each part to a logit less the mean over the vocabulary (or less another
    logit), for each token.

    `heads[layer, example, token, head]`; `bias[layer, ...]` of the output projections;
    `other[layer, ...]`, the feed-forward branches; `embedding` and `constant` (biases of the final
    norm and the output matrix) `[example, token]`; `logit`, the same difference in the model's own
    scores (before a soft cap)."""

    heads: Tensor
    bias: Tensor
    other: Tensor
    embedding: Tensor
    constant: Tensor
    logit: Tensor

    def total(self) -> Tensor:
        """Return the sum of all parts, `[example, token]`."""
        return (
            self.heads.sum((0, -1))
            + self.bias.sum(0)
            + self.other.sum(0)
            + self.embedding
            + self.constant
        )


class Recorded:
    """One recorded pass, from which the direct contributions to any number of logits follow.

    Parameters
    ----------
    model : HeadModel
        A causal language model.
    structure : Structure
        Its parts, from `find_structure`; one with a `refusal` is rejected.
    batch : Batch
        What to run.
    on_rows : callable, optional
        Gets the weights of every layer too.
    interventions : mapping, optional
        `{"L3H5": "zero"}`: interventions on heads, as in `HeadModel.forward`.
    keep_streams : bool, default False
        Keep what enters every layer, for `predicted_before`.
    """

    def __init__(
        self,
        model: HeadModel,
        structure: Structure,
        batch: Batch,
        on_rows: Callable[[AttentionRows], None] | None = None,
        interventions: Mapping[Any, Intervention] | None = None,
        keep_streams: bool = False,
    ) -> None:
        self.needs = frozenset({"outputs", "hidden"})
        if on_rows is not None:
            self.needs |= {"attention"}
        self._on_rows = on_rows
        if structure.refusal is not None or structure.final is None or structure.head is None:
            raise ModelError(f"Heads add nothing of their own to the logits: {structure.refusal}.")
        self.structure = structure
        self.batch = batch
        self.outputs: list[Tensor] = []
        self.streams: list[Tensor] = []  # what enters each layer, if it is kept
        self._keep_streams = keep_streams
        self._hidden: Tensor | None = None  # what enters the first layer
        self._module_outputs: dict[nn.Module, Tensor] = {}
        self._mean_row: tuple[Tensor, Tensor] | None = None
        # What the output matrix reads. The matrix itself is not run: of all its scores, those of
        # few tokens are needed.
        recorded = [structure.final.module]
        for block in structure.blocks:
            if block.other is not None:
                recorded.append(block.other)
            if block.writing is not None:
                recorded.append(block.projection)
        on_heads = head_interventions(interventions)
        if len(on_heads) < len(interventions or {}):
            raise ParameterError(
                "Contributions to a logit are computed with interventions on heads and layers; "
                "streams cannot be changed."
            )
        plan = plan_interventions(on_heads, model.layers, model.heads, model.d_head)
        session = Session(model.sites, batch.attention_mask, self, plan)
        record = only_in_this_thread(self._record)
        with ExitStack() as stack, torch.no_grad(), model.evaluating():
            for module in recorded:
                stack.callback(module.register_forward_hook(record).remove)
            stack.enter_context(session.running())
            # Some models have their final norm outside the part below the head.
            in_body = structure.final.module in set(body_of(model.module).modules())
            model.run(batch.ids, batch.attention_mask, batch.types, logits=not in_body)
        assert session.final is not None
        self.final = session.final

    def on_rows(self, rows: AttentionRows) -> None:
        if self._on_rows is not None:
            self._on_rows(rows)

    def on_layer(self, layer: Layer) -> None:
        assert layer.outputs is not None
        assert layer.hidden is not None
        self.outputs.append(layer.outputs)
        if self._hidden is None:
            self._hidden = layer.hidden
        if self._keep_streams:
            self.streams.append(layer.hidden)

    def _record(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        values = output if isinstance(output, Tensor) else output[0]
        values = values.float().reshape(*self.batch.ids.shape, -1)
        # A copy: some models add to it in place.
        self._module_outputs[module] = values.to(self.batch.device, copy=True)

    def direct(self, target: Tensor, against: Tensor | None = None) -> Direct:
        """Return the contribution of each part to a logit.

        Parameters
        ----------
        target : Tensor
            The token of each logit, `[example, token]`.
        against : Tensor, optional
            Subtract the logit of this token, `[example, token]`; by default the mean over the
            vocabulary.
        """
        structure = self.structure
        assert structure.head is not None
        assert structure.final is not None
        assert self._hidden is not None
        target_row, target_bias = self._output_rows(target)
        if against is None:
            other_row, other_bias = self._mean_output_row()
        else:
            other_row, other_bias = self._output_rows(against)
        direction = (target_row - other_row) * structure.times
        bias_difference = (target_bias - other_bias) * structure.times
        normed = self._module_outputs[structure.final.module]
        logit = (normed * direction).sum(-1) + bias_difference
        # The direction in the residual stream, before the final norm.
        in_stream = structure.final.pulled(direction, structure.final.scale(self.final))
        heads, biases, other = [], [], []
        for block, outputs in zip(structure.blocks, self.outputs, strict=True):
            reads = in_stream * block.factor
            constant = torch.zeros_like(logit)
            if block.other is None:
                other.append(constant)
            else:
                other.append((reads * self._module_outputs[block.other]).sum(-1))
            if block.writing is not None:
                constant = (reads * block.writing.bias).sum(-1)
                scale = block.writing.scale(self._module_outputs[block.projection])
                reads = block.writing.pulled(reads, scale)
            matrix, projection_bias = block.written(outputs)
            by_head = (reads @ matrix.T).view(*reads.shape[:-1], outputs.shape[1], -1)
            heads.append((by_head * outputs.transpose(1, 2)).sum(-1))
            biases.append(constant + reads @ projection_bias)
        return Direct(
            heads=torch.stack(heads),
            bias=torch.stack(biases),
            other=torch.stack(other),
            embedding=(in_stream * self._hidden).sum(-1),
            constant=(direction * structure.final.bias).sum(-1) + bias_difference,
            logit=logit,
        )

    def predicted_before(self, layer: int, rows: Tensor) -> Tensor:
        """Return the token that the residual stream before a layer predicts: the likeliest one when
        that stream goes through the final norm and the output matrix (the logit lens).

        Parameters
        ----------
        layer : int
            The layer; the pass must have kept its streams.
        rows : Tensor
            The tokens that predict, `[example, row]`.

        Returns
        -------
        Tensor
            `[example, row]`.
        """
        structure = self.structure
        weight, bias = self._output_matrix()
        stream = take_rows(self.streams[layer], rows, 1).float()
        normed = apply_norm(structure.final, stream).flatten(0, 1)
        predicted = torch.zeros(len(normed), dtype=torch.int64, device=normed.device)
        # In blocks of rows and of the vocabulary: all logits at once, and all of a matrix in half
        # precision in float32, would need much memory.
        for start in range(0, len(normed), LENS_ROWS):
            rows_of_block = slice(start, start + LENS_ROWS)
            largest = torch.full_like(normed[rows_of_block, 0], -torch.inf)
            for first_token in range(0, len(weight), LENS_TOKENS):
                tokens = slice(first_token, first_token + LENS_TOKENS)
                logits = linear(normed[rows_of_block], weight[tokens].float()) + bias[tokens]
                # The factor of the scores may be negative in principle; a cap keeps their order.
                best = (logits * structure.times).max(-1)
                is_larger = best.values > largest
                largest = torch.where(is_larger, best.values, largest)
                token = best.indices + first_token
                predicted[rows_of_block] = torch.where(is_larger, token, predicted[rows_of_block])
        return predicted.view(rows.shape)

    def of_heads(self, layer: int, target: Tensor, rows: slice | Tensor) -> Tensor:
        """Return the contribution of each head of a layer to the logit of its own target, less the
        mean over the vocabulary.

        Parameters
        ----------
        layer : int
            The layer.
        target : Tensor
            The token of each head's logit, `[example, head, row]`; one head stands for all.
        rows : slice or Tensor
            The tokens that predict: the same of all examples, or `[example, row]`.
        """
        structure = self.structure
        block = structure.blocks[layer]
        outputs = take_rows(self.outputs[layer], rows, 2)
        assert structure.final is not None
        target_row, _ = self._output_rows(target)
        mean_row, _ = self._mean_output_row()
        reads = structure.times * block.factor * (target_row - mean_row)
        final_scale = structure.final.scale(take_rows(self.final, rows, 1))
        reads = structure.final.pulled(reads, final_scale[:, None])
        if block.writing is not None:
            projected = take_rows(self._module_outputs[block.projection], rows, 1)
            scale = block.writing.scale(projected)
            reads = block.writing.pulled(reads, scale[:, None])
        matrix = block.written(outputs)[0]
        matrix = matrix.view(outputs.shape[1], -1, matrix.shape[-1])  # head, d_head, width
        contribution: Tensor = ((reads @ matrix.transpose(1, 2)) * outputs).sum(-1)
        return contribution

    def head_spread(self, layer: int, covariance: Tensor) -> Tensor:
        """Return the standard deviation, over the vocabulary, of what each head of a layer adds to
        the logits, `[example, head, token]`.

        Parameters
        ----------
        layer : int
            The layer.
        covariance : Tensor
            That of the directions of all tokens before the final norm, from `logit_covariance`.
        """
        structure = self.structure
        block = structure.blocks[layer]
        outputs = self.outputs[layer]
        assert structure.final is not None
        matrix = block.written(outputs)[0]
        scale = structure.final.scale(self.final)
        if block.writing is not None:
            # The same linear map as `pulled`, on the side of what is written.
            matrix = block.writing.middle(matrix) * block.writing.gain
            scale = scale * block.writing.scale(self._module_outputs[block.projection])
        matrix = matrix.view(outputs.shape[1], -1, matrix.shape[-1])  # head, d_head, width
        by_head = matrix @ covariance.to(matrix) @ matrix.transpose(1, 2)  # head, d_head, d_head
        variance = ((outputs @ by_head) * outputs).sum(-1).clamp(min=0)
        spread: Tensor = (
            abs(structure.times * block.factor) * variance.sqrt() / scale[:, None, :, 0]
        )
        return spread

    def logit_covariance(self) -> Tensor:
        """Return the covariance, over the vocabulary, of the directions in the residual stream that
        the logits read (at scale 1 of the final norm), `[width, width]`.

        It is that of at most 4,096 tokens, evenly spaced in the vocabulary."""
        structure = self.structure
        assert structure.final is not None
        weight, _ = self._output_matrix()
        step = max(1, len(weight) // COVARIANCE_TOKENS)
        mean_row, _ = self._mean_output_row()
        directions = weight[::step].float() - mean_row
        directions = structure.final.pulled(directions, torch.ones_like(directions[:, :1]))
        return directions.T @ directions / len(directions)

    def token_losses(self, rows: slice) -> Tensor:
        """Return the loss in nats of the token after each of these rows, `[example, row]`."""
        structure = self.structure
        assert structure.head is not None
        assert structure.final is not None
        normed = self._module_outputs[structure.final.module][:, rows]
        targets = torch.roll(self.batch.ids, -1, 1)[:, rows].flatten()
        flat = normed.flatten(0, 1)
        losses = flat.new_empty(len(flat))
        weight, _ = self._output_matrix()
        with torch.no_grad():
            # In blocks: the logits of all rows at once would need much memory.
            for start in range(0, len(flat), LENS_ROWS):
                block = slice(start, start + LENS_ROWS)
                logits = structure.head(flat[block].to(weight)).float() * structure.times
                if structure.cap is not None:
                    logits = structure.cap * torch.tanh(logits / structure.cap)
                losses[block] = nn.functional.cross_entropy(
                    logits, targets[block].to(logits.device), reduction="none"
                ).to(losses.device)
        return losses.view(normed.shape[:2])

    def _output_matrix(self) -> tuple[Tensor, Tensor]:
        """Return the output matrix in its own type, and its bias in float32, on the device of the
        batch."""
        head = self.structure.head
        assert head is not None
        weights = {}
        for name, parameter in head.named_parameters(recurse=False):
            weights[name] = weight_in(head, name, parameter).to(self.batch.device)
        matrix = weights["weight"]
        if "bias" in weights:
            return matrix, weights["bias"].float()
        return matrix, torch.zeros(len(matrix), device=matrix.device)

    def _output_rows(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows of the output matrix and the biases of some tokens, in float32."""
        matrix, bias = self._output_matrix()
        return matrix[tokens].float(), bias[tokens]

    def _mean_output_row(self) -> tuple[Tensor, Tensor]:
        """Return the mean row of the output matrix and the mean bias, in float32.

        They are computed once for a pass: the matrix is as large as the vocabulary."""
        if self._mean_row is None:
            matrix, bias = self._output_matrix()
            self._mean_row = (matrix.mean(0, dtype=torch.float32), bias.mean())
        return self._mean_row


def take_rows(values: Tensor, rows: slice | Tensor, dim: int) -> Tensor:
    """Return some rows of `values[example, ..., row, ...]`.

    Parameters
    ----------
    values : Tensor
        The values; examples come first.
    rows : slice or Tensor
        The same rows of all examples, or those of each example, `[example, row]`.
    dim : int
        The dim of rows in `values`.
    """
    if isinstance(rows, slice):
        return values[(slice(None),) * dim + (rows,)]
    n_between = dim - 1
    n_after = values.ndim - dim - 1
    index = rows.view(len(rows), *(1,) * n_between, rows.shape[1], *(1,) * n_after)
    size = [*values.shape[:dim], rows.shape[1], *values.shape[dim + 1 :]]
    return values.gather(dim, index.expand(size))


def logit_attribution(
    model: HeadModel,
    batch: Batch,
    target: int,
    against: int | None,
    position: int,
    interventions: Mapping[Any, Intervention] | None = None,
    structure: Structure | None = None,
) -> xr.DataArray:
    """Return what every component adds to a logit; see `HeadModel.logit_attribution`.

    `structure` saves finding the parts of the model again.
    """
    if structure is None:
        structure = find_structure(model)
    recorded = Recorded(model, structure, batch, interventions=interventions)
    targets = torch.full_like(batch.ids, target)
    others = None if against is None else torch.full_like(batch.ids, against)
    direct = recorded.direct(targets, others)
    names = ["embedding"]
    values = [direct.embedding[0, position]]
    for layer in range(model.layers):
        for head in range(model.heads):
            names.append(head_name(layer, head))
            values.append(direct.heads[layer, 0, position, head])
        names.append(f"L{layer}MLP")
        values.append(direct.other[layer, 0, position])
    names.append("constant")
    values.append(direct.bias[:, 0, position].sum() + direct.constant[0, position])
    array = torch.stack(values).double().cpu().numpy()
    attributes = {"logit": float(direct.logit[0, position]), "model": model.name}
    return xr.DataArray(array, {"component": names}, ("component",), "logit", attributes)


def adds_up(direct: Direct, attention_mask: Tensor) -> float:
    """Return the largest difference between the sum of the parts and the model's own logit,
    relative to the largest logit."""
    difference = (direct.total() - direct.logit).abs()[attention_mask]
    largest = direct.logit.abs()[attention_mask].max().clamp(min=1e-6)
    return float(difference.max() / largest)
