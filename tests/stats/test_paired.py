"""Differences of paired scores: intervals that hold the truth where few answers flip, held to
published examples and to exact coverage."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats as scipy_stats
from scipy.optimize import brentq

from headwise.stats.metrics import METRICS
from headwise.stats.paired import flip_interval, paired_differences


def tango_interval(gained: int, lost: int, n: int) -> tuple[float, float]:
    """Tango's score interval (Statistics in Medicine 17, 1998), by its formulas."""
    quantile = scipy_stats.norm.ppf(0.975)

    def statistic(difference: float) -> float:
        b = -gained - lost + (2 * n - gained + lost) * difference
        c = -lost * difference * (1 - difference)
        nuisance = (np.sqrt(b**2 - 8 * n * c) - b) / (4 * n)
        variance = n * (2 * nuisance + difference * (1 - difference))
        return float((gained - lost - n * difference) / np.sqrt(variance))

    observed = (gained - lost) / n
    low = brentq(lambda d: statistic(d) - quantile, -1 + 1e-9, observed - 1e-9)
    high = brentq(lambda d: statistic(d) + quantile, observed + 1e-9, 1 - 1e-9)
    return low, high


def interval_of(gained: int, lost: int, n: int) -> tuple[float, float]:
    by_example = np.zeros((2, n))
    by_example[0, :gained] = 1
    by_example[1, gained : gained + lost] = 1
    low, high = flip_interval(by_example[0], by_example[1], np.ones(n))
    return float(low), float(high)


def test_it_nearly_has_the_ends_of_tangos_interval() -> None:
    # Fagerland, Lydersen and Laake (2014), airway hyper-responsiveness: 1 gained, 7 lost, 21 pairs.
    assert tango_interval(1, 7, 21) == pytest.approx((-0.517, -0.026), abs=5e-4)
    assert interval_of(1, 7, 21) == pytest.approx((-0.517, -0.026), abs=0.03)
    for gained, lost, n in ((5, 12, 200), (40, 25, 500), (3, 3, 100), (0, 9, 300)):
        expected = tango_interval(gained, lost, n)
        assert interval_of(gained, lost, n) == pytest.approx(expected, abs=0.15 * np.ptp(expected))


@pytest.mark.parametrize("n", [30, 277])
def test_its_coverage_is_at_least_93_percent_however_few_answers_flip(n: int) -> None:
    most = min(n, 40)
    gained, lost = np.meshgrid(np.arange(most + 1), np.arange(most + 1), indexing="ij")
    possible = gained + lost <= n
    low = np.full(gained.shape, np.nan)
    high = np.full(gained.shape, np.nan)
    for place in np.argwhere(possible):
        low[*place], high[*place] = interval_of(*place, n)
    assert (high - low)[possible].min() > 1 / n
    coverages = []
    for mean_gained in (0, 0.2, 1, 4, 8):
        for mean_lost in (0.05, 0.17, 0.5, 1, 2, 4, 5.7, 8, 12):
            chances = np.array([mean_gained, mean_lost, n - mean_gained - mean_lost]) / n
            counts = np.stack([gained, lost, np.where(possible, n - gained - lost, -1)], -1)
            mass = np.where(possible, scipy_stats.multinomial.pmf(counts, n, chances), 0.0)
            difference = (mean_gained - mean_lost) / n
            holds = (low <= difference) & (difference <= high)
            coverages.append(float(mass[holds].sum() / mass.sum()))
    assert min(coverages) >= 0.93
    assert np.mean(coverages) < 0.985


