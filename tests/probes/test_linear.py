"""Batched probes compared with scikit-learn and with one torch classifier at a time; bad input."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import pearsonr, spearmanr
from sklearn.linear_model import LogisticRegression, Ridge

from headwise.core.errors import InputError, ParameterError
from headwise.probes import (
    ArrayFeatures,
    JoinedFeatures,
    PairFeatures,
    ProbeSettings,
    fit_probes,
    fit_regressions,
)
from headwise.probes.linear import best_penalty
from headwise.probes.settings import make_folds
from headwise.text.tasks import Split

PENALTIES = (1e-5, 1e-3, 1e-1)


def random_features(
    units: int, examples: int = 1200, size: int = 12, classes: int = 2, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, Split]:
    """Correlated, badly scaled features of units that predict the label more or less well."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, classes, examples)
    values = random.normal(size=(units, examples, size))
    strength = random.uniform(0, 0.7, (units, 1, 1))
    values += (random.normal(size=(units, classes, size)) * strength)[:, labels]
    values = values @ random.normal(size=(units, size, size)) * 10 ** random.uniform(
        -2, 2, (units, 1, size)
    ) + random.normal(size=(units, 1, size))
    cut = np.split(random.permutation(examples), [examples // 2, examples * 2 // 3])
    return values.astype(np.float32), labels, Split(*cut)


def standardised(values: np.ndarray, split: Split) -> np.ndarray:
    train = values[split.train].astype(np.float64)
    return (values - train.mean(0)) / train.std(0)


@pytest.mark.parametrize(("classes", "penalty"), [(2, 1e-4), (2, 1e-1), (4, 1e-3)])
def test_lbfgs_is_scikit_learns_logistic_regression(classes: int, penalty: float) -> None:
    values, labels, split = random_features(20, classes=classes, seed=classes)
    found = fit_probes(values, labels, split, ProbeSettings(solver="lbfgs", penalties=(penalty,)))
    for unit in range(20):
        x = standardised(values[unit], split)
        reference = LogisticRegression(
            C=1 / (len(split.train) * penalty), max_iter=2_000, tol=1e-5
        ).fit(x[split.train], labels[split.train])
        assert abs(found.test[unit] - reference.score(x[split.test], labels[split.test])) <= 0.005
        agree = np.mean(found.predicted[unit] == reference.predict(x[split.test]))
        assert agree >= 0.985


def test_lbfgs_reaches_the_optimum_of_small_penalties() -> None:
    """More features than tell the classes apart, hardly any penalty: gradients are small long
    before the optimum."""
    random = np.random.default_rng(1)
    hidden = random.normal(size=(1600, 40))
    values = hidden @ random.normal(size=(40, 384)) + 0.3 * random.normal(
        size=(1600, 384)
    ) * np.exp(random.normal(size=384))
    labels = (hidden @ random.normal(size=(40, 6)) + 2 * random.gumbel(size=(1600, 6))).argmax(1)
    split = Split(np.arange(600), np.arange(600, 700), np.arange(700, 1600))
    found = fit_probes(
        values[None].astype(np.float32),
        labels,
        split,
        ProbeSettings(solver="lbfgs", penalties=(1e-5,)),
    )
    x = standardised(values, split)
    reference = LogisticRegression(C=1 / (600 * 1e-5), max_iter=3_000, tol=1e-8).fit(
        x[:600], labels[:600]
    )
    assert (
        np.mean(found.predicted[0] == reference.predict(x[700:])) >= 0.98
    )  # 0.90 where it stops at a small gradient


def test_lbfgs_weights_are_the_optimum() -> None:
    from headwise.probes.lbfgs import fit_lbfgs

    values, labels, split = random_features(3, examples=600, size=6, classes=4, seed=7)
    x = np.stack([standardised(v, split)[split.train] for v in values])
    features = torch.from_numpy(np.concatenate([x, np.ones((*x.shape[:2], 1))], -1))
    weights, converged = fit_lbfgs(
        features,
        torch.from_numpy(labels[split.train]),
        4,
        ProbeSettings(solver="lbfgs", penalties=PENALTIES, tolerance=1e-8),
    )
    assert converged.all()
    for unit in range(3):
        for p, penalty in enumerate(PENALTIES):
            reference = LogisticRegression(
                C=1 / (len(split.train) * penalty), max_iter=5_000, tol=1e-8
            ).fit(x[unit], labels[split.train])
            np.testing.assert_allclose(weights[unit, p, :, :-1], reference.coef_, atol=2e-3)
            centred = weights[unit, p, :, -1] - weights[unit, p, :, -1].mean()
            np.testing.assert_allclose(
                centred, reference.intercept_ - reference.intercept_.mean(), atol=2e-3
            )


def train_one_classifier(
    x: torch.Tensor,
    y: torch.Tensor,
    vx: torch.Tensor,
    vy: torch.Tensor,
    classes: int,
    penalty: float,
    settings: ProbeSettings,
):
    """SentEval's loop for one classifier, with torch's own modules."""
    order = np.random.RandomState(settings.seed)
    torch.manual_seed(settings.seed)
    model = torch.nn.Linear(x.shape[1], classes)
    kind = torch.optim.RMSprop if settings.optimizer == "rmsprop" else torch.optim.Adam
    optimizer = kind(model.parameters(), lr=settings.learning_rate, weight_decay=penalty)
    best, kept, waited = -1.0, None, 0
    for _ in range(settings.max_epochs // settings.epoch_size):
        for _ in range(settings.epoch_size):
            permutation = order.permutation(len(x))
            for start in range(0, len(x), settings.batch_size):
                rows = permutation[start : start + settings.batch_size]
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
                optimizer.step()
        accuracy = (model(vx).argmax(1) == vy).float().mean().item()
        if accuracy > best:
            best, kept = accuracy, copy.deepcopy(model)
            waited = 0 if settings.tenacity_counts == "consecutive" else waited
        else:
            waited += 1
            if waited > settings.tenacity - (settings.tenacity_counts == "consecutive"):
                break
    return best, kept


@pytest.mark.parametrize(
    ("classes", "changes"),
    [
        (2, {}),
        (3, {"optimizer": "adam", "learning_rate": 0.01, "epoch_size": 2}),
        (3, {"tenacity_counts": "consecutive", "max_epochs": 12, "seed": 5}),
    ],
)
def test_each_classifier_equals_one_trained_alone(classes: int, changes: dict) -> None:
    values, labels, split = random_features(6, examples=600, classes=classes, seed=3)
    settings = replace(
        ProbeSettings(penalties=(1e-4, 1e-1), batch_size=64, max_epochs=40), **changes
    )
    found = fit_probes(values, labels, split, settings)
    y = torch.from_numpy(labels)
    for unit in range(6):
        x = torch.from_numpy(standardised(values[unit], split)).float()
        fits = [
            train_one_classifier(
                x[split.train],
                y[split.train],
                x[split.validation],
                y[split.validation],
                classes,
                p,
                settings,
            )
            for p in settings.penalties
        ]
        np.testing.assert_allclose(found.validation_all[unit], [fit[0] for fit in fits], atol=1e-6)
        picked = fits[1] if fits[1][0] >= fits[0][0] else fits[0]
        predicted = picked[1](x[split.test]).argmax(1).numpy()
        assert np.mean(predicted == found.predicted[unit]) >= 0.995


@pytest.mark.parametrize("solver", ["senteval", "lbfgs", "ridge"])
def test_blocks_of_heads_change_nothing(solver: str) -> None:
    values, labels, split = random_features(7, examples=400, classes=3)
    whole = fit_probes(values, labels, split, ProbeSettings(solver=solver, max_epochs=10))
    pieces = fit_probes(
        values, labels, split, ProbeSettings(solver=solver, max_epochs=10, memory=200_000)
    )
    np.testing.assert_array_equal(whole.validation_all, pieces.validation_all)
    np.testing.assert_array_equal(whole.predicted, pieces.predicted)


@pytest.mark.parametrize("solver", ["senteval", "lbfgs", "ridge"])
def test_the_same_seed_gives_the_same_and_heads_permute(solver: str) -> None:
    values, labels, split = random_features(5, examples=400)
    settings = ProbeSettings(solver=solver, max_epochs=10)
    first, again, turned = (
        fit_probes(v, labels, split, settings) for v in (values, values, values[::-1])
    )
    np.testing.assert_array_equal(first.predicted, again.predicted)
    np.testing.assert_array_equal(first.predicted[::-1], turned.predicted)


def test_half_precision_features_in_a_file(tmp_path) -> None:
    values, labels, split = random_features(4, examples=500)
    values = values / np.abs(values).max((1, 2), keepdims=True)
    path = tmp_path / "features.npy"
    np.save(path, values.reshape(2, 2, *values.shape[1:]).astype(np.float16))
    found = fit_probes(np.load(path, mmap_mode="r"), labels, split, ProbeSettings(solver="lbfgs"))
    whole = fit_probes(values, labels, split, ProbeSettings(solver="lbfgs"))
    assert np.abs(found.test - whole.test).max() < 0.05


def test_regression_is_ridge() -> None:
    random = np.random.default_rng(0)
    values, _, split = random_features(4, examples=500, seed=2)
    target = np.stack([standardised(v, split) for v in values]).mean(0) @ random.normal(
        size=values.shape[-1]
    ) + random.normal(size=500)
    found = fit_regressions(values, target.tolist(), split, ProbeSettings(penalties=(1e-2,)))
    for unit in range(4):
        x = standardised(values[unit], split)
        said = (
            Ridge(alpha=1e-2 * len(split.train))
            .fit(x[split.train], target[split.train])
            .predict(x[split.test])
        )
        np.testing.assert_allclose(found.predicted[unit], said, rtol=1e-3, atol=1e-3)
        assert found.test[unit] == pytest.approx(pearsonr(said, target[split.test])[0], abs=1e-4)
        assert found.spearman[unit] == pytest.approx(
            spearmanr(said, target[split.test])[0], abs=1e-3
        )


def test_ridge_on_one_hot_labels_is_least_squares() -> None:
    values, labels, split = random_features(3, classes=4, seed=4)
    found = fit_probes(values, labels, split, ProbeSettings(solver="ridge", penalties=(1e-3,)))
    for unit in range(3):
        x = standardised(values[unit], split)
        said = (
            Ridge(alpha=1e-3 * len(split.train))
            .fit(x[split.train], np.eye(4)[labels[split.train]])
            .predict(x[split.test])
            .argmax(1)
        )
        assert np.mean(said == found.predicted[unit]) >= 0.998


@pytest.mark.parametrize("solver", ["lbfgs", "senteval", "ridge"])
def test_cross_validation_pools_training_and_validation(solver: str) -> None:
    values, labels, split = random_features(3, examples=500, seed=9)
    settings = ProbeSettings(solver=solver, folds=5, penalties=(1e-4, 1e-1), max_epochs=20)
    found = fit_probes(values, labels, split, settings)
    single = replace(settings, folds=None)
    parts = make_folds(split.pool, 5, settings.seed)
    by_hand = np.mean(
        [
            fit_probes(values, labels, Split(train, held, split.test), single).validation_all
            for train, held in parts
        ],
        0,
    )
    np.testing.assert_allclose(found.validation_all, by_hand, atol=1e-7)
    if solver != "senteval":  # the tested classifier is the whole pool's
        whole = [
            fit_probes(
                values,
                labels,
                Split(split.pool, split.validation, split.test),
                replace(single, penalties=(p,)),
            ).predicted
            for p in settings.penalties
        ]
        picked = best_penalty(torch.from_numpy(by_hand)).numpy()
        np.testing.assert_array_equal(
            found.predicted, np.stack([whole[k][unit] for unit, k in enumerate(picked)])
        )


def test_folds_are_disjoint_and_cover_the_pool() -> None:
    pool = np.array([3, 5, 8, 13, 21, 34, 55])
    parts = make_folds(pool, 3, seed=1)
    assert sorted(np.concatenate([held for _, held in parts])) == pool.tolist()
    for train, held in parts:
        assert not set(train) & set(held)
        assert sorted([*train, *held]) == pool.tolist()


def test_validation_never_sees_test_labels() -> None:
    values, labels, split = random_features(3, examples=300)
    spoiled = labels.copy()
    spoiled[split.test] = 1 - spoiled[split.test]
    for solver in ("senteval", "lbfgs"):
        settings = ProbeSettings(solver=solver, max_epochs=10)
        a, b = (
            fit_probes(values, labels, split, settings),
            fit_probes(values, spoiled, split, settings),
        )
        np.testing.assert_array_equal(a.validation_all, b.validation_all)
        np.testing.assert_array_equal(a.predicted, b.predicted)


def test_constant_and_copied_features_do_no_harm() -> None:
    values, labels, split = random_features(2, examples=400)
    more = np.concatenate(
        [values, values[..., :3], np.full((*values.shape[:2], 2), 7.3, np.float32)], -1
    )
    found = fit_probes(more, labels, split, ProbeSettings(solver="lbfgs"))
    assert (
        np.abs(
            found.test - fit_probes(values, labels, split, ProbeSettings(solver="lbfgs")).test
        ).max()
        < 0.03
    )
    assert np.isfinite(found.validation_all).all()


@pytest.mark.parametrize("solver", ["lbfgs", "ridge"])
def test_nearly_dependent_features_are_fitted(solver: str) -> None:
    values, labels, split = random_features(3, examples=400)
    twins = values + 1e-4 * np.random.default_rng(0).normal(size=values.shape) * np.abs(
        values
    ).mean((1, 2), keepdims=True)
    more = np.concatenate(
        [values, twins.astype(np.float32), values @ np.ones((values.shape[-1], 4), np.float32)], -1
    )
    found = fit_probes(more, labels, split, ProbeSettings(solver=solver))
    assert np.isfinite(found.validation_all).all()
    assert (
        found.test >= fit_probes(values, labels, split, ProbeSettings(solver=solver)).test - 0.06
    ).all()


def test_features_of_pairs_and_joined_heads() -> None:
    random = np.random.default_rng(0)
    u, v = random.normal(size=(2, 3, 10, 4)).astype(np.float32)
    rows = np.array([7, 2])
    pair = PairFeatures(ArrayFeatures(u), ArrayFeatures(v)).block(1, 3, rows)
    np.testing.assert_array_equal(
        pair[1, 0], np.concatenate([u[2, 7], v[2, 7], np.abs(u[2, 7] - v[2, 7]), u[2, 7] * v[2, 7]])
    )
    joined = JoinedFeatures(ArrayFeatures(u.reshape(3, 1, 10, 4)), [2, 0]).block(0, 1, rows)
    np.testing.assert_array_equal(joined[0, 1], np.concatenate([u[2, 2], u[0, 2]]))
    with pytest.raises(ParameterError, match="from 0 to 2"):
        JoinedFeatures(ArrayFeatures(u), [0, 3])


def test_errors_name_the_cause() -> None:
    values, labels, split = random_features(2, examples=120)
    settings = ProbeSettings(solver="lbfgs")
    with pytest.raises(InputError, match=r"all 60 training examples have the label '1'"):
        fit_probes(
            values, np.where(np.isin(np.arange(120), split.train), 1, labels), split, settings, "T"
        )
    missing = labels.astype(object).copy()
    missing[split.test[:3]] = None
    with pytest.raises(InputError, match=r"T: 3 of 40 examples of the test part have no label"):
        fit_probes(values, missing, split, settings, "T")
    with pytest.raises(InputError, match="validation part has no examples"):
        fit_probes(values, labels, Split(split.train, [], split.test), settings)
    other = labels.astype(str).astype(object)
    other[split.validation] = "new"
    with pytest.raises(InputError, match="no label of the validation part occurs"):
        fit_probes(values, other, split, settings)
    spoiled = values.copy()
    spoiled[1, split.train[0], 0] = np.nan
    with pytest.raises(InputError, match=r"unit 1 are NaN or infinite in 1 of 60"):
        fit_probes(spoiled, labels, split, settings)
    with pytest.raises(InputError, match="80 examples cannot be cut into 90 folds"):
        fit_probes(values, labels, split, replace(settings, folds=90))
    with pytest.raises(ParameterError, match=r"vectors of 120 examples and labels of 119"):
        fit_probes(values, labels[:-1], split, settings)
    with pytest.raises(InputError, match="is not a number"):
        fit_regressions(values, ["x"] * 120, split)
    with pytest.raises(InputError, match="a correlation needs labels that differ"):
        fit_regressions(values, [1.0] * 120, split)
    for bad in (
        {"solver": "svm"},
        {"penalties": ()},
        {"folds": 1},
        {"batch_size": 0},
        {"learning_rate": 0.0},
    ):
        with pytest.raises(ParameterError, match="must be"):
            ProbeSettings(**bad)


def test_a_test_label_never_trained_counts_as_wrong() -> None:
    values, labels, split = random_features(2, examples=300)
    names = labels.astype(object)
    names[split.test[:10]] = "rare"
    found = fit_probes(values, names, split, ProbeSettings(solver="lbfgs"))
    assert not (found.predicted == found.truth)[:, :10].any()
