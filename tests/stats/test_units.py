"""Documents as the unit of sampling: sums by unit that merge whatever the cuts, and errors as
statsmodels has them."""

from __future__ import annotations

import numpy as np
import pytest
import statsmodels.api as sm
import torch
from scipy import stats as scipy_stats

from headwise.stats.accumulators import Moments, Ratios, State
from headwise.stats.bootstrap import bootstrap_family_test
from headwise.stats.intervals import sample_interval, wilson_interval
from headwise.stats.records import Records
from headwise.stats.tests import mean_above
from headwise.stats.units import (
    UnitSums,
    mean_over_units,
    share_interval,
    unit_key,
    unit_ratio,
)

RNG = np.random.default_rng(0)
DOCUMENT = RNG.integers(0, 25, 200)
UNITS = [unit_key(f"document {number}", 0) for number in DOCUMENT]
VALUES = RNG.normal(size=200) + RNG.normal(size=25)[DOCUMENT]


def moments_in_parts(order: list[int]) -> Moments:
    """The same examples in four parts, merged in some order, each part through its saved form."""
    whole = Moments(1)
    for part in (np.split(np.arange(200), 4)[k] for k in order):
        own, loaded = Moments(1), Moments(1)
        State(x=own).of([UNITS[i] for i in part])
        own.add(torch.from_numpy(VALUES[part, None]))
        loaded.load(own.arrays())
        whole.merge(loaded)
    return whole


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 1, 0, 2]])
def left_out_error(y: np.ndarray, w: np.ndarray) -> float:
    """The jackknife's error of Σy / Σw, by leaving out each unit in turn."""
    ratio = y.sum() / w.sum()
    without = []
    for unit in range(len(y)):
        kept = np.arange(len(y)) != unit
        without.append(y[kept].sum() / w[kept].sum())
    n_units = len(y)
    return float(np.sqrt((n_units - 1) / n_units * ((np.array(without) - ratio) ** 2).sum()))


def effective_units(w: np.ndarray) -> float:
    """The number of equally large units that units of these weights are worth."""
    if_independent = w.sum() ** 2 / (w**2).sum()
    if_alike = (w**2).sum() ** 2 / (w**4).sum()
    return float(np.sqrt(if_independent * if_alike))


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 1, 0, 2]])
def test_a_mean_over_documents_has_the_error_of_a_jackknife(order: list[int]) -> None:
    moments = moments_in_parts(order)
    sums = np.bincount(DOCUMENT, VALUES)
    sizes = np.bincount(DOCUMENT).astype(float)
    error = left_out_error(sums, sizes)
    assert np.sqrt(moments.variance()[0] / 200) == pytest.approx(error, rel=1e-5)
    # Documents of like size: nearly statsmodels' cluster-robust error.
    fit = sm.OLS(VALUES, np.ones(200)).fit(cov_type="cluster", cov_kwds={"groups": DOCUMENT})
    assert error == pytest.approx(fit.bse[0], rel=0.02)
    summary = moments.summary()
    assert (int(summary["n"][0]), int(summary["units"][0])) == (200, 25)
    worth = effective_units(sizes)
    assert 15 < worth < 25
    quantile = scipy_stats.t.ppf(0.975, worth - 1)
    assert summary["high"][0] - summary["mean"][0] == pytest.approx(quantile * error, rel=1e-5)
    alone = Moments(1)
    alone.add(torch.from_numpy(VALUES[:, None]))
    # Example by example it would be far too small.
    assert alone.variance()[0] / 200 < 0.6 * error**2


def test_documents_count_only_where_every_example_has_one() -> None:
    found, plain = moments_in_parts([0, 1]), Moments(1)
    more = torch.from_numpy(VALUES[100:, None])
    found.batch_units = None
    found.add(more)
    plain.add(torch.from_numpy(VALUES[:, None]))
    assert found.variance()[0] == pytest.approx(plain.variance()[0])
    assert int(found.summary()["units"][0]) == 200


