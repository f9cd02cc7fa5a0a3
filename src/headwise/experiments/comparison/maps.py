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


class _Blocks(Watcher):
    """Hands every block of attention weights of one batch on."""

    needs = frozenset({"attention"})

    def __init__(self, take: Callable[[AttentionRows], None], padding: bool) -> None:
        self.take = take
        self.padding = padding  # whether the rows of padding tokens count

    def on_rows(self, rows: AttentionRows) -> None:
        self.take(rows)


def map_cosines(
    first: HeadModel, others: Sequence[HeadModel], batch: Batch, reading: str = PAPER
) -> list[Tensor]:
    """For each other model, `Σ_ij A[i,j] B[i,j] / (‖A‖ ‖B‖)` over real tokens, `[example, layer,
    head]`.

    As `released`, over inputs padded to 200 tokens (or to what the model takes): padding is looked
    at by no token, but looks at tokens itself, and its rows count."""
    padding = reading == RELEASED
    if padding:
        width = min(PADDED, first.encoder.max_length)
        batch = collate(batch.rows, first.pad_id, batch.device, pad_to=width)
    kept: list[Tensor] = []
    first.forward(batch, _Blocks(lambda rows: kept.append(rows.weights), padding))
    return [_cosine(kept, other, batch, padding) for other in others]


def _cosine(kept: Sequence[Tensor], model: HeadModel, batch: Batch, padding: bool) -> Tensor:
    """Of kept blocks and another model's, `[example, layer, head]`; weights are zero at padding
    unless asked for, so only real tokens count."""
    blocks = iter(kept)
    sums: list[list[Tensor]] = [[] for _ in range(model.layers)]

    def take(rows: AttentionRows) -> None:
        own, other = rows.weights.double(), next(blocks).to(rows.weights.device).double()
        products = own * other, own * own, other * other
        sums[rows.layer].append(torch.stack([product.sum((-1, -2)) for product in products]))

    model.forward(batch, _Blocks(take, padding))
    both, own, other = torch.stack([torch.stack(parts).sum(0) for parts in sums], 2).unbind(0)
    return both / (own * other).sqrt()
