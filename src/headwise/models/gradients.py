"""Attention weights with the gradient of a loss.

Short inputs hold the weights of all layers until the backward pass. Long inputs stream: weights
are formed in blocks of rows, dropped, and formed again in the backward pass."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headwise.core.errors import ParameterError
from headwise.models.tap import Call
from headwise.models.view import AttentionRows
from headwise.text.encode import Batch

if TYPE_CHECKING:
    from headwise.models.headmodel import HeadModel, Interventions

MAX_KEPT_BYTES = 2**30  # weights of all layers that are held for the backward pass
OnRows = Callable[[AttentionRows], None]


@dataclass(frozen=True, slots=True, eq=False)
class StreamedCall:
    """One call of one layer whose weights are streamed.

    Attributes
    ----------
    call, layer
        What is computed.
    rows_at_once
        Size of a block of rows.
    visible
        Returns V(i) of the rows `start..stop` of a call.
    on_rows
        Gets each block with its gradient.
    """

    call: Call
    layer: int
    rows_at_once: int
    visible: Callable[[Call, int, int], Tensor]
    on_rows: OnRows

    def blocks(self) -> list[tuple[int, int]]:
        """First and last row (exclusive) of each block."""
        n_queries = self.call.sizes[2]
        blocks = []
        for start in range(0, n_queries, self.rows_at_once):
            blocks.append((start, min(start + self.rows_at_once, n_queries)))
        return blocks

    def with_tensors(self, query: Tensor, key: Tensor, value: Tensor) -> Call:
        """Return the same call on other tensors."""
        call = copy.copy(self.call)
        call.query = query
        call.key = key
        call.value = value
        return call


class StreamedAttention(torch.autograd.Function):
    """The product of attention weights and values, in blocks of rows.

    The backward pass forms each block again, shows it with its gradient and drops it: memory is
    that of one block, whatever the length. `anchor` is a number that requires a gradient, so that
    the backward pass comes here even if nothing before the first layer requires one."""

    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, query: Tensor, key: Tensor, value: Tensor, work: StreamedCall
    ) -> Tensor:
        ctx.save_for_backward(query, key, value)
        ctx.work = work
        call = work.with_tensors(query, key, value)
        keys, values = call.repeated()
        outputs = []
        for start, stop in work.blocks():
            weights, _ = call.weights(keys, start, stop)
            outputs.append(weights.to(values.dtype) @ values)
        return torch.cat(outputs, dim=2)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        work: StreamedCall = ctx.work
        with torch.enable_grad():
            leaves = [tensor.detach().requires_grad_() for tensor in ctx.saved_tensors]
            call = work.with_tensors(*leaves)
            totals = [torch.zeros_like(leaf) for leaf in leaves]
            for start, stop in work.blocks():
                keys, values = call.repeated()
                weights, sink = call.weights(keys, start, stop)
                output = weights.to(values.dtype) @ values
                weight_gradient, *leaf_gradients = torch.autograd.grad(
                    output, [weights, *leaves], gradient[:, :, start:stop], allow_unused=True
                )
                visible = work.visible(work.call, start, stop)
                rows = AttentionRows(work.layer, start, stop, weights, visible, sink)
                work.on_rows(add_gradient(rows, weight_gradient))
                for total, leaf_gradient in zip(totals, leaf_gradients, strict=True):
                    if leaf_gradient is not None:
                        total += leaf_gradient
        input_gradients: list[Tensor | None] = []
        for total, is_needed in zip(totals, ctx.needs_input_grad[1:4], strict=True):
            input_gradients.append(total if is_needed else None)
        return gradient.new_zeros(()), *input_gradients, None


def add_gradient(rows: AttentionRows, gradient: Tensor | None) -> AttentionRows:
    """Return a block with the gradient of its weights, detached, zero outside V(i)."""
    weights = rows.weights.detach()
    visible = rows.visible
    if gradient is None:
        gradient = torch.zeros_like(weights)
    sink = rows.sink
    if sink is not None:
        sink = sink.detach() * visible.any(-1)
    return replace(rows, weights=weights * visible, sink=sink, gradient=gradient * visible)


def stream_gradients(
    model: HeadModel,
    batch: Batch,
    loss: Callable[[Any, Batch], Tensor],
    on_rows: OnRows,
    *,
    interventions: Interventions | None = None,
    block_rows: int | None = None,
    max_kept_bytes: int | None = MAX_KEPT_BYTES,
) -> None:
    """Show attention weights with d loss / d weights, block by block.

    If the weights of all layers take more than `max_kept_bytes`, they are not held: each block is
    formed twice and shown in the backward pass, last layer first. Memory then grows with the length
    of an input, not with its square.

    Parameters
    ----------
    model : HeadModel
        The model.
    batch : Batch
        The examples.
    loss : callable
        Returns one loss for each example from the model's output and the batch.
    on_rows : callable
        Gets each block of rows, with its gradient.
    interventions : mapping, optional
        As in `HeadModel.forward`.
    block_rows : int, optional
        Number of query rows in a block.
    max_kept_bytes : int, optional
        None: hold all weights, however much they take.
    """
    session = model._session(batch, None, interventions, block_rows, keep=True)
    n_tokens = batch.ids.shape[1]
    n_bytes = model.layers * model.heads * len(batch) * n_tokens**2 * 4
    if max_kept_bytes is not None and n_bytes > max_kept_bytes:
        session.stream_to = on_rows
        # A block, its gradient, and what lies between them are held at once.
        session.block_bytes = min(session.block_bytes, max_kept_bytes // 4)
    with torch.enable_grad():
        losses = loss(model._forward(session, batch, logits=True), batch)
        if losses.shape != (len(batch),):
            raise ParameterError(
                f"`loss` must return one number for each of the {len(batch)} examples; "
                f"it returned shape {list(losses.shape)}."
            )
        kept_weights = [rows.weights for rows in session.kept]
        gradients = torch.autograd.grad(
            losses.sum(), [*kept_weights, session.anchor], allow_unused=True
        )
    for rows, gradient in zip(session.kept, gradients[:-1], strict=True):
        on_rows(add_gradient(rows, gradient))
