"""Greedy selection by Schur complements, compared with fitting every candidate set from scratch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from headwise.core.errors import ParameterError
from headwise.probes import ArrayFeatures, GreedyOptions, greedy_heads
from headwise.probes.ridge import solve_penalised
from headwise.text.tasks import Split


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def greedy_by_refitting(
    values: np.ndarray,
    labels: np.ndarray,
    train: np.ndarray,
    validation: np.ndarray,
    steps: int,
    penalty: float,
) -> tuple[list[int], list[float]]:
    """The same selection, with scikit-learn fitting each candidate set anew."""
    targets = np.eye(labels.max() + 1)[labels]
    chosen: list[int] = []
    scores = []
    for _ in range(steps):
        best_unit = -1
        best_score = -1.0
        for unit in range(len(values)):
            if unit in chosen:
                continue
            joined = np.concatenate([values[u] for u in [*chosen, unit]], -1).astype(np.float64)
            joined = (joined - joined[train].mean(0)) / joined[train].std(0)
            ridge = Ridge(alpha=penalty * len(train)).fit(joined[train], targets[train])
            predicted = ridge.predict(joined[validation]).argmax(1)
            score = np.mean(predicted == labels[validation])
            if score > best_score:
                best_unit = unit
                best_score = score
        chosen.append(best_unit)
        scores.append(best_score)
    return chosen, scores


def test_greedy_equals_refitting_every_set() -> None:
    random = np.random.default_rng(1)
    labels = random.integers(0, 3, 400)
    strength = random.normal(size=(7, 3, 4))
    values = random.normal(size=(7, 400, 4)) + strength[:, labels] * random.uniform(
        0.1, 0.6, (7, 1, 1)
    )
    # Nearly a copy: good alone, useless beside the original.
    values[3] = values[2] + 0.05 * random.normal(size=values[2].shape)
    values = values.astype(np.float32)
    train = np.arange(250)
    validation = np.arange(250, 400)
    truth = torch.from_numpy(labels[validation])
    chosen, scores = greedy_heads(
        ArrayFeatures(values),
        Split(train, validation, []),
        np.eye(3)[labels][train],
        lambda predicted: (predicted.argmax(-1) == truth).double().mean(-1),
        GreedyOptions(6, penalty=0.01),
    )
    expected_chosen, expected_scores = greedy_by_refitting(
        values, labels, train, validation, steps=6, penalty=0.01
    )
    assert chosen == expected_chosen
    np.testing.assert_allclose(scores, expected_scores, atol=1e-9)


def test_greedy_passes_over_a_copy() -> None:
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, 600)
    strong = random.normal(size=(600, 3)) + 0.9 * labels[:, None]
    weak = random.normal(size=(600, 3)) - 0.7 * labels[:, None]
    values = np.stack([strong, strong, weak]).astype(np.float32)
    truth = torch.from_numpy(labels[400:])
    chosen, _ = greedy_heads(
        ArrayFeatures(values),
        Split(np.arange(400), np.arange(400, 600), []),
        np.eye(2)[labels[:400]],
        lambda predicted: (predicted.argmax(-1) == truth).double().mean(-1),
        GreedyOptions(2),
    )
    assert chosen == [0, 2]


def test_candidates_and_limits() -> None:
    values = np.random.default_rng(0).normal(size=(4, 50, 2)).astype(np.float32)
    targets = np.random.default_rng(1).normal(size=(30, 1))
    arguments = (
        ArrayFeatures(values),
        Split(np.arange(30), np.arange(30, 50), []),
        targets,
        lambda predicted: predicted.mean((1, 2)),
    )
    assert set(greedy_heads(*arguments, GreedyOptions(2, candidates=[3, 1]))[0]) == {1, 3}
    with pytest.raises(ParameterError, match="`steps` must be from 1 to 4"):
        greedy_heads(*arguments, GreedyOptions(5))


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_wide_heads_and_few_examples_with_several_threads(threads: int) -> None:
    """The batched LU of oneMKL fails here with more than one thread."""
    random = np.random.default_rng(2)
    labels = random.integers(0, 2, 40)
    strength = random.normal(size=(5, 2, 256)) * 0.3
    values = (random.normal(size=(5, 40, 256)) + strength[:, labels]).astype(np.float32)
    train = np.arange(28)
    validation = np.arange(28, 40)
    truth = torch.from_numpy(labels[validation])
    with torch_threads(threads):
        chosen, scores = greedy_heads(
            ArrayFeatures(values),
            Split(train, validation, []),
            np.eye(2)[labels][train],
            lambda predicted: (predicted.argmax(-1) == truth).double().mean(-1),
            GreedyOptions(3, penalty=0.01),
        )
    expected = greedy_by_refitting(values, labels, train, validation, steps=3, penalty=0.01)
    assert (chosen, scores) == (expected[0], pytest.approx(expected[1], abs=1e-9))


def test_solve_penalised_equals_lu() -> None:
    random = torch.Generator().manual_seed(0)
    features = torch.randn(3, 20, 16, generator=random, dtype=torch.float64)
    gram = features.mT @ features / 20 + 1e-2 * torch.eye(16)
    right_hand_side = torch.randn(3, 16, 2, generator=random, dtype=torch.float64)
    expected = torch.linalg.solve(gram, right_hand_side)
    solution = solve_penalised(gram, right_hand_side, penalty=1e-2)
    torch.testing.assert_close(solution, expected, rtol=1e-9, atol=1e-9)


def test_solve_penalised_raises_eigenvalues_below_the_penalty() -> None:
    """Rounding made one of two matrices indefinite: only that one is solved by eigenvalues."""
    definite = torch.diag(torch.tensor([2.0, 4.0], dtype=torch.float64))
    indefinite = torch.diag(torch.tensor([2.0, -1e-12], dtype=torch.float64))
    ones = torch.ones(2, 2, 1, dtype=torch.float64)
    solution = solve_penalised(torch.stack([definite, indefinite]), ones, penalty=0.5)
    torch.testing.assert_close(solution[..., 0].tolist(), [[0.5, 0.25], [0.5, 2.0]])
    alone = solve_penalised(indefinite, ones[0], penalty=0.5)
    torch.testing.assert_close(alone[:, 0].tolist(), [0.5, 2.0])
