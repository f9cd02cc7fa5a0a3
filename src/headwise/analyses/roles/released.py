"""Sieve scores as the authors' notebooks have them: what they do to the rows of `local` and `block`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from headwise.analyses.roles.sieves import Sieve, Tokens
from headwise.analyses.roles.sieves.builtin import segment
from headwise.analyses.roles.sieves.forms import Same
from headwise.models.view import Rows
from headwise.text.encode import Batch

if TYPE_CHECKING:
    from headwise.analyses.roles.shares import Shares

EDGE = 2  # rows at the end whose band is too wide


def block_of(side: Tokens) -> np.ndarray:
    """The block that a looking token is scored against: the first up to its end, the second from the first [SEP] on."""
    own = side.row.segment
    if not side.row.example.has_pair or not (own == 0).any():
        return np.full_like(side.segment, -1)
    end = np.flatnonzero(own == 0)[-1]
    found: np.ndarray = (side.position > end).astype(side.segment.dtype)
    return found


_BLOCK = Same("block as released", block_of, segment, itself=True)


def released_sieves(sieves: tuple[Sieve, ...]) -> tuple[Sieve, ...]:
    """The same sieves, with the block of special tokens."""
    return tuple(replace(sieve, function=_BLOCK) if sieve.name == "block" else sieve for sieve in sieves)


def as_released(
    sums: Mapping[str, Tensor], shares: Shares, weights: Tensor, rows: Rows, batch: Batch, sieves: tuple[Sieve, ...]
) -> dict[str, Tensor]:
    """`sums` of these rows with the scores of `local` and `block` as released."""
    total = sums["total"].clone()
    for place, sieve in enumerate(sieves):
        if sieve.name in _FACTORS:
            factor = _FACTORS[sieve.name](weights, shares.sieves[:, place], rows, batch)
            scored = shares.score(weights * factor[..., None].to(weights.dtype), rows.visible)
            total[..., place] = scored["total"][..., place]
    return {**sums, "total": total}


def _entropy(weights: Tensor, inside: Tensor, rows: Rows, batch: Batch) -> Tensor:
    found: Tensor = torch.special.entr(weights).sum(-1)
    return found


def _wide(weights: Tensor, inside: Tensor, rows: Rows, batch: Batch) -> Tensor:
    """`[example, 1, row]`: the last two rows are divided by one token more than their band has."""
    size = (inside[:, None] & rows.visible[:, :1]).sum(-1)
    before_end = batch.lengths[:, None, None] - torch.arange(rows.start, rows.stop, device=weights.device)
    return torch.where(before_end <= EDGE, size / (size + 1), 1.0)


_FACTORS: dict[str, Callable[[Tensor, Tensor, Rows, Batch], Tensor]] = {"block": _entropy, "local": _wide}
