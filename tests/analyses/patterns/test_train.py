"""Training: folds keep heads together, augmented maps are maps of the same kind, a small network learns planted maps, scores equal scikit-learn's."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score

from headwise.analyses.patterns import PATTERNS, Label, save_maps
from headwise.analyses.patterns.store import append_label
from headwise.analyses.patterns.train import (
    Labelled,
    Settings,
    augmented,
    fit,
    head_folds,
    load_labelled,
    predict,
    score,
)
from headwise.core.errors import InputError


def planted_set(count: int, seed: int = 0) -> Labelled:
    """Stripes and diagonals over noise, of several lengths, half of them causal."""
    rng = np.random.default_rng(seed)
    weights = torch.zeros(count, 40, 40)
    lengths, labels, causal = [], [], []
    for k in range(count):
        n = int(rng.integers(12, 41))
        a = 0.15 * rng.dirichlet(np.ones(n), n)
        if k % 2:
            a[:, rng.integers(0, n // 2)] += 0.85
        else:
            a[np.arange(1, n), np.arange(n - 1)] += 0.85
            a[0, 0] += 0.85
        look_back = bool(k % 4 > 1)
        a = np.tril(a) if look_back else a
        weights[k, :n, :n] = torch.tensor(a / np.maximum(a.sum(-1, keepdims=True), 1e-9))
        lengths.append(n)
        labels.append(0 if k % 2 else 1)
        causal.append(look_back)
    names = np.array([f"map {k}" for k in range(count)])
    heads = np.array([f"head {k // 3}" for k in range(count)])
    return Labelled(
        weights,
        torch.tensor(lengths),
        torch.tensor(causal),
        torch.tensor(labels),
        np.full(count, "m"),
        heads,
        np.full(count, "design"),
        names,
    )


def test_augmented_maps_are_maps() -> None:
    data = planted_set(40)
    generator = torch.Generator().manual_seed(0)
    weights, lengths = augmented(data.weights, data.lengths, data.causal, generator)
    assert (lengths <= data.lengths).all()
    assert (lengths < data.lengths).any()
    for k, n in enumerate(lengths.tolist()):
        torch.testing.assert_close(weights[k, :n, :n].sum(-1), torch.ones(n), atol=1e-4, rtol=0)
        assert weights[k, n:].abs().max() == 0 if n < 40 else True
        assert weights[k, :, n:].abs().max() == 0 if n < 40 else True
        if data.causal[k]:
            assert weights[k].triu(1).abs().max() == 0
        elif data.labels[k] == 0:  # the stripe is still there
            assert weights[k, :n, :n].mean(0).max() > 0.4


def test_folds_keep_heads_together() -> None:
    data = planted_set(60)
    fold = head_folds(data)
    assert set(fold) == set(range(5))
    for head in set(data.head):
        assert len(set(fold[data.head == head])) == 1


def test_a_small_network_learns_and_is_the_same_by_seed() -> None:
    settings = Settings(widths=(8,) * 8, epochs=15, batch=8, dropout=0.0, smoothing=0.0, augment=False)
    data, fresh = planted_set(32), planted_set(24, seed=1)
    short = replace(settings, epochs=1, batch=16, mixup=0.2, augment=True)
    np.testing.assert_array_equal(predict([fit(data, short, 5)], fresh), predict([fit(data, short, 5)], fresh))
    networks = [fit(data, settings, 0)]
    said = [predict([network], fresh) for network in networks]
    assert (said[0].argmax(-1) == fresh.labels.numpy()).mean() > 0.9
    assert networks[0].convolutions[0].weight[:, 3:].abs().max() == 0  # channels it was not shown do not count


def test_scores_equal_others() -> None:
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 5, 200)
    said = np.where(rng.random(200) < 0.7, truth, rng.integers(0, 5, 200))
    heads = np.repeat([f"h{k}" for k in range(50)], 4)
    got = score(truth, said, heads)
    for k, name in enumerate(PATTERNS):
        assert got[name][0] == pytest.approx(f1_score(truth == k, said == k), abs=6e-4)
        assert got[name][1] <= got[name][0] <= got[name][2]
    assert got["macro F1"][0] == pytest.approx(f1_score(truth, said, average="macro"), abs=6e-4)
    assert got["accuracy"][0] == pytest.approx(accuracy_score(truth, said), abs=6e-4)
    # A class that does not occur says nothing about the classifier, and is not in the macro mean.
    few = truth < 4
    assert score(truth[few], np.minimum(said[few], 3), heads[few])["macro F1"][0] == pytest.approx(
        f1_score(truth[few], np.minimum(said[few], 3), average="macro"), abs=6e-4
    )


def test_reading_labelled_maps(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    save_maps(tmp_path / "maps.npz", {"a": rng.dirichlet(np.ones(8), 8), "b": rng.dirichlet(np.ones(5), 5)})
    append_label(tmp_path / "labels.csv", Label("b", "block", "x"))
    append_label(tmp_path / "labels.csv", Label("a", "diagonal", "x", 2))
    append_label(tmp_path / "labels.csv", Label("b", "vertical", "y"))
    with (tmp_path / "maps.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "model", "causal", "layer", "head", "drawn"])
        writer.writerow(["b", "m", "0", "1", "2", "design"])
    got = load_labelled(tmp_path)
    assert (got.names.tolist(), got.lengths.tolist(), got.labels.tolist(), got.head.tolist()) == (
        ["b"],
        [5],
        [3],
        ["m L1H2"],
    )
    torch.testing.assert_close(got.weights[0].sum(-1), torch.ones(5))
    # A second labeller's opinion is there to be compared with; it must neither replace the first nor make a map count twice.
    assert load_labelled(tmp_path, labeller="y").labels.tolist() == [0]
    with pytest.raises(InputError, match="no labels of 'z' in pass 1"):
        load_labelled(tmp_path, labeller="z")
    with pytest.raises(InputError, match="says nothing of the labelled map 'a'"):
        load_labelled(tmp_path, round=2)
