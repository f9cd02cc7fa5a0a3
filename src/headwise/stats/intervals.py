"""Intervals: Student's t for means, Wilson for proportions, bootstrap for the rest. Pure functions on arrays."""

from __future__ import annotations

import numpy as np
from scipy import stats as scipy_stats

LEVEL = 0.95


def mean_interval(
    mean: np.ndarray, variance: np.ndarray, count: np.ndarray, level: float = LEVEL
) -> tuple[np.ndarray, np.ndarray]:
    """The interval of a mean by Student's t; NaN where fewer than two values were seen."""
    count = np.asarray(count, dtype=float)
    with np.errstate(divide="ignore", invalid="ignore"):
        half = scipy_stats.t.ppf(0.5 + level / 2, np.where(count > 1, count - 1, np.nan)) * np.sqrt(variance / count)
    return mean - half, mean + half


def wilson_interval(successes: np.ndarray, count: np.ndarray, level: float = LEVEL) -> tuple[np.ndarray, np.ndarray]:
    """Wilson's score interval of a proportion; NaN where nothing was counted."""
    successes, count = np.asarray(successes, dtype=float), np.asarray(count, dtype=float)
    z = scipy_stats.norm.ppf(0.5 + level / 2)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = successes / count
        denominator = 1 + z**2 / count
        centre = (share + z**2 / (2 * count)) / denominator
        half = z * np.sqrt(share * (1 - share) / count + z**2 / (4 * count**2)) / denominator
    return np.clip(centre - half, 0, 1), np.clip(centre + half, 0, 1)


def bootstrap_interval(
    values: np.ndarray, repeats: int = 2000, level: float = LEVEL, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Percentile bootstrap of the mean over axis 0 (examples); the same resamples serve every column, so columns stay comparable. NaN entries are left out."""
    values = np.asarray(values, dtype=float)
    n = len(values)
    flat = values.reshape(n, -1)
    present = ~np.isnan(flat)
    filled = np.where(present, flat, 0.0)
    draws = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=repeats).astype(float)
    with np.errstate(divide="ignore", invalid="ignore"):
        means = (draws @ filled) / (draws @ present)
    tails = [50 * (1 - level), 50 * (1 + level)]
    low, high = np.nanpercentile(means, tails, axis=0)
    return low.reshape(values.shape[1:]), high.reshape(values.shape[1:])
