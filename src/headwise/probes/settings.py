"""Settings of probes, the encoding of labels, and the checks that run before any fitting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from headwise.core.checks import above, at_least, check_types, one_of
from headwise.core.errors import InputError, ParameterError
from headwise.text.tasks import Split

PENALTIES = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
SOLVERS = ("senteval", "lbfgs", "ridge")
OPTIMIZERS = ("rmsprop", "adam")
PARTS = ("train", "validation", "test")
TENACITY = ("total", "consecutive")


@dataclass(frozen=True, slots=True)
class ProbeSettings:
    """How a family of probes is fitted (Jo & Myaeng 2020, App. A.2; SentEval, Conneau & Kiela
    2018).

    Parameters
    ----------
    solver : {"senteval", "lbfgs", "ridge"}, default "senteval"
        `senteval`: minibatch descent with early stopping on the validation part; `lbfgs`:
        full-batch logistic regression to convergence, the optimum that scikit-learn's
        `LogisticRegression(C=1 / (n * penalty))` finds; `ridge`: least squares on one-hot labels,
        closed form, for ranking.
    penalties : tuple of float, default PENALTIES
        L2 penalties to try, in units of the *mean* loss: `loss + penalty / 2 * |W|^2`. The best on
        validation is used; of two equal ones the larger.
    optimizer, learning_rate, batch_size, epoch_size, max_epochs : default "rmsprop", 0.1, 256, 1, 200
        Of `senteval`; `optimizer` may be "adam". Validation is checked every `epoch_size` passes
        over the data.
    tenacity, tenacity_counts : int and str, default 3 and "total"
        Training of one classifier stops once more than `tenacity` checks of validation (`total`, as
        SentEval's code counts them), or `tenacity` checks in a row (`consecutive`, as the paper
        says), brought no improvement.
    folds : int, optional
        None: the validation part selects the penalty. k: training and validation part are pooled
        and cut into k folds; the mean over the held-out folds selects the penalty and ranks the
        heads; the tested classifier is then fitted on the whole pool (`senteval` keeps 5 % of it
        for early stopping).
    standardize : bool, default True
        Each feature minus its mean, divided by its standard deviation, both over the training part
        only (a constant feature becomes zero).
    max_iterations, tolerance : int and float, default 300 and 1e-4
        Of `lbfgs`: a classifier has converged when its largest absolute gradient entry is at most
        `tolerance`, and less for penalties below 0.01 (by the root of their ratio), where a small
        gradient can still be far from the optimum.
    seed : int, default 0
        For initial weights, order of batches and folds. All heads and penalties see the same
        batches.
    memory : int, default 2**30
        Bytes that one block of heads may take; on a CPU it takes at most 256 MiB, since larger blocks
        are slower there. Results do not depend on it, except for rounding.
    device : str, default "cpu"
        Where probes are fitted.
    """

    solver: str = "senteval"
    penalties: tuple[float, ...] = PENALTIES
    optimizer: str = "rmsprop"
    learning_rate: float = 0.1
    batch_size: int = 256
    epoch_size: int = 1
    max_epochs: int = 200
    tenacity: int = 3
    tenacity_counts: str = "total"
    folds: int | None = None
    standardize: bool = True
    max_iterations: int = 300
    tolerance: float = 1e-4
    seed: int = 0
    memory: int = 2**30
    device: str = "cpu"

    def __post_init__(self) -> None:
        check_types(self)
        one_of("solver", self.solver, SOLVERS)
        one_of("optimizer", self.optimizer, OPTIMIZERS)
        one_of("tenacity_counts", self.tenacity_counts, TENACITY)
        if not self.penalties or any(not penalty >= 0 for penalty in self.penalties):
            raise ParameterError(
                "`penalties` must be one or more numbers of at least 0; they are "
                f"{self.penalties!r}."
            )
        if self.solver == "ridge" and min(self.penalties) == 0:
            raise ParameterError(
                "`penalties` of the solver ridge must be greater than 0; 0 is among them."
            )
        at_least("batch_size", self.batch_size, 1)
        at_least("epoch_size", self.epoch_size, 1)
        at_least("max_epochs", self.max_epochs, 1)
        at_least("tenacity", self.tenacity, 1)
        at_least("max_iterations", self.max_iterations, 1)
        at_least("memory", self.memory, 1)
        above("learning_rate", self.learning_rate, 0)
        above("tolerance", self.tolerance, 0)
        if self.folds is not None and self.folds < 2:
            raise ParameterError(
                "`folds` must be at least 2, or None for no cross-validation; it is "
                f"{self.folds!r}."
            )


def encode_labels(
    labels: Any, split: Split, task: str = "task"
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the class number of each example and the names of the classes, sorted.

    Raises if a label is missing, a part is empty, or training shows a single class. A label that
    occurs only in the test part cannot be predicted: it keeps a class of its own and counts as
    wrong.

    Parameters
    ----------
    labels : sequence
        One label for each example.
    split : Split
        The training, validation and test examples.
    task : str, default "task"
        Named in errors.
    """
    values = list(labels)
    for part in PARTS:
        rows = getattr(split, part)
        if len(rows) == 0:
            raise InputError(f"{task}: the {part} part has no examples; add some.")
        _reject_missing([values[row] for row in rows], part, task)
    used_rows = np.concatenate([split.train, split.validation, split.test])
    names = sorted({str(values[row]) for row in used_rows}, key=_numbers_first)
    number_of = {name: number for number, name in enumerate(names)}
    codes = np.array([number_of.get(str(value), -1) for value in values], dtype=np.int64)

    train_codes = codes[split.train]
    if len(np.unique(train_codes)) < 2:
        raise InputError(
            f"{task}: all {len(split.train)} training examples have the label "
            f"'{values[split.train[0]]}'; a probe needs at least two classes."
        )
    for part in ("validation", "test"):
        if not np.isin(codes[getattr(split, part)], train_codes).any():
            raise InputError(
                f"{task}: no label of the {part} part occurs in the training part; draw both from "
                "the same classes."
            )
    return codes, tuple(names)


