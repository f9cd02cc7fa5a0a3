"""Shares, and intervals: Student's t for means, Wilson's for proportions, order statistics for
medians."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import stats as scipy_stats

LEVEL = 0.95


def share(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """`part / whole`; NaN where the whole is nothing."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(whole > 0, part / whole, np.nan)


def mean_interval(
    mean: np.ndarray, variance: np.ndarray, count: np.ndarray, level: float = LEVEL
) -> tuple[np.ndarray, np.ndarray]:
    """The interval of a mean by Student's t; NaN where fewer than two values were seen."""
    count = np.asarray(count, dtype=float)
    with np.errstate(divide="ignore", invalid="ignore"):
        half = scipy_stats.t.ppf(0.5 + level / 2, np.where(count > 1, count - 1, np.nan)) * np.sqrt(
            variance / count
        )
    return mean - half, mean + half


def wilson_interval(
    successes: np.ndarray, count: np.ndarray, level: float = LEVEL
) -> tuple[np.ndarray, np.ndarray]:
    """Wilson's score interval of a proportion; NaN where nothing was counted."""
    from statsmodels.stats.proportion import proportion_confint

    successes, count = np.asarray(successes, dtype=float), np.asarray(count, dtype=float)
    with np.errstate(divide="ignore", invalid="ignore"):
        low, high = proportion_confint(successes, count, alpha=1 - level, method="wilson")
    return np.clip(low, 0, 1), np.clip(high, 0, 1)


def median_interval(values: Sequence[float], level: float = LEVEL) -> dict[str, float]:
    """The median with an interval by order statistics, which needs no assumption on how values are
    spread.

    The interval from the k-th lowest to the k-th highest of n values holds the true median with
    probability `1 − 2 P(Binomial(n, 1/2) < k)`; the narrowest that reaches the level is taken, or
    the whole range with its smaller `coverage` where n is too small for that (five values: 93.75
    %).

    >>> median_interval([3.0, 1.0, 2.0, 5.0, 4.0])
    {'median': 3.0, 'low': 1.0, 'high': 5.0, 'coverage': 0.9375, 'n': 5}
    """
    ordered = np.sort(np.asarray(values, dtype=float))
    n = len(ordered)
    k = 1
    while k + 1 <= (n + 1) // 2 and 1 - 2 * scipy_stats.binom.cdf(k, n, 0.5) >= level:
        k += 1
    coverage = max(0.0, float(1 - 2 * scipy_stats.binom.cdf(k - 1, n, 0.5)))
    low, high = float(ordered[k - 1]), float(ordered[n - k])
    return {
        "median": float(np.median(ordered)),
        "low": low,
        "high": high,
        "coverage": coverage,
        "n": n,
    }
