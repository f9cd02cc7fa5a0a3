"""Hypothesis tests against scipy, against enumeration, and at their edges."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy import stats as scipy_stats

from headwise.stats.tests import (
    binomial_test,
    correlation,
    group_distance_test,
    mcnemar_exact,
    paired_bootstrap,
    permutation_test,
    sign_flip_test,
    z_test,
)


def test_z_test_is_the_normal_tail_with_ddof_1() -> None:
    values = np.random.default_rng(1).normal(3.1, 1.0, size=(50, 4))
    found = z_test(values.mean(0), values.var(0, ddof=1), np.full(4, 50), 3.0)
    for column in range(4):
        own = values[:, column]
        z = (own.mean() - 3.0) / (own.std(ddof=1) / 50**0.5)
        assert found.z[column] == pytest.approx(z)
        assert found.p_value[column] == pytest.approx(1 - scipy_stats.norm.cdf(z))
    assert not found.few.any()


def test_z_test_edges() -> None:
    found = z_test(
        np.array([3.5, 3.0, 2.0, 4.0, np.nan]),
        np.array([0.0, 0.0, 0.0, np.nan, np.nan]),
        np.array([40, 30, 29, 1, 0]),
        3.0,
    )
    np.testing.assert_array_equal(found.p_value, [0.0, 1.0, 1.0, np.nan, np.nan])
    np.testing.assert_array_equal(found.few, [False, False, True, True, True])


def test_binomial_and_mcnemar_are_scipys() -> None:
    for successes, count in [(0, 5), (3, 5), (5, 5), (60, 100)]:
        for alternative in ("greater", "less"):
            expected = scipy_stats.binomtest(successes, count, 0.3, alternative=alternative).pvalue
            assert binomial_test(successes, count, 0.3, alternative) == pytest.approx(expected)
        assert mcnemar_exact(successes, count - successes, "two-sided") == pytest.approx(
            scipy_stats.binomtest(successes, count).pvalue
        )
    assert np.isnan(binomial_test(0, 0))
    assert mcnemar_exact(0, 0) == 1.0
    assert mcnemar_exact(10, 0) == pytest.approx(2.0**-10)


def test_paired_bootstrap() -> None:
    generator = np.random.default_rng(0)
    second = generator.normal(size=(200, 3))
    noise = generator.normal(0, 0.5, size=(200, 3))
    first = second + noise - noise.mean(0) + [0.0, 0.3, -0.3]
    first[:50, 2] = np.nan
    found = paired_bootstrap(first, second)
    np.testing.assert_allclose(found.mean, np.nanmean(first - second, axis=0))
    np.testing.assert_array_equal(found.count, [200, 200, 150])
    # Where the sample is large the percentile interval is the normal one.
    spread = np.nanstd(first - second, axis=0, ddof=1) / np.sqrt(found.count)
    np.testing.assert_allclose(found.high - found.low, 2 * 1.96 * spread, rtol=0.1)
    assert found.p_value[0] > 0.05 > found.p_value[1]
    assert found.p_value[2] < 0.05
    again = paired_bootstrap(first, second)
    np.testing.assert_array_equal(found.low, again.low)
    empty = paired_bootstrap(np.full((4, 1), np.nan), np.zeros((4, 1)))
    assert np.isnan(empty.mean).all()
    assert np.isnan(empty.p_value).all()


def test_sign_flip_is_exact_for_few_pairs() -> None:
    difference = np.array([0.5, 1.0, -0.25, 2.0, 0.75])
    sums = [sum(s * d for s, d in zip(signs, difference, strict=True)) for signs in product((1, -1), repeat=5)]
    for alternative, hits in (
        ("greater", sum(s >= 4.0 for s in sums)),
        ("two-sided", sum(abs(s) >= 4.0 for s in sums)),
    ):
        assert sign_flip_test(difference, alternative=alternative) == pytest.approx(hits / 32)
    assert np.isnan(sign_flip_test(np.full((5, 2), np.nan))).all()


def test_sign_flip_is_near_the_t_test_for_many() -> None:
    difference = np.random.default_rng(3).normal(0.1, 1.0, size=300)
    assert sign_flip_test(difference) == pytest.approx(scipy_stats.ttest_1samp(difference, 0).pvalue, abs=0.02)


def test_permutation_test_is_near_scipys() -> None:
    generator = np.random.default_rng(5)
    first, second = generator.normal(0.3, 1, 60), generator.normal(0, 1, 80)
    difference, p = permutation_test(first, np.append(second, np.nan))
    expected = scipy_stats.permutation_test(
        (first, second), lambda a, b: a.mean() - b.mean(), n_resamples=9999, rng=np.random.default_rng(9)
    )
    assert difference == pytest.approx(first.mean() - second.mean())
    assert p == pytest.approx(expected.pvalue, abs=0.02)
    assert permutation_test(first, first + 10)[1] == pytest.approx(1 / 10_000)


def test_group_distance_test_finds_groups_and_only_those() -> None:
    generator = np.random.default_rng(0)
    groups = np.repeat(np.arange(4), 6)
    centres = generator.normal(size=(4, 3))
    for points, small in (
        (centres[groups] + 0.1 * generator.normal(size=(24, 3)), True),
        (generator.normal(size=(24, 3)), False),
    ):
        distance = np.linalg.norm(points[:, None] - points[None], axis=-1)
        found = group_distance_test(distance, groups)
        within = [distance[i, j] for i in range(24) for j in range(i) if groups[i] == groups[j]]
        between = [distance[i, j] for i in range(24) for j in range(i) if groups[i] != groups[j]]
        assert found.within == pytest.approx(np.mean(within))
        assert found.between == pytest.approx(np.mean(between))
        assert (found.p_value < 0.01) == small
    assert np.isnan(group_distance_test(np.zeros((3, 3)), np.arange(3)).p_value)


def test_group_distance_test_has_the_right_level() -> None:
    generator = np.random.default_rng(1)
    p = []
    for _ in range(200):
        points = generator.normal(size=(12, 2))
        p.append(
            group_distance_test(
                np.linalg.norm(points[:, None] - points[None], axis=-1), np.repeat(np.arange(3), 4), repeats=99
            ).p_value
        )
    assert 0.01 < np.mean(np.array(p) <= 0.05) < 0.1


@pytest.mark.parametrize("method", ["pearson", "spearman"])
def test_correlation_is_scipys(method: str) -> None:
    generator = np.random.default_rng(0)
    first = generator.normal(size=(3, 40)).round(1)  # rounded: ties
    second = 0.5 * first + generator.normal(size=(3, 40))
    second[1, :7] = np.nan
    found = correlation(first, second, method)
    for row in range(3):
        keep = ~np.isnan(second[row])
        expected = (scipy_stats.pearsonr if method == "pearson" else scipy_stats.spearmanr)(
            first[row, keep], second[row, keep]
        )
        assert found.r[row] == pytest.approx(expected.statistic)
        assert found.p_value[row] == pytest.approx(expected.pvalue)
        if method == "pearson":
            interval = expected.confidence_interval()
            assert (found.low[row], found.high[row]) == pytest.approx((interval.low, interval.high))
        assert found.low[row] < found.r[row] < found.high[row]
    np.testing.assert_array_equal(found.count, [40, 33, 40])


def test_correlation_edges() -> None:
    assert np.isnan(correlation(np.ones(5), np.arange(5.0)).r)
    assert np.isnan(correlation(np.full(5, 0.1), np.arange(5.0)).r)
    assert correlation(np.arange(5.0), 2 * np.arange(5.0)).r == pytest.approx(1.0)
    assert np.isnan(correlation(np.arange(3.0), np.array([0.0, 2.0, 1.0])).low)
    assert correlation(1e-9 * np.arange(5.0), np.arange(5.0)).r == pytest.approx(1.0)
