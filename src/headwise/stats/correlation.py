"""Pearson's and Spearman's correlation: of arrays with interval and p-value, of tensors on any
device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch
from scipy import stats as scipy_stats
from torch import Tensor

from headwise.core.checks import one_of
from headwise.stats.intervals import LEVEL

METHODS = ("pearson", "spearman")
MIN_TOKENS = 3  # in a row; any two points lie on a line
# A spread below this share of the mean is rounding, in numbers of single and double precision.
SINGLE_ROUNDING = 1e-7
DOUBLE_ROUNDING = 1e-15


@dataclass(frozen=True, slots=True)
class Correlation:
    """Correlations with intervals (Fisher's z), two-sided p-values and the number of pairs,
    elementwise."""

    r: np.ndarray
    low: np.ndarray
    high: np.ndarray
    p_value: np.ndarray
    count: np.ndarray


def correlation(first: np.ndarray, second: np.ndarray, method: str = "pearson") -> Correlation:
    """Return Pearson's or Spearman's correlation along the last axis; pairs with a NaN are left
    out.

    Intervals as in `fisher_interval`; everything is NaN where one side does not vary.

    >>> float(correlation(np.arange(5.0), np.array([0.0, 2.0, 1.0, 3.0, 4.0]), "spearman").r.round(3))
    0.9
    """
    one_of("method", method, METHODS)
    first, second = np.broadcast_arrays(
        np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    )
    x = torch.tensor(first)
    y = torch.tensor(second)
    present = ~(x.isnan() | y.isnan())
    if method == "spearman":
        x = ranks(x, present)
        y = ranks(y, present)
    r = pearson(x, y, present, DOUBLE_ROUNDING).numpy()
    count = present.sum(-1).numpy()
    low, high = fisher_interval(r, count, method)
    return Correlation(r, low, high, correlation_p(r, count), count)


def fisher_interval(
    r: np.ndarray, count: np.ndarray | int, method: str = "pearson"
) -> tuple[np.ndarray, np.ndarray]:
    """Return the interval `tanh(atanh r ± z · se)` with `se = 1/sqrt(n − 3)`; NaN below four pairs.

    For Spearman's correlation `se` is Bonett and Wright's `sqrt((1 + r²/2)/(n − 3))`.
    """
    r = np.asarray(r, dtype=float)
    count = np.asarray(count)
    quantile = scipy_stats.norm.ppf(0.5 + LEVEL / 2)
    with np.errstate(divide="ignore", invalid="ignore"):
        numerator = 1 + r**2 / 2 if method == "spearman" else 1.0
        error = np.sqrt(numerator / np.where(count > 3, count - 3, np.nan))
        half_width = quantile * error
        z = np.arctanh(r)
        return np.tanh(z - half_width), np.tanh(z + half_width)


def correlation_p(
    r: np.ndarray, count: np.ndarray | int, alternative: str = "two-sided"
) -> np.ndarray:
    """Return the p-value of `r = 0` (`two-sided`) or `r ≤ 0` (`greater`) by Student's t; NaN below
    three pairs."""
    r = np.asarray(r, dtype=float)
    count = np.asarray(count)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = r * np.sqrt((count - 2) / (1 - r**2))
    freedom = np.where(count > 2, count - 2, np.nan)
    if alternative == "greater":
        return np.asarray(scipy_stats.t.sf(t, freedom))
    return np.asarray(2 * scipy_stats.t.sf(np.abs(t), freedom))


def pearson(
    a: Tensor, b: Tensor, mask: Tensor | None = None, rounding: float = SINGLE_ROUNDING
) -> Tensor:
    """Return Pearson's correlation over the last axis in float64, of the entries where `mask`
    holds.

    NaN where one side does not vary: where its spread is no more than `rounding` leaves of equal
    numbers."""
    shape = torch.Size(np.broadcast_shapes(a.shape, b.shape))
    a = a.double().expand(shape)
    b = b.double().expand(shape)
    mask = torch.ones_like(a, dtype=torch.bool) if mask is None else mask.expand(shape)
    count = mask.sum(-1, keepdim=True).clamp(min=1)

    def centre(values: Tensor) -> tuple[Tensor, Tensor]:
        """Return the deviations from the mean, and their sum of squares: 0 where it is rounding."""
        values = torch.where(mask, values, 0.0)
        mean = values.sum(-1, keepdim=True) / count
        deviations = torch.where(mask, values - mean, 0.0)
        squares = deviations.square().sum(-1)
        smallest = count[..., 0] * (rounding * mean[..., 0].abs()) ** 2
        return deviations, torch.where(squares > smallest, squares, 0.0)

    x, xx = centre(a)
    y, yy = centre(b)
    varies = (xx > 0) & (yy > 0)
    scale = torch.where(varies, xx.sqrt() * yy.sqrt(), 1.0)
    return torch.where(varies, (x * y).sum(-1) / scale, torch.nan).clamp(-1, 1)


def ranks(values: Tensor, mask: Tensor) -> Tensor:
    """Return ranks from 1 along the last axis among the entries of the mask, ties at their mean.

    Ranks outside the mask mean nothing."""
    values = torch.where(mask, values, torch.inf).contiguous()
    ordered = values.sort(dim=-1).values
    n_below = torch.searchsorted(ordered, values, right=False)
    n_up_to = torch.searchsorted(ordered, values, right=True)
    return (n_below + n_up_to + 1).double() / 2


def row_correlations(a: Tensor, b: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return Pearson's and Spearman's correlation of two maps, row by row, over the tokens of the
    mask.

    NaN where there is nothing to correlate: fewer than three tokens, or one side the same for all
    of them."""
    shape = torch.Size(np.broadcast_shapes(a.shape, b.shape))
    a = a.double().expand(shape)
    b = b.double().expand(shape)
    mask = mask.expand(shape)
    has_enough = mask.sum(-1) >= MIN_TOKENS
    linear = pearson(a, b, mask)
    by_rank = pearson(ranks(a, mask), ranks(b, mask), mask)
    return (
        torch.where(has_enough, linear, torch.nan),
        torch.where(has_enough, by_rank, torch.nan),
    )


def rank_correlations(
    maps: Mapping[str, Tensor], mask: Tensor
) -> Iterator[tuple[str, str, Tensor]]:
    """Yield Spearman's correlation of every two of these maps, row by row: both names, and `[...,
    row]` as in `row_correlations`."""
    map_shapes = [values.shape for values in maps.values()]
    shape = torch.Size(np.broadcast_shapes(mask.shape, *map_shapes))
    mask = mask.expand(shape)
    has_enough = mask.sum(-1) >= MIN_TOKENS
    ranked = {}
    for name, values in maps.items():
        ranked[name] = ranks(values.double().expand(shape), mask)
    for first, second in combinations(maps, 2):
        by_rank = pearson(ranked[first], ranked[second], mask)
        yield first, second, torch.where(has_enough, by_rank, torch.nan)
