"""Single steps: against a slow search, coverage of the interval, level of the test."""

from __future__ import annotations

import numpy as np
import pytest

from headwise.stats.change_points import chance_p, fit_step, largest_gaps_by_chance


def slow_step(series: np.ndarray) -> tuple[int, float]:
    """Return the best step and its sum of squared residuals, by trying all of them."""
    best = (0, np.inf)
    for first_after in range(2, len(series) - 1):
        residual = 0.0
        for part in (series[:first_after], series[first_after:]):
            residual += float(((part - part.mean()) ** 2).sum())
        if residual < best[1] - 1e-12:
            best = (first_after, residual)
    return best


def test_best_steps_are_those_of_a_slow_search() -> None:
    random = np.random.default_rng(0)
    series = random.normal(size=(50, 3, 9)).cumsum(-1)
    fit = fit_step(series)
    for place in np.ndindex(50, 3):
        values = series[place]
        first_after, residual = slow_step(values)
        assert fit.first_after[place] == first_after
        size = values[first_after:].mean() - values[:first_after].mean()
        assert fit.size[place] == pytest.approx(size)
        total = ((values - values.mean()) ** 2).sum()
        assert fit.share[place] == pytest.approx(1 - residual / total)
        before, after = values[:first_after], values[first_after:]
        gap = after.min() - before.max() if size > 0 else before.min() - after.max()
        assert fit.gap[place] == pytest.approx(gap)
        assert fit.low[place] <= first_after <= fit.high[place]


@pytest.mark.parametrize("n_times", [6, 12, 20])
@pytest.mark.parametrize("height", [1.5, 3.0, 6.0])
def test_intervals_hold_the_true_step(n_times: int, height: float) -> None:
    random = np.random.default_rng(1)
    for true_step in (2, n_times // 2, n_times - 2):
        series = random.normal(size=(3000, n_times))
        series[:, true_step:] += height
        fit = fit_step(series)
        holds = (fit.low <= true_step) & (true_step <= fit.high)
        assert holds.mean() > 0.925


def test_a_gradual_rise_has_a_wide_interval() -> None:
    gradual = fit_step(np.linspace(0, 1, 12))
    sudden = fit_step(np.repeat([0.0, 1.0], 6))
    assert gradual.high - gradual.low >= 3
    assert sudden.low == sudden.high == sudden.first_after == 6


def test_series_without_values_or_change() -> None:
    fit = fit_step(np.array([[1.0, 1, 1, 1], [np.nan, 1, 2, 3]]))
    assert np.isnan(fit.share).all()
    assert fit.low.tolist() == [2, 2]
    assert fit.high.tolist() == [2, 2]
    assert np.isnan(fit.gap[1])


def test_a_tenth_of_the_values_may_lie_in_the_gap() -> None:
    series = np.repeat([0.0, 1.0], 12)
    series[20] = 0.1
    assert fit_step(series).gap == 1.0
    series[18] = 0.2
    assert fit_step(series).gap == pytest.approx(0.2)


def test_a_single_outlier_is_no_step() -> None:
    series = np.array([0.0, 0.1, 0.0, 0.1, 0.0, 9.0])
    assert fit_step(series).gap <= 0.1
    assert fit_step(series[::-1]).gap <= 0.1


@pytest.mark.parametrize("heavy_tails", [False, True])
def test_the_level_holds_for_the_largest_of_all_series(heavy_tails: bool) -> None:
    random = np.random.default_rng(2)

    def values(*shape: int) -> np.ndarray:
        drawn = random.standard_normal(shape)
        return np.exp(1.5 * drawn) if heavy_tails else drawn

    n_significant = 0
    for trial in range(300):
        pools = values(2, 16)
        errors = np.zeros((2, 4))
        scales = np.repeat(pools.std(-1, ddof=1)[:, None], 4, 1)
        draws = largest_gaps_by_chance(pools, errors, scales, 8, 200, seed=trial)
        fit = fit_step(values(2, 4, 8))
        gaps = np.where(fit.size > 0, fit.gap, -np.inf) / scales
        n_significant += chance_p(gaps.max(), draws) < 0.05
    # The pool is a small sample itself: up to twice the level with 16 values.
    assert n_significant / 300 < 0.1


def test_p_values_count_the_observation_itself() -> None:
    draws = np.array([1.0, 2.0, 3.0])
    assert chance_p(np.array([0.5, 2.0, 9.0]), draws).tolist() == [1.0, 0.75, 0.25]
    assert np.isnan(chance_p(np.array([np.nan]), draws)).all()
