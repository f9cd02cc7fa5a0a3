"""Where a series changes: the best single step by least squares, which steps are plausible too, and
whether values before and after it lie further apart than independent draws would."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats as scipy_stats

from headwise.stats.intervals import LEVEL

CHUNK_VALUES = 4_000_000  # values that are drawn at once
# Values on each side of a step, at least: a step cannot be told from a single outlier.
LEAST_VALUES = 2
POSSIBLE = slice(LEAST_VALUES - 1, 1 - LEAST_VALUES)  # of all steps, which begin at 1
EXCEPTIONS = 0.1  # the share of values before, and of those after, that may lie in the gap


@dataclass(frozen=True, slots=True, eq=False)
class StepFit:
    """The best single step of each series; arrays have the dims of the series without time.

    Attributes
    ----------
    first_after : array of int
        The index of the first value after the step; 2 to n − 2, so that two values confirm each side.
    low, high : array of int
        The earliest and the latest of the steps that fit almost as well (95 %).
    size : array
        The mean after the step minus the mean before it.
    share : array
        The share of the sum of squares that the step explains; NaN where nothing varies.
    gap : array
        How far the values before and after lie apart: the lowest after a rise minus the highest
        before it (the reverse for a fall), but for a tenth of either; negative where they overlap.
    """

    first_after: np.ndarray
    low: np.ndarray
    high: np.ndarray
    size: np.ndarray
    share: np.ndarray
    gap: np.ndarray


def explained_by_steps(series: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the size of every possible step of series `[..., time]`, and the sum of squares that
    each explains, `[..., first value after the step − 1]`."""
    n_times = series.shape[-1]
    n_before = np.arange(1, n_times)
    n_after = n_times - n_before
    total = series.sum(-1, keepdims=True)
    sums_before = series.cumsum(-1)[..., :-1]
    size = (total - sums_before) / n_after - sums_before / n_before
    return size, size**2 * n_before * n_after / n_times


def fit_step(series: np.ndarray) -> StepFit:
    """Return the best single step of each series by least squares.

    Another step is plausible if its sum of squared residuals exceeds the best one's by no more than
    an F test of two degrees of freedom allows. What a series does beside the step (noise, a slow
    drift) is all in the residuals: the less it looks like a step, the wider the interval.

    Parameters
    ----------
    series : array
        `[..., time]`, at least four values in time. A series with a missing value has NaN and the
        whole range.

    Examples
    --------
    >>> fit = fit_step(np.array([0.0, 0.1, 0.0, 0.9, 1.0, 0.9]))
    >>> int(fit.first_after), int(fit.low), int(fit.high)
    (3, 3, 3)
    """
    series = np.asarray(series, dtype=float)
    n_times = series.shape[-1]
    centred = series - series.mean(-1, keepdims=True)
    size, explained = explained_by_steps(centred)
    size = size[..., POSSIBLE]
    explained = explained[..., POSSIBLE]
    comparable = np.where(np.isnan(explained), -1.0, explained)
    best = comparable.argmax(-1)
    first_after = best + LEAST_VALUES
    best_explained = np.take_along_axis(explained, best[..., None], -1)[..., 0]
    total = (centred**2).sum(-1)

    freedom = n_times - 2
    # Two degrees of freedom: with one, simulated intervals of weak steps held the truth in 77 to
    # 92 % of the cases, since place and size of a step are fitted together.
    allowance = 2 * scipy_stats.f.ppf(LEVEL, 2, freedom) / freedom
    residual = total - best_explained
    # Rounding must not make the best step implausible where it explains everything.
    tolerance = 1e-12 * total
    bound = residual * (1 + allowance) + tolerance
    plausible = (total[..., None] - explained) <= bound[..., None]
    plausible |= np.isnan(explained)
    best_size = np.take_along_axis(size, best[..., None], -1)[..., 0]
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(total > 0, best_explained / total, np.nan)
    return StepFit(
        first_after=first_after,
        low=plausible.argmax(-1) + LEAST_VALUES,
        high=n_times - LEAST_VALUES - plausible[..., ::-1].argmax(-1),
        size=best_size,
        share=share,
        gap=gap_at(series * np.sign(best_size)[..., None], first_after),
    )


def gap_at(series: np.ndarray, first_after: np.ndarray) -> np.ndarray:
    """Return the lowest value after a step minus the highest before it, but for a tenth of either.

    Parameters
    ----------
    series : array
        `[..., time]`.
    first_after : array of int
        The index of the first value after the step of each series.
    """
    n_times = series.shape[-1]
    is_after = np.arange(n_times) >= first_after[..., None]
    after = np.sort(np.where(is_after, series, np.inf), -1)
    before = np.sort(np.where(is_after, -np.inf, series), -1)
    n_after = n_times - first_after
    lowest = (EXCEPTIONS * (n_after - 1)).astype(int)[..., None]
    highest = n_times - 1 - (EXCEPTIONS * (first_after - 1)).astype(int)[..., None]
    difference = np.take_along_axis(after, lowest, -1) - np.take_along_axis(before, highest, -1)
    return np.where(np.isnan(series).any(-1), np.nan, difference[..., 0])


def largest_gaps_by_chance(
    pools: np.ndarray,
    errors: np.ndarray,
    scales: np.ndarray,
    n_times: int,
    draws: int,
    seed: int = 0,
) -> np.ndarray:
    """Return the largest gap at a rise among series whose values are drawn at random.

    Every value of a series is drawn anew from the pool of its group, with the error of a single
    value added. Pools are used as they are: where single values lie far out, so do those drawn.

    Parameters
    ----------
    pools : array
        `[group, value]`: what values may be by chance.
    errors : array
        `[group, member]`: the standard error of the values of each series.
    scales : array
        `[group, member]`: gaps are divided by these, so that groups can be compared.
    n_times : int
        Values of each series.
    draws : int
        How many times all series are drawn.
    seed : int, default 0
        Of the draws.

    Returns
    -------
    array
        Sorted, `[draw]`.
    """
    random = np.random.default_rng(seed)
    n_groups, n_members = errors.shape
    n_values = n_groups * n_members * n_times
    n_at_once = max(1, CHUNK_VALUES // n_values)
    groups = np.arange(n_groups)[:, None, None]
    largest: list[np.ndarray] = []
    for start in range(0, draws, n_at_once):
        shape = (min(n_at_once, draws - start), n_groups, n_members, n_times)
        series = pools[groups, random.integers(0, pools.shape[1], shape)]
        series = series + random.standard_normal(shape) * errors[..., None]
        _, explained = explained_by_steps(series - series.mean(-1, keepdims=True))
        first_after = explained[..., POSSIBLE].argmax(-1) + LEAST_VALUES
        largest.append((gap_at(series, first_after) / scales).max((1, 2)))
    return np.sort(np.concatenate(largest))


def chance_p(observed: np.ndarray, sorted_draws: np.ndarray) -> np.ndarray:
    """Return the share of draws (and the observation itself) that reach each observed value."""
    n_draws = len(sorted_draws)
    n_below = np.searchsorted(sorted_draws, observed, side="left")
    p = (1 + n_draws - n_below) / (1 + n_draws)
    return np.where(np.isnan(observed), np.nan, p)
