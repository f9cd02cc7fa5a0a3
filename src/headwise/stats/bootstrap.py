"""The bootstrap: resamples as counts, percentile intervals, metrics of resamples, a test of many
skewed means."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import stats as scipy_stats

from headwise.core.labels import FEW as FEW
from headwise.stats.intervals import LEVEL, share
from headwise.stats.units import sum_by_unit

REPEATS = 2000
COLUMNS = 4096  # so many columns are resampled at a time


def resamples(
    count: int,
    repeats: int = REPEATS,
    seed: int | np.random.Generator = 0,
    shares: np.ndarray | None = None,
) -> np.ndarray:
    """How often each example is drawn in each resample of `count` draws, float64 `[resample,
    example]`.

    Sums over a resample are then products with this matrix, and the same resamples serve every
    column. `shares` are the probabilities of what is drawn (cells of a table, say), where they are
    not alike.

    >>> resamples(4, repeats=3).sum(1)
    array([4., 4., 4.])
    """
    shares = np.full(count, 1 / max(count, 1)) if shares is None else shares
    return np.random.default_rng(seed).multinomial(count, shares, size=repeats).astype(float)


def percentile_interval(
    resampled: np.ndarray, level: float = LEVEL
) -> tuple[np.ndarray, np.ndarray]:
    """The middle `level` of what resamples `[resample, ...]` gave; NaN is left out, a column of
    nothing else is NaN."""
    tails = [50 * (1 - level), 50 * (1 + level)]
    missing = np.isnan(resampled)
    if not missing.any():
        low, high = np.percentile(resampled, tails, axis=0)
        return low, high
    out = np.full((2, *resampled.shape[1:]), np.nan)
    some = ~missing.all(0)
    if some.any():
        out[:, some] = np.nanpercentile(resampled[:, some], tails, axis=0)
    return out[0], out[1]


def bootstrap_interval(values: np.ndarray, repeats: int = REPEATS) -> tuple[np.ndarray, np.ndarray]:
    """Percentile bootstrap of the mean over axis 0 (examples); NaN entries are left out."""
    values = np.asarray(values, dtype=float)
    flat = values.reshape(len(values), -1)
    present = ~np.isnan(flat)
    draws = resamples(len(values), repeats)
    means = share(draws @ np.where(present, flat, 0.0), draws @ present)
    low, high = percentile_interval(means)
    return low.reshape(values.shape[1:]), high.reshape(values.shape[1:])


def resampled_metric(
    metric: str, draws: np.ndarray, truth: np.ndarray, values: np.ndarray
) -> np.ndarray:
    """A metric of `values[condition, example]` on each resample, `[resample, condition]`, from
    weighted sums.

    For Spearman's correlation the ranks of the whole sample stand for those of each resample.
    """
    n = draws.sum(1, keepdims=True)
    truth = np.asarray(truth)
    if metric == "accuracy":
        return np.asarray(draws @ (values == truth).T.astype(float) / n)
    if metric == "f1":
        hits = draws @ ((values == 1) & (truth == 1)).T.astype(float)
        total = (
            draws @ (values == 1).T.astype(float) + (draws @ (truth == 1).astype(float))[:, None]
        )
        return np.where(total > 0, 2 * hits / np.maximum(total, 1e-300), 0.0)
    if metric == "spearman":
        truth = scipy_stats.rankdata(truth)
        values = scipy_stats.rankdata(values, axis=1)
    x = np.asarray(truth, dtype=float)
    y = np.asarray(values, dtype=float)
    # Centred first: sums of squares far from zero would lose the variance to rounding.
    x = x - x.mean()
    y = y - y.mean(1, keepdims=True)
    mean_x = (draws @ x)[:, None] / n
    mean_y = draws @ y.T / n
    covariance = draws @ (x * y).T / n - mean_x * mean_y
    variance_x = (draws @ x**2)[:, None] / n - mean_x**2
    variance_y = draws @ (y**2).T / n - mean_y**2
    variance = variance_x * variance_y
    return np.where(variance > 1e-20, covariance / np.sqrt(np.maximum(variance, 1e-300)), 0.0)


class FamilyTest(NamedTuple):
    """p-values of each column by itself, and corrected over all columns."""

    p_value: np.ndarray
    p_adjusted: np.ndarray


def bootstrap_family_test(
    values: np.ndarray,
    threshold: float,
    repeats: int = 1000,
    seed: int = 0,
    units: np.ndarray | None = None,
) -> FamilyTest:
    """p-values of `H0: mean ≤ threshold` for each column of `values[example, ...]`, by the
    studentized bootstrap.

    With `t = (m − threshold) / (s/√n)` and, for each resample, `t* = (m* − m) / (s*/√n)`, p is the
    share of `t* ≥ t` (the given sample counts as one). Unlike z it follows the skew of the scores
    (Hall 1992). The same resamples serve every column; NaN entries are left out; p is NaN below two
    values, and 0 or 1 (as in the z-test) where the values do not vary.

    The adjusted p is the share of resamples whose largest `t*` over all columns is at least `t`
    (Westfall and Young: family-wise error, however the columns hang together). Multiplying p by the
    number of columns would not do: p cannot be less than `1 / (repeats + 1)`. Columns of fewer than
    30 values (or than the longest column has, if that is less) get 1 and have no part in the
    others': their `t*` has no bounds to speak of.

    `units` (a number for each example: its document, see `Records.units`) makes whole units the
    sample: they are drawn, and the error of a mean is that over units."""
    values = np.asarray(values)
    shape = values.shape[1:]
    flat = values.reshape(len(values), int(np.prod(shape)))  # of no example too
    number = ~np.isnan(flat)
    if units is not None and len(np.unique(units)) < len(flat):
        place = np.unique(units, return_inverse=True)[1]
        flat = sum_by_unit(np.where(number, flat, 0.0), place)
        number = sum_by_unit(number, place)
    if len(flat) < 2:
        return FamilyTest(np.full(shape, np.nan), np.full(shape, np.nan))
    count = (number > 0).sum(0)
    enough = count >= min(FEW, int(count.max(initial=0)))
    p = np.full(flat.shape[1], np.nan)
    observed = np.full(flat.shape[1], np.nan)
    largest = np.full(repeats, -np.inf)
    draws = resamples(len(flat), repeats, seed).astype(np.float32)
    for start in range(0, flat.shape[1], COLUMNS):
        here = slice(start, start + COLUMNS)
        totals = flat[:, here].astype(np.float64)
        counts = number[:, here].astype(np.float64)
        p[here], observed[here], resampled = _studentized(totals, counts, threshold, draws)
        taking_part = enough[here] & np.isfinite(observed[here])
        largest = np.maximum(largest, resampled[:, taking_part].max(1, initial=-np.inf))
    reached = repeats - np.searchsorted(np.sort(largest), observed, side="left")
    adjusted = np.where(np.isfinite(observed), np.maximum((1 + reached) / (1 + repeats), p), p)
    adjusted[~enough & ~np.isnan(p)] = 1.0
    return FamilyTest(p.reshape(shape), adjusted.reshape(shape))


def _studentized(
    total: np.ndarray, number: np.ndarray, threshold: float, draws: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """p and t of each column (t is not finite where the values do not vary), and t* `[resample,
    column]`, from the total and the number of the values of each unit (an example has one or none).

    With D = total − mean · number, the error of the mean m is `sqrt(G/(G−1) · ΣD²) / Σnumber` over
    G units, and in a resample `m* − m = ΣD/Σnumber`, both sums over what was drawn."""
    present = number > 0
    count = present.sum(0)
    own = np.divide(total, number, out=np.zeros_like(total), where=present)
    lowest = np.where(count > 0, np.where(present, own, np.inf).min(0), 0.0)
    varies = np.where(present, own, -np.inf).max(0) > lowest
    # The mean of equal values may be off by rounding, which would pass for a spread, and its t* for
    # the largest of all.
    mean = np.where(
        varies, np.where(present, total, 0.0).sum(0) / np.maximum(number.sum(0), 1), lowest
    )
    deviations = np.where(present & varies, total - mean * number, 0.0)
    scale = np.sqrt((deviations**2).sum(0) / np.maximum(count - 1, 1))
    # Deviations in units of their own spread: squares stay near one, which float32 holds well.
    unit = (deviations / np.where(scale > 0, scale, 1.0)).astype(np.float32)
    weight = number.astype(np.float32)
    single = bool((number <= 1).all())
    full = single and bool(present.all())
    drawn = (
        np.full((len(draws), 1), len(total), np.float32)
        if full
        else draws @ present.astype(np.float32)
    )
    weights = drawn if single else draws @ weight
    with np.errstate(divide="ignore", invalid="ignore"):
        sums = draws @ unit
        shift = sums / weights
        crossed = sums if single else draws @ (unit * weight)
        squared = weights if single else draws @ (weight * weight)
        left = draws @ (unit * unit) - 2 * shift * crossed + shift**2 * squared
        error = np.sqrt(np.maximum(left, 0.0) * drawn / (drawn - 1)) / weights
        resampled = shift / error
        observed = (mean - threshold) / (scale * np.sqrt(count) / np.maximum(number.sum(0), 1))
    # A resample without spread is as far out as its mean says.
    resampled = np.where(error > 0, resampled, np.where(shift > 0, np.inf, -np.inf))
    p = (1 + (resampled >= observed).sum(0)) / (1 + len(draws))
    p = np.where(scale > 0, p, np.where(mean > threshold, 0.0, 1.0))
    return (
        np.where(count > 1, p, np.nan),
        np.where((count > 1) & (scale > 0), observed, np.nan),
        resampled,
    )
