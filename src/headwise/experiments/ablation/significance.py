"""Test differences to a baseline on the same examples: intervals by paired bootstrap, p-values by
McNemar's exact test, a paired t-test or the bootstrap's spread."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats as scipy_stats

from headwise.stats.bootstrap import REPEATS, percentile_interval, resampled_metric, resamples
from headwise.stats.metrics import METRICS
from headwise.stats.tests import mcnemar_exact


@dataclass(frozen=True, slots=True, eq=False)
class PairedComparison:
    """For each condition: score minus baseline, its 95 % interval, and a two-sided p-value.

    `mean_low`, `mean_high` are the interval of the mean over all conditions: these conditions,
    other examples."""

    difference: np.ndarray
    low: np.ndarray
    high: np.ndarray
    p_value: np.ndarray
    test: str
    mean_low: float
    mean_high: float


def paired_differences(
    metric: str,
    baseline: np.ndarray,
    values: np.ndarray,
    truth: np.ndarray | None,
    seed: int = 0,
    repeats: int = REPEATS,
    draws: np.ndarray | None = None,
) -> PairedComparison:
    """Compare conditions with a baseline.

    Parameters
    ----------
    metric : str
        A name of `METRICS`, or `loss` (the mean of the values themselves).
    baseline, values : ndarray
        What the model says of each example, `[example]` and `[condition, example]`.
    truth : ndarray, optional
        The true values; None for `loss`.
    seed, repeats : int
        Of the resamples behind intervals.
    draws : ndarray, optional
        Resamples made before (`resamples`), where many comparisons share them.

    The interval is the percentile interval of the metric's difference over resampled examples, the
    same resamples for every condition. The p-value is McNemar's exact one for accuracy (from the
    examples only one of both gets right), a paired t-test for losses, and `2 Φ(−|difference| / s)`
    with s the bootstrap's standard deviation for the others."""
    n_examples = len(baseline)
    if draws is None:
        draws = resamples(n_examples, repeats, seed)
    if metric == "loss":
        change = values - baseline
        difference = change.mean(1)
        spread = draws @ change.T / n_examples
        p = _t_test(change, difference)
        test = "paired t-test"
    else:
        assert truth is not None
        compute = METRICS[metric]
        scores = np.array([compute(truth, row) for row in values])
        difference = scores - compute(truth, baseline)
        spread = resampled_metric(metric, draws, truth, values)
        spread -= resampled_metric(metric, draws, truth, baseline[None])
        if metric == "accuracy":
            is_right = values == truth
            was_right = baseline == truth
            n_gained = (is_right & ~was_right).sum(1)
            n_lost = (~is_right & was_right).sum(1)
            p = mcnemar_exact(n_gained, n_lost, "two-sided")
            test = "McNemar's exact test"
        else:
            p = _normal_test(difference, spread.std(0, ddof=1))
            test = "paired bootstrap"
    low, high = percentile_interval(spread)
    mean_low = np.array(np.nan)
    mean_high = np.array(np.nan)
    if len(values):
        mean_low, mean_high = percentile_interval(spread.mean(1))
    return PairedComparison(
        difference=difference,
        low=low,
        high=high,
        p_value=np.asarray(p, dtype=float),
        test=test,
        mean_low=float(mean_low),
        mean_high=float(mean_high),
    )


def _t_test(change: np.ndarray, difference: np.ndarray) -> np.ndarray:
    """Return p-values of a paired t-test; 1 or 0 where no example differs from another."""
    if change.shape[1] > 1:
        p = scipy_stats.ttest_1samp(change, 0.0, axis=1).pvalue
    else:
        p = np.full(len(change), np.nan)
    constant = np.ptp(change, axis=1) == 0
    return np.where(constant, np.where(difference == 0, 1.0, 0.0), p)


def _normal_test(difference: np.ndarray, deviation: np.ndarray) -> np.ndarray:
    """Return p-values by a standard deviation; 1 or 0 where that is zero."""
    with np.errstate(divide="ignore", invalid="ignore"):
        p = 2 * scipy_stats.norm.sf(np.abs(difference) / deviation)
    return np.where(deviation == 0, np.where(difference == 0, 1.0, 0.0), p)
