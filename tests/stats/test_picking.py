"""The best of many: what is picked is scored on other units, and its interval holds the truth."""

from __future__ import annotations

import numpy as np
import pytest

from headwise.stats.intervals import mean_interval
from headwise.stats.picking import cross_fit, simultaneous_interval
from headwise.stats.units import share_interval


def drawn(
    chances: np.ndarray, n_units: int, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Hits and tries `[unit, head, 1]` of heads with these chances; a unit has about five tries."""
    tries = 1.0 + random.poisson(4.0, n_units)
    hits = random.binomial(tries[:, None].astype(int), chances)
    return hits[..., None].astype(float), np.broadcast_to(tries[:, None, None], (*hits.shape, 1))


@pytest.mark.parametrize("best", [0.4, 0.44, 0.8])
def test_the_interval_of_the_best_of_200_heads_holds_its_accuracy(best: float) -> None:
    """Equal heads, one that is slightly better, one that stands out: coverage, and no luck."""
    random = np.random.default_rng(0)
    chances = np.full(200, 0.4)
    chances[17] = best
    n_runs = 150
    naive = 0
    held = 0
    excess = 0.0
    for _ in range(n_runs):
        hits, tries = drawn(chances, 60, random)
        picked = int(hits[..., 0].sum(0).argmax())
        truth = chances[picked]
        low, high = share_interval(hits[:, picked, 0], tries[:, picked, 0])
        naive += bool(low <= truth <= high)
        fit = cross_fit(hits, tries)
        right, tried = fit.take(hits), fit.take(tries)
        low, high = share_interval(right, tried)
        held += bool(low[0] <= truth <= high[0])
        excess += float(right.sum() / tried.sum() - truth) / n_runs
    assert held / n_runs >= 0.91
    assert abs(excess) < 0.01
    if best < 0.5:
        assert naive / n_runs < 0.6  # it would be 95 % if nothing were picked


def test_each_half_is_scored_with_the_head_of_the_other() -> None:
    """Slowly, unit by unit, on heads in two axes and several items."""
    random = np.random.default_rng(1)
    tries = 1.0 + random.poisson(4.0, (31, 1, 1, 1)) * np.ones((31, 3, 4, 2))
    hits = np.floor(tries * random.random(tries.shape))
    fit = cross_fit(hits, tries)
    right = fit.take(hits)
    assert fit.scored.all()
    assert sorted(np.bincount(fit.half)) == [15, 16]
    for unit in range(31):
        other = fit.half != fit.half[unit]
        accuracy = hits[other].sum(0) / tries[other].sum(0)
        for item in range(2):
            place = np.unravel_index(accuracy[..., item].argmax(), (3, 4))
            assert right[unit, item] == hits[(unit, *place, item)]


def test_a_head_with_few_tries_in_a_half_is_not_picked() -> None:
    hits = np.zeros((40, 2, 1))
    tries = np.zeros((40, 2, 1))
    tries[:, 0] = 10
    hits[:, 0] = 6
    tries[:4, 1] = hits[:4, 1] = 1  # right once or twice in a half, of as many tries
    assert cross_fit(hits, tries).take(tries).sum() < 400
    assert cross_fit(hits, tries, min_tries=15).take(tries).sum() == 400
    allowed = np.array([[False], [True]])
    assert cross_fit(hits, tries, allowed, min_tries=15).take(tries).sum() == 4


def test_too_few_units_are_not_halved() -> None:
    hits = np.ones((3, 5, 2))
    fit = cross_fit(hits, hits)
    assert not fit.scored.any()
    assert not fit.same.any()
    assert fit.take(hits).sum() == 0


def test_simultaneous_intervals_hold_for_whichever_head_is_picked() -> None:
    random = np.random.default_rng(2)
    n_runs = 200
    own = 0
    together = 0
    for _ in range(n_runs):
        values = random.normal(size=(50, 144))  # every mean is 0
        mean = values.mean(0)
        picked = int(mean.argmax())
        low, high = mean_interval(mean, values.var(0, ddof=1), np.array(50))
        own += bool(low[picked] <= 0 <= high[picked])
        low, high = simultaneous_interval(mean, low, high, 50, 144)
        together += bool(low[picked] <= 0 <= high[picked])
    assert own / n_runs < 0.2
    assert together / n_runs >= 0.93
