"""Attention weights together with the gradient of a loss, shown block by block."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headwise.core.errors import ParameterError
from headwise.models.session import BLOCK_BYTES
from headwise.models.streamed import Watch, with_gradient
from headwise.text.encode import Batch

if TYPE_CHECKING:
    from headwise.models.headmodel import HeadModel, Interventions

HELD_BYTES = 2**30  # of the weights of all layers that are held for a way back


def stream_gradients(
    model: HeadModel,
    batch: Batch,
    loss: Callable[[Any, Batch], Tensor],
    watch: Watch,
    *,
    interventions: Interventions | None = None,
    block_rows: int | None = None,
    at_most: int | None = HELD_BYTES,
) -> None:
    """Show attention weights with d loss / d weights to `watch`, block by block; see `HeadModel.gradients`.

    Where the weights of all layers take more than `at_most` bytes (None: however much they take), they are not held: a
    block is formed twice, and shown on the way back, last layer first. Memory then grows with the length of an input,
    not with its square.
    """
    session = model._session(batch, None, interventions, block_rows, BLOCK_BYTES, keep=True)
    size = model.layers * model.heads * len(batch) * batch.ids.shape[1] ** 2 * 4
    if at_most is not None and size > at_most:
        session.stream = watch
        session.block_bytes = min(BLOCK_BYTES, at_most // 4)  # a block, its gradient, and what lies between them
    with torch.enable_grad():
        losses = loss(model._forward(session, batch, logits=True), batch)
        if losses.shape != (len(batch),):
            given = f"it gave shape {list(losses.shape)}"
            raise ParameterError(f"`loss` must give one number for each of the {len(batch)} examples; {given}.")
        asked = [rows.weights for rows in session.kept]
        found = torch.autograd.grad(losses.sum(), [*asked, session.anchor], allow_unused=True)
    for rows, gradient in zip(session.kept, found[:-1], strict=True):
        watch(with_gradient(rows, gradient))
