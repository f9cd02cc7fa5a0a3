"""The parsing probes: each score equal to its formula in plain loops, maps, training, and word
vectors."""

from __future__ import annotations

import bz2
import gzip
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from headwise.core.errors import InputError
from headwise.probes.tree import (
    AttentionProbe,
    AttentionWordsProbe,
    DependencyTrees,
    DistanceWordsProbe,
    TreeProbe,
    WordMaps,
    flatten_maps,
    make_tree_batch,
    right_branching,
)
from headwise.probes.tree_fit import (
    PRIOR_VARIANCE,
    TreeBatches,
    TreeFitSettings,
    batch_by_length,
    fit_tree_probe,
    mean_head_weights,
    score_tree_probe,
)
from headwise.probes.vectors import read_vectors

SIZES = (5, 3, 7, 1)
HEADS, VECTOR = 4, 6


def random_sentences(
    tmp_path: Path, sizes: tuple[int, ...] = SIZES, seed: int = 0
) -> tuple[DependencyTrees, WordMaps, list[np.ndarray]]:
    """Random trees and maps; the maps in a file and as arrays `[head, from, to]`."""
    rng = np.random.default_rng(seed)
    maps = [rng.dirichlet(np.ones(n), size=(HEADS, n)).astype(np.float16) for n in sizes]
    trees = DependencyTrees(
        [rng.normal(size=(n, VECTOR)).astype(np.float32) for n in sizes],
        [
            np.array([rng.choice([h for h in range(n + 1) if h != w]) for w in range(n)])
            for n in sizes
        ],
        [np.array([w % 4 != 3 for w in range(n)]) for n in sizes],
    )
    length = WordMaps.length(sizes, HEADS)
    kept = WordMaps(sizes, HEADS, np.memmap(tmp_path / "maps", np.float16, "w+", shape=(length,)))
    for sentence, own in enumerate(maps):
        kept.flat(sentence)[:] = flatten_maps(own)
    return trees, kept, maps


def with_random_weights(probe: TreeProbe, seed: int = 1) -> TreeProbe:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in probe.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return probe


def plain_scores(probe: TreeProbe, maps: np.ndarray, v: np.ndarray) -> np.ndarray:
    """`[dependent, candidate or root]` of one sentence by the formulas, pair by pair, in float64.

    NaN for a word as its own head.
    """
    n = len(v)
    p = {name: value.detach().double().numpy() for name, value in probe.named_parameters()}
    out = np.full((n, n + 1), np.nan)
    for j in range(n):
        for i in range(n):
            if i == j:
                continue
            if isinstance(probe, AttentionProbe):
                out[j, i] = sum(
                    p["weight"][k, 0] * maps[k, i, j] + p["weight"][k, 1] * maps[k, j, i]
                    for k in range(len(maps))
                )
            elif isinstance(probe, AttentionWordsProbe):
                both = np.concatenate([v[i], v[j]])
                total = 0.0
                for k in range(len(maps)):
                    w = np.concatenate([p["candidate"][:, k, 0], p["dependent"][:, k, 0]]) @ both
                    u = np.concatenate([p["candidate"][:, k, 1], p["dependent"][:, k, 1]]) @ both
                    total += w * maps[k, i, j] + u * maps[k, j, i]
                out[j, i] = total
            else:
                features = [
                    max(i - j, 0) / n,
                    max(j - i, 0) / n,
                    *(float(i - j == d) for d in (-2, -1, 0, 1, 2)),
                ]
                hidden = (
                    v[i] @ p["candidate"]
                    + v[j] @ p["dependent"]
                    + np.array(features) @ p["distance"]
                    + p["bias"]
                )
                out[j, i] = np.maximum(hidden, 0) @ p["out"]
        if isinstance(probe, AttentionProbe):
            out[j, n] = p["root"]
        elif isinstance(probe, AttentionWordsProbe):
            out[j, n] = p["root"] + p["root_vector"] @ v[j]
        else:
            hidden = (
                p["root_vector"] @ p["candidate"]
                + v[j] @ p["dependent"]
                + p["root_feature"][0]
                + p["bias"]
            )
            out[j, n] = np.maximum(hidden, 0) @ p["out"]
    return out


