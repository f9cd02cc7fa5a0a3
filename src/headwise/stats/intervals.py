"""Shares, and intervals: Student's t for means, corrected for skewness, Wilson's for proportions,
order statistics for medians."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import stats as scipy_stats

LEVEL = 0.95  # the confidence level of all intervals
LEAST_FOR_SKEWNESS = 3  # values


def share(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """`part / whole`; NaN where the whole is nothing."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(whole > 0, part / whole, np.nan)


def mean_interval(
    mean: np.ndarray,
    variance: np.ndarray,
    count: np.ndarray,
    skewness: np.ndarray | float = 0.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the interval of a mean; NaN where fewer than two values were seen.

    It is Student's t. Where the values are skewed, the end on the side of the long tail is moved
    out: few values seldom hold one of the tail, so their mean is too low and their variance too
    small together. How far is Hall's (1992) transformation of t, which needs the third moment
    only. The other end stays that of Student's t, although Hall's would be nearer to the mean: the
    skewness is itself estimated, and of values with long tails on both sides it is often found
    where there is none.

    Parameters
    ----------
    mean, variance, count : ndarray
        Of the values; the variance with ddof 1.
    skewness : ndarray or float, default 0
        Of the values, `mean(d³) / mean(d²)^1.5` of their deviations d; NaN counts as 0.
    """
    count = np.asarray(count, dtype=float)
    with np.errstate(divide="ignore", invalid="ignore"):
        quantile = scipy_stats.t.ppf(0.5 + LEVEL / 2, np.where(count > 1, count - 1, np.nan))
        error = np.sqrt(variance / count)
        skewness_of_mean = _unbiased_skewness(skewness, count) / np.sqrt(count)
        below = np.maximum(_skewed_quantile(quantile, -skewness_of_mean), quantile)
        above = np.maximum(_skewed_quantile(quantile, skewness_of_mean), quantile)
    return mean - below * error, mean + above * error


def sample_interval(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the mean of `values[example, ...]` over the examples, and the ends of its interval
    (`mean_interval`); NaN entries are left out.

    >>> mean, low, high = sample_interval(np.array([0.0, 0.0, 0.0, 4.0]))
    >>> float(mean), float(low.round(1)), float(high.round(1))
    (1.0, -2.2, 8.0)
    """
    values = np.asarray(values, dtype=float)
    present = ~np.isnan(values)
    count = present.sum(0)
    mean = share(np.where(present, values, 0.0).sum(0), count)
    deviations = np.where(present, values - mean, 0.0)
    squares = (deviations**2).sum(0)
    variance = share(squares, count - 1)
    skewness = sample_skewness(count, squares, (deviations**3).sum(0))
    low, high = mean_interval(mean, variance, count, skewness)
    return mean, low, high


def sample_skewness(count: np.ndarray, squares: np.ndarray, cubes: np.ndarray) -> np.ndarray:
    """Return the skewness from sums of squared and cubed deviations; 0 where nothing varies, and of
    fewer than three values.

    Weighted values may be worth a number between two and three: their quantile is so large that
    rounding the skewness would move the end of an interval visibly."""
    with np.errstate(divide="ignore", invalid="ignore"):
        skewness = np.sqrt(count) * cubes / squares**1.5
    return np.where((count >= LEAST_FOR_SKEWNESS) & (squares > 0), skewness, 0.0)


def _unbiased_skewness(skewness: np.ndarray | float, count: np.ndarray) -> np.ndarray:
    """Return the skewness as a small sample underestimates it less: Fisher's correction."""
    factor = np.sqrt(count * (count - 1)) / np.maximum(count - 2, 1.0)
    return np.where(count >= LEAST_FOR_SKEWNESS, np.nan_to_num(skewness) * factor, 0.0)


def _skewed_quantile(quantile: np.ndarray, skewness: np.ndarray) -> np.ndarray:
    """Return by how many standard errors the mean may lie below the truth, where the mean has this
    skewness: the inverse of Hall's transformation `t + a t²/3 + a² t³/27 + a/6` at −quantile."""
    is_skewed = np.abs(skewness) > 1e-9
    divisor = np.where(is_skewed, skewness, 1.0)
    shifted = 1 - skewness * (quantile + skewness / 6)
    return np.where(is_skewed, 3 / divisor * (1 - np.cbrt(shifted)), quantile)


def wilson_interval(successes: np.ndarray, count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Wilson's score interval of a proportion; NaN where nothing was counted."""
    from statsmodels.stats.proportion import proportion_confint

    successes, count = np.asarray(successes, dtype=float), np.asarray(count, dtype=float)
    with np.errstate(divide="ignore", invalid="ignore"):
        low, high = proportion_confint(successes, count, alpha=1 - LEVEL, method="wilson")
    return np.clip(low, 0, 1), np.clip(high, 0, 1)


def median_interval(values: Sequence[float]) -> dict[str, float]:
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
    while k + 1 <= (n + 1) // 2 and 1 - 2 * scipy_stats.binom.cdf(k, n, 0.5) >= LEVEL:
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
