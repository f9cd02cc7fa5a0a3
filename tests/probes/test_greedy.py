"""Greedy selection by Schur complements against fitting every candidate set from scratch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from headwise.core.errors import ParameterError
from headwise.probes import ArrayFeatures, GreedyOptions, greedy_heads
from headwise.text.tasks import Split


def slow(
    values: np.ndarray,
    targets: np.ndarray,
    train: np.ndarray,
    held: np.ndarray,
    labels: np.ndarray,
    steps: int,
    penalty: float,
):
    chosen: list[int] = []
    scores = []
    for _ in range(steps):
        best, best_score = -1, -1.0
        for unit in range(len(values)):
            if unit in chosen:
                continue
            x = np.concatenate([values[u] for u in [*chosen, unit]], -1).astype(np.float64)
            x = (x - x[train].mean(0)) / x[train].std(0)
            said = Ridge(alpha=penalty * len(train)).fit(x[train], targets[train]).predict(x[held])
            score = np.mean(said.argmax(1) == labels[held])
            if score > best_score:
                best, best_score = unit, score
        chosen.append(best)
        scores.append(best_score)
    return chosen, scores


def test_greedy_equals_refitting_every_set() -> None:
    random = np.random.default_rng(1)
    labels = random.integers(0, 3, 400)
    values = random.normal(size=(7, 400, 4)) + random.normal(size=(7, 3, 4))[
        :, labels
    ] * random.uniform(0.1, 0.6, (7, 1, 1))
    values[3] = values[2] + 0.05 * random.normal(
        size=values[2].shape
    )  # nearly a copy: good alone, useless beside its twin
    values = values.astype(np.float32)
    train, held = np.arange(250), np.arange(250, 400)
    targets = np.eye(3)[labels]
    right = torch.from_numpy(labels[held])
    found = greedy_heads(
        ArrayFeatures(values),
        Split(train, held, []),
        targets[train],
        lambda p: (p.argmax(-1) == right).double().mean(-1),
        GreedyOptions(6, penalty=0.01),
    )
    expected = slow(values, targets, train, held, labels, 6, 0.01)
    assert found[0] == expected[0]
    np.testing.assert_allclose(found[1], expected[1], atol=1e-9)


def test_greedy_passes_over_a_copy() -> None:
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, 600)
    strong = random.normal(size=(600, 3)) + 0.9 * labels[:, None]
    weak = random.normal(size=(600, 3)) - 0.7 * labels[:, None]
    values = np.stack([strong, strong, weak]).astype(np.float32)
    right = torch.from_numpy(labels[400:])
    chosen, _ = greedy_heads(
        ArrayFeatures(values),
        Split(np.arange(400), np.arange(400, 600), []),
        np.eye(2)[labels[:400]],
        lambda p: (p.argmax(-1) == right).double().mean(-1),
        GreedyOptions(2),
    )
    assert chosen == [0, 2]


def test_candidates_and_limits() -> None:
    values = np.random.default_rng(0).normal(size=(4, 50, 2)).astype(np.float32)
    target = np.random.default_rng(1).normal(size=(30, 1))
    arguments = (
        ArrayFeatures(values),
        Split(np.arange(30), np.arange(30, 50), []),
        target,
        lambda p: p.mean((1, 2)),
    )
    assert set(greedy_heads(*arguments, GreedyOptions(2, candidates=[3, 1]))[0]) == {1, 3}
    with pytest.raises(ParameterError, match="Between 1 and 4 heads"):
        greedy_heads(*arguments, GreedyOptions(5))