def test_answers_of_one_document_count_less() -> None:
    random = np.random.default_rng(0)
    documents = np.repeat(np.arange(20), 10)
    truth = np.zeros(200)
    baseline = np.zeros(200)
    # In three documents every answer is lost.
    values = np.isin(documents, [2, 5, 11]).astype(float)[None]
    alone = paired_differences("accuracy", baseline, values, truth)
    clustered = paired_differences("accuracy", baseline, values, truth, documents)
    assert float(alone.difference[0]) == float(clustered.difference[0]) == pytest.approx(-0.15)
    assert clustered.high[0] - clustered.low[0] > 2 * (alone.high[0] - alone.low[0])
    assert alone.p_value[0] < 1e-6 < 0.2 < clustered.p_value[0]
    assert clustered.test == "sign-flip test over documents"
    change = random.normal(size=20)[documents] + 0.1 * random.normal(size=200)
    alone = paired_differences("loss", baseline, change[None], None)
    clustered = paired_differences("loss", baseline, change[None], None, documents)
    assert clustered.high[0] - clustered.low[0] > 2 * (alone.high[0] - alone.low[0])


@pytest.mark.parametrize("metric", ["accuracy", "f1", "matthews"])
def test_no_flipped_answer_is_no_certainty(metric: str) -> None:
    truth = np.arange(100) % 2
    comparison = paired_differences(metric, truth, truth[None], truth)
    assert comparison.low[0] < -0.01 < 0.01 < comparison.high[0]
    assert (comparison.mean_low, comparison.mean_high) == (comparison.low[0], comparison.high[0])
    assert comparison.p_value[0] == 1.0
    more = np.arange(1000) % 2
    wider = paired_differences(metric, more, more[None], more)
    assert wider.high[0] < comparison.high[0]


def test_without_any_change_a_loss_has_no_interval() -> None:
    loss = np.random.default_rng(0).normal(size=50)
    comparison = paired_differences("loss", loss, loss[None], None)
    assert np.isnan(comparison.low[0])
    assert comparison.p_value[0] == 1.0


@pytest.mark.parametrize("metric", ["accuracy", "f1", "pearson", "loss"])
def test_intervals_hold_the_truth(metric: str) -> None:
    """A population whose differences are known: single conditions, and their mean."""
    random = np.random.default_rng(1)
    n_population = 20_000
    shared = random.normal(size=n_population)
    harm = 0.1 + shared + random.normal(size=(6, n_population))
    truth: np.ndarray | None
    if metric == "loss":
        truth = None
        baseline = np.exp(0.5 * shared)
        values = baseline + 0.3 * harm
        expected = values.mean(1) - baseline.mean()
    elif metric == "pearson":
        truth = random.normal(size=n_population)
        baseline = truth + 0.5 * random.normal(size=n_population)
        values = baseline + 0.3 * harm
    else:
        truth = (random.random(n_population) < 0.6).astype(int)
        margin = 1.5 + random.normal(size=n_population)
        baseline = np.where(margin > 0, truth, 1 - truth)
        values = np.where(margin - 0.15 * harm > 0, truth, 1 - truth)
    if truth is not None:
        compute = METRICS[metric]
        expected = np.array([compute(truth, row) for row in values]) - compute(truth, baseline)
    n_runs = 60
    single = 0.0
    mean = 0.0
    for _ in range(n_runs):
        drawn = random.choice(n_population, 100, replace=False)
        told = None if truth is None else truth[drawn]
        comparison = paired_differences(metric, baseline[drawn], values[:, drawn], told)
        holds = (comparison.low <= expected) & (expected <= comparison.high)
        single += float(holds.mean()) / n_runs
        mean += (comparison.mean_low <= expected.mean() <= comparison.mean_high) / n_runs
    assert single >= 0.92
    assert mean >= 0.88  # sixty draws: two standard errors are 6 points


def test_the_interval_of_a_skewed_loss_is_longer_on_the_side_of_the_tail() -> None:
    """Fifty lognormal changes: Student's t held the truth in 88 % of the draws."""
    random = np.random.default_rng(0)
    n_holding = 0
    for _ in range(500):
        change = 0.3 * random.lognormal(-0.5, 1.0, 50)
        found = paired_differences("loss", np.zeros(50), change[None], None)
        n_holding += bool(found.low[0] <= 0.3 <= found.high[0])
    assert n_holding >= 0.92 * 500
    assert found.high[0] - found.difference[0] > 1.2 * (found.difference[0] - found.low[0])
