"""The bootstrap: resamples are of the drawn examples, intervals near the normal ones, and rounding
is no spread."""

from __future__ import annotations

import numpy as np
import pytest

from headwise.stats.bootstrap import (
    bootstrap_family_test,
    bootstrap_interval,
    percentile_interval,
    resampled_metric,
    resamples,
)
from headwise.stats.metrics import METRICS


def test_equal_scores_have_no_spread_however_they_are_rounded() -> None:
    rng = np.random.default_rng(15)
    values = np.full(
        (200, 12), 5.198434290571065e-07
    )  # the mean of 141 to 200 of these is another number
    values[:59, 3] = np.nan
    values[:, 6:] = 3 + rng.normal(size=(200, 6))
    found = bootstrap_family_test(values, 2.0, 300)
    assert (found.p_value[:6] == 1).all()
    assert (found.p_adjusted[:6] == 1).all()
    np.testing.assert_allclose(
        found.p_adjusted[6:], 1 / 301
    )  # such columns have no part in what is the largest t of all
    assert (
        bootstrap_family_test(np.full((200, 1), 0.1), 0.1, 100).p_value == 1
    ).all()  # 0.1 is not above 0.1


def test_bootstrap_interval_is_near_the_normal_one_and_leaves_gaps_out() -> None:
    values = np.random.default_rng(0).normal(2.0, 1.0, size=(400, 2))
    values[:100, 1] = np.nan
    low, high = bootstrap_interval(values)
    half = 1.96 * np.nanstd(values, axis=0, ddof=1) / np.sqrt([400, 300])
    np.testing.assert_allclose(low, np.nanmean(values, axis=0) - half, atol=0.02)
    np.testing.assert_allclose(high, np.nanmean(values, axis=0) + half, atol=0.02)


@pytest.mark.parametrize("metric", ["accuracy", "f1", "matthews", "pearson"])
def test_resampled_metrics_are_those_of_the_drawn_examples(metric: str) -> None:
    random = np.random.default_rng(0)
    continuous = metric == "pearson"
    truth = random.normal(size=40) if continuous else random.integers(0, 2, 40)
    values = random.normal(size=(3, 40)) if continuous else random.integers(0, 2, (3, 40))
    draws = resamples(40, 25, random)
    found = resampled_metric(metric, draws, truth, values)
    for d, counts in enumerate(draws):
        index = np.repeat(np.arange(40), counts.astype(int))
        for c in range(3):
            assert found[d, c] == pytest.approx(
                METRICS[metric](truth[index], values[c][index]), abs=1e-9
            )


def test_percentiles_leave_out_what_is_not_defined() -> None:
    drawn = np.array([[0.0, 1.0, np.nan], [1.0, np.nan, np.nan], [2.0, 3.0, np.nan]])
    low, high = percentile_interval(drawn, 0.5)
    np.testing.assert_allclose(low, [0.5, 1.5, np.nan])
    np.testing.assert_allclose(high, [1.5, 2.5, np.nan])
    assert np.isnan(percentile_interval(np.full(4, np.nan))).all()
