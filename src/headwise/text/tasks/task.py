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
    """Which examples train, validate and test, as indices."""

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
        What figures and files call it.
    examples : tuple of Example
        Of all parts.
    split : Split
        Which of them train, validate and test (GLUE's dev part); the validation part may be empty
        where nothing is chosen by it.
    metrics : tuple of str, default ("accuracy",)
        How it is scored, the first being the one that decides; with `pearson` among them the labels
        are numbers.
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
        """A task of two parts: one to train on, one to score on."""
        ends = np.split(np.arange(len(train) + len(dev)), [len(train)])
        return cls(name, (*train, *dev), Split(ends[0], np.zeros(0), ends[1]), metrics)

    @property
    def regression(self) -> bool:
        return "pearson" in self.metrics

    @property
    def kind(self) -> str:
        """`classification` or `regression`."""
        return REGRESSION if self.regression else CLASSIFICATION

    @property
    def second_metric(self) -> str:
        """What GLUE asks for beside accuracy or Pearson's r: `f1`, `matthews`, `spearman` or
        nothing."""
        return next((name for name in self.metrics if name not in ("accuracy", "pearson")), "")

    @property
    def group(self) -> str:
        """The group of a SentEval task in Jo & Myaeng 2020; `other` for all else."""
        return SENTEVAL[self.name][1] if self.name in SENTEVAL else "other"

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
        """The classes in the order of their numbers (of the dev part where nothing trains); none
        for a regression."""
        return (
            ()
            if self.regression
            else tuple(sorted({label_name(e.label) for e in self.train or self.dev}))
        )

    @property
    def outputs(self) -> int:
        """How many numbers a classifier gives for an example."""
        return 1 if self.regression else len(self.classes)

    def targets(self, examples: Iterable[Example]) -> np.ndarray:
        """Class numbers, or values for a regression, of labelled examples."""
        if self.regression:
            return np.array([float(example.label) for example in examples], dtype=np.float32)  # type: ignore[arg-type]
        number = {label: i for i, label in enumerate(self.classes)}
        found = []
        for example in examples:
            if label_name(example.label) not in number:
                known = ", ".join(self.classes)
                raise InputError(
                    f"{example.where}: the label '{example.label}' is none of {self.name}'s: {known}."
                )
            found.append(number[label_name(example.label)])
        return np.array(found, dtype=np.int64)

    @property
    def paired(self) -> bool:
        """Whether the examples have two segments; a mixture is refused."""
        count, total = sum(example.has_pair for example in self.examples), len(self.examples)
        if 0 < count < total:
            raise InputError(
                f"{self.name}: {count} of {total} examples have a second sentence; all or none must have one."
            )
        return count > 0

    def fingerprint(self) -> str:
        """A digest of the classes and of the examples of every part."""
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
        """A sample of each part, with the labels in proportion; examples outside it are dropped."""
        wanted = {"train": train, "validation": validation, "test": test}
        kept = {
            part: sample(self.labels, getattr(self.split, part), count, seed)
            for part, count in wanted.items()
        }
        used = np.unique(np.concatenate(list(kept.values())))
        moved = {part: np.searchsorted(used, rows) for part, rows in kept.items()}
        return replace(self, examples=tuple(self.examples[i] for i in used), split=Split(**moved))


def label_name(label: object) -> str:
    """A class as text: a whole number without its point."""
    return str(int(label)) if isinstance(label, float) and label.is_integer() else str(label)


def metrics_for(examples: Iterable[Example]) -> tuple[str, ...]:
    """How a task without a name is scored: by correlations where every label is a number, else by
    accuracy."""
    return NUMBERS if all(isinstance(example.label, float) for example in examples) else ACCURACY


def sample(
    labels: Sequence[object], rows: np.ndarray, count: int | None, seed: int = 0
) -> np.ndarray:
    """`count` of the rows at random (all where there are no more), each label in proportion, in
    corpus order."""
    if count is None or count >= len(rows):
        return rows
    if count < 1:
        raise ParameterError(
            f"A part of a task needs at least one example; {count} were asked for."
        )
    order = np.random.RandomState(seed).permutation(rows)
    seen: dict[str, int] = {}
    rank = np.zeros(len(order))
    for i, row in enumerate(order):
        rank[i] = seen[str(labels[row])] = seen.get(str(labels[row]), -1) + 1
    total = np.array([seen[str(labels[row])] + 1 for row in order])
    # The k-th of n examples of a label comes at (k + 1/2) / n of the way: any first stretch holds
    # them in proportion.
    return np.sort(order[np.argsort((rank + 0.5) / total, kind="stable")[:count]])
