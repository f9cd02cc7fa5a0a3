"""The structural probe: distances in a tree, spanning trees, and a map that is planted in one
layer."""

from __future__ import annotations

import numpy as np
import pytest

from headwise.probes.structural import (
    StructuralSettings,
    StructuralTraining,
    spanning_edges,
    tree_distances,
    undirected_hits,
)
from headwise.probes.tree import DependencyTrees


def random_tree(size: int, generator: np.random.Generator) -> np.ndarray:
    order = generator.permutation(size)
    heads = np.full(size, size)
    for place in range(1, size):
        heads[order[place]] = order[generator.integers(place)]
    return heads


def slow_distances(heads: np.ndarray) -> np.ndarray:
    """Distances by walking up from both words to their common ancestor."""
    size = len(heads)

    def path_to_root(word: int) -> list[int]:
        path = [word]
        while heads[path[-1]] < size:
            path.append(int(heads[path[-1]]))
        return path

    paths = [path_to_root(word) for word in range(size)]
    distances = np.zeros((size, size))
    for i, first in enumerate(paths):
        for j, second in enumerate(paths):
            common = [word for word in first if word in second]
            distances[i, j] = min(first.index(word) + second.index(word) for word in common)
    return distances


def test_distances_and_spanning_trees_against_slow_ones() -> None:
    generator = np.random.default_rng(0)
    for size in (1, 2, 5, 9):
        heads = random_tree(size, generator)
        distances = tree_distances(heads)
        assert np.array_equal(distances, slow_distances(heads))
        edges = {(min(i, int(h)), max(i, int(h))) for i, h in enumerate(heads) if h < size}
        assert spanning_edges(distances) == edges  # the tree itself is the shortest
    drawn = generator.random((6, 6)) + np.arange(6)
    drawn = drawn + drawn.T
    joined, found = list(range(6)), set()
    pairs = zip(*np.triu_indices(6, 1), strict=True)
    for a, b in sorted(
        ((int(i), int(j)) for i, j in pairs), key=lambda edge: drawn[edge]
    ):  # Kruskal
        if joined[a] != joined[b]:
            found.add((a, b))
            joined = [joined[a] if own == joined[b] else own for own in joined]
    assert spanning_edges(drawn) == found


def test_punctuation_is_no_word_of_the_spanning_tree() -> None:
    heads, scored = np.array([1, 4, 1, 1]), np.array([True, True, True, False])
    assert undirected_hits(tree_distances(heads), heads, scored) == (2, 2)
    wrong = np.array([[0, 9, 1, 0], [9, 0, 5, 0], [1, 5, 0, 0], [0, 0, 0, 0]], dtype=float)
    assert undirected_hits(wrong, heads, scored) == (1, 2)  # 0-2 and 1-2
    assert undirected_hits(wrong, np.array([4, 4, 4, 4]), scored) == (0, 0)


@pytest.fixture(scope="module")
def planted() -> tuple[DependencyTrees, list[np.ndarray]]:
    """DependencyTrees, and states of which the second layer holds a vector for each word whose squared
    distances are those of the tree, turned and hidden among noise; the first layer is noise
    alone."""
    generator = np.random.default_rng(1)
    size, noise = 8, 8
    turn = np.linalg.qr(generator.normal(size=(size + noise, size + noise)))[0]
    heads, states = [], []
    for _ in range(140):
        own = random_tree(int(generator.integers(4, size + 1)), generator)
        vectors = np.zeros((len(own), size + noise))
        for word in range(len(own)):
            walk = word
            while own[walk] < len(own):  # the edge above a word has the word's number
                vectors[word, walk] += 1
                walk = int(own[walk])
        vectors[:, size:] = generator.normal(size=(len(own), noise)) * 2
        states.append(
            np.stack([generator.normal(size=vectors.shape), vectors @ turn]).astype(np.float16)
        )
        heads.append(own)
    scored = [np.ones(len(own), dtype=bool) for own in heads]
    return DependencyTrees(
        [np.zeros((len(own), 1), dtype=np.float32) for own in heads], heads, scored
    ), states


def test_a_planted_map_is_found_in_its_layer(
    planted: tuple[DependencyTrees, list[np.ndarray]],
) -> None:
    trees, states = planted
    fit = StructuralTraining(
        trees, states.__getitem__, StructuralSettings(learning_rate=0.02, epochs=15)
    )
    probe = fit.fit(np.arange(90), np.arange(90, 110))
    found, total = fit.score(probe, np.arange(110, 140))
    share = found.sum(0) / total.sum()
    assert share[1] > 0.95
    assert share[0] < 0.6
    short = StructuralTraining(trees, states.__getitem__, StructuralSettings(epochs=1))
    one, other = (
        short.fit(np.arange(20), np.arange(20, 30)).weight.detach().numpy() for _ in range(2)
    )
    assert np.array_equal(one, other)
