"""Points in few dimensions with nearly the given distances: classical scaling and SMACOF, signs and
order fixed."""

from __future__ import annotations

import numpy as np
from scipy.spatial.distance import cdist


def classical_mds(distance: np.ndarray, axes: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Torgerson's scaling: eigenvectors of `B = −½ J D² J` (J centres), scaled by the root of their
    eigenvalues.

    Parameters
    ----------
    distance : ndarray
        Symmetric `[item, item]`.
    axes : int, default 2
        How many dimensions; those without a positive eigenvalue are zero.

    Returns
    -------
    points : ndarray
        `[item, axis]`, largest eigenvalue first, signs as in `fix_signs`.
    share : ndarray
        `[axis]`: the share of each axis in the sum of the absolute eigenvalues.
    """
    squared = np.asarray(distance, dtype=float) ** 2
    n = len(squared)
    if n == 0:
        return np.zeros((0, axes)), np.full(axes, np.nan)
    centred = squared - squared.mean(0) - squared.mean(1)[:, None] + squared.mean()
    eigenvalues, vectors = np.linalg.eigh(-0.5 * (centred + centred.T) / 2)
    order = np.argsort(-eigenvalues, kind="stable")[:axes]
    points = np.zeros((n, axes))
    share = np.zeros(axes)
    values = np.maximum(eigenvalues[order], 0.0)
    points[:, : len(order)] = vectors[:, order] * np.sqrt(values)
    total = np.abs(eigenvalues).sum()
    share[: len(order)] = values / total if total > 0 else 0.0
    return fix_signs(points), share


def smacof_mds(
    distance: np.ndarray, axes: int = 2, steps: int = 1000, tolerance: float = 1e-9
) -> np.ndarray:
    """Metric scaling by stress majorisation (de Leeuw): Guttman transforms until the stress no
    longer falls.

    It starts from the classical solution, not at random, and has a rule of its own when to stop
    (scikit-learn's changes from release to release), so the answer is one and the same; it is
    turned to its principal axes and signed as in `fix_signs`."""
    distance = np.asarray(distance, dtype=float)
    points = classical_mds(distance, axes)[0]
    n = len(points)
    if n < 2:
        return points
    last = np.inf
    for _ in range(steps):
        apart = cdist(points, points)
        loss = float(((apart - distance) ** 2).sum() / 2)
        if last - loss <= tolerance * max(loss, 1e-300):
            break
        last = loss
        ratio = np.divide(distance, apart, out=np.zeros_like(apart), where=apart > 1e-12)
        np.fill_diagonal(ratio, 0.0)
        points = (np.diag(ratio.sum(1)) - ratio) @ points / n
    return fix_signs(principal_axes(points))


def stress(distance: np.ndarray, points: np.ndarray) -> float:
    """Kruskal's stress-1: `sqrt(Σ (d_ij − δ_ij)² / Σ d_ij²)` over pairs, d between the points.

    NaN where they coincide.
    """
    apart = cdist(points, points)
    total = (apart**2).sum()
    return float(np.sqrt(((apart - distance) ** 2).sum() / total)) if total > 0 else float("nan")


def principal_axes(points: np.ndarray) -> np.ndarray:
    """The same points centred and turned so that the first axis has the largest spread, then the
    second."""
    centred = points - points.mean(0)
    return np.asarray(centred @ np.linalg.svd(centred, full_matrices=False)[2].T)


def fix_signs(points: np.ndarray) -> np.ndarray:
    """Mirror each axis so that its point farthest from zero (the first, up to rounding) lies on the
    positive side."""
    if not len(points):
        return points
    size = np.abs(points)
    farthest = (size >= size.max(0) * (1 - 1e-6)).argmax(0)
    signs = np.where(points[farthest, np.arange(points.shape[1])] < 0, -1.0, 1.0)
    return points * signs
