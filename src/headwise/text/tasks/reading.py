"""Read tasks: GLUE folders, SentEval files, and any corpus with labels."""

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

# Train, validation and test share of a corpus that comes without a split.
SPLIT_SHARES = (0.6, 0.2, 0.2)
# Share of a training file used for validation where there is no validation file.
VALIDATION_SHARE = 0.1
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
    """Read a task with a train and a dev part from its folder or its files.

    Parameters
    ----------
    name : str, optional
        A GLUE task in any spelling, or any name for a labelled pair of corpora; default: the
        folder's name.
    data : str or Path, optional
        The task's folder, or GLUE's folder with the task's folder in it.
    train, dev : str, Path or Corpus, optional
        Files (as `open_corpus` takes them) instead of the folder's; MRPC's labelled test file
        serves as its dev part.
    limit : int, optional
        The maximum number of examples of each part, stratified by label.
    needs_train : bool, default True
        Whether a training part is required; without one, the labels are those of the dev part.
    """
    if data is None and dev is None:
        raise ParameterError(
            "A task needs its files: pass a folder (`data`) or a dev file (`dev`).", option="data"
        )
    if not name:
        name = "task" if data is None else Path(data).name
    known = _glue(name)
    title = known.name if known else name
    if data is not None:
        if known is None:
            raise ParameterError(
                f"'{name}' is not a GLUE task ({', '.join(GLUE)}); pass its files as `train` and "
                "`dev`.",
                option="dev",
            )
        train_in_folder, dev_in_folder = _files(Path(data), known)
        train = train or train_in_folder
        dev = dev or dev_in_folder
    if dev is None:
        raise InputError(f"{title} has no dev file; pass one as `dev`.", option="dev")
    if train is None and needs_train:
        raise InputError(f"{title} has no train file; pass one as `train`.", option="train")

    train_part: tuple[Example, ...] = ()
    if train is not None:
        train_part = _read(known, train, "train", title)
    dev_part = _read(known, dev, "dev", title)
    if known:
        metrics = known.metrics
    else:
        metrics = metrics_for((*train_part, *dev_part))
    task = Task.of_parts(title, train_part, dev_part, metrics)
    _check(task)
    return task.limit(limit, None, limit)


def _glue(name: str) -> KnownTask | None:
    """Return the GLUE task of this name, if its file names are known."""
    task = known_task(name)
    if task is None or not task.files:
        return None
    return task


def _files(folder: Path, known: KnownTask) -> tuple[Path | None, Path | None]:
    """Return the train and dev file of a task, in this folder or in the task's folder in it."""
    if not folder.is_dir():
        raise InputError(f"There is no folder '{folder}'.")
    candidates = [folder]
    for child in sorted(folder.iterdir()):
        if child.is_dir() and known_task(child.name) is known:
            candidates.append(child)
    for candidate in candidates:
        train = _first_file(candidate, known.train)
        dev = _first_file(candidate, known.dev)
        if train is not None or dev is not None:
            return train, dev
    raise InputError(
        f"The folder '{folder}' has none of the files of {known.name}: {', '.join(known.files)}."
    )


def _first_file(folder: Path, names: Iterable[str]) -> Path | None:
    for name in names:
        if (folder / name).is_file():
            return folder / name
    return None


def _read(known: KnownTask | None, source: Source, part: str, title: str) -> tuple[Example, ...]:
    """Return the examples of one part; every example must have a label."""
    if known is not None and not isinstance(source, Corpus) and Path(source).is_file():
        # GLUE's own files: their columns are known by the task.
        source = f"glue:{known.name}:{source}"
    examples = tuple(open_corpus(source))
    unlabelled = [example for example in examples if example.label is None or example.label == ""]
    if unlabelled:
        raise InputError(
            f"{title}: {len(unlabelled)} of {len(examples)} examples of the {part} part have no "
            f"label, the first is {unlabelled[0].where}; pass a labelled file."
        )
    if title == "MNLI":
        # "-" marks pairs on which the annotators did not agree.
        examples = tuple(example for example in examples if example.label != "-")
    return examples


def _check(task: Task) -> None:
    """Reject labels that make no task, labels of one part only, and mixtures of single sentences
    and pairs."""
    if task.regression:
        _check_numbers(task)
    else:
        _check_classes(task)
    _ = task.paired  # raises on a mixture


def _check_numbers(task: Task) -> None:
    for example in task.examples:
        if not np.isfinite(float(example.label)):  # type: ignore[arg-type]
            raise InputError(
                f"{task.name}: a label is NaN or infinite; a regression needs numbers."
            )


