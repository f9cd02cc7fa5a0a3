"""Multidimensional scaling: true configurations come back, stress falls, signs and order hold
still."""

from __future__ import annotations

import numpy as np
import pytest

from headwise.stats.scaling import classical_mds, fix_signs, smacof_mds, stress


def distances(points: np.ndarray) -> np.ndarray:
    return np.linalg.norm(points[:, None] - points[None], axis=-1)


@pytest.fixture
def plane() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(15, 2)) * [3.0, 1.0]


@pytest.mark.parametrize("scale", [classical_mds, smacof_mds])
def test_points_of_a_plane_come_back(plane: np.ndarray, scale: object) -> None:
    found = scale(distances(plane))  # type: ignore[operator]
    points = found[0] if isinstance(found, tuple) else found
    np.testing.assert_allclose(distances(points), distances(plane), atol=1e-8)
    np.testing.assert_allclose(points.mean(0), 0, atol=1e-9)
    assert points[:, 0].var() > points[:, 1].var()
    assert (points[np.abs(points).argmax(0), [0, 1]] > 0).all()


def test_share_of_the_axes(plane: np.ndarray) -> None:
    share = classical_mds(distances(plane), axes=3)[1]
    spread = np.linalg.svd(plane - plane.mean(0), compute_uv=False) ** 2
    np.testing.assert_allclose(share, [*(spread / spread.sum()), 0], atol=1e-9)


def test_smacof_has_less_stress_than_classical_on_distances_of_no_plane() -> None:
    distance = distances(np.random.default_rng(1).normal(size=(20, 6)))
    assert stress(distance, smacof_mds(distance)) < stress(distance, classical_mds(distance)[0])
    # No small push makes it better: it is a minimum.
    points = smacof_mds(distance, tolerance=1e-12)
    raw = ((distances(points) - distance) ** 2).sum()
    generator = np.random.default_rng(2)
    for _ in range(20):
        pushed = points + 1e-3 * generator.normal(size=points.shape)
        assert ((distances(pushed) - distance) ** 2).sum() >= raw - 1e-9


@pytest.mark.parametrize("scale", [classical_mds, smacof_mds])
def test_another_order_of_items_gives_the_same_map(scale: object) -> None:
    distance = distances(np.random.default_rng(1).normal(size=(12, 4)))
    order = np.random.default_rng(2).permutation(12)
    first, second = scale(distance), scale(distance[np.ix_(order, order)])  # type: ignore[operator]
    first, second = (found[0] if isinstance(found, tuple) else found for found in (first, second))
    np.testing.assert_allclose(second, first[order], atol=1e-5)


def test_edges() -> None:
    assert classical_mds(np.zeros((1, 1)))[0].tolist() == [[0.0, 0.0]]
    assert (smacof_mds(np.zeros((3, 3))) == 0).all()
    assert classical_mds(np.zeros((0, 0)))[0].shape == (0, 2)
    np.testing.assert_array_equal(
        fix_signs(np.array([[1.0, -1.0], [-2.0, 1.0]])), [[-1.0, 1.0], [2.0, -1.0]]
    )
