"""The one correlation, Pearson's and Spearman's: of arrays with interval and p-value, of tensors on
any device."""

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
FEWEST = 3  # tokens in a row; any two points lie on a line
SINGLE, DOUBLE = (
    1e-7,
    1e-15,
)  # spreads below this share of the mean are rounding, in numbers of that precision


@dataclass(frozen=True, slots=True)
class Correlation:
    """Correlations with intervals (Fisher's z), two-sided p-values and the number of pairs,
    elementwise."""

    r: np.ndarray
    low: np.ndarray
    high: np.ndarray
    p_value: np.ndarray
    count: np.ndarray


def correlation(
    first: np.ndarray, second: np.ndarray, method: str = "pearson", level: float = LEVEL
) -> Correlation:
    """Pearson's or Spearman's correlation along the last axis; a pair with a NaN is left out.

    Intervals as in `fisher_interval`; everything is NaN where one side does not vary.

    >>> float(correlation(np.arange(5.0), np.array([0.0, 2.0, 1.0, 3.0, 4.0]), "spearman").r.round(3))
    0.9
    """
    one_of("method", method, METHODS)
    arrays = np.broadcast_arrays(np.asarray(first, dtype=float), np.asarray(second, dtype=float))
    x, y = (torch.tensor(array) for array in arrays)
    present = ~(x.isnan() | y.isnan())
    if method == "spearman":
        x, y = ranks(x, present), ranks(y, present)
    r, n = pearson(x, y, present, DOUBLE).numpy(), present.sum(-1).numpy()
    low, high = fisher_interval(r, n, method, level)
    return Correlation(r, low, high, correlation_p(r, n), n)


def fisher_interval(
    r: np.ndarray, count: np.ndarray | int, method: str = "pearson", level: float = LEVEL
) -> tuple[np.ndarray, np.ndarray]:
    """`tanh(atanh r ± z · se)` with `se = 1/sqrt(n − 3)`; NaN below four pairs.

    For Spearman's correlation `se` is Bonett and Wright's `sqrt((1 + r²/2)/(n − 3))`.
    """
    r, count = np.asarray(r, dtype=float), np.asarray(count)
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.sqrt(
            (1 + r**2 / 2 if method == "spearman" else 1.0) / np.where(count > 3, count - 3, np.nan)
        )
        half = scipy_stats.norm.ppf(0.5 + level / 2) * error
        return np.tanh(np.arctanh(r) - half), np.tanh(np.arctanh(r) + half)


def correlation_p(
    r: np.ndarray, count: np.ndarray | int, alternative: str = "two-sided"
) -> np.ndarray:
    """The p-value of `r = 0` (`two-sided`) or `r ≤ 0` (`greater`) by Student's t; NaN below three
    pairs."""
    r, count = np.asarray(r, dtype=float), np.asarray(count)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = r * np.sqrt((count - 2) / (1 - r**2))
    freedom = np.where(count > 2, count - 2, np.nan)
    p = (
        scipy_stats.t.sf(t, freedom)
        if alternative == "greater"
        else 2 * scipy_stats.t.sf(np.abs(t), freedom)
    )
    return np.asarray(p)


def pearson(a: Tensor, b: Tensor, seen: Tensor | None = None, rounding: float = SINGLE) -> Tensor:
    """Pearson's correlation over the last axis in float64, of the entries where `seen` holds.

    NaN where one side does not vary: where its spread is no more than `rounding` leaves of equal
    numbers."""
    shape = torch.Size(np.broadcast_shapes(a.shape, b.shape))
    a, b = a.double().expand(shape), b.double().expand(shape)
    seen = torch.ones_like(a, dtype=torch.bool) if seen is None else seen.expand(shape)
    count = seen.sum(-1, keepdim=True).clamp(min=1)

    def centred(x: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.where(seen, x, 0.0)
        middle = x.sum(-1, keepdim=True) / count
        x = torch.where(seen, x - middle, 0.0)
        size = x.square().sum(-1)
        return x, torch.where(
            size > count[..., 0] * (rounding * middle[..., 0].abs()) ** 2, size, 0.0
        )

    (x, xx), (y, yy) = centred(a), centred(b)
    varies = (xx > 0) & (yy > 0)
    scale = torch.where(varies, xx.sqrt() * yy.sqrt(), 1.0)
    return torch.where(varies, (x * y).sum(-1) / scale, torch.nan).clamp(-1, 1)


def ranks(values: Tensor, seen: Tensor) -> Tensor:
    """Ranks from 1 along the last axis among the entries seen, ties at their mean; those not seen
    hold no meaning."""
    values = torch.where(seen, values, torch.inf).contiguous()
    ordered = values.sort(dim=-1).values
    below = torch.searchsorted(ordered, values, right=False)
    up_to = torch.searchsorted(ordered, values, right=True)
    return (below + up_to + 1).double() / 2


def row_correlations(a: Tensor, b: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """Pearson's and Spearman's correlation of two maps, row by row, over the tokens seen.

    NaN where there is nothing to correlate: fewer than three tokens, or one side the same for all
    of them."""
    shape = torch.Size(np.broadcast_shapes(a.shape, b.shape))
    a, b, seen = a.double().expand(shape), b.double().expand(shape), seen.expand(shape)
    enough = seen.sum(-1) >= FEWEST
    linear, by_rank = pearson(a, b, seen), pearson(ranks(a, seen), ranks(b, seen), seen)
    return torch.where(enough, linear, torch.nan), torch.where(enough, by_rank, torch.nan)


def rank_correlations(
    maps: Mapping[str, Tensor], seen: Tensor
) -> Iterator[tuple[str, str, Tensor]]:
    """Spearman's correlation of every two of these maps, row by row: both names, and `[..., row]`
    as in `row_correlations`."""
    shape = torch.Size(np.broadcast_shapes(seen.shape, *(values.shape for values in maps.values())))
    seen = seen.expand(shape)
    enough = seen.sum(-1) >= FEWEST
    ranked = {name: ranks(values.double().expand(shape), seen) for name, values in maps.items()}
    for first, second in combinations(maps, 2):
        found = pearson(ranked[first], ranked[second], seen)
        yield first, second, torch.where(enough, found, torch.nan)
