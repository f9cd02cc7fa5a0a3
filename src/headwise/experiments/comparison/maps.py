"""Cosine similarity of attention maps of the same head in two models, on the same inputs (Kovaleva et al. 2019,
§4.3)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headwise.core.released import PAPER, RELEASED
from headwise.models import HeadModel
from headwise.models.view import Rows, Watcher
from headwise.text.encode import Batch, collate

PADDED = 200  # tokens to which the released code pads every input


class _Keep(Watcher):
    """Keeps every block of attention weights of one batch."""

    needs = frozenset({"attention"})

    def __init__(self, padding: bool) -> None:
        self.padding = padding  # whether the rows of padding tokens count
        self.blocks: list[Tensor] = []

    def rows(self, rows: Rows) -> None:
        self.blocks.append(rows.weights)


class _Compare(Watcher):
    """Adds up products of another model's weights with kept ones, block by block."""

    needs = frozenset({"attention"})

    def __init__(self, kept: Sequence[Tensor], layers: int, padding: bool) -> None:
        self.kept, self.block, self.padding = kept, 0, padding
        self.sums: list[list[Tensor]] = [[] for _ in range(layers)]

    def rows(self, rows: Rows) -> None:
        own, other = rows.weights.double(), self.kept[self.block].to(rows.weights.device).double()
        self.block += 1
        self.sums[rows.layer].append(
            torch.stack([(own * other).sum((-1, -2)), (own * own).sum((-1, -2)), (other * other).sum((-1, -2))])
        )

    def cosine(self) -> Tensor:
        """`[example, layer, head]`; weights are zero at padding unless asked for, so only real tokens count."""
        both, own, other = torch.stack([torch.stack(blocks).sum(0) for blocks in self.sums], 2).unbind(
            0
        )  # each [example, layer, head]
        return both / (own * other).sqrt()


def map_cosines(first: HeadModel, others: Sequence[HeadModel], batch: Batch, reading: str = PAPER) -> list[Tensor]:
    """For each other model, `Σ_ij A[i,j] B[i,j] / (‖A‖ ‖B‖)` over real tokens, `[example, layer, head]`.

    As `released`, over inputs padded to 200 tokens (or to what the model takes): padding is looked at by no token, but
    looks at tokens itself, and its rows count.
    """
    padding = reading == RELEASED
    if padding:
        width = min(PADDED, first.encoder.max_length)
        batch = collate(batch.rows, first.pad_id, batch.device, pad_to=width)
    kept = _Keep(padding)
    first.forward(batch, kept)
    found = []
    for other in others:
        watcher = _Compare(kept.blocks, first.layers, padding)
        other.forward(batch, watcher)
        found.append(watcher.cosine())
    return found