PROBES = {
    "attention": lambda: AttentionProbe(HEADS),
    "attention_words": lambda: AttentionWordsProbe(HEADS, VECTOR),
    "distance_words": lambda: DistanceWordsProbe(VECTOR, 8, torch.Generator().manual_seed(0)),
}


@pytest.mark.parametrize("name", PROBES)
def test_scores_are_the_formulas_and_uas_counts_their_argmax(name: str, tmp_path: Path) -> None:
    trees, word_maps, maps = random_sentences(tmp_path)
    probe = with_random_weights(PROBES[name]())
    part = make_tree_batch(trees, [0, 1, 2, 3], word_maps, "cpu")
    scores = probe(part).detach().numpy()
    width = max(SIZES)
    correct, total = score_tree_probe(probe, TreeBatches(trees, word_maps, np.arange(4), 60))
    for s, n in enumerate(SIZES):
        expected = plain_scores(probe, maps[s].astype(float), trees.vectors[s].astype(float))
        found = np.concatenate([scores[s, :n, :n], scores[s, :n, width:]], axis=1)
        other = ~np.isnan(expected)
        np.testing.assert_allclose(found[other], expected[other], atol=2e-4)
        assert (found[~other] < -1e8).all()
        assert (scores[s, :n, n:width] < -1e8).all()  # padding is no candidate
        best = np.nanargmax(expected, axis=1)
        assert correct[s] == ((best == trees.heads[s]) & trees.scored[s]).sum()
        assert total[s] == trees.scored[s].sum()


def test_weights_of_heads_are_means_over_true_pairs(tmp_path: Path) -> None:
    trees, _, _ = random_sentences(tmp_path)
    batches = TreeBatches(trees, None, np.arange(4))
    constant = with_random_weights(AttentionProbe(HEADS))
    np.testing.assert_allclose(
        mean_head_weights(constant, batches), constant.weight.detach(), atol=1e-6
    )
    probe = with_random_weights(AttentionWordsProbe(HEADS, VECTOR))
    values = []
    for s in range(4):
        for j, (i, scored) in enumerate(zip(trees.heads[s], trees.scored[s], strict=True)):
            if scored and i < len(trees.heads[s]):
                v = torch.from_numpy(trees.vectors[s])
                values.append(
                    torch.einsum("d,dhw->hw", v[i], probe.candidate)
                    + torch.einsum("d,dhw->hw", v[j], probe.dependent)
                )
    np.testing.assert_allclose(
        mean_head_weights(probe, batches), torch.stack(values).mean(0).detach(), atol=1e-5
    )


def test_maps_come_back_as_written(tmp_path: Path) -> None:
    _, word_maps, maps = random_sentences(tmp_path)
    read = word_maps.read([2, 0], 7).numpy()
    np.testing.assert_array_equal(read[0], np.moveaxis(maps[2], 0, -1).astype(np.float32))
    np.testing.assert_array_equal(read[1, :5, :5], np.moveaxis(maps[0], 0, -1).astype(np.float32))
    assert not read[1, 5:].any()
    assert (
        word_maps.values.size == WordMaps.length(SIZES, HEADS) == HEADS * sum(n * n for n in SIZES)
    )


def test_batches_hold_every_sentence_once(tmp_path: Path) -> None:
    sizes = list(np.random.default_rng(0).integers(1, 30, 100))
    groups = list(batch_by_length(sizes, np.arange(100), 2000))
    assert sorted(s for group in groups for s in group) == list(range(100))
    assert all(len(g) * max(sizes[s] for s in g) ** 2 <= 2000 for g in groups)
    trees, word_maps, _ = random_sentences(tmp_path)
    batches = TreeBatches(trees, word_maps, np.array([2, 0, 3]), 30)
    first, again = (list(batches.batches(True, np.random.default_rng(seed))) for seed in (0, 1))
    assert sorted(s for part in first for s in part.sentences) == [0, 2, 3]
    maps = {part.sentences[0]: part.maps for part in first}
    for part in again:  # the second time from what was kept
        assert torch.equal(part.maps, maps[part.sentences[0]])  # type: ignore[arg-type]
        assert torch.equal(part.maps, make_tree_batch(trees, part.sentences, word_maps, "cpu").maps)  # type: ignore[arg-type]


