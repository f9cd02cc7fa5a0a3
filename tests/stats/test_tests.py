"""Hypothesis tests against scipy and at their edges."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats as scipy_stats

from headwise.core.errors import ParameterError
from headwise.stats.tests import group_distance_test, mcnemar_exact, z_test


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


def test_mcnemar_is_scipys_binomial_test() -> None:
    for first, count in [(0, 5), (3, 5), (5, 5), (60, 100)]:
        for alternative in ("greater", "less", "two-sided"):
            expected = scipy_stats.binomtest(first, count, alternative=alternative).pvalue
            assert mcnemar_exact(first, count - first, alternative) == pytest.approx(expected)
    assert mcnemar_exact(0, 0) == mcnemar_exact(0, 0, "two-sided") == 1.0
    assert mcnemar_exact(10, 0) == pytest.approx(2.0**-10)
    with pytest.raises(ParameterError, match="`alternative` must be one of"):
        mcnemar_exact(1, 0, "smaller")


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
                np.linalg.norm(points[:, None] - points[None], axis=-1),
                np.repeat(np.arange(3), 4),
                repeats=99,
            ).p_value
        )
    assert 0.01 < np.mean(np.array(p) <= 0.05) < 0.1
