"""Shares corrected for confusion: against a general solver, the truth is recovered, with an interval that holds it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from headwise.analyses.patterns.correct import corrected_shares, corrected_with_interval, said_given_true
from headwise.analyses.patterns.errors import ErrorModel, seen_in_training, shipped_errors

COUNTS = np.array([[80, 2, 10, 2, 6], [3, 70, 20, 1, 6], [10, 15, 70, 2, 3], [3, 4, 2, 40, 1], [20, 3, 4, 3, 50]])


def general_solution(said: np.ndarray, mistakes: np.ndarray) -> np.ndarray:
    found = minimize(
        lambda p: 1e3 * ((p @ mistakes - said) ** 2).sum(),
        np.full(5, 0.2),
        jac=lambda p: 2e3 * mistakes @ (p @ mistakes - said),
        bounds=[(0, 1)] * 5,
        constraints={"type": "eq", "fun": lambda p: p.sum() - 1, "jac": lambda p: np.ones(5)},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    return found.x


def test_equals_a_general_solver() -> None:
    mistakes = said_given_true(COUNTS)
    rng = np.random.default_rng(0)
    said = np.concatenate([rng.dirichlet(np.full(5, 0.4), 40), np.eye(5)])
    got = corrected_shares(said, mistakes)
    np.testing.assert_allclose(got.sum(-1), 1)
    assert (got >= 0).all()
    for mine, q in zip(got, said, strict=True):
        theirs = general_solution(q, mistakes)
        assert ((mine @ mistakes - q) ** 2).sum() <= (
            (theirs @ mistakes - q) ** 2
        ).sum() + 1e-7  # the general solver keeps its constraint to about that
        np.testing.assert_allclose(mine, theirs, atol=2e-3)


def test_exact_confusion_is_undone() -> None:
    mistakes = said_given_true(COUNTS)
    truth = np.random.default_rng(1).dirichlet(np.ones(5), (3, 4))
    np.testing.assert_allclose(corrected_shares(truth @ mistakes, mistakes), truth, atol=1e-9)


def test_nan_stays_nan() -> None:
    said = np.array([[0.2] * 5, [np.nan] * 5])
    got = corrected_shares(said, said_given_true(COUNTS))
    assert np.isfinite(got[0]).all()
    assert np.isnan(got[1]).all()


def test_interval_holds_the_truth() -> None:
    """Simulated: true shares vary by example, maps are confused by true probabilities that the counts only estimate."""
    mistakes = COUNTS / COUNTS.sum(1, keepdims=True)
    truth = np.array([0.4, 0.1, 0.2, 0.1, 0.2])
    rng = np.random.default_rng(2)
    held, raw_held = [], []
    for _ in range(40):
        counts = np.stack([rng.multinomial(int(row.sum()), p) for row, p in zip(COUNTS, mistakes, strict=True)])
        examples = np.stack([rng.multinomial(144, p) for p in rng.dirichlet(60 * truth, 60) @ mistakes]) / 144
        found = corrected_with_interval(examples, ErrorModel(counts[None]), repeats=100)
        held.append((found.low <= truth) & (truth <= found.high))
        raw = examples.mean(0)
        raw_held.append(np.abs(raw - truth) < 0.02)
    assert np.mean(held) > 0.88
    assert np.mean(raw_held) < 0.7  # without the correction, the truth is mostly missed


def test_too_little_to_say() -> None:
    errors = ErrorModel(COUNTS[None])
    assert np.isnan(corrected_with_interval(np.full((3, 5), np.nan), errors).shares).all()
    found = corrected_with_interval(np.full((1, 5), 0.2), errors)
    assert found.shares.sum() == pytest.approx(1)
    assert np.isnan(found.low).all()


def test_many_labelled_maps_correct_what_is_far_off() -> None:
    mistakes = COUNTS / COUNTS.sum(1, keepdims=True)
    truth = np.array([0.8, 0.1, 0.05, 0.02, 0.03])
    rng = np.random.default_rng(3)
    for _ in range(5):
        counts = np.stack([rng.multinomial(2000, p) for p in mistakes])
        examples = np.stack([rng.multinomial(144, p) for p in rng.dirichlet(60 * truth, 60) @ mistakes]) / 144
        found = corrected_with_interval(examples, ErrorModel(counts[None]), repeats=100)
        assert found.helps
        assert ((found.shares - truth) ** 2).sum() < ((examples.mean(0) - truth) ** 2).sum() / 4


def test_few_labelled_maps_correct_nothing() -> None:
    """Ten labelled maps and hardly any confusion: what the table says of mistakes is chance."""
    rng = np.random.default_rng(0)
    few = np.diag([2, 2, 2, 2, 1])
    few[4, 0] = 1
    examples = rng.multinomial(144, [0.4, 0.1, 0.2, 0.1, 0.2], size=40) / 144
    assert not corrected_with_interval(examples, ErrorModel(few[None])).helps


def test_heads_that_are_always_mistaken_alike_leave_more_doubt() -> None:
    """The same counts from ten heads that are right or wrong as a whole, and from maps that err one by one."""
    by_head = np.zeros((20, 5, 5))
    for head in range(20):
        true = head % 5
        by_head[head, true, (true + (head >= 15)) % 5] = 10
    rng = np.random.default_rng(0)
    spread = [
        model.redrawn(500, rng)[:, 0, 0].std()
        for model in (ErrorModel(by_head), ErrorModel(by_head.sum(0)[None]), ErrorModel(by_head.sum(0)[None], 10.0))
    ]
    assert spread[0] > 2.5 * spread[1]
    assert spread[2] == pytest.approx(np.sqrt(10) * spread[1], rel=0.2)


def test_the_error_model_fits_the_model_at_hand() -> None:
    assert seen_in_training("wiki-bert", 12, 12)
    assert seen_in_training("/models/stories15M", 6, 6)
    assert not seen_in_training("wiki-bert", 6, 6)
    assert not seen_in_training("bert-base-uncased", 12, 12)
    assert "wiki-bert" in shipped_errors(True, False).origin
    assert "never in training" in shipped_errors(False, False).origin
    right = [np.trace(shipped_errors(seen, True).counts) for seen in (True, False)]
    assert right[0] > right[1]  # of the same 337 maps
