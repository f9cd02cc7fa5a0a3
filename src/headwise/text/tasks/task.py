"""A task: examples with labels, the parts they belong to, and how predictions are scored."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from headwise.core.errors import InputError, ParameterError
from headwise.text.example import Example
from headwise.text.known_tasks import NUMBERS, SENTEVAL

REGRESSION = "regression"
CLASSIFICATION = "classification"
ACCURACY = ("accuracy",)


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """The indices of the examples to train, validate and test on."""

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray

    def __post_init__(self) -> None:
        for name in ("train", "validation", "test"):
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=np.int64))

    @property
    def pool(self) -> np.ndarray:
        """Training and validation part together, in example order."""
        return np.sort(np.concatenate([self.train, self.validation]))


@dataclass(frozen=True, eq=False)
class Task:
    """Examples with labels and the parts they belong to.

    Parameters
    ----------
    name : str
        Its name in figures and files.
    examples : tuple of Example
        The examples of all parts.
    split : Split
        Which of them are for training, validation and test (GLUE's dev part); the validation part
        may be empty.
    metrics : tuple of str, default ("accuracy",)
        How it is scored, the main metric first; with `pearson` among them the labels are numbers.
    """

    name: str
    examples: tuple[Example, ...]
    split: Split
    metrics: tuple[str, ...] = ACCURACY

    @classmethod
    def of_parts(
        cls,
        name: str,
        train: Sequence[Example],
        dev: Sequence[Example],
        metrics: tuple[str, ...] = ACCURACY,
    ) -> Task:
        """Return a task with a train and a dev part."""
        train_rows = np.arange(len(train))
        dev_rows = np.arange(len(train), len(train) + len(dev))
        split = Split(train_rows, np.zeros(0), dev_rows)
        return cls(name, (*train, *dev), split, metrics)

    @property
    def regression(self) -> bool:
        return "pearson" in self.metrics

    @property
    def kind(self) -> str:
        """`classification` or `regression`."""
        return REGRESSION if self.regression else CLASSIFICATION

    @property
    def second_metric(self) -> str:
        """GLUE's second metric beside accuracy or Pearson's r (`f1`, `matthews`, `spearman`), or ""."""
        for name in self.metrics:
            if name not in ("accuracy", "pearson"):
                return name
        return ""

    @property
    def group(self) -> str:
        """The group of a SentEval task in Jo & Myaeng 2020; `other` for other tasks."""
        if self.name in SENTEVAL:
            return SENTEVAL[self.name][1]
        return "other"

    @property
    def labels(self) -> list[str | float | None]:
        """The label of every example."""
        return [example.label for example in self.examples]

    @cached_property
    def train(self) -> tuple[Example, ...]:
        """The examples to train on."""
        return tuple(self.examples[i] for i in self.split.train)

    @cached_property
    def dev(self) -> tuple[Example, ...]:
        """The examples to score on."""
        return tuple(self.examples[i] for i in self.split.test)

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """The sorted classes of the train part (of the dev part where there is none); empty for a
        regression."""
        if self.regression:
            return ()
        examples = self.train or self.dev
        return tuple(sorted({label_name(example.label) for example in examples}))

    @property
    def outputs(self) -> int:
        """The number of outputs of a classifier for this task."""
        return 1 if self.regression else len(self.classes)

    def targets(self, examples: Iterable[Example]) -> np.ndarray:
        """Return the class numbers, or for a regression the values, of labelled examples."""
        if self.regression:
            return np.array([float(example.label) for example in examples], dtype=np.float32)  # type: ignore[arg-type]
        class_numbers = {label: number for number, label in enumerate(self.classes)}
        targets = []
        for example in examples:
            label = label_name(example.label)
            if label not in class_numbers:
                raise InputError(
                    f"{example.where}: the label '{example.label}' is not a class of {self.name}: "
                    f"{', '.join(self.classes)}."
                )
            targets.append(class_numbers[label])
        return np.array(targets, dtype=np.int64)

    @property
    def paired(self) -> bool:
        """Whether the examples have two segments; a mixture is an error."""
        n_pairs = sum(example.has_pair for example in self.examples)
        if 0 < n_pairs < len(self.examples):
            raise InputError(
                f"{self.name}: {n_pairs} of {len(self.examples)} examples have a second sentence; "
                "all or none must have one."
            )
        return n_pairs > 0

    def fingerprint(self) -> str:
        """Return a digest of the classes and the examples of every part."""
        digest = hashlib.sha256(f"{self.kind} {self.classes}".encode())
        for part in (self.split.train, self.split.validation, self.split.test):
            for i in part:
                digest.update(self.examples[i].fingerprint())
            if len(part):
                digest.update(b"|")
        return digest.hexdigest()

    def limit(
        self, train: int | None, validation: int | None, test: int | None, seed: int = 0
    ) -> Task:
        """Return the task with at most this many examples of each part, stratified by label."""
        train_rows = sample(self.labels, self.split.train, train, seed)
        validation_rows = sample(self.labels, self.split.validation, validation, seed)
        test_rows = sample(self.labels, self.split.test, test, seed)
        used = np.unique(np.concatenate([train_rows, validation_rows, test_rows]))
        # The same examples at their positions among those that are used.
        split = Split(
            np.searchsorted(used, train_rows),
            np.searchsorted(used, validation_rows),
            np.searchsorted(used, test_rows),
        )
        return replace(self, examples=tuple(self.examples[row] for row in used), split=split)


def label_name(label: object) -> str:
    """Return a class as text; whole numbers have no decimal point."""
    if isinstance(label, float) and label.is_integer():
        return str(int(label))
    return str(label)


def metrics_for(examples: Iterable[Example]) -> tuple[str, ...]:
    """Return the metrics of a task that is not known by name: correlations where every label is a
    number, else accuracy."""
    if all(isinstance(example.label, float) for example in examples):
        return NUMBERS
    return ACCURACY


def sample(
    labels: Sequence[object], rows: np.ndarray, count: int | None, seed: int = 0
) -> np.ndarray:
    """Return at most `count` random rows, stratified by label, in corpus order."""
    if count is None or count >= len(rows):
        return rows
    if count < 1:
        raise ParameterError(
            f"A part of a task needs at least one example; {count} were requested."
        )
    order = np.random.RandomState(seed).permutation(rows)
    n_per_label: dict[str, int] = {}
    rank = np.zeros(len(order))  # of each row among those with its label
    for position, row in enumerate(order):
        label = str(labels[row])
        rank[position] = n_per_label.get(label, 0)
        n_per_label[label] = n_per_label.get(label, 0) + 1
    n_of_its_label = np.array([n_per_label[str(labels[row])] for row in order])
    # Sorted by (k + 1/2) / n, for the k-th of the n rows of a label, any first part of the rows has
    # the labels in proportion.
    by_share = np.argsort((rank + 0.5) / n_of_its_label, kind="stable")
    return np.sort(order[by_share[:count]])