def test_a_ratio_over_documents() -> None:
    weight = RNG.integers(1, 9, 200).astype(float)
    found = Ratios(1)
    State(x=found).of(UNITS)
    found.add_sums(torch.from_numpy(VALUES * weight)[:, None], torch.from_numpy(weight)[:, None])
    y, w = (np.bincount(DOCUMENT, x) for x in (VALUES * weight, weight))
    ratio = y.sum() / w.sum()
    error = left_out_error(y, w)
    quantile = scipy_stats.t.ppf(0.975, effective_units(w) - 1)
    summary = found.summary()
    assert summary["mean"][0] == pytest.approx(ratio)
    assert summary["high"][0] - ratio == pytest.approx(quantile * error, rel=1e-4)


def test_one_weight_for_all_heads_is_broadcast_over_documents() -> None:
    """A layer hands in `[example, layer, head]` totals with `[example, layer, 1]` weights."""
    layers, heads = 2, 3
    totals = torch.from_numpy(RNG.random((200, 1, heads)))
    weights = torch.from_numpy(RNG.integers(1, 9, (200, 1, 1)).astype(float))
    broadcast = Ratios(layers, heads)
    expanded = Ratios(layers, heads)
    State(broadcast=broadcast, expanded=expanded).of(UNITS)
    for layer in range(layers):
        part = (slice(layer, layer + 1),)
        broadcast.add_sums(totals, weights, part)
        expanded.add_sums(totals, weights.expand_as(totals).contiguous(), part)
    expected = expanded.summary()
    assert int(expected["units"][0, 0]) == 25
    for name, value in broadcast.summary().items():
        np.testing.assert_array_equal(value, expected[name])


def test_unit_sums_broadcast_into_a_part() -> None:
    sums = UnitSums(2, 3)
    sums.add([1, 1, 4], torch.tensor([[1.0], [2.0], [5.0]]), (0,))
    assert sums.totals.tolist() == [[[3, 3, 3], [0, 0, 0]], [[5, 5, 5], [0, 0, 0]]]


def test_units_beyond_the_limit_are_put_together() -> None:
    values = torch.arange(30.0)[:, None]
    parts = []
    for cut in (30, 11, 3):
        whole = UnitSums(1, max_units=7)
        for start in range(0, 30, cut):
            own, loaded = UnitSums(1, max_units=7), UnitSums(1, max_units=7)
            own.add(range(start, min(start + cut, 30)), values[start : start + cut])
            loaded.load(own.arrays())
            whole.merge(loaded)
        parts.append(whole)
    expected = [sum(i for i in range(30) if i % 7 == k) for k in range(7)]
    for whole in parts:
        assert whole.totals[:, 0].tolist() == expected
        assert whole.unit_name == "groups"


def test_integers_are_saved_in_the_smallest_type() -> None:
    sums = UnitSums(2, dtype=torch.int32)
    sums.add([5, unit_key("a", 0), 5], torch.tensor([[1, 2], [3, 4], [100, 200]]))
    assert sums.arrays()["totals"].dtype == np.uint8
    assert sums.totals.tolist() == [[3, 4], [101, 202]]
    assert sums.unit_name == "documents"


def test_shares_of_single_tries_are_wilsons_but_for_t() -> None:
    hits = (RNG.random(900) < 0.3).astype(float)
    mine, wilson = share_interval(hits, np.ones(900)), wilson_interval(hits.sum(), 900)
    np.testing.assert_allclose(mine, wilson, atol=2e-4)
    doubled = share_interval(
        np.repeat(hits, 1) * 4, np.full(900, 4.0)
    )  # four tries that always agree are one
    np.testing.assert_allclose(doubled, wilson, atol=2e-4)
    none = share_interval(np.zeros(50), np.full(50, 10.0))
    assert none[0] == 0
    assert 0.06 < none[1] < 0.08  # 0 of 50, not 0 of 500