def _check_classes(task: Task) -> None:
    n_examples = len(task.train or task.dev)
    if len(task.classes) < 2:
        raise InputError(
            f"{task.name} has only one class ({task.classes[0]}); a task needs at least two."
        )
    if len(task.classes) > max(50, n_examples // 2):
        raise InputError(
            f"{task.name} has {len(task.classes)} different labels in {n_examples} examples; "
            "for numbers use a column `score`."
        )
    train_labels = set(task.classes)
    dev_labels = {label_name(example.label) for example in task.dev}
    only_dev = dev_labels - train_labels
    if only_dev:
        raise InputError(
            f"{task.name}: the label '{min(only_dev)}' of the dev part is missing in the train "
            f"part ({', '.join(task.classes)})."
        )
    only_train = train_labels - dev_labels
    if only_train:
        raise InputError(
            f"{task.name}: the label '{min(only_train)}' of the train part is missing in the dev "
            "part; its scores would mean nothing."
        )


# --- tasks of three parts, for probes -------------------------------------------------------------


def task_from_examples(examples: Iterable[Example], name: str = "task", seed: int = 0) -> Task:
    """Return a task from labelled examples, split 60 / 20 / 20 by their digests.

    The split and the order of examples do not depend on the order of the corpus.

    >>> task_from_examples([Example(text=word, label=word[0]) for word in "ab ac ad bc bd".split()]).split.test.tolist()
    [4]
    """
    labelled = [example for example in examples if example.label is not None]
    if not labelled:
        raise InputError(f"{name}: no example has a label; pass a corpus with labels.")
    keys = []
    for example in labelled:
        digest = hashlib.sha256(example.fingerprint() + str(seed).encode()).digest()
        keys.append(int.from_bytes(digest[:6]))
    ordered = tuple(labelled[position] for position in np.argsort(keys, kind="stable"))
    train_share, validation_share, _ = SPLIT_SHARES
    train_end = round(train_share * len(ordered))
    validation_end = round((train_share + validation_share) * len(ordered))
    positions = np.split(np.arange(len(ordered)), [train_end, validation_end])
    return Task(name, ordered, Split(*positions), metrics_for(ordered))


def senteval_task(path: str | Path, name: str | None = None) -> Task:
    """Read a task in SentEval's format: `part TAB label TAB sentence`, parts tr, va and te."""
    parts: list[tuple[Example, ...]] = []
    for part, title in PARTS.items():
        try:
            parts.append(tuple(open_corpus(f"senteval:{path}", part=part)))
        except InputError as error:
            if "holds no examples" not in str(error):
                raise
            raise InputError(
                f"'{path}' has no rows of the part '{part}' ({title}); a probing task needs "
                "tr, va and te."
            ) from None
    ends = np.cumsum([len(part) for part in parts])
    split = Split(*np.split(np.arange(ends[-1]), ends[:-1]))
    return Task(name or plain_name(Path(path).name), sum(parts, ()), split)


def glue_task(folder: str | Path, name: str | None = None, seed: int = 0) -> Task:
    """Read a GLUE task from its folder: a tenth of the training file is the validation part, the
    dev file (MRPC's test file) the test part.

    Without a training file (QNLI's dev file alone), the one file is split 60 / 20 / 20.
    """
    known = _glue(name or Path(folder).name)
    if known is None:
        raise ParameterError(
            f"'{folder}' is not the folder of a GLUE task; known: {', '.join(GLUE)}."
        )
    train_file, test_file = _files(Path(folder), known)
    if train_file is None or test_file is None:
        (only_file,) = (file for file in (train_file, test_file) if file is not None)
        part = "test" if train_file is None else "train"
        examples = _read(known, only_file, part, known.name)
        return replace(task_from_examples(examples, known.name, seed), metrics=known.metrics)
    train = _read(known, train_file, "train", known.name)
    test = _read(known, test_file, "test", known.name)
    order = np.random.RandomState(seed).permutation(len(train))
    n_validation = max(1, round(VALIDATION_SHARE * len(train)))
    split = Split(
        np.sort(order[n_validation:]),
        np.sort(order[:n_validation]),
        np.arange(len(train), len(train) + len(test)),
    )
    return Task(known.name, (*train, *test), split, known.metrics)


def read_tasks(spec: Given, seed: int = 0) -> list[Task]:
    """Read tasks with a train, a validation and a test part.

    Parameters
    ----------
    spec : Task, Corpus, str, Path, or a sequence or mapping of them
        A string may name several paths, separated by commas; a mapping names the tasks. A folder
        is that of a GLUE task, or contains SentEval files or GLUE folders; a file is SentEval's or
        any labelled corpus.
    seed : int, default 0
        For the split of corpora that come without one.
    """
    tasks: list[Task] = []
    if isinstance(spec, Task):
        tasks.append(spec)
    elif isinstance(spec, Corpus):
        tasks.append(task_from_examples(spec, spec.name, seed))
    elif isinstance(spec, Mapping):
        for name, item in spec.items():
            tasks += [replace(task, name=str(name)) for task in read_tasks(item, seed)]
    elif isinstance(spec, str):
        for path in spec.split(","):
            tasks += _read_path(path.strip(), seed)
    elif isinstance(spec, Path):
        tasks += _read_path(spec, seed)
    else:
        for item in spec:
            tasks += read_tasks(item, seed)
    if not tasks:
        raise ParameterError(
            "No task is given; name SentEval files, GLUE folders or a labelled corpus."
        )
    names = [task.name for task in tasks]
    for name in names:
        if names.count(name) > 1:
            raise ParameterError(f"Two tasks are called '{name}'; give them different names.")
    return tasks


def _read_path(path: str | Path, seed: int) -> list[Task]:
    location = Path(path)
    if not location.is_dir():
        corpus = open_corpus(path)
        if location.exists() and is_senteval(_first_line(location)):
            return [senteval_task(location)]
        return [task_from_examples(corpus, corpus.name, seed)]
    if _glue(location.name) is not None:
        return [glue_task(location, seed=seed)]
    tasks: list[Task] = []
    for item in sorted(location.iterdir()):
        if item.is_dir() and _glue(item.name) is not None:
            tasks.append(glue_task(item, seed=seed))
        elif item.is_file() and ".txt" in item.suffixes and is_senteval(_first_line(item)):
            tasks.append(senteval_task(item))
    if not tasks:
        raise InputError(
            f"The folder '{location}' has neither SentEval files (part, label, sentence) nor "
            "folders of GLUE tasks."
        )
    return sorted(tasks, key=_senteval_position)


def _senteval_position(task: Task) -> int:
    """Return the position of a task in SentEval's order; other tasks come last."""
    order = list(SENTEVAL)
    if task.name in order:
        return order.index(task.name)
    return len(order)


def _first_line(path: Path) -> str:
    """Return the first line that is not blank."""
    for file in Files(path, (".txt",)):
        for _, line in file.lines():
            if line.strip():
                return line
    return ""
