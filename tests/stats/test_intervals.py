"""Intervals against scipy's and against their own promise: to hold the truth 95 times in 100."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats as scipy_stats

from headwise.stats.intervals import (
    mean_interval,
    median_interval,
    sample_interval,
    sample_skewness,
    wilson_interval,
)
from slow_intervals import hall


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


def test_the_end_of_the_long_tail_is_where_halls_transformation_reaches_the_quantile() -> None:
    values = np.random.default_rng(1).exponential(size=15)
    mean, low, high = sample_interval(values)
    error = values.std(ddof=1) / np.sqrt(15)
    skewness_of_mean = scipy_stats.skew(values, bias=False) / np.sqrt(15)
    quantile = scipy_stats.t.ppf(0.975, 14)
    assert hall((mean - high) / error, skewness_of_mean) == pytest.approx(-quantile)
    assert low == pytest.approx(mean - quantile * error)  # the other end is Student's
    mirrored = sample_interval(-values)
    assert [float(end) for end in mirrored] == pytest.approx([-mean, -high, -low])


@pytest.mark.parametrize("count", [10, 30])
@pytest.mark.parametrize("shape", ["lognormal", "exponential", "shares near 0", "normal", "t"])
def test_intervals_of_skewed_values_cover_the_truth(shape: str, count: int) -> None:
    rng = np.random.default_rng(count)
    size = (count, 4000)
    values, truth = {
        "lognormal": (rng.lognormal(-0.18, 0.6, size), 1.0),
        "exponential": (rng.exponential(size=size), 1.0),
        "shares near 0": (rng.beta(0.3, 2.0, size), 0.3 / 2.3),
        "normal": (rng.normal(1.0, 2.0, size), 1.0),
        "t": (rng.standard_t(5, size), 0.0),
    }[shape]
    _, low, high = sample_interval(values)
    assert 0.93 <= np.mean((low <= truth) & (truth <= high)) <= 0.98


def test_missing_values_are_left_out_and_two_values_have_students_interval() -> None:
    values = np.array([[1.0, 1.0, 5.0], [3.0, 2.0, np.nan], [np.nan, 9.0, np.nan]])
    mean, low, high = sample_interval(values)
    assert mean.tolist() == [2.0, 4.0, 5.0]
    student = mean_interval(np.array(2.0), np.array(2.0), np.array(2))
    assert (low[0], high[0]) == pytest.approx(student)
    assert high[1] - 4.0 > 4.0 - low[1]
    assert np.isnan([low[2], high[2]]).all()


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


def test_values_worth_fewer_than_three_are_not_corrected_for_skewness() -> None:
    count, squares, cubes = np.array([2.5, 3.0]), np.array([2.0, 2.0]), np.array([1.0, 1.0])
    skewness = sample_skewness(count, squares, cubes)
    assert skewness[0] == 0
    assert skewness[1] > 0
