"""Correlations against scipy's, and at their edges."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats as scipy_stats

from headwise.stats.correlation import correlation, correlation_p, pearson


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


def test_a_one_sided_test_is_scipys() -> None:
    x = np.random.default_rng(0).normal(size=(2, 60))
    known = scipy_stats.pearsonr(x[0] + x[1], x[1], alternative="greater")
    assert correlation_p(known.statistic, 60, "greater") == pytest.approx(known.pvalue)
    assert np.isnan(correlation_p(np.array(0.5), 2))


def test_what_single_precision_leaves_of_equal_numbers_is_no_spread() -> None:
    rounded = torch.full((7,), 0.1, dtype=torch.float64) * (1 + 1e-9 * torch.arange(7))
    assert pearson(rounded, torch.arange(7.0)).isnan()
    assert pearson(1 + 1e-3 * torch.arange(7.0), torch.arange(7.0)) == pytest.approx(1.0)
