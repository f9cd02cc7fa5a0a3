"""Cosine similarity of attention maps of the same head in two models, on the same inputs (Kovaleva
et al. 2019, §4.3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from headwise.analyses.released import PAPER, RELEASED
from headwise.models import HeadModel
from headwise.models.view import AttentionRows, Watcher
from headwise.text.encode import Batch, collate

PADDED = 200  # tokens to which the released code pads every input


class RowsWatcher(Watcher):
    """Passes every block of attention weights of one batch to a function."""

    needs = frozenset({"attention"})

    def __init__(self, receive: Callable[[AttentionRows], None], padding: bool) -> None:
        self.receive = receive
        self.padding = padding  # whether the rows of padding tokens count

    def on_rows(self, rows: AttentionRows) -> None:
        self.receive(rows)


def map_cosines(
    first: HeadModel, others: Sequence[HeadModel], batch: Batch, variant: str = PAPER
) -> list[Tensor]:
    """Return for each other model `Σ_ij A[i,j] B[i,j] / (‖A‖ ‖B‖)`, without padding, `[example,
    layer, head]`.

    As `released`, over inputs padded to 200 tokens (or to what the model takes): no token attends
    to padding, but padding attends to tokens, and its rows count."""
    padding = variant == RELEASED
    if padding:
        width = min(PADDED, first.encoder.max_length)
        batch = collate(batch.rows, first.pad_id, batch.device, pad_to=width)
    blocks: list[Tensor] = []
    first.forward(batch, RowsWatcher(lambda rows: blocks.append(rows.weights), padding))
    return [_cosine(blocks, other, batch, padding) for other in others]


def _cosine(
    first_blocks: Sequence[Tensor], model: HeadModel, batch: Batch, padding: bool
) -> Tensor:
    """Return the cosine of the first model's blocks and another model's, `[example, layer, head]`.

    Weights are zero at padding unless its rows count, so only tokens of the input do."""
    remaining_blocks = iter(first_blocks)
    sums: list[list[Tensor]] = [[] for _ in range(model.layers)]

    def add_products(rows: AttentionRows) -> None:
        weights = rows.weights.double()
        first_weights = next(remaining_blocks).to(rows.weights.device).double()
        products = (weights * first_weights, weights * weights, first_weights * first_weights)
        sums[rows.layer].append(torch.stack([product.sum((-1, -2)) for product in products]))

    model.forward(batch, RowsWatcher(add_products, padding))
    sums_by_layer = torch.stack([torch.stack(parts).sum(0) for parts in sums], 2)
    dot_product, squared_norm, first_squared_norm = sums_by_layer.unbind(0)
    return dot_product / (squared_norm * first_squared_norm).sqrt()
