"""Intervals against scipy's and against their own promise: to hold the truth 95 times in 100."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats as scipy_stats

from headwise.stats.intervals import mean_interval, median_interval, wilson_interval


def test_mean_interval_is_scipys() -> None:
    values = np.random.default_rng(0).normal(size=(12, 3))
    low, high = mean_interval(values.mean(0), values.var(0, ddof=1), np.full(3, 12))
    for column in range(3):
        expected = scipy_stats.ttest_1samp(values[:, column], 0).confidence_interval(0.95)
        assert (low[column], high[column]) == pytest.approx((expected.low, expected.high))
    assert np.isnan(mean_interval(np.array(1.0), np.array(np.nan), np.array(1))).all()


@pytest.mark.parametrize(("successes", "count"), [(0, 10), (10, 10), (3, 7), (810, 1000)])
def test_wilson_is_scipys(successes: int, count: int) -> None:
    expected = scipy_stats.binomtest(successes, count).proportion_ci(0.95, method="wilson")
    low, high = wilson_interval(np.array(successes), np.array(count))
    assert (float(low), float(high)) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_wilson_of_nothing_is_nan() -> None:
    assert np.isnan(wilson_interval(np.array([0]), np.array([0]))).all()


def test_mean_interval_covers_the_truth() -> None:
    values = np.random.default_rng(0).normal(1.0, 2.0, size=(8, 4000))
    low, high = mean_interval(values.mean(0), values.var(0, ddof=1), np.full(4000, 8))
    assert np.mean((low <= 1.0) & (high >= 1.0)) == pytest.approx(0.95, abs=0.015)


def test_the_interval_of_a_median_covers_what_it_says() -> None:
    found = median_interval([3.0, 1.0, 2.0, 5.0, 4.0])
    assert found == {"median": 3.0, "low": 1.0, "high": 5.0, "coverage": 0.9375, "n": 5}
    random = np.random.default_rng(0)
    samples = np.sort(random.normal(size=(1500, 12)), axis=1)
    hits = []
    for sample in samples:
        interval = median_interval(sample)
        hits.append(interval["low"] <= 0 <= interval["high"])
    assert np.mean(hits) == pytest.approx(interval["coverage"], abs=0.02)
    assert interval["coverage"] >= 0.95