def encode_targets(labels: Any, split: Split, task: str = "task") -> np.ndarray:
    """Return the labels as numbers to regress on.

    Raises if one is missing or not a number, or if all of a part are equal.
    """
    targets = np.full(len(labels), np.nan)
    for row, label in enumerate(labels):
        if _is_missing(label):
            continue
        try:
            targets[row] = float(label)
        except ValueError:
            raise InputError(f"{task}: label {label!r} of example {row} is not a number.") from None
    for part in PARTS:
        values = targets[getattr(split, part)]
        if len(values) < 2:
            raise InputError(
                f"{task}: the {part} part has {len(values)} examples; regression needs at least "
                "two in each part."
            )
        _reject_missing(values.tolist(), part, task)
        if np.ptp(values) == 0:
            raise InputError(
                f"{task}: all labels of the {part} part are {values[0]:g}; a correlation needs "
                "labels that differ."
            )
    return targets


def make_folds(
    pool: np.ndarray, folds: int, seed: int, task: str = "task"
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return `folds` pairs of example indices (train, held out).

    The held-out parts are disjoint and cover the pool.
    """
    if len(pool) < folds:
        raise InputError(
            f"{task}: {len(pool)} examples cannot be cut into {folds} folds; add examples or set "
            "fewer `folds`."
        )
    order = np.random.RandomState(seed).permutation(len(pool))
    parts = np.array_split(order, folds)
    pairs = []
    for k, held_out in enumerate(parts):
        train = np.concatenate(parts[:k] + parts[k + 1 :])
        pairs.append((np.sort(pool[train]), np.sort(pool[held_out])))
    return pairs


def _reject_missing(labels: list[Any], part: str, task: str) -> None:
    missing = sum(map(_is_missing, labels))
    if missing:
        raise InputError(
            f"{task}: {missing} of {len(labels)} examples of the {part} part have no label; label "
            "or remove them."
        )


def _is_missing(value: object) -> bool:
    return value is None or value == "" or (isinstance(value, float) and np.isnan(value))


def _numbers_first(name: str) -> tuple[int, float, str]:
    """Sort key: numbers in numeric order (10 after 9), then words."""
    try:
        return 0, float(name), name
    except ValueError:
        return 1, 0.0, name
