"""GLUE's tasks, and any other labelled pair of files: which columns are text, what the labels are, how predictions are scored."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from headwise.core.errors import InputError, ParameterError
from headwise.text import Corpus, Example, open_corpus
from headwise.text.tasks.probing import GLUE_FILES, glue_name, sample

REGRESSION = "regression"
CLASSIFICATION = "classification"


@dataclass(frozen=True, slots=True)
class Scoring:
    """How a task is scored: the metrics GLUE asks for, the first being the one figures and ranks go by."""

    kind: str
    metrics: tuple[str, ...]


_ACCURACY = Scoring(CLASSIFICATION, ("accuracy",))
GLUE: dict[str, Scoring] = {
    "MRPC": Scoring(CLASSIFICATION, ("accuracy", "f1")),
    "STS-B": Scoring(REGRESSION, ("pearson", "spearman")),
    "SST-2": _ACCURACY,
    "RTE": _ACCURACY,
    "CoLA": Scoring(CLASSIFICATION, ("matthews", "accuracy")),
    "QNLI": _ACCURACY,
    "QQP": Scoring(CLASSIFICATION, ("accuracy", "f1")),
    "MNLI": _ACCURACY,
}


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """A task: examples to train on, examples to score on, and how.

    `labels` are the classes in the order of their numbers, none for a regression; `metrics[0]` is the one that decides.
    """

    name: str
    kind: str
    metrics: tuple[str, ...]
    labels: tuple[str, ...]
    train: tuple[Example, ...]
    dev: tuple[Example, ...]

    @property
    def regression(self) -> bool:
        return self.kind == REGRESSION

    @property
    def outputs(self) -> int:
        """How many numbers a classifier gives for an example."""
        return 1 if self.regression else len(self.labels)

    def targets(self, examples: Iterable[Example]) -> np.ndarray:
        """Class numbers, or values for a regression, of labelled examples."""
        if self.regression:
            return np.array([float(example.label) for example in examples], dtype=np.float32)  # type: ignore[arg-type]
        number = {label: i for i, label in enumerate(self.labels)}
        found = []
        for example in examples:
            if _name(example.label) not in number:
                raise InputError(
                    f"{example.where}: the label '{example.label}' is none of {self.name}'s: {', '.join(self.labels)}."
                )
            found.append(number[_name(example.label)])
        return np.array(found, dtype=np.int64)

    def fingerprint(self) -> str:
        """A digest of both parts and the labels."""
        digest = hashlib.sha256(f"{self.kind} {self.labels}".encode())
        for part in (self.train, self.dev):
            for example in part:
                digest.update(example.fingerprint())
            digest.update(b"|")
        return digest.hexdigest()

    def limit(self, count: int | None, seed: int = 0) -> Task:
        """At most `count` examples of each part, labels in proportion."""
        if count is None:
            return self

        def chosen(examples: tuple[Example, ...]) -> tuple[Example, ...]:
            labels = ["" if self.regression else example.label for example in examples]
            return tuple(examples[i] for i in sample(labels, np.arange(len(examples)), count, seed))

        return replace(self, train=chosen(self.train), dev=chosen(self.dev))


def _name(label: object) -> str:
    return str(int(label)) if isinstance(label, float) and label.is_integer() else str(label)


def read_task(
    name: str | None = None,
    *,
    data: str | Path | None = None,
    train: str | Path | Corpus | None = None,
    dev: str | Path | Corpus | None = None,
    limit: int | None = None,
    needs_train: bool = True,
) -> Task:
    """A task from its folder or its files.

    Parameters
    ----------
    name
        A GLUE task in any spelling, or another name for any labelled pair of corpora. By default the folder's name.
    data
        The task's folder, or GLUE's folder with the task's folder in it.
    train, dev
        Files (as `open_corpus` takes them) instead of the folder's; MRPC's labelled test file serves as its dev part.
    limit
        At most so many examples of each part, labels in proportion.
    needs_train
        Whether a training part must be there; without one the labels are those of the dev part.
    """
    if data is None and dev is None:
        raise ParameterError("A task needs its files: give a folder (data, --data) or a dev file (dev, --dev).")
    name = name or (Path(data).name if data is not None else "task")
    known = glue_name(name)
    title = known or name
    if data is not None:
        found_train, found_dev = _files(Path(data), known, name)
        train, dev = train or found_train, dev or found_dev
    if dev is None or (train is None and needs_train):
        part = "dev" if dev is None else "train"
        raise InputError(f"{title} has no {part} file; name it with --{part}.")
    train_part = _read(known, train, "train", title) if train is not None else ()
    dev_part = _read(known, dev, "dev", title)
    regression = (
        GLUE[known].kind == REGRESSION
        if known in GLUE
        else all(isinstance(e.label, float) for e in (*train_part, *dev_part))
    )
    scoring = GLUE.get(known or "") or (Scoring(REGRESSION, ("pearson", "spearman")) if regression else _ACCURACY)
    labels = () if regression else _labels(train_part or dev_part, title)
    task = Task(title, scoring.kind, scoring.metrics, labels, train_part, dev_part)
    _check(task)
    return task.limit(limit)


def _files(folder: Path, known: str | None, name: str) -> tuple[Path | None, Path | None]:
    if known is None:
        raise ParameterError(f"'{name}' is no GLUE task ({', '.join(GLUE)}); give its files with --train and --dev.")
    if not folder.is_dir():
        raise InputError(f"There is no folder '{folder}'.")
    if not any((folder / file).is_file() for files in GLUE_FILES[known] for file in files):
        below = [child for child in sorted(folder.iterdir()) if child.is_dir() and glue_name(child.name) == known]
        if not below:
            raise InputError(
                f"The folder '{folder}' has none of the files of {known}: {', '.join(sum(GLUE_FILES[known], ()))}."
            )
        folder = below[0]
    first, second = (next((folder / f for f in files if (folder / f).is_file()), None) for files in GLUE_FILES[known])
    return first, second


def _read(known: str | None, given: str | Path | Corpus, part: str, title: str) -> tuple[Example, ...]:
    plain = known is not None and not isinstance(given, Corpus) and Path(given).is_file()
    corpus = open_corpus(f"glue:{known}:{given}" if plain else given)
    examples = tuple(corpus)
    missing = [example for example in examples if example.label is None or example.label == ""]
    if missing:
        raise InputError(
            f"{title}: {len(missing)} of {len(examples)} examples of the {part} part have no label, the first is {missing[0].where}; give a labelled file."
        )
    if known == "MNLI":
        examples = tuple(example for example in examples if example.label != "-")  # annotators did not agree
    return examples


def _labels(examples: tuple[Example, ...], title: str) -> tuple[str, ...]:
    labels = sorted({_name(example.label) for example in examples})
    if len(labels) < 2:
        raise InputError(f"{title} has only one class ({labels[0]}); a task needs at least two.")
    if len(labels) > max(50, len(examples) // 2):
        raise InputError(
            f"{title} has {len(labels)} different labels in {len(examples)} examples; for numbers give a column `score`."
        )
    return tuple(labels)


def _check(task: Task) -> None:
    """Refuse labels that only one part has, and parts of sentences with and without a second one."""
    if not task.regression:
        train = {_name(e.label) for e in task.train} or set(task.labels)
        unknown = sorted({_name(e.label) for e in task.dev} - train)
        if unknown:
            raise InputError(
                f"{task.name}: the label '{unknown[0]}' of the dev part is missing in the train part ({', '.join(sorted(train))})."
            )
        absent = sorted(set(task.labels) - {_name(e.label) for e in task.dev})
        if absent:
            raise InputError(
                f"{task.name}: the label '{absent[0]}' of the train part is missing in the dev part; its scores would mean nothing."
            )
    elif any(not np.isfinite(float(e.label)) for e in (*task.train, *task.dev)):  # type: ignore[arg-type]
        raise InputError(f"{task.name}: a label is NaN or infinite; a regression needs numbers.")
    paired = {example.has_pair for example in (*task.train, *task.dev)}
    if len(paired) > 1:
        raise InputError(
            f"{task.name}: some examples have a second sentence and some have none; all or none must have one."
        )
