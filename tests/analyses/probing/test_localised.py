"""How localised a task is: exact on planted gains, an interval that holds the truth, nothing where
nobody knows."""

from __future__ import annotations

import numpy as np
import pytest

from headwise.analyses.probing.result import task_localisation

HEADS = (2, 3)
TRUTH = np.random.RandomState(0).randint(2, size=2000)


def answers(skill: list[float], seed: int = 1) -> dict[str, np.ndarray]:
    """Six heads, each right with a probability of one half plus its skill."""
    random = np.random.RandomState(seed)
    right = random.rand(6, len(TRUTH)) < 0.5 + np.array(skill)[:, None]
    return {"truth": TRUTH, "heads/predicted": np.where(right, TRUTH, 1 - TRUTH)}


def expected(gains: np.ndarray) -> float:
    shares = gains / gains.sum()
    entropy = -sum(p * np.log(p) for p in shares.tolist() if p > 0)
    return 1 - (np.exp(entropy) - 1) / (len(gains) - 1)


def test_the_index_is_that_of_the_gains() -> None:
    fit = answers([0.4, 0.1, 0.0, 0.2, 0.05, 0.3])
    gains = np.clip((fit["heads/predicted"] == TRUTH).mean(1) - 0.5, 0, None)
    found = task_localisation(fit, HEADS, 0.5, regression=False)
    assert found["localisation"][0] == pytest.approx(expected(gains))
    assert found["layer_localisation"][0] == pytest.approx(expected(gains.reshape(HEADS).sum(1)))
    assert found["effective_heads"][0] == pytest.approx(6 - 5 * found["localisation"][0])


def test_one_head_all_heads_and_correlations() -> None:
    one = task_localisation(
        answers([0.45, -0.1, -0.1, -0.1, -0.1, -0.1]), HEADS, 0.5, regression=False
    )
    assert one["localisation"].tolist() == [1, 1, 1]
    even = task_localisation(answers([0.3] * 6), HEADS, 0.5, regression=False)
    assert even["localisation"][1] == 0, "noise alone must not make a task localised"
    assert even["localisation"][0] < 0.01
    random = np.random.RandomState(2)
    truth = random.randn(500)
    predicted = np.stack([truth + noise * random.randn(500) for noise in (0.1, 3, 3, 9, 9, 9)])
    r = np.array([np.corrcoef(truth, p)[0, 1] for p in predicted])
    found = task_localisation(
        {"truth": truth, "heads/predicted": predicted}, HEADS, 0.0, regression=True
    )
    assert found["localisation"][0] == pytest.approx(expected(np.clip(r, 0, None)))


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    skill = [0.3, 0.2, 0.1, 0.1, 0.05, 0.02]
    truth = expected(np.array(skill))
    hits = [
        low <= truth <= high
        for seed in range(40)
        for _, low, high in [
            task_localisation(answers(skill, seed), HEADS, 0.5, regression=False)["localisation"]
        ]
    ]
    assert np.mean(hits) > 0.8
