"""Shares corrected for confusion: against a general solver, the truth is recovered, with an
interval that holds it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from headwise.analyses.patterns.correct import (
    ErrorModel,
    carries_over,
    corrected_shares,
    corrected_with_interval,
    said_given_true,
    seen_in_training,
    shipped_errors,
)

COUNTS = np.array(
    [[80, 2, 10, 2, 6], [3, 70, 20, 1, 6], [10, 15, 70, 2, 3], [3, 4, 2, 40, 1], [20, 3, 4, 3, 50]]
)


def one_by_one(counts: np.ndarray) -> ErrorModel:
    """An error model whose maps err one by one: each is of a head of its own."""
    places = np.repeat(np.arange(25), counts.ravel())
    return ErrorModel(np.eye(25, dtype=int)[places].reshape(-1, 5, 5))


def general_solution(said: np.ndarray, mistakes: np.ndarray) -> np.ndarray:
    corrected = minimize(
        lambda p: 1e3 * ((p @ mistakes - said) ** 2).sum(),
        np.full(5, 0.2),
        jac=lambda p: 2e3 * mistakes @ (p @ mistakes - said),
        bounds=[(0, 1)] * 5,
        constraints={"type": "eq", "fun": lambda p: p.sum() - 1, "jac": lambda p: np.ones(5)},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    return corrected.x


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
    """Simulated: true shares vary by example, maps are confused by true probabilities that the
    counts only estimate."""
    mistakes = COUNTS / COUNTS.sum(1, keepdims=True)
    truth = np.array([0.4, 0.1, 0.2, 0.1, 0.2])
    rng = np.random.default_rng(2)
    held, raw_held = [], []
    for _ in range(40):
        counts = np.stack(
            [rng.multinomial(int(row.sum()), p) for row, p in zip(COUNTS, mistakes, strict=True)]
        )
        examples = (
            np.stack([rng.multinomial(144, p) for p in rng.dirichlet(60 * truth, 60) @ mistakes])
            / 144
        )
        corrected = corrected_with_interval(examples, one_by_one(counts), repeats=100)
        held.append((corrected.low <= truth) & (truth <= corrected.high))
        raw = examples.mean(0)
        raw_held.append(np.abs(raw - truth) < 0.02)
    assert np.mean(held) > 0.88
    assert np.mean(raw_held) < 0.7  # without the correction, the truth is mostly missed


def test_too_little_to_say() -> None:
    errors = one_by_one(COUNTS)
    assert np.isnan(corrected_with_interval(np.full((3, 5), np.nan), errors).shares).all()
    corrected = corrected_with_interval(np.full((1, 5), 0.2), errors)
    assert corrected.shares.sum() == pytest.approx(1)
    assert np.isnan(corrected.low).all()


def test_many_labelled_maps_correct_what_is_far_off() -> None:
    mistakes = COUNTS / COUNTS.sum(1, keepdims=True)
    truth = np.array([0.8, 0.1, 0.05, 0.02, 0.03])
    rng = np.random.default_rng(3)
    for _ in range(5):
        counts = np.stack([rng.multinomial(500, p) for p in mistakes])
        examples = (
            np.stack([rng.multinomial(144, p) for p in rng.dirichlet(60 * truth, 60) @ mistakes])
            / 144
        )
        corrected = corrected_with_interval(examples, one_by_one(counts), repeats=100)
        assert corrected.helps
        assert ((corrected.shares - truth) ** 2).sum() < ((examples.mean(0) - truth) ** 2).sum() / 4


def test_few_labelled_maps_correct_nothing() -> None:
    """Ten labelled maps and hardly any confusion: what the table says of mistakes is chance."""
    rng = np.random.default_rng(0)
    few = np.diag([2, 2, 2, 2, 1])
    few[4, 0] = 1
    examples = rng.multinomial(144, [0.4, 0.1, 0.2, 0.1, 0.2], size=40) / 144
    assert not corrected_with_interval(examples, one_by_one(few)).helps


def test_heads_that_are_always_mistaken_alike_leave_more_doubt() -> None:
    """The same counts from twenty heads that are right or wrong as a whole, and from maps that err
    one by one."""
    by_head = np.zeros((20, 5, 5), int)
    for head in range(20):
        true = head % 5
        by_head[head, true, (true + (head >= 15)) % 5] = 10
    rng = np.random.default_rng(0)
    apart = one_by_one(by_head.sum(0))
    spread = [model.redrawn(500, rng)[:, 0, 0].std() for model in (ErrorModel(by_head), apart)]
    assert spread[0] > 2.5 * spread[1]


def test_mistakes_that_do_not_carry_over_correct_nothing() -> None:
    """Two models whose mistakes run opposite ways: within each they carry over, from one to the
    other they do not."""
    rng = np.random.default_rng(4)
    one, other = np.eye(5), np.eye(5)
    one[0], other[1] = [0.4, 0.6, 0, 0, 0], [0.6, 0.4, 0, 0, 0]
    tables = {
        name: np.stack([np.stack([rng.multinomial(4, row) for row in mistakes]) for _ in range(60)])
        for name, mistakes in (("one", one), ("other", other))
    }
    both = np.concatenate(list(tables.values()))
    models = np.repeat(list(tables), 60)
    for own in tables.values():
        assert carries_over(ErrorModel(own))
        assert not carries_over(
            ErrorModel(own, unit=np.full(60, "one model"))
        )  # nothing to carry over to
    assert not carries_over(ErrorModel(both, unit=models))
    alike = np.concatenate([tables["one"][:30], tables["one"][30:]])
    assert carries_over(ErrorModel(alike, unit=np.repeat(["a", "b"], 30)))
    # and what does not carry over is not corrected, however many maps there are and however far off
    # the counts
    examples = (
        np.stack([rng.multinomial(144, p) for p in rng.dirichlet(np.full(5, 20.0), 60) @ one]) / 144
    )
    assert corrected_with_interval(examples, ErrorModel(tables["one"])).helps
    assert not corrected_with_interval(examples, ErrorModel(both, unit=models)).helps


def test_halves_keep_units_together() -> None:
    tables = np.zeros((6, 5, 5), int)
    tables[np.arange(6), 0, 0] = 10 ** np.arange(6)
    first, rest = ErrorModel(tables, unit=np.array(list("aabbcc"))).halves(
        50, np.random.default_rng(0)
    )
    assert set(first[:, 0, 0]) == {11, 1_100, 110_000}
    assert (first + rest == tables.sum(0)).all()


def test_the_error_model_fits_the_model_at_hand() -> None:
    assert seen_in_training("wiki-bert", 12, 12)
    assert seen_in_training("/models/stories15M", 6, 6)
    assert not seen_in_training("wiki-bert", 6, 6)
    assert not seen_in_training("bert-base-uncased", 12, 12)
    assert "wiki-bert" in shipped_errors(True, False).origin
    assert "never in training" in shipped_errors(False, False).origin
    heads, models = shipped_errors(True, True), shipped_errors(False, True)
    np.testing.assert_array_equal(
        heads.tables.sum(-1), models.tables.sum(-1)
    )  # the same labels of the same maps,
    assert (heads.tables != models.tables).any()  # judged by other networks


@pytest.mark.parametrize(
    ("seen", "causal"), [(True, False), (True, True), (False, False), (False, True)]
)
def test_the_shipped_mistakes_are_known_by_head(seen: bool, causal: bool) -> None:
    """As many tables as labelled heads, whose sum is the confusion that is reported; of models
    never seen, by model."""
    corrected = shipped_errors(seen, causal)
    assert len(corrected.tables) == {(True, False): 144, (False, False): 72}.get(
        (seen, causal), 180
    )
    models = set() if corrected.unit is None else set(corrected.unit)
    unseen = {"SmolLM2-135M", "stories15M"} if causal else {"all-MiniLM-L6-v2"}
    assert models == (set() if seen else unseen)
    assert f"{corrected.counts.sum()} maps" in corrected.origin
    assert not carries_over(
        corrected
    )  # measured: counts of the other half are nearer its labels than corrected shares
