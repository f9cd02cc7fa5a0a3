"""Probes for all heads and all penalties at once: fitted together, penalty picked on validation,
scored on test."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headwise.core.errors import ParameterError
from headwise.probes.features import ArrayFeatures, Features, Scaler, load_features, with_ones
from headwise.probes.lbfgs import fit_lbfgs
from headwise.probes.ridge import fit_ridge, one_hot
from headwise.probes.settings import ProbeSettings, encode_labels, encode_targets, make_folds
from headwise.probes.sgd import accuracies, fit_senteval, predictions
from headwise.stats.correlation import METHODS, correlation, pearson
from headwise.text.tasks import Split

EARLY_STOPPING_SHARE = (
    0.05  # of the pool, when cross-validation has used all of it (SentEval's validation_split)
)


@dataclass(frozen=True, slots=True, eq=False)
class ProbeScores:
    """What a family of probes reached, unit by unit (a unit is a head, a layer, or a set of heads).

    `validation_all[unit, penalty]` is accuracy (Pearson's r for regression) on the validation part,
    or its mean over the folds; `penalty[unit]` the one it picks and `validation[unit]` the score
    there. `test[unit]` is that of the picked classifier on the test part; `predicted[unit, test
    example]` what it said (class numbers, or values); `truth[test example]` what is so.
    `spearman[unit]` only for regression."""

    validation_all: np.ndarray
    validation: np.ndarray
    penalty: np.ndarray
    test: np.ndarray
    predicted: np.ndarray
    truth: np.ndarray
    classes: tuple[str, ...] = ()
    spearman: np.ndarray | None = None


def fit_probes(
    features: Features | Any,
    labels: Any,
    split: Split,
    settings: ProbeSettings | None = None,
    task: str = "task",
) -> ProbeScores:
    """Logistic regression from the vectors of each unit to the labels (Jo & Myaeng 2020, §3.1-3.2,
    App. A.2).

    Parameters
    ----------
    features : Features or ndarray
        `Features`, or an array [unit..., example, size].
    labels : sequence
        One label for each example; class names may be strings or numbers.
    split : Split
        The training, validation and test examples.

    Returns
    -------
    ProbeScores with accuracies from 0 to 1.
    """
    settings = settings or ProbeSettings()
    features = _as_features(features, labels)
    codes, names = encode_labels(labels, split, task)
    return _fit(features, torch.from_numpy(codes), split, settings, task, names)


def fit_regressions(
    features: Features | Any,
    labels: Any,
    split: Split,
    settings: ProbeSettings | None = None,
    task: str = "task",
) -> ProbeScores:
    """Ridge regression from the vectors of each unit to numbers.

    Validation and test scores are Pearson's r, `spearman` beside it (STS-B).
    """
    settings = settings or ProbeSettings()
    if min(settings.penalties) == 0:
        raise ParameterError("`penalties` of a regression must be greater than 0; 0 is among them.")
    features = _as_features(features, labels)
    targets = encode_targets(labels, split, task)
    return _fit(
        features,
        torch.from_numpy(targets).float(),
        split,
        replace(settings, solver="ridge"),
        task,
        (),
    )


def _as_features(features: Features | Any, labels: Any) -> Features:
    out: Features = ArrayFeatures(features) if hasattr(features, "ndim") else features
    if out.examples != len(labels):
        raise ParameterError(
            f"There are vectors of {out.examples} examples and labels of {len(labels)}; both must be the same."
        )
    return out


def _fit(
    features: Features,
    labels: Tensor,
    split: Split,
    settings: ProbeSettings,
    task: str,
    names: tuple[str, ...],
) -> ProbeScores:
    regression = not names
    labels = labels.to(settings.device)
    penalties = np.array(settings.penalties)
    folds = make_folds(split.pool, settings.folds, settings.seed, task) if settings.folds else []
    validation_all, predicted = [], []
    for start, stop in _blocks(
        features, len(split.train), len(split.validation), len(names), settings
    ):
        block = _Block(features, start, stop, labels, len(names), settings, task)
        if folds:
            found = torch.stack([block.fit(train, held_out)[1] for train, held_out in folds]).mean(
                0
            )
            weights, _, scaler = block.refit(split.pool)
        else:
            weights, found, scaler = block.fit(split.train, split.validation)
        weights = weights.gather(
            1, pick(found)[:, None, None, None].expand(-1, 1, *weights.shape[2:])
        )
        test = with_ones(scaler(block.values(split.test)))
        said = (test @ weights[:, 0].mT)[..., 0] if regression else predictions(test, weights)[:, 0]
        validation_all.append(found.cpu().numpy().astype(np.float64))
        predicted.append(said.cpu().numpy())
    scores, said_all = np.concatenate(validation_all), np.concatenate(predicted)
    best = pick(torch.from_numpy(scores)).numpy()
    truth = labels[torch.from_numpy(split.test).to(labels.device)].cpu().numpy()
    validation = np.take_along_axis(scores, best[:, None], 1)[:, 0]
    if regression:
        linear, ranks = (
            np.nan_to_num(correlation(said_all, truth, method).r) for method in METHODS
        )
        return ProbeScores(
            scores, validation, penalties[best], linear, said_all, truth, spearman=ranks
        )
    return ProbeScores(
        scores, validation, penalties[best], (said_all == truth).mean(1), said_all, truth, names
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Block:
    """Some units whose probes are fitted together."""

    features: Features
    start: int
    stop: int
    labels: Tensor
    classes: int
    settings: ProbeSettings
    task: str

    def values(self, rows: np.ndarray) -> Tensor:
        return load_features(
            self.features, self.start, self.stop, rows, self.settings.device, self.task
        )

    def fit(
        self, train_rows: np.ndarray, held_out_rows: np.ndarray
    ) -> tuple[Tensor, Tensor, Scaler]:
        """Weights [unit, penalty, column, size + 1], scores on the held-out rows [unit, penalty],
        and the scaler."""
        settings, raw = self.settings, self.values(train_rows)
        scaler = Scaler(raw, settings.standardize)
        train, held_out = scaler(raw), with_ones(scaler(self.values(held_out_rows)))
        del raw
        own, other = self.labels[_on(train_rows, train)], self.labels[_on(held_out_rows, train)]
        if settings.solver == "senteval":
            weights, scores = fit_senteval(
                with_ones(train), own, held_out, other, self.classes, settings
            )
            return weights, scores, scaler
        if settings.solver == "lbfgs":
            weights, _ = fit_lbfgs(with_ones(train), own, self.classes, settings)
        else:
            targets = one_hot(own, self.classes) if self.classes else own[:, None]
            weights = fit_ridge(train, targets, settings.penalties)
        if self.classes:
            return weights, accuracies(held_out, other, weights), scaler
        return (
            weights,
            pearson((held_out[:, None] @ weights.mT)[..., 0], other).nan_to_num(0.0),
            scaler,
        )

    def refit(self, pool: np.ndarray) -> tuple[Tensor, Tensor, Scaler]:
        """The same on the whole pool, some of which `senteval` needs to stop early."""
        few = max(1, round(EARLY_STOPPING_SHARE * len(pool)))
        held_out = np.random.RandomState(self.settings.seed).permutation(len(pool))[:few]
        train = np.delete(pool, held_out) if self.settings.solver == "senteval" else pool
        return self.fit(train, pool[held_out])


def pick(scores: Tensor) -> Tensor:
    """The best penalty of each unit [unit]; the last (strongest, where they rise) of equal ones."""
    return scores.shape[1] - 1 - scores.flip(1).argmax(1)


def _on(rows: np.ndarray, like: Tensor) -> Tensor:
    return torch.from_numpy(rows).to(like.device)


def _blocks(
    features: Features, train: int, validation: int, classes: int, settings: ProbeSettings
) -> list[tuple[int, int]]:
    """Ranges of units whose features, weights and intermediate scores fit the memory given."""
    columns, penalties = max(classes, 1), len(settings.penalties)
    rows = settings.batch_size if settings.solver == "senteval" else train
    copies = {"senteval": 6, "lbfgs": 26, "ridge": 6}[settings.solver]
    inverse = penalties * (features.size + 1) ** 2 * 6 if settings.solver == "lbfgs" else 0
    wide = rows if settings.solver != "ridge" else 0
    unit = 4 * (
        3 * (train + validation) * (features.size + 1)
        + columns * penalties * (copies * (features.size + 1) + 4 * wide)
        + inverse
    )
    step = int(min(features.units, max(1, settings.memory // unit)))
    return [(start, min(start + step, features.units)) for start in range(0, features.units, step)]
