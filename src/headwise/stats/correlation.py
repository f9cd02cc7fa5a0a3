"""Pearson and Spearman correlation of two maps, row by row, over the tokens a row may see."""

from __future__ import annotations

import torch
from torch import Tensor

FEWEST = 3  # tokens in a row; any two points lie on a line


def row_correlations(a: Tensor, b: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """Pearson's and Spearman's correlation of each row of two maps, `[..., row, token]` to `[..., row]`, over the tokens where `seen` (broadcast) holds.

    NaN where there is nothing to correlate: fewer than three tokens, or one side the same for all of them. Ties share the mean of their ranks.
    """
    a, b = torch.broadcast_tensors(a.double(), b.double())
    seen = seen.expand_as(a)
    enough = seen.sum(-1) >= FEWEST
    pearson = _correlation(a, b, seen)
    spearman = _correlation(ranks(a, seen), ranks(b, seen), seen)
    return torch.where(enough, pearson, torch.nan), torch.where(enough, spearman, torch.nan)


def ranks(values: Tensor, seen: Tensor) -> Tensor:
    """Ranks from 1 within each row among the tokens seen, ties at their mean; those not seen hold no meaning."""
    values = torch.where(seen, values, torch.inf).contiguous()
    ordered = values.sort(dim=-1).values
    below = torch.searchsorted(ordered, values, right=False)
    up_to = torch.searchsorted(ordered, values, right=True)
    return (below + up_to + 1).double() / 2


def _correlation(a: Tensor, b: Tensor, seen: Tensor) -> Tensor:
    weight = seen.double()
    count = weight.sum(-1, keepdim=True).clamp(min=1)

    def centred(x: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.where(seen, x, 0.0)
        middle = x.sum(-1, keepdim=True) / count
        x = (x - middle) * weight
        size = x.square().sum(-1)
        # Equal numbers differ from their mean by rounding: such a row is constant, and has no correlation.
        return x, torch.where(size > count[..., 0] * (1e-7 * middle[..., 0].abs()) ** 2, size, 0.0)

    (x, xx), (y, yy) = centred(a), centred(b)
    product = xx * yy
    return torch.where(product > 0, (x * y).sum(-1) / product.clamp(min=1e-300).sqrt(), torch.nan).clamp(-1, 1)