def test_no_tries_have_no_interval() -> None:
    low, high = share_interval(np.zeros((3, 2)), np.array([[0, 1], [0, 1], [0, 1]]))
    assert np.isnan([low[0], high[0]]).all()
    assert np.isfinite([low[1], high[1]]).all()
    assert np.isnan(unit_ratio(np.zeros(3), np.zeros(3)).value)


def test_the_bootstrap_draws_whole_units() -> None:
    records = Records(1)
    State(x=records).of(UNITS)
    records.add(range(200), torch.from_numpy(VALUES[:, None]))
    again = Records(1)
    again.load(records.arrays())
    assert again.units.tolist() == UNITS
    threshold = VALUES.mean() - 0.3
    by_unit = bootstrap_family_test(
        again.values, threshold, repeats=4000, units=again.units
    ).p_value[0]
    by_example = bootstrap_family_test(again.values, threshold, repeats=4000).p_value[0]
    # An independent way: resample documents, studentize by hand.
    s, n = np.bincount(DOCUMENT, VALUES), np.bincount(DOCUMENT)
    ratio = unit_ratio(s, n)
    t = (ratio.value - threshold) / np.sqrt(ratio.variance)
    drawn = [RNG.integers(0, 25, 25) for _ in range(4000)]
    stars = [
        (r.value - ratio.value) / np.sqrt(r.variance)
        for r in (unit_ratio(s[d], n[d]) for d in drawn)
    ]
    assert by_unit == pytest.approx(np.mean(np.array(stars) >= t), abs=0.025)
    assert by_example < by_unit / 3


def test_a_mean_of_zeros_and_ones_has_a_share_s_interval() -> None:
    right = torch.from_numpy((VALUES > 0).astype(float)[:, None])
    plain = Moments(1)
    plain.add(right)
    expected = wilson_interval(right.sum().numpy(), np.array(200.0))
    np.testing.assert_allclose(np.stack(plain.share_interval())[:, 0], expected)
    by_document = Moments(1)
    State(x=by_document).of(UNITS)
    by_document.add(right)
    hits = np.bincount(DOCUMENT, right[:, 0].numpy())
    tries = np.bincount(DOCUMENT).astype(float)
    low, high = by_document.share_interval()
    assert (low[0], high[0]) == pytest.approx(tuple(share_interval(hits, tries)))
    assert high[0] - low[0] > expected[1] - expected[0]


def test_a_mean_over_units_is_that_of_moments_and_of_single_examples() -> None:
    values = np.stack([VALUES, np.where(RNG.random(200) < 0.1, np.nan, VALUES)], 1)
    moments = Moments(2)
    moments.batch_units = UNITS
    moments.add(torch.from_numpy(values))
    summary = moments.summary()
    by_document = mean_over_units(values, UNITS)
    np.testing.assert_allclose(by_document.value, summary["mean"], rtol=1e-12)
    np.testing.assert_allclose(by_document.interval(), (summary["low"], summary["high"]))
    np.testing.assert_allclose(by_document.p_above(), moments.p_above(), rtol=1e-6)

    alone = mean_over_units(values)
    mean, low, high = sample_interval(values)
    np.testing.assert_allclose([alone.value, *alone.interval()], [mean, low, high])
    np.testing.assert_allclose(alone.p_above()[0], mean_above(values[:, 0]))
    assert np.all(by_document.interval()[1] - by_document.interval()[0] > 1.2 * (high - low))


def test_a_mean_of_equal_values_or_of_one_document() -> None:
    equal = mean_over_units(np.array([[0.3, -0.3, 0.0]] * 6), [1, 1, 2, 2, 3, 3])
    assert equal.p_above().tolist() == [0.0, 1.0, 1.0]
    one_document = mean_over_units(VALUES[:6], [1] * 6)
    assert np.isnan(one_document.p_above())
    assert np.isnan(one_document.interval()).all()