def test_right_branching_by_hand() -> None:
    trees = DependencyTrees(
        [np.zeros((4, 1))], [np.array([1, 2, 4, 2])], [np.array([True, False, True, True])]
    )
    correct, total = right_branching(trees, np.array([0]))
    assert correct.tolist() == [
        1
    ]  # the second word is punctuation; the root and the last word are missed
    assert total.tolist() == [3]
    last = DependencyTrees(
        [np.zeros((2, 1))], [np.array([1, 2])], [np.array([True, True])]
    )  # a root that is the last word: the word after it is no root
    assert right_branching(last, np.array([0]))[0].tolist() == [1]


def sentences_with_a_parsing_head(tmp_path: Path) -> dict[str, TreeBatches]:
    """Sentences whose head 2 attends to the true head (the root's word to itself), in parts."""
    rng = np.random.default_rng(0)
    sizes = tuple(int(n) for n in rng.integers(3, 12, 60))
    trees, _, maps = random_sentences(tmp_path, sizes)
    heads = [np.array([n if w == 0 else rng.integers(0, w) for w in range(n)]) for n in sizes]
    for vectors in trees.vectors:
        vectors[:, 0] = 1  # so that a weight can be the same for all words
    trees = DependencyTrees(trees.vectors, heads, [np.ones(n, bool) for n in sizes])
    word_maps = WordMaps(sizes, HEADS)
    for s, n in enumerate(sizes):
        own = maps[s].copy()
        own[2] = 0
        own[2, np.arange(n), np.where(heads[s] == n, np.arange(n), heads[s])] = 1
        word_maps.flat(s)[:] = flatten_maps(own)
    cuts = {"train": (0, 40), "validation": (40, 50), "test": (50, 60)}
    return {name: TreeBatches(trees, word_maps, np.arange(*cut), 600) for name, cut in cuts.items()}


def test_training_finds_the_head_that_parses(tmp_path: Path) -> None:
    parts = sentences_with_a_parsing_head(tmp_path)
    for probe in (AttentionProbe(HEADS), AttentionWordsProbe(HEADS, VECTOR)):
        fit = fit_tree_probe(probe, parts["train"], parts["validation"], TreeFitSettings(0.02))
        correct, total = score_tree_probe(probe, parts["test"])
        assert correct.sum() / total.sum() > 0.9, type(probe).__name__
        assert fit.converged
    constant = AttentionProbe(HEADS)
    assert (
        fit_tree_probe(
            constant, parts["train"], parts["validation"], TreeFitSettings(0.1)
        ).validation
        == 1.0
    )
    assert int(constant.weight.detach()[:, 1].argmax()) == 2


def test_the_convex_probe_reaches_its_optimum(tmp_path: Path) -> None:
    """Compared with scipy in float64, on random maps: nothing is separable."""
    trees, word_maps, maps = random_sentences(tmp_path, tuple(range(3, 15)), seed=3)
    batches = TreeBatches(trees, word_maps, np.arange(12), 300)
    probe = AttentionProbe(HEADS)
    fit = fit_tree_probe(probe, batches, batches, TreeFitSettings(0.1))
    assert fit.converged
    assert np.isnan(fit.learning_rate)

    def loss(values: np.ndarray) -> float:
        total, count = 0.0, 0
        for s, own in enumerate(m.astype(float) for m in maps):
            weight = values[:-1].reshape(HEADS, 2)
            scores = np.einsum("kij,k->ji", own, weight[:, 0]) + np.einsum(
                "kji,k->ji", own, weight[:, 1]
            )
            np.fill_diagonal(scores, -np.inf)
            scores = np.concatenate([scores, np.full((len(scores), 1), values[-1])], 1)
            for j in np.flatnonzero(trees.scored[s]):
                total += np.log(np.exp(scores[j]).sum()) - scores[j, trees.heads[s][j]]
                count += 1
        return (total + (values**2).sum() / (2 * PRIOR_VARIANCE)) / count

    found = np.append(probe.weight.detach().numpy().ravel(), float(probe.root.detach()))
    best = minimize(loss, found, method="BFGS", options={"gtol": 1e-7})
    assert loss(found) - best.fun < 2e-5
    assert loss(np.zeros(2 * HEADS + 1)) - best.fun > 0.01


