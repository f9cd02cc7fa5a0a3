"""Reading tasks: GLUE's folders, SentEval's files, and any corpus with labels."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from headwise.core.errors import InputError, ParameterError
from headwise.text.corpus import Corpus
from headwise.text.example import Example
from headwise.text.known_tasks import GLUE, SENTEVAL, KnownTask, known_task
from headwise.text.open import open_corpus
from headwise.text.readers.files import Files, plain_name
from headwise.text.readers.senteval import PARTS, is_senteval
from headwise.text.tasks.task import Split, Task, label_name, metrics_for

PARTS_OF_ONE = (0.6, 0.2, 0.2)  # train, validation, test of a corpus that comes as one
VALIDATION_SHARE = 0.1  # of a training file that has no validation file beside it
Source = str | Path | Corpus
Given = Task | Source | Mapping[str, "Given"] | Sequence["Given"]


# --- a task to train on and to score on -----------------------------------------------------------


def read_task(
    name: str | None = None,
    *,
    data: str | Path | None = None,
    train: Source | None = None,
    dev: Source | None = None,
    limit: int | None = None,
    needs_train: bool = True,
) -> Task:
    """A task of two parts from its folder or its files.

    Parameters
    ----------
    name : str, optional
        A GLUE task in any spelling, or another name for any labelled pair of corpora. By default
        the folder's name.
    data : str or Path, optional
        The task's folder, or GLUE's folder with the task's folder in it.
    train, dev : str, Path or Corpus, optional
        Files (as `open_corpus` takes them) instead of the folder's; MRPC's labelled test file
        serves as its dev part.
    limit : int, optional
        At most so many examples of each part, labels in proportion.
    needs_train : bool, default True
        Whether a training part must be there; without one the labels are those of the dev part.
    """
    if data is None and dev is None:
        raise ParameterError(
            "A task needs its files: give a folder (data, --data) or a dev file (dev, --dev)."
        )
    name = name or (Path(data).name if data is not None else "task")
    known = _glue(name)
    title = known.name if known else name
    if data is not None:
        if known is None:
            raise ParameterError(
                f"'{name}' is no GLUE task ({', '.join(GLUE)}); give its files with --train and --dev."
            )
        found_train, found_dev = _files(Path(data), known)
        train, dev = train or found_train, dev or found_dev
    if dev is None or (train is None and needs_train):
        part = "dev" if dev is None else "train"
        raise InputError(f"{title} has no {part} file; name it with --{part}.")
    train_part = _read(known, train, "train", title) if train is not None else ()
    dev_part = _read(known, dev, "dev", title)
    metrics = known.metrics if known else metrics_for((*train_part, *dev_part))
    task = Task.of_parts(title, train_part, dev_part, metrics)
    _check(task)
    return task.limit(limit, None, limit)


def _glue(name: str) -> KnownTask | None:
    """One of GLUE's tasks whose files are known."""
    found = known_task(name)
    return found if found is not None and found.files else None


def _files(folder: Path, known: KnownTask) -> tuple[Path | None, Path | None]:
    """The training and the dev file in a task's folder, or in the task's folder below this one."""
    if not folder.is_dir():
        raise InputError(f"There is no folder '{folder}'.")
    below = [
        child
        for child in sorted(folder.iterdir())
        if child.is_dir() and known_task(child.name) is known
    ]
    for place in (folder, *below):
        train, dev = (
            next((place / name for name in names if (place / name).is_file()), None)
            for names in (known.train, known.dev)
        )
        if train is not None or dev is not None:
            return train, dev
    raise InputError(
        f"The folder '{folder}' has none of the files of {known.name}: {', '.join(known.files)}."
    )


def _read(known: KnownTask | None, given: Source, part: str, title: str) -> tuple[Example, ...]:
    """The examples of one part, all of them with labels."""
    plain = known is not None and not isinstance(given, Corpus) and Path(given).is_file()
    examples = tuple(open_corpus(f"glue:{known.name}:{given}" if plain and known else given))
    missing = [example for example in examples if example.label is None or example.label == ""]
    if missing:
        raise InputError(
            f"{title}: {len(missing)} of {len(examples)} examples of the {part} part have no label, "
            f"the first is {missing[0].where}; give a labelled file."
        )
    if title == "MNLI":
        examples = tuple(
            example for example in examples if example.label != "-"
        )  # annotators did not agree
    return examples


