"""A test of a mean that does not lean on normality: the studentized bootstrap, for many columns at once, each by itself and as a family."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headwise.stats.tests import FEW

COLUMNS = 4096  # so many columns are resampled at a time


class FamilyTest(NamedTuple):
    """p-values of each column by itself, and corrected over all columns."""

    p_value: np.ndarray
    p_adjusted: np.ndarray


def bootstrap_t_test(values: np.ndarray, threshold: float, repeats: int = 1000, seed: int = 0) -> np.ndarray:
    """p-values of `H0: mean ≤ threshold` for each column of `values[example, ...]`; see `bootstrap_family_test`."""
    return bootstrap_family_test(values, threshold, repeats, seed).p_value


def bootstrap_family_test(values: np.ndarray, threshold: float, repeats: int = 1000, seed: int = 0) -> FamilyTest:
    """p-values of `H0: mean ≤ threshold` for each column of `values[example, ...]`.

    With `t = (m − threshold) / (s/√n)` and, for each resample, `t* = (m* − m) / (s*/√n)`, p is the share of `t* ≥ t` (the given sample counts as one). Unlike z
    it follows the skew of the scores (Hall 1992). The same resamples serve every column; NaN entries are left out; p is NaN below two values, and 0 or 1
    (as in the z-test) where the values do not vary.

    The adjusted p is the share of resamples whose largest `t*` over all columns is at least `t` (Westfall and Young: family-wise error, however the columns hang together).
    Multiplying p by the number of columns would not do: p cannot be less than `1 / (repeats + 1)`. Columns of fewer than 30 values (or than the longest column has, if that
    is less) get 1 and have no part in the others': their `t*` has no bounds to speak of.
    """
    values = np.asarray(values)
    shape = values.shape[1:]
    if len(values) < 2:
        return FamilyTest(np.full(shape, np.nan), np.full(shape, np.nan))
    flat = values.reshape(len(values), -1)
    count = (~np.isnan(flat)).sum(0)
    enough = count >= min(FEW, int(count.max(initial=0)))
    p, observed = np.full(flat.shape[1], np.nan), np.full(flat.shape[1], np.nan)
    largest = np.full(repeats, -np.inf)
    draws = (
        np.random.default_rng(seed)
        .multinomial(len(values), np.full(len(values), 1 / len(values)), size=repeats)
        .astype(np.float32)
    )
    for start in range(0, flat.shape[1], COLUMNS):
        here = slice(start, start + COLUMNS)
        p[here], observed[here], resampled = _test(flat[:, here].astype(np.float64), threshold, draws)
        taking_part = enough[here] & np.isfinite(observed[here])
        largest = np.maximum(largest, resampled[:, taking_part].max(1, initial=-np.inf))
    reached = repeats - np.searchsorted(np.sort(largest), observed, side="left")
    adjusted = np.where(np.isfinite(observed), np.maximum((1 + reached) / (1 + repeats), p), p)
    adjusted[~enough & ~np.isnan(p)] = 1.0
    return FamilyTest(p.reshape(shape), adjusted.reshape(shape))


def _test(values: np.ndarray, threshold: float, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """p and t of each column (t is not finite where the values do not vary), and t* `[resample, column]`."""
    present = ~np.isnan(values)
    count = present.sum(0)
    safe = np.maximum(count, 1)
    lowest = np.where(present, values, np.inf).min(0)
    varies = np.where(present, values, -np.inf).max(0) > lowest
    # The mean of equal values may be off by rounding, which would pass for a spread, and one such column for the largest t* of the family.
    mean = np.where(varies, np.where(present, values, 0.0).sum(0) / safe, lowest)
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
    return np.where(count > 1, p, np.nan), np.where((count > 1) & (scale > 0), observed, np.nan), resampled
