"""Accumulators: equal to numpy over the whole, whatever the cuts; merged, saved and loaded."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from headwise.stats.accumulators import Moments, Ratios, State, Sums
from headwise.stats.intervals import mean_interval, sample_interval
from headwise.stats.records import Records
from headwise.stats.units import unit_ratio

values_with_gaps = hnp.arrays(
    np.float64,
    st.tuples(st.integers(1, 20), st.integers(1, 3)),
    elements=st.one_of(st.floats(-1e3, 1e3), st.just(float("nan"))),
)


def moments_of(values: np.ndarray) -> Moments:
    found = Moments(values.shape[1])
    if len(values):
        found.add(torch.from_numpy(values))
    return found


def assert_equals_numpy(moments: Moments, values: np.ndarray) -> None:
    count = (~np.isnan(values)).sum(0)
    np.testing.assert_array_equal(moments.count.numpy(), count)
    for column in range(values.shape[1]):
        present = values[~np.isnan(values[:, column]), column]
        if len(present):
            assert float(moments.mean[column]) == pytest.approx(present.mean(), rel=1e-9, abs=1e-9)
        variance = moments.variance()[column]
        if len(present) > 1:
            assert variance == pytest.approx(present.var(ddof=1), rel=1e-7, abs=1e-7)
            assert variance >= 0
        else:
            assert np.isnan(variance)


@given(values_with_gaps, st.data())
@settings(max_examples=60, deadline=None)
def test_moments_do_not_depend_on_the_cuts(values: np.ndarray, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(values)), max_size=3)))
    parts = [moments_of(part) for part in np.split(values, cuts)]
    order = data.draw(st.permutations(range(len(parts))))
    merged = Moments(values.shape[1])
    for i in order:
        merged.merge(parts[i])
    assert_equals_numpy(merged, values)
    streamed = Moments(values.shape[1])
    for part in np.split(values, cuts):
        if len(part):
            streamed.add(torch.from_numpy(part))
    assert_equals_numpy(streamed, values)


@given(st.floats(-1e6, 1e6), st.integers(2, 9), st.integers(1, 8))
@settings(deadline=None)
def test_equal_values_have_a_variance_of_exactly_zero(value: float, count: int, cut: int) -> None:
    values = np.full((count, 1), value)
    merged = moments_of(values[: min(cut, count)])
    merged.merge(moments_of(values[min(cut, count) :]))
    assert merged.variance()[0] == 0.0


def test_intervals_of_streamed_values_are_those_of_all_values() -> None:
    values = np.random.default_rng(0).lognormal(0.0, 0.8, size=(40, 3)) + 100.0
    values[::7, 1] = np.nan
    merged = Moments(3)
    for part in np.split(values, [1, 5, 29]):
        merged.merge(moments_of(part))
    mean, low, high = sample_interval(values)
    summary = merged.summary()
    np.testing.assert_allclose(summary["mean"], mean)
    np.testing.assert_allclose(summary["low"], low)
    np.testing.assert_allclose(summary["high"], high)


def test_intervals_over_documents_of_one_example_are_those_over_examples() -> None:
    values = np.random.default_rng(0).exponential(size=(12, 3))
    by_document = Moments(3)
    by_document.batch_units = list(range(12))
    by_document.add(torch.from_numpy(values))
    expected = moments_of(values).summary()
    summary = by_document.summary()
    for end in ("low", "high"):
        np.testing.assert_allclose(summary[end], expected[end], rtol=1e-5)


def test_states_of_earlier_versions_without_cubes_are_read() -> None:
    arrays = moments_of(np.random.default_rng(0).exponential(size=(12, 3))).arrays()
    del arrays["cubes"]
    loaded = Moments(3)
    loaded.load(arrays)
    summary = loaded.summary()
    width = mean_interval(summary["mean"], loaded.variance(), np.full(3, 12))
    np.testing.assert_allclose(summary["high"], width[1])


def test_moments_into_a_part_of_the_shape() -> None:
    values = torch.rand(5, 3, dtype=torch.float64)
    found = Moments(2, 3)
    found.add(values, where=(1,))
    assert found.count[0].sum() == 0
    np.testing.assert_allclose(found.mean[1], values.mean(0))
    summary = found.summary()
    assert np.isnan(summary["mean"][0]).all()
    assert summary["n"].dtype == np.int64
    assert (summary["low"][1] < summary["mean"][1]).all()


def test_ratios_weigh_tokens_alike_and_merge() -> None:
    generator = np.random.default_rng(0)
    weight = torch.from_numpy(generator.integers(0, 9, size=(40, 2)).astype(float))
    total = weight * 0.3 + torch.from_numpy(generator.normal(size=(40, 2))) * weight.sqrt()
    whole, first, second = (Ratios(2) for _ in range(3))
    whole.add_sums(total, weight)
    first.add_sums(total[:13], weight[:13])
    second.add_sums(total[13:], weight[13:])
    second.merge(first)
    for name, value in whole.summary().items():
        np.testing.assert_allclose(second.summary()[name], value)
    np.testing.assert_allclose(whole.summary()["mean"], (total.sum(0) / weight.sum(0)).numpy())
    # The delta method's interval is near the bootstrap's, which knows nothing of it.
    draws = np.random.default_rng(1).integers(0, 40, size=(4000, 40))
    ratios = total.numpy()[draws].sum(1) / weight.numpy()[draws].sum(1)
    summary = whole.summary()
    np.testing.assert_allclose(
        summary["high"] - summary["low"], 2 * 2.02 * ratios.std(0), rtol=0.15
    )


def test_ratios_with_third_moments_have_the_interval_of_skewed_means() -> None:
    """With equal weights it is the interval of a mean; with unequal ones its longer end is on the
    side of the long tail, and it merges and comes back from arrays."""
    generator = np.random.default_rng(0)
    values = torch.from_numpy(generator.lognormal(0, 1, size=(12, 3)))
    moments = Moments(3)
    moments.add(values)
    ratios = Ratios(3, third_moments=True)
    ratios.add_sums(7 * values, torch.full((12, 1), 7.0))
    for name, value in moments.summary().items():
        np.testing.assert_allclose(ratios.summary()[name], value)
    values = torch.from_numpy(generator.lognormal(0, 1, size=(40, 3)))
    weight = torch.from_numpy(generator.integers(0, 9, size=(40, 1)).astype(float))
    whole, plain, first, second = (
        Ratios(3, third_moments=kept) for kept in (True, False, True, True)
    )
    for accumulator in (whole, plain):
        accumulator.add_sums(weight * values, weight)
    first.add_sums(weight[:5] * values[:5], weight[:5])
    second.add_sums(weight[5:] * values[5:], weight[5:])
    second.merge(first)
    loaded = Ratios(3, third_moments=True)
    loaded.load(second.arrays())
    summary = whole.summary()
    for name, value in summary.items():
        np.testing.assert_allclose(loaded.summary()[name], value)
    above = summary["high"] - summary["mean"]
    assert (above > 1.2 * (summary["mean"] - summary["low"])).all()
    assert (above > 1.2 * (plain.summary()["high"] - summary["mean"])).all()
    # Examples of unequal weight are worth fewer of equal weight, which the degrees of freedom tell.
    jackknife = unit_ratio((weight * values).numpy(), weight.numpy())
    np.testing.assert_allclose(summary["low"], jackknife.interval()[0], rtol=0.013)
    alike = Ratios(1, third_moments=True)
    alike.add_sums(0.3 * weight, weight)
    np.testing.assert_allclose(alike.summary()["low"], 0.3, rtol=1e-6)
    np.testing.assert_allclose(alike.summary()["high"], 0.3, rtol=1e-6)


def test_ratios_of_a_run_begun_without_third_moments_have_students_t() -> None:
    """A checkpoint of an earlier version merges with new states, whichever comes first."""
    values = torch.from_numpy(np.random.default_rng(0).lognormal(0, 1, size=(12, 3)))
    weight = torch.ones(12, 3)
    plain = Ratios(3)
    plain.add_sums(values, weight)
    older = Ratios(3)
    older.add_sums(values[:5], weight[:5])
    for old_first in (True, False):
        loaded = Ratios(3, third_moments=True)
        loaded.load(older.arrays())
        newer = Ratios(3, third_moments=True)
        newer.add_sums(values[5:], weight[5:])
        merged, added = (loaded, newer) if old_first else (newer, loaded)
        merged.merge(added)
        for name, value in plain.summary().items():
            np.testing.assert_allclose(merged.summary()[name], value)
        again = Ratios(3, third_moments=True)
        again.load(merged.arrays())
        np.testing.assert_allclose(again.summary()["high"], plain.summary()["high"])


def test_sums_and_records_merge_and_come_back_from_arrays() -> None:
    state = State(total=Sums(2, 3), mean=Moments(3), rows=Records(2, 2))
    other = State(total=Sums(2, 3), mean=Moments(3), rows=Records(2, 2))
    state.sums("total").add(torch.ones(3), where=(0,))
    other.sums("total").add(torch.ones(2, 3))
    state.moments("mean").add(torch.rand(4, 3))
    other.moments("mean").add(torch.rand(2, 3))
    state.records("rows").add([5, 1], torch.tensor([[1.0, 2.0], [3.0, 4.0]]), where=(0,))
    other.records("rows").add([5, 2], torch.tensor([[7.0, 8.0], [9.0, 9.0]]), where=(1,))
    state.merge(other)
    np.testing.assert_array_equal(state.sums("total").total, [[2, 2, 2], [1, 1, 1]])
    np.testing.assert_array_equal(state.records("rows").index, [1, 2, 5])
    np.testing.assert_array_equal(state.records("rows").values[2], [[1, 2], [7, 8]])
    loaded = State(total=Sums(2, 3), mean=Moments(3), rows=Records(2, 2))
    loaded.load({key: np.array(value) for key, value in state.arrays().items()})
    for key, value in state.arrays().items():
        np.testing.assert_array_equal(loaded.arrays()[key], value)


def test_states_of_different_analyses_do_not_merge() -> None:
    with pytest.raises(ValueError, match="different analyses"):
        State(a=Sums(1)).merge(State(b=Sums(1)))


def test_records_keep_a_sample_that_no_order_changes() -> None:
    values = torch.arange(600.0).reshape(300, 2)
    whole = Records(2, at_most=20)
    for layer in range(
        2
    ):  # rows are filled a part at a time, and one that was put out must not come back
        for start in range(0, 300, 7):
            part = slice(start, start + 7)
            whole.add(range(300)[part], values[part, layer], (layer,))
    assert len(whole.index) == 20
    np.testing.assert_array_equal(whole.values, values[whole.index.tolist()].numpy())
    assert 60 < whole.index.mean() < 240  # from all over the corpus
    shards = []
    for start in range(0, 300, 50):
        shard = Records(2, at_most=20)
        shard.add(range(start, start + 50), values[start : start + 50])
        kept = Records(2, at_most=20)
        kept.load(shard.arrays())
        shards.append(kept)
    merged = Records(2, at_most=20)
    for shard in reversed(shards):
        merged.merge(shard)
    np.testing.assert_array_equal(merged.index, whole.index)
    np.testing.assert_array_equal(merged.values, whole.values)
