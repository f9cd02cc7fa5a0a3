"""Probes for all heads and all penalties at once: fitted together, the penalty selected on
validation, scored on test."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headwise.core.errors import ParameterError
from headwise.probes.features import ArrayFeatures, ProbeFeatures, Scaler, load_features, with_ones
from headwise.probes.lbfgs import fit_lbfgs
from headwise.probes.ridge import fit_ridge, one_hot
from headwise.probes.settings import ProbeSettings, encode_labels, encode_targets, make_folds
from headwise.probes.sgd import accuracies, fit_senteval, predictions
from headwise.stats.correlation import correlation, pearson
from headwise.text.tasks import Split

# Share of the pool that stops `senteval` when cross-validation has used all examples (SentEval's
# validation_split).
EARLY_STOPPING_SHARE = 0.05
# Memory of a block of units on a CPU, where larger blocks are slower: their matrices do not stay in
# its cache.
CPU_BLOCK_BYTES = 2**28
# Arrays of weights alive at once in each solver, for the memory estimate.
WEIGHT_COPIES = {"senteval": 6, "lbfgs": 26, "ridge": 6}


@dataclass(frozen=True, slots=True, eq=False)
class ProbeScores:
    """Scores of a family of probes, unit by unit (a unit is a head, a layer, or a set of heads).

    Attributes
    ----------
    validation_all : ndarray
        `[unit, penalty]`: accuracy (Pearson's r for regression) on the validation part, or its mean
        over the folds.
    validation : ndarray
        `[unit]`: the score of the selected penalty.
    penalty : ndarray
        `[unit]`: the penalty with the best validation score.
    test : ndarray
        `[unit]`: the score of the selected classifier on the test part.
    predicted : ndarray
        `[unit, test example]`: predicted class numbers, or values.
    truth : ndarray
        `[test example]`: true class numbers, or values.
    classes : tuple of str
        Names of the classes; empty for regression.
    spearman : ndarray, optional
        `[unit]`: Spearman's rho on the test part; only for regression.
    """

    validation_all: np.ndarray
    validation: np.ndarray
    penalty: np.ndarray
    test: np.ndarray
    predicted: np.ndarray
    truth: np.ndarray
    classes: tuple[str, ...] = ()
    spearman: np.ndarray | None = None


def fit_probes(
    features: ProbeFeatures | Any,
    labels: Any,
    split: Split,
    settings: ProbeSettings | None = None,
    task: str = "task",
) -> ProbeScores:
    """Fit a classifier from the vectors of each unit to the labels (Jo & Myaeng 2020, §3.1-3.2,
    App. A.2).

    Parameters
    ----------
    features : ProbeFeatures or ndarray
        `ProbeFeatures`, or an array `[unit..., example, size]`.
    labels : sequence
        One label for each example; class names may be strings or numbers.
    split : Split
        The training, validation and test examples.
    settings : ProbeSettings, optional
        How probes are fitted.
    task : str, default "task"
        Named in errors.

    Returns
    -------
    ProbeScores
        With accuracies from 0 to 1.
    """
    settings = settings or ProbeSettings()
    features = _as_features(features, labels)
    codes, names = encode_labels(labels, split, task)
    return _fit(features, torch.from_numpy(codes), split, settings, task, names)


def fit_regressions(
    features: ProbeFeatures | Any,
    labels: Any,
    split: Split,
    settings: ProbeSettings | None = None,
    task: str = "task",
) -> ProbeScores:
    """Fit a ridge regression from the vectors of each unit to numbers.

    Validation and test scores are Pearson's r, with `spearman` besides (STS-B). Parameters are
    those of `fit_probes`.
    """
    settings = settings or ProbeSettings()
    if min(settings.penalties) == 0:
        raise ParameterError("`penalties` of a regression must be greater than 0; 0 is among them.")
    features = _as_features(features, labels)
    targets = torch.from_numpy(encode_targets(labels, split, task)).float()
    return _fit(features, targets, split, replace(settings, solver="ridge"), task, ())


def _as_features(features: ProbeFeatures | Any, labels: Any) -> ProbeFeatures:
    checked: ProbeFeatures = ArrayFeatures(features) if hasattr(features, "ndim") else features
    if checked.examples != len(labels):
        raise ParameterError(
            f"There are vectors of {checked.examples} examples and labels of {len(labels)}; the "
            "numbers must be equal."
        )
    return checked


def _fit(
    features: ProbeFeatures,
    labels: Tensor,
    split: Split,
    settings: ProbeSettings,
    task: str,
    names: tuple[str, ...],
) -> ProbeScores:
    """Fit all units block by block; `names` are the classes, none for regression."""
    regression = not names
    labels = labels.to(settings.device)
    folds = []
    if settings.folds:
        folds = make_folds(split.pool, settings.folds, settings.seed, task)

    score_blocks = []
    predicted_blocks = []
    for start, stop in _unit_ranges(features, split, len(names), settings):
        block = _UnitBlock(features, start, stop, labels, len(names), settings, task)
        if folds:
            fold_scores = [block.fit(train, held_out)[1] for train, held_out in folds]
            scores = torch.stack(fold_scores).mean(0)
            weights, _, scaler = block.refit(split.pool)
        else:
            weights, scores, scaler = block.fit(split.train, split.validation)
        best = best_penalty(scores)[:, None, None, None]
        weights = weights.gather(1, best.expand(-1, 1, *weights.shape[2:]))
        test = with_ones(scaler(block.load(split.test)))
        if regression:
            predicted = (test @ weights[:, 0].mT)[..., 0]
        else:
            predicted = predictions(test, weights)[:, 0]
        score_blocks.append(scores.cpu().numpy().astype(np.float64))
        predicted_blocks.append(predicted.cpu().numpy())

    validation_all = np.concatenate(score_blocks)
    predicted_all = np.concatenate(predicted_blocks)
    chosen = best_penalty(torch.from_numpy(validation_all)).numpy()
    truth = labels[_indices(split.test, labels)].cpu().numpy()
    spearman = None
    if regression:
        test_scores = np.nan_to_num(correlation(predicted_all, truth, "pearson").r)
        spearman = np.nan_to_num(correlation(predicted_all, truth, "spearman").r)
    else:
        test_scores = (predicted_all == truth).mean(1)
    return ProbeScores(
        validation_all=validation_all,
        validation=np.take_along_axis(validation_all, chosen[:, None], 1)[:, 0],
        penalty=np.array(settings.penalties)[chosen],
        test=test_scores,
        predicted=predicted_all,
        truth=truth,
        classes=names,
        spearman=spearman,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _UnitBlock:
    """Some units whose probes are fitted together."""

    features: ProbeFeatures
    start: int
    stop: int
    labels: Tensor
    n_classes: int  # 0 for regression
    settings: ProbeSettings
    task: str

    def load(self, rows: np.ndarray) -> Tensor:
        return load_features(
            self.features, self.start, self.stop, rows, self.settings.device, self.task
        )

    def fit(
        self, train_rows: np.ndarray, held_out_rows: np.ndarray
    ) -> tuple[Tensor, Tensor, Scaler]:
        """Fit on some rows and score on others.

        Returns weights `[unit, penalty, column, size + 1]`, scores on the held-out rows `[unit,
        penalty]`, and the scaler of the training rows.
        """
        settings = self.settings
        raw = self.load(train_rows)
        scaler = Scaler(raw, settings.standardize)
        train = scaler(raw)
        del raw  # as large as `train`: free it before the held-out rows are loaded
        held_out = with_ones(scaler(self.load(held_out_rows)))
        train_labels = self.labels[_indices(train_rows, train)]
        held_out_labels = self.labels[_indices(held_out_rows, train)]

        if settings.solver == "senteval":
            weights, scores = fit_senteval(
                with_ones(train), train_labels, held_out, held_out_labels, self.n_classes, settings
            )
            return weights, scores, scaler
        if settings.solver == "lbfgs":
            weights, _ = fit_lbfgs(with_ones(train), train_labels, self.n_classes, settings)
        else:
            if self.n_classes:
                targets = one_hot(train_labels, self.n_classes)
            else:
                targets = train_labels[:, None]
            weights = fit_ridge(train, targets, settings.penalties)
        if self.n_classes:
            scores = accuracies(held_out, held_out_labels, weights)
        else:
            predicted = (held_out[:, None] @ weights.mT)[..., 0]
            scores = pearson(predicted, held_out_labels).nan_to_num(0.0)
        return weights, scores, scaler

    def refit(self, pool: np.ndarray) -> tuple[Tensor, Tensor, Scaler]:
        """Fit on the whole pool, less the few rows that `senteval` needs to stop early."""
        n_held_out = max(1, round(EARLY_STOPPING_SHARE * len(pool)))
        held_out = np.random.RandomState(self.settings.seed).permutation(len(pool))[:n_held_out]
        train = pool
        if self.settings.solver == "senteval":
            train = np.delete(pool, held_out)
        return self.fit(train, pool[held_out])


def best_penalty(scores: Tensor) -> Tensor:
    """Return the index of the best penalty of each unit, `[unit]`.

    Of equal ones the last, which is the strongest where penalties rise.
    """
    return scores.shape[1] - 1 - scores.flip(1).argmax(1)


def _indices(rows: np.ndarray, like: Tensor) -> Tensor:
    return torch.from_numpy(rows).to(like.device)


def _unit_ranges(
    features: ProbeFeatures, split: Split, n_classes: int, settings: ProbeSettings
) -> list[tuple[int, int]]:
    """Return ranges of units whose features, weights and scores fit into `settings.memory`, on a CPU
    into `CPU_BLOCK_BYTES`."""
    n_train = len(split.train)
    n_columns = max(n_classes, 1)
    n_penalties = len(settings.penalties)
    size = features.size + 1
    score_rows = {"senteval": settings.batch_size, "lbfgs": n_train, "ridge": 0}[settings.solver]

    feature_values = 3 * (n_train + len(split.validation)) * size
    values_per_column = WEIGHT_COPIES[settings.solver] * size + 4 * score_rows
    inverse_values = 0
    if settings.solver == "lbfgs":
        # The preconditioners now and before, and in float64 the curvature, its factor and inverse.
        inverse_values = n_penalties * size**2 * (1 + 1 + 3 * 2)
    values = feature_values + n_columns * n_penalties * values_per_column + inverse_values

    memory = settings.memory
    if settings.device.startswith("cpu"):
        memory = min(memory, CPU_BLOCK_BYTES)
    step = int(min(features.units, max(1, memory // (4 * values))))
    ranges = []
    for start in range(0, features.units, step):
        ranges.append((start, min(start + step, features.units)))
    return ranges
