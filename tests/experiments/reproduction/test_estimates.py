"""Numbers with intervals decide or leave open; what was not learned is recognised."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headwise.experiments.reproduction.estimates import (
    Estimate,
    Estimates,
    Outcome,
    all_of,
    any_of,
    correlation_estimate,
    mean_difference,
    mean_over_units,
    more_than_half,
    on_tasks,
    weighted_layer,
)
from headwise.experiments.reproduction.learning import (
    DevPredictions,
    score_difference,
    why_nothing_learned,
)

TRUE, FALSE, OPEN = Outcome.TRUE, Outcome.FALSE, Outcome.OPEN


def test_a_bound_inside_the_interval_leaves_it_open() -> None:
    share = Estimate(0.5, 0.4, 0.6)
    assert [share.above(bound) for bound in (0.3, 0.4, 0.6)] == [TRUE, OPEN, FALSE]
    assert [share.at_least(bound) for bound in (0.4, 0.6, 0.7)] == [TRUE, OPEN, FALSE]
    assert [share.below(bound) for bound in (0.7, 0.6, 0.4)] == [TRUE, OPEN, FALSE]
    assert [share.at_most(bound) for bound in (0.6, 0.4, 0.3)] == [TRUE, OPEN, FALSE]
    # A number without an interval decides nothing.
    unknown = Estimate(0.5, np.nan, np.nan)
    assert {unknown.above(0.1), unknown.below(0.1), unknown.at_least(0.9)} == {OPEN}


def test_conditions_together() -> None:
    assert all_of([TRUE, OPEN]) is OPEN
    assert all_of([OPEN, FALSE]) is FALSE
    assert all_of([]) is OPEN
    assert any_of([FALSE, OPEN]) is OPEN
    assert any_of([OPEN, TRUE]) is TRUE
    assert more_than_half([TRUE, TRUE, FALSE]) is TRUE
    assert more_than_half([TRUE, FALSE]) is FALSE
    assert more_than_half([TRUE, OPEN, FALSE]) is OPEN


def test_a_claim_on_all_tasks_stays_open_where_one_was_not_run() -> None:
    assert on_tasks({"a": TRUE, "b": TRUE}, ["a", "b"]) == (TRUE, TRUE)
    assert on_tasks({"a": TRUE}, ["a", "b"]) == (OPEN, TRUE)
    assert on_tasks({"a": FALSE}, ["a", "b"]) == (FALSE, FALSE)


def test_newcombes_difference_is_as_wide_as_both_intervals_say() -> None:
    difference = Estimate(0.6, 0.5, 0.7).minus(Estimate(0.4, 0.3, 0.5))
    assert difference.value == pytest.approx(0.2)
    assert (difference.low, difference.high) == pytest.approx((0.2 - 0.02**0.5, 0.2 + 0.02**0.5))


def test_all_heads_at_once_need_wider_intervals() -> None:
    """Of 144 equal heads, 5 % of single intervals miss the truth; of widened ones hardly any do."""
    random = np.random.default_rng(0)
    n_missed = 0
    n_missed_at_once = 0
    for _ in range(100):
        values = random.normal(size=(12, 12))
        heads = Estimates(values, values - 1.96, values + 1.96)
        n_missed += heads.count_above(0.0).low > 0
        n_missed_at_once += heads.for_all().count_above(0.0).low > 0
    assert n_missed > 90  # some head of 144 nearly always seems to be above
    assert n_missed_at_once <= 8


def test_counts_have_a_range_where_heads_are_not_decided() -> None:
    heads = Estimates(
        np.array([0.6, 0.55, 0.45, np.nan]),
        np.array([0.55, 0.45, 0.4, np.nan]),
        np.array([0.65, 0.65, 0.49, np.nan]),
    )
    assert heads.count_above(0.5) == Estimate(2, 1, 2)
    assert heads.count_below(0.5) == Estimate(1, 1, 2)
    assert heads.n_known == 3


def test_the_mean_layer_has_the_interval_of_its_worst_cases() -> None:
    attention = Estimates(np.ones((3, 1)), np.full((3, 1), 0.5), np.full((3, 1), 1.5))
    mean = weighted_layer(attention)
    assert mean.value == 1
    # By hand: 0.5, 0.5, 1.5 and 1.5, 0.5, 0.5 are the extremes.
    assert mean.high == pytest.approx((0.5 + 3.0) / 2.5)
    assert mean.low == pytest.approx((0.5 + 1.0) / 2.5)


def test_means_over_units_and_correlations() -> None:
    assert mean_over_units(np.array([1.0])).above(0) is OPEN
    assert mean_over_units(np.array([1.0, 1.1, 0.9])).above(0) is TRUE
    assert mean_difference(np.array([1.0, 1.1]), np.array([0.0, 0.1])).above(0) is TRUE
    assert correlation_estimate(0.5, 144).above(0.3) is TRUE
    assert correlation_estimate(0.5, 5).above(0.3) is OPEN


def predictions(n_right: int, n_examples: int = 300, share: float = 0.6) -> DevPredictions:
    """A classifier that has so many of the examples right; the most frequent class has `share`."""
    truth = (np.arange(n_examples) < share * n_examples).astype(int)
    truth = np.random.default_rng(0).permutation(truth)
    predicted = truth.copy()
    predicted[n_right:] = 1 - truth[n_right:]
    return DevPredictions(truth, predicted, False)


def test_one_class_for_all_is_nothing_learned() -> None:
    truth = np.array([0, 1, 1] * 20)
    constant = DevPredictions(truth, np.ones(60, int), False)
    assert why_nothing_learned(constant) == "nothing learned: it predicts one class"
    scores = DevPredictions(truth.astype(float), np.full(60, 0.3), True)
    assert why_nothing_learned(scores) == "nothing learned: it predicts one value"


def test_no_better_than_the_most_frequent_class_is_nothing_learned() -> None:
    assert why_nothing_learned(predictions(270)) == ""
    assert "points over the most frequent class" in why_nothing_learned(predictions(184))
    assert "points over the most frequent class" in why_nothing_learned(predictions(100))


def test_a_regression_must_correlate() -> None:
    random = np.random.default_rng(0)
    truth = random.normal(size=200)
    assert why_nothing_learned(DevPredictions(truth, truth + random.normal(size=200), True)) == ""
    noise = DevPredictions(truth, random.normal(size=200), True)
    assert why_nothing_learned(noise).startswith("nothing learned: Pearson's r is")


def test_two_models_are_compared_on_the_same_examples() -> None:
    better = predictions(270)
    worse = predictions(240)
    difference = score_difference(better, worse, "accuracy")
    assert difference.value == pytest.approx(10.0)
    # McNemar's interval by hand: 30 of 300 pairs differ, all in one direction.
    error = 100 * np.sqrt(0.1 * 0.9 / 300)
    assert difference.low == pytest.approx(10 - 1.96 * error, abs=0.6)
    assert difference.high == pytest.approx(10 + 1.96 * error, abs=0.6)
    assert score_difference(better, better, "accuracy") == Estimate(0, 0, 0)


def test_predictions_are_read_as_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "predictions.tsv"
    path.write_text("index\ttruth\tpredicted\n0\tyes\tno\n1\tno\tno\n")
    read = DevPredictions.read(path, False)
    assert (read.truth.tolist(), read.predicted.tolist()) == ([1, 0], [0, 0])
    path.write_text("index\ttruth\tpredicted\n0\t1.5\t2\n")
    assert DevPredictions.read(path, True).predicted.tolist() == [2.0]
