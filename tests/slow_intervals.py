"""Intervals of means by another route: Hall's transformation of t, inverted by a search."""

from __future__ import annotations

import numpy as np
from scipy import optimize
from scipy import stats as scipy_stats


def hall(t: float, skewness: float) -> float:
    """Return Hall's (1992) transformation of t, for a mean of this skewness."""
    return t + skewness * t**2 / 3 + skewness**2 * t**3 / 27 + skewness / 6


def slow_mean_interval(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the 95 % interval of the mean of `values[example, ...]`, cell by cell."""
    values = np.asarray(values, dtype=float)
    low = np.empty(values.shape[1:])
    high = np.empty(values.shape[1:])
    for cell in np.ndindex(values.shape[1:]):
        low[cell], high[cell] = _interval_of_one(values[(slice(None), *cell)])
    return low, high


def _interval_of_one(values: np.ndarray) -> tuple[float, float]:
    count = len(values)
    mean = values.mean()
    error = scipy_stats.sem(values)
    quantile = scipy_stats.t.ppf(0.975, count - 1)
    if count < 3 or error == 0:
        return mean - quantile * error, mean + quantile * error
    skewness_of_mean = scipy_stats.skew(values, bias=False) / np.sqrt(count)
    # Only the end on the side of the long tail moves, and only outwards.
    size = abs(skewness_of_mean)
    lowest_t = optimize.brentq(lambda t: hall(t, size) + quantile, -1000.0, 0.0)
    reach = max(-lowest_t, quantile)
    if skewness_of_mean > 0:
        return mean - quantile * error, mean + reach * error
    return mean - reach * error, mean + quantile * error