def test_rates_are_searched_beyond_the_first_ones_and_the_best_state_is_kept(
    tmp_path: Path,
) -> None:
    parts = sentences_with_a_parsing_head(tmp_path)
    probe = AttentionWordsProbe(HEADS, VECTOR)
    looks: list[float] = []
    fit = fit_tree_probe(
        probe,
        parts["train"],
        parts["validation"],
        TreeFitSettings(1e-5, 12),
        lambda _, uas: looks.append(uas),
    )
    assert fit.learning_rate >= 1e-5 * 9  # the first three rates are far too small
    correct, total = score_tree_probe(probe, parts["validation"])
    assert correct.sum() / total.sum() == pytest.approx(fit.validation) == max(looks)
    given = fit_tree_probe(
        AttentionWordsProbe(HEADS, VECTOR),
        parts["train"],
        parts["validation"],
        TreeFitSettings(1e-5, 3, search=False),
    )
    assert given.learning_rate == 1e-5
    assert given.validation < fit.validation


def test_vectors_from_every_kind_of_file(tmp_path: Path) -> None:
    lines = "the 1 2 3\nCat 4 5 6\ncat 7 8 9\n. 0.5 0.5 0.5\n"
    (tmp_path / "a.txt").write_text(lines)
    (tmp_path / "b.txt").write_text("4 3\n" + lines)
    with gzip.open(tmp_path / "c.txt.gz", "wt") as file:
        file.write(lines)
    np.savez(
        tmp_path / "d.npz",
        words=np.array(["the", "Cat", "cat", "."]),
        vectors=np.array([[1, 2, 3], [4, 5, 6], [7, 8, 9], [0.5] * 3], dtype=np.float16),
    )
    (tmp_path / "e.txt.bz2").write_bytes(bz2.compress(lines.encode()))
    for name in ("a.txt", "b.txt", "c.txt.gz", "d.npz", "e.txt.bz2"):
        found = read_vectors(tmp_path / name, {"The", "CAT", "dog"})
        assert {word: vector.tolist() for word, vector in found.items()} == {
            "the": [1, 2, 3],
            "cat": [7, 8, 9],
        }, name


def test_bad_vector_files_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("the 1 2 3\ncat 1 2\n")
    (tmp_path / "words.txt").write_text("the 1 2 3\ncat 1 two 3\n")
    (tmp_path / "other.txt").write_text("der 1 2 3\n")
    np.savez(tmp_path / "bad.npz", words=np.array(["a"]), values=np.zeros((1, 3)))
    (tmp_path / "cut.npz").write_bytes((tmp_path / "bad.npz").read_bytes()[:-40])
    (tmp_path / "cut.txt.gz").write_bytes(gzip.compress(b"the 1 2 3\n" * 1000)[:-12])
    (tmp_path / "latin.txt").write_bytes("the 1 2 3\ncaf\u00e9 1 2 3\n".encode("latin-1"))
    np.savez(tmp_path / "uneven.npz", words=np.array(["a"]), vectors=np.zeros((2, 3)))
    for name, why in (
        ("short.txt", "line 2: a word with 2 numbers"),
        ("words.txt", "line 2: 'cat' is not followed by numbers"),
        ("other.txt", "no vector for any word"),
        ("bad.npz", "need the arrays"),
        ("uneven.npz", "one row for each"),
        ("cut.npz", "need the arrays"),
        ("cut.txt.gz", "it may be cut off"),
        ("latin.txt", "not UTF-8"),
        ("none.txt", "no file of word vectors"),
    ):
        with pytest.raises(InputError, match=why):
            read_vectors(tmp_path / name, {"the", "cat", "a"})
