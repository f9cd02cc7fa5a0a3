"""Intervals of shares and depths of labels: heads of one layer are alike, so layers are the sample."""

from __future__ import annotations

import numpy as np
import pytest

from headwise.stats.depth import mean_depth_interval, relative_depth, share_intervals
from headwise.stats.intervals import wilson_interval


@pytest.mark.parametrize("likeness", [0.0, 0.15])
def test_shares_hold_the_truth_where_heads_of_a_layer_are_alike(likeness: float) -> None:
    """36 layers of 32 heads: Wilson's interval over heads holds it in 57 % of the draws."""
    random = np.random.default_rng(0)
    holds = []
    holds_over_heads = []
    for _ in range(300):
        chance = np.full((36, 2), 0.2)
        if likeness:
            concentration = 1 / likeness - 1
            chance = random.beta(0.2 * concentration, 0.8 * concentration, (36, 2))
        counts = random.binomial(32, chance)
        low, high, total_low, total_high = share_intervals(counts, 32, 6)
        assert low.shape == high.shape == (2, 6)
        holds += [((low <= 0.2) & (high >= 0.2)).mean()]
        holds += [((total_low <= 0.2) & (total_high >= 0.2)).mean()]
        plain = wilson_interval(counts[:6].sum(0), np.array(6 * 32))
        holds_over_heads.append(((plain[0] <= 0.2) & (plain[1] >= 0.2)).mean())
    assert np.mean(holds) > 0.94
    if likeness:
        assert np.mean(holds_over_heads) < 0.7


def test_a_label_without_heads_gets_an_interval() -> None:
    counts = np.zeros((12, 2), dtype=int)
    counts[3:6, 0] = 4
    low, high, total_low, total_high = share_intervals(counts, 12, 4)
    assert low[1].tolist() == [0.0] * 4
    assert (high[1] > 0.1).all()
    assert total_low[1] == 0
    assert 0 < total_high[1] < high[1].min()
    nothing = share_intervals(np.zeros((6, 1), dtype=int), 6, 6)
    assert all(np.isfinite(ends).all() for ends in nothing)


def test_mean_depth_is_over_layers_and_not_over_heads() -> None:
    counts = np.array([0, 6, 0, 6, 0, 0])
    mean, low, high = mean_depth_interval(counts)
    assert mean == pytest.approx((relative_depth(6)[1] + relative_depth(6)[3]) / 2)
    # Two layers, one degree of freedom: nearly the whole model.
    assert (low, high) == (0.0, 1.0)
    assert np.isnan(mean_depth_interval(np.zeros(6))).all()
    one_layer = mean_depth_interval(np.array([0, 5, 0, 0]))
    assert one_layer[0] == pytest.approx(0.375)
    assert np.isnan(one_layer[1:]).all()
