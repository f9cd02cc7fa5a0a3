"""Differences to the baseline on the same examples: intervals by paired bootstrap, p-values by
McNemar's exact test or the bootstrap's spread."""

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
    metric
        A name of `METRICS`, or `loss` (the mean of the values themselves).
    baseline, values
        What was said of each example, `[example]` and `[condition, example]`.
    truth
        What is so.
    draws
        Resamples made before (`resamples`), where many comparisons share them.

    The interval is the percentile interval of the metric's difference over resampled examples, the
    same resamples for every condition. The p-value is McNemar's exact one for accuracy (from the
    examples only one of both gets right), a paired t-test for losses, and `2 Φ(−|difference| / s)`
    with s the bootstrap's standard deviation for the others."""
    n = len(baseline)
    draws = resamples(n, repeats, seed) if draws is None else draws
    if metric == "loss":
        change = values - baseline
        difference = change.mean(1)
        spread = draws @ change.T / n
        p = (
            scipy_stats.ttest_1samp(change, 0.0, axis=1).pvalue
            if n > 1
            else np.full(len(values), np.nan)
        )
        p = np.where(np.ptp(change, axis=1) == 0, np.where(difference == 0, 1.0, 0.0), p)
        test = "paired t-test"
    else:
        assert truth is not None
        own = METRICS[metric]
        base = own(truth, baseline)
        difference = np.array([own(truth, row) for row in values]) - base
        spread = resampled_metric(metric, draws, truth, values)
        spread -= resampled_metric(metric, draws, truth, baseline[None])
        if metric == "accuracy":
            right, was = values == truth, baseline == truth
            p = mcnemar_exact((right & ~was).sum(1), (~right & was).sum(1), "two-sided")
            test = "McNemar's exact test"
        else:
            deviation = spread.std(0, ddof=1)
            with np.errstate(divide="ignore", invalid="ignore"):
                p = 2 * scipy_stats.norm.sf(np.abs(difference) / deviation)
            p = np.where(deviation == 0, np.where(difference == 0, 1.0, 0.0), p)
            test = "paired bootstrap"
    low, high = percentile_interval(spread)
    together = percentile_interval(spread.mean(1)) if len(values) else (np.nan, np.nan)
    return PairedComparison(
        difference,
        low,
        high,
        np.asarray(p, dtype=float),
        test,
        float(together[0]),
        float(together[1]),
    )