def _check(task: Task) -> None:
    """Refuse labels that make no task, labels that only one part has, and sentences with and
    without a second one."""
    if task.regression:
        if any(not np.isfinite(float(example.label)) for example in task.examples):  # type: ignore[arg-type]
            raise InputError(
                f"{task.name}: a label is NaN or infinite; a regression needs numbers."
            )
    else:
        count = len(task.train or task.dev)
        if len(task.classes) < 2:
            raise InputError(
                f"{task.name} has only one class ({task.classes[0]}); a task needs at least two."
            )
        if len(task.classes) > max(50, count // 2):
            raise InputError(
                f"{task.name} has {len(task.classes)} different labels in {count} examples; "
                "for numbers give a column `score`."
            )
        trained, scored = set(task.classes), {label_name(example.label) for example in task.dev}
        if scored - trained:
            raise InputError(
                f"{task.name}: the label '{min(scored - trained)}' of the dev part is missing in the train part "
                f"({', '.join(task.classes)})."
            )
        if trained - scored:
            raise InputError(
                f"{task.name}: the label '{min(trained - scored)}' of the train part is missing in the dev part; "
                "its scores would mean nothing."
            )
    _ = task.paired  # refuses a mixture


# --- tasks of three parts, for probes -------------------------------------------------------------


def task_from_examples(examples: Iterable[Example], name: str = "task", seed: int = 0) -> Task:
    """A task from one list of labelled examples, cut 60 / 20 / 20 by the digest of each, in
    whatever order they come.

    >>> task_from_examples([Example(text=word, label=word[0]) for word in "ab ac ad bc bd".split()]).split.test.tolist()
    [4]
    """
    held = tuple(example for example in examples if example.label is not None)
    if not held:
        raise InputError(f"{name}: no example has a label; give a corpus with labels.")
    digests = [
        hashlib.sha256(example.fingerprint() + str(seed).encode()).digest()[:6] for example in held
    ]
    # Examples themselves go by digest too, so that the order of rows in training does not depend on
    # the corpus's.
    held = tuple(
        held[i] for i in np.argsort([int.from_bytes(digest) for digest in digests], kind="stable")
    )
    ends = [round(sum(PARTS_OF_ONE[:part]) * len(held)) for part in (1, 2)]
    return Task(name, held, Split(*np.split(np.arange(len(held)), ends)), metrics_for(held))


def senteval_task(path: str | Path, name: str | None = None) -> Task:
    """A task in SentEval's format: `part TAB label TAB sentence` with the parts tr, va and te."""
    parts: list[tuple[Example, ...]] = []
    for part, title in PARTS.items():
        try:
            parts.append(tuple(open_corpus(f"senteval:{path}", part=part)))
        except InputError as error:
            if "holds no examples" not in str(error):
                raise
            raise InputError(
                f"'{path}' has no rows of the part '{part}' ({title}); a probing task needs tr, va and te."
            ) from None
    ends = np.cumsum([len(part) for part in parts])
    split = Split(*np.split(np.arange(ends[-1]), ends[:-1]))
    return Task(name or plain_name(Path(path).name), sum(parts, ()), split)


def glue_task(folder: str | Path, name: str | None = None, seed: int = 0) -> Task:
    """A GLUE task from its folder: a tenth of the training file validates, the dev file (MRPC's
    test file) tests.

    Where there is no training file (QNLI's dev alone), the one file is cut 60 / 20 / 20.
    """
    known = _glue(name or Path(folder).name)
    if known is None:
        raise ParameterError(f"'{folder}' is no folder of a GLUE task; known: {', '.join(GLUE)}.")
    train_file, test_file = _files(Path(folder), known)
    parts = [
        _read(known, file, part, known.name)
        for part, file in (("train", train_file), ("test", test_file))
        if file
    ]
    if len(parts) == 1:
        return replace(task_from_examples(parts[0], known.name, seed), metrics=known.metrics)
    train, test = parts
    order = np.random.RandomState(seed).permutation(len(train))
    held_out = max(1, round(VALIDATION_SHARE * len(train)))
    split = Split(
        np.sort(order[held_out:]),
        np.sort(order[:held_out]),
        np.arange(len(train), len(train) + len(test)),
    )
    return Task(known.name, (*train, *test), split, known.metrics)


def read_tasks(spec: Given, seed: int = 0) -> list[Task]:
    """Tasks of three parts from what a user gives.

    Parameters
    ----------
    spec : Task, Corpus, str, Path, or a sequence or mapping of them
        A text may name several paths, with commas; a mapping gives the tasks their names. A folder
        is a GLUE task's, or holds SentEval files or GLUE folders; a file is SentEval's, or any
        labelled corpus.
    seed : int, default 0
        For the parts of what comes without parts.
    """
    if isinstance(spec, Task):
        tasks = [spec]
    elif isinstance(spec, Corpus):
        tasks = [task_from_examples(spec, spec.name, seed)]
    elif isinstance(spec, Mapping):
        tasks = [
            replace(task, name=str(name))
            for name, item in spec.items()
            for task in read_tasks(item, seed)
        ]
    elif isinstance(spec, str | Path):
        paths = [part.strip() for part in spec.split(",")] if isinstance(spec, str) else [spec]
        tasks = [task for path in paths for task in _read_path(path, seed)]
    else:
        tasks = [task for item in spec for task in read_tasks(item, seed)]
    if not tasks:
        raise ParameterError(
            "No task was given; name SentEval files, GLUE folders or a labelled corpus."
        )
    names = [task.name for task in tasks]
    for name in names:
        if names.count(name) > 1:
            raise ParameterError(f"Two tasks are called '{name}'; give them different names.")
    return tasks


def _read_path(path: str | Path, seed: int) -> list[Task]:
    where = Path(path)
    if not where.is_dir():
        corpus = open_corpus(path)
        if where.exists() and is_senteval(_first_line(where)):
            return [senteval_task(where)]
        return [task_from_examples(corpus, corpus.name, seed)]
    if _glue(where.name) is not None:
        return [glue_task(where, seed=seed)]
    found: list[Task] = []
    for item in sorted(where.iterdir()):
        if item.is_dir() and _glue(item.name) is not None:
            found.append(glue_task(item, seed=seed))
        elif item.is_file() and ".txt" in item.suffixes and is_senteval(_first_line(item)):
            found.append(senteval_task(item))
    if not found:
        raise InputError(
            f"The folder '{where}' holds neither SentEval files (part, label, sentence) nor folders of GLUE tasks."
        )
    order = list(SENTEVAL)
    return sorted(
        found, key=lambda task: order.index(task.name) if task.name in order else len(order)
    )


def _first_line(path: Path) -> str:
    """The first line that is not empty."""
    lines = (line for file in Files(path, (".txt",)) for _, line in file.lines())
    return next((line for line in lines if line.strip()), "")
