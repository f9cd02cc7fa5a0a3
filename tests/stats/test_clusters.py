"""Families: planted groups come back, numbering and order are fixed, silhouettes are their
definition."""

from __future__ import annotations

import numpy as np
import pytest

from headwise.stats.clusters import best_cut, cut, leaf_order, linkage, silhouette


@pytest.fixture
def grouped() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    groups = np.array([0, 1, 0, 2, 1, 2, 2, 0, 1, 1])
    points = np.array([[0, 0], [5, 0], [0, 7]])[groups] + 0.3 * generator.normal(size=(10, 2))
    return np.linalg.norm(points[:, None] - points[None], axis=-1), groups


def test_planted_groups_come_back_numbered_by_their_first_item(
    grouped: tuple[np.ndarray, np.ndarray],
) -> None:
    distance, groups = grouped
    tree = linkage(distance)
    np.testing.assert_array_equal(best_cut(distance, tree), groups)
    np.testing.assert_array_equal(cut(tree, 10, 3), groups)
    assert len(np.unique(cut(tree, 10, 5))) == 5


def test_silhouette_is_its_definition(grouped: tuple[np.ndarray, np.ndarray]) -> None:
    distance, groups = grouped
    groups = groups.copy()
    groups[3] = 3  # alone: counts as zero
    scores = []
    for i in range(10):
        own = [distance[i, j] for j in range(10) if j != i and groups[j] == groups[i]]
        others = [
            np.mean([distance[i, j] for j in range(10) if groups[j] == g])
            for g in set(groups) - {groups[i]}
        ]
        a, b = (np.mean(own), min(others)) if own else (0, 0)
        scores.append((b - a) / max(a, b) if own else 0.0)
    assert silhouette(distance, groups) == pytest.approx(np.mean(scores))


def test_leaves_keep_groups_together(grouped: tuple[np.ndarray, np.ndarray]) -> None:
    distance, groups = grouped
    order = leaf_order(linkage(distance), 10)
    assert sorted(order) == list(range(10))
    assert (np.diff(groups[order]) != 0).sum() == 2


def test_few_items() -> None:
    assert linkage(np.zeros((1, 1))).shape == (0, 4)
    assert cut(linkage(np.zeros((1, 1))), 1, 4).tolist() == [0]
    assert best_cut(np.zeros((2, 2)), linkage(np.zeros((2, 2)))).tolist() == [0, 0]
    assert np.isnan(silhouette(np.zeros((3, 3)), np.zeros(3)))
    assert list(leaf_order(np.zeros((0, 4)), 1)) == [0]
