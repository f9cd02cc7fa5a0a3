"""A test of a mean that does not lean on normality: the studentized bootstrap, for many columns at once."""

from __future__ import annotations

import numpy as np

COLUMNS = 4096  # so many columns are resampled at a time


def bootstrap_t_test(values: np.ndarray, threshold: float, repeats: int = 1000, seed: int = 0) -> np.ndarray:
    """p-values of `H0: mean ≤ threshold` for each column of `values[example, ...]`.

    With `t = (m − threshold) / (s/√n)` and, for each resample, `t* = (m* − m) / (s*/√n)`, p is the share of `t* ≥ t` (the given sample counts as one). Unlike z
    it follows the skew of the scores (Hall 1992). The same resamples serve every column; NaN entries are left out; p is NaN below two values, and 0 or 1
    (as in the z-test) where the values do not vary.
    """
    values = np.asarray(values)
    shape = values.shape[1:]
    if len(values) < 2:
        return np.full(shape, np.nan)
    flat = values.reshape(len(values), -1)
    out = np.full(flat.shape[1], np.nan)
    draws = np.random.default_rng(seed).multinomial(len(values), np.full(len(values), 1 / len(values)), size=repeats).astype(np.float32)
    for start in range(0, flat.shape[1], COLUMNS):
        out[start : start + COLUMNS] = _test(flat[:, start : start + COLUMNS].astype(np.float64), threshold, draws)
    return out.reshape(shape)


def _test(values: np.ndarray, threshold: float, draws: np.ndarray) -> np.ndarray:
    present = ~np.isnan(values)
    count = present.sum(0)
    safe = np.maximum(count, 1)
    mean = np.where(present, values, 0.0).sum(0) / safe
    deviations = np.where(present, values - mean, 0.0)
    scale = np.sqrt((deviations**2).sum(0) / np.maximum(count - 1, 1))
    # Deviations in units of their own spread: squares stay near one, which float32 holds well.
    unit = (deviations / np.where(scale > 0, scale, 1.0)).astype(np.float32)
    drawn = np.full((len(draws), 1), len(values), np.float32) if present.all() else draws @ present.astype(np.float32)
    with np.errstate(divide="ignore", invalid="ignore"):
        shift = (draws @ unit) / drawn
        spread = np.sqrt(np.maximum((draws @ (unit * unit)) / drawn - shift**2, 0.0) * drawn / (drawn - 1))
        resampled = shift / (spread / np.sqrt(drawn))
        observed = (mean - threshold) / (scale / np.sqrt(safe))
    # A resample without spread is as far out as its mean says.
    resampled = np.where(spread > 0, resampled, np.where(shift > 0, np.inf, -np.inf))
    p = (1 + (resampled >= observed).sum(0)) / (1 + len(draws))
    p = np.where(scale > 0, p, np.where(mean > threshold, 0.0, 1.0))
    return np.where(count > 1, p, np.nan)
