"""How probes are fitted: the solver, SentEval's settings, and what is refused before any
fitting."""

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
    """The settings of a family of probes (Jo & Myaeng 2020, App. A.2; SentEval, Conneau & Kiela
    2018).

    Parameters
    ----------
    solver : {"senteval", "lbfgs", "ridge"}, default "senteval"
        `senteval`: minibatch descent with early stopping on the validation part; `lbfgs`:
        full-batch logistic regression to convergence, the optimum that scikit-learn's
        `LogisticRegression(C=1 / (n * penalty))` finds; `ridge`: least squares on one-hot labels,
        closed form, for ranking.
    penalties : tuple of float, default PENALTIES
        L2 penalties tried, in units of the *mean* loss: `loss + penalty / 2 * |W|^2`; the best on
        validation is taken, the larger penalty where two are equal.
    optimizer, learning_rate, batch_size, epoch_size, max_epochs : default "rmsprop", 0.1, 256, 1, 200
        Of `senteval`; `optimizer` may be "adam". `epoch_size` passes over the data lie between two
        looks at validation.
    tenacity, tenacity_counts : int and str, default 3 and "total"
        Training of one classifier stops once more than `tenacity` looks (`total`, as SentEval's
        code counts them), or `tenacity` looks in a row (`consecutive`, as the paper puts it),
        brought nothing better.
    folds : int, optional
        None: the validation part picks the penalty. k: training and validation part are pooled and
        cut into k parts; the mean over the k held-out parts picks the penalty and ranks the heads;
        the classifier that is tested is then fitted on the whole pool (`senteval` keeps 5 % of it
        for its early stopping).
    standardize : bool, default True
        Each feature minus its mean, divided by its standard deviation, both over the training part
        only (a constant feature becomes zero).
    max_iterations, tolerance : int and float, default 300 and 1e-4
        Of `lbfgs`: a classifier is done when its largest absolute gradient entry is at most
        `tolerance`, and less for penalties below 0.01 (by the root of their ratio), where a small
        gradient is still far from the optimum.
    seed : int, default 0
        Of initial weights, order of batches and folds. All heads and penalties see the same
        batches.
    memory : int, default 2**30
        Bytes that one block of heads may take; heads beyond it wait for the next block. Results do
        not depend on it.
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
        for name, allowed in (
            ("solver", SOLVERS),
            ("optimizer", OPTIMIZERS),
            ("tenacity_counts", TENACITY),
        ):
            one_of(name, getattr(self, name), allowed)
        if not self.penalties or any(not p >= 0 for p in self.penalties):
            raise ParameterError(
                f"`penalties` must be one or more numbers of at least 0; they are {self.penalties!r}."
            )
        if self.solver == "ridge" and min(self.penalties) == 0:
            raise ParameterError(
                "`penalties` of the solver ridge must be greater than 0; 0 is among them."
            )
        for name in (
            "batch_size",
            "epoch_size",
            "max_epochs",
            "tenacity",
            "max_iterations",
            "memory",
        ):
            at_least(name, getattr(self, name), 1)
        for name in ("learning_rate", "tolerance"):
            above(name, getattr(self, name), 0)
        if self.folds is not None and self.folds < 2:
            raise ParameterError(
                f"`folds` must be at least 2, or nothing for no cross-validation; it is {self.folds!r}."
            )


def encode_labels(
    labels: Any, split: Split, task: str = "task"
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Class numbers of the labels (sorted by name) and the names.

    Refuses missing labels, empty parts and a task of one class.

    A label of the test part that training never shows cannot be predicted: it keeps its class and
    counts as wrong."""
    values = list(labels)
    for part in PARTS:
        rows = getattr(split, part)
        if len(rows) == 0:
            raise InputError(f"{task}: the {part} part has no examples; give it some.")
        _refuse_missing([values[i] for i in rows], part, task)
    used = np.concatenate([split.train, split.validation, split.test])
    names = sorted({str(values[i]) for i in used}, key=_natural)
    number = {name: i for i, name in enumerate(names)}
    codes = np.array([number.get(str(value), -1) for value in values], dtype=np.int64)
    if len(np.unique(codes[split.train])) < 2:
        raise InputError(
            f"{task}: all {len(split.train)} training examples have the label '{values[split.train[0]]}'; "
            "a probe needs at least two classes."
        )
    for part in ("validation", "test"):
        if not np.isin(codes[getattr(split, part)], codes[split.train]).any():
            raise InputError(
                f"{task}: no label of the {part} part occurs in the training part; draw both from the same classes."
            )
    return codes, tuple(names)


def encode_targets(labels: Any, split: Split, task: str = "task") -> np.ndarray:
    """Numbers to regress on; refuses missing, unreadable and constant ones."""
    out = np.full(len(labels), np.nan)
    for i, value in enumerate(labels):
        try:
            out[i] = np.nan if _is_missing(value) else float(value)
        except ValueError:
            raise InputError(f"{task}: label {value!r} of example {i} is not a number.") from None
    for part in PARTS:
        rows = getattr(split, part)
        if len(rows) < 2:
            raise InputError(
                f"{task}: the {part} part has {len(rows)} examples; regression needs at least two in each part."
            )
        _refuse_missing(out[rows].tolist(), part, task)
        if np.ptp(out[rows]) == 0:
            raise InputError(
                f"{task}: all labels of the {part} part are {out[rows][0]:g}; a correlation needs labels that differ."
            )
    return out


def make_folds(
    pool: np.ndarray, folds: int, seed: int, task: str = "task"
) -> list[tuple[np.ndarray, np.ndarray]]:
    """`folds` pairs (train, held out) of example indices; the held-out parts are disjoint and cover
    the pool."""
    if len(pool) < folds:
        raise InputError(
            f"{task}: {len(pool)} examples cannot be cut into {folds} folds; give more or set fewer `folds`."
        )
    order = np.random.RandomState(seed).permutation(len(pool))
    parts = np.array_split(order, folds)
    return [
        (np.sort(pool[np.concatenate(parts[:k] + parts[k + 1 :])]), np.sort(pool[parts[k]]))
        for k in range(folds)
    ]


def _refuse_missing(labels: list[Any], part: str, task: str) -> None:
    if missing := sum(map(_is_missing, labels)):
        of = f"{missing} of {len(labels)} examples of the {part} part"
        raise InputError(f"{task}: {of} have no label; label or remove them.")


def _is_missing(value: object) -> bool:
    return value is None or value == "" or (isinstance(value, float) and np.isnan(value))


def _natural(name: str) -> tuple[int, float, str]:
    """Numbers in numeric order before words, so that class 10 comes after class 9."""
    try:
        return 0, float(name), name
    except ValueError:
        return 1, 0.0, name
