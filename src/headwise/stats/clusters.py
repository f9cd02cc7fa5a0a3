"""Families from distances: Ward's trees, cut where the groups stand apart best. Pure functions on
arrays."""

from __future__ import annotations

import numpy as np
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform

MOST_GROUPS = 12  # that `best_cut` tries


def linkage(distance: np.ndarray) -> np.ndarray:
    """The tree of merges by Ward's rule (least growth of the spread within groups.

    The distances must be Euclidean ones).

    `[merge, 4]`: the two parts (items, then earlier merges), their distance, the number of items.
    """
    distance = np.asarray(distance, dtype=float)
    if len(distance) < 2:
        return np.zeros((0, 4))
    return np.asarray(hierarchy.linkage(squareform(distance, checks=False), method="ward"))


def leaf_order(tree: np.ndarray, items: int) -> np.ndarray:
    """The items in the order of the tree's leaves, the tighter branch first."""
    return (
        hierarchy.dendrogram(tree, no_plot=True, count_sort=False, distance_sort="ascending")[
            "leaves"
        ]
        if len(tree)
        else np.arange(items)
    )


def cut(tree: np.ndarray, items: int, count: int) -> np.ndarray:
    """A label 0.. for each item, for at most `count` groups; labels are numbered by the first item
    that has them."""
    if items < 2:
        return np.zeros(items, dtype=np.int64)
    raw = hierarchy.fcluster(tree, count, criterion="maxclust")
    _, first, inverse = np.unique(raw, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse].astype(np.int64)


def silhouette(distance: np.ndarray, labels: np.ndarray) -> float:
    """The mean of `(b − a) / max(a, b)` over items: a, mean distance to its own group, b, to the
    nearest other one.

    0 for an item alone in its group, NaN for a single group.
    """
    if len(np.unique(labels)) < 2:
        return float("nan")
    from sklearn.metrics import silhouette_score

    return float(silhouette_score(distance, labels, metric="precomputed"))


def best_cut(distance: np.ndarray, tree: np.ndarray) -> np.ndarray:
    """The labels of the cut into 2 to `MOST_GROUPS` groups with the largest silhouette (the fewest groups
    among equals)."""
    items = len(distance)
    best_labels = np.zeros(items, dtype=np.int64)
    best_score = -np.inf
    for count in range(2, min(MOST_GROUPS, items - 1) + 1):
        labels = cut(tree, items, count)
        if len(np.unique(labels)) < 2:
            continue
        score = silhouette(distance, labels)
        if score > best_score:
            best_score = score
            best_labels = labels
    return best_labels
