"""What heads are probed for: SentEval's probing files, GLUE's tasks, and any corpus with labels, each cut into three parts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from headwise.core.errors import InputError, ParameterError
from headwise.probes import Split
from headwise.text import Corpus, Example, open_corpus
from headwise.text.readers.files import plain_name
from headwise.text.readers.senteval import PARTS, is_senteval

PARTS_OF_ONE = (0.6, 0.2, 0.2)  # train, validation, test of a corpus that comes as one
VALIDATION_SHARE = 0.1  # of a training file that has no validation file beside it


@dataclass(frozen=True, slots=True)
class Known:
    """What the paper calls one of SentEval's files, and its group (Table 2; Fig 5 leaves `surface` out)."""

    paper: str
    group: str


SENTEVAL: dict[str, Known] = {
    "sentence_length": Known("Length", "surface"),
    "word_content": Known("WordContent", "surface"),
    "tree_depth": Known("Depth", "syntactic"),
    "top_constituents": Known("TopConst", "syntactic"),
    "bigram_shift": Known("BigramShift", "syntactic"),
    "past_present": Known("Tense", "semantic"),
    "subj_number": Known("SubjNum", "semantic"),
    "obj_number": Known("ObjNum", "semantic"),
    "odd_man_out": Known("OddManOut", "semantic"),
    "coordination_inversion": Known("CoordInv", "semantic"),
}
# Files of a GLUE task: those that train, and those with labels that test (GLUE's own test files have none, except MRPC's).
GLUE_FILES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "MRPC": (("msr_paraphrase_train.txt", "train.tsv"), ("msr_paraphrase_test.txt", "test.tsv", "dev.tsv")),
    "STS-B": (("glue-train.tsv", "train.tsv"), ("glue-dev.tsv", "dev.tsv")),
    "SST-2": (("train.tsv",), ("dev.tsv",)),
    "RTE": (("train.tsv",), ("dev.tsv",)),
    "CoLA": (("train.tsv",), ("dev.tsv",)),
    "QNLI": (("train.tsv",), ("dev.tsv",)),
    "QQP": (("train.tsv",), ("dev.tsv",)),
    "MNLI": (("train.tsv",), ("dev_matched.tsv", "dev.tsv")),
}
_GLUE_NAMES = {name.lower().replace("-", ""): name for name in GLUE_FILES} | {"stsbenchmark": "STS-B"}


@dataclass(frozen=True, slots=True, eq=False)
class ProbeTask:
    """Examples with labels and the parts they belong to.

    `kind` is `classification` or `regression`; `metric` is what is reported beside accuracy or Pearson's r where GLUE asks for it
    (`f1`, `matthews`, `spearman`, or nothing).
    """

    name: str
    examples: tuple[Example, ...]
    split: Split
    kind: str = "classification"
    metric: str = ""

    @property
    def labels(self) -> list[str | float | None]:
        return [example.label for example in self.examples]

    @property
    def group(self) -> str:
        return SENTEVAL[self.name].group if self.name in SENTEVAL else "other"

    @property
    def paired(self) -> bool:
        """Whether the examples have two segments; a mixture is refused."""
        count = sum(example.has_pair for example in self.examples)
        if 0 < count < len(self.examples):
            raise InputError(
                f"{self.name}: {count} of {len(self.examples)} examples have a second sentence; all or none must have one."
            )
        return count > 0

    def fingerprint(self) -> str:
        """A digest of examples, labels and parts."""
        digest = hashlib.sha256(self.kind.encode())
        for example in self.examples:
            digest.update(example.fingerprint())
        for part in (self.split.train, self.split.validation, self.split.test):
            digest.update(np.ascontiguousarray(part).tobytes() + b"|")
        return digest.hexdigest()

    def limit(self, train: int | None, validation: int | None, test: int | None, seed: int = 0) -> ProbeTask:
        """A sample of each part, with the labels in proportion; examples outside it are dropped."""
        wanted = {"train": train, "validation": validation, "test": test}
        kept = {part: sample(self.labels, getattr(self.split, part), count, seed) for part, count in wanted.items()}
        used = np.unique(np.concatenate(list(kept.values())))
        place = {int(old): new for new, old in enumerate(used)}
        moved = {part: np.array([place[int(i)] for i in rows], dtype=np.int64) for part, rows in kept.items()}
        return replace(self, examples=tuple(self.examples[i] for i in used), split=Split(**moved))


def sample(labels: Sequence[Any], rows: np.ndarray, count: int | None, seed: int = 0) -> np.ndarray:
    """`count` of the rows at random, each label in proportion to its share, in corpus order; all of them where there are no more."""
    if count is None or count >= len(rows):
        return rows
    if count < 1:
        raise ParameterError(f"A part of a task needs at least one example; {count} were asked for.")
    order = np.random.RandomState(seed).permutation(rows)
    seen: dict[str, int] = {}
    rank = np.zeros(len(order))
    for i, row in enumerate(order):
        rank[i] = seen[str(labels[row])] = seen.get(str(labels[row]), -1) + 1
    total = np.array([seen[str(labels[row])] + 1 for row in order])
    # The k-th of n examples of a label comes at (k + 1/2) / n of the way: any first stretch holds every label in its proportion.
    return np.sort(order[np.argsort((rank + 0.5) / total, kind="stable")[:count]])


def task_from_examples(
    examples: Iterable[Example], name: str = "task", seed: int = 0, kind: str | None = None
) -> ProbeTask:
    """A task from one list of labelled examples, cut 60 / 20 / 20 by the digest of each example: the same cut in whatever order they come."""
    held = tuple(example for example in examples if example.label is not None)
    if not held:
        raise InputError(f"{name}: no example has a label; give a corpus with labels.")
    digests = np.array(
        [int.from_bytes(hashlib.sha256(example.fingerprint() + str(seed).encode()).digest()[:6]) for example in held]
    )
    order = np.argsort(digests, kind="stable")
    first, second = round(PARTS_OF_ONE[0] * len(held)), round((PARTS_OF_ONE[0] + PARTS_OF_ONE[1]) * len(held))
    # Examples themselves go by digest too, so that the order of rows in training does not depend on the corpus's.
    held = tuple(held[i] for i in order)
    split = Split(*np.split(np.arange(len(held)), [first, second]))
    return ProbeTask(name, held, split, kind or _kind(held))


def _kind(examples: Sequence[Example]) -> str:
    return "regression" if all(isinstance(example.label, float) for example in examples) else "classification"


def senteval_task(path: str | Path, name: str | None = None) -> ProbeTask:
    """A task in SentEval's format: `part TAB label TAB sentence` with the parts tr, va and te."""
    examples: list[Example] = []
    rows: dict[str, list[int]] = {part: [] for part in PARTS}
    for part in PARTS:
        try:
            found = list(open_corpus(f"senteval:{path}", part=part))
        except InputError as error:
            if "holds no examples" not in str(error):
                raise
            raise InputError(
                f"'{path}' has no rows of the part '{part}' ({PARTS[part]}); a probing task needs tr, va and te."
            ) from None
        rows[part] = list(range(len(examples), len(examples) + len(found)))
        examples.extend(found)
    split = Split(*(np.array(rows[part]) for part in PARTS))
    return ProbeTask(name or plain_name(Path(path).name), tuple(examples), split)


def glue_task(folder: str | Path, name: str | None = None, seed: int = 0) -> ProbeTask:
    """A GLUE task from its folder: a tenth of the training file validates (by seed), the labelled dev file (MRPC: test file) tests.

    Where there is no training file (QNLI's dev alone), the one file is cut 60 / 20 / 20.
    """
    folder = Path(folder)
    name = glue_name(name or folder.name)
    if name is None:
        raise ParameterError(f"'{folder}' is no folder of a GLUE task; known: {', '.join(GLUE_FILES)}.")
    train_file, test_file = (
        next((folder / f for f in files if (folder / f).is_file()), None) for files in GLUE_FILES[name]
    )
    if test_file is None and train_file is None:
        raise InputError(
            f"The folder '{folder}' has none of the files of {name}: {', '.join(sum(GLUE_FILES[name], ()))}."
        )
    kind = "regression" if name == "STS-B" else "classification"
    metric = {"MRPC": "f1", "QQP": "f1", "CoLA": "matthews", "STS-B": "spearman"}.get(name, "")
    if train_file is None or test_file is None:
        only = list(open_corpus(f"glue:{name}:{train_file or test_file}"))
        return replace(task_from_examples(only, name, seed, kind), metric=metric)
    train, test = list(open_corpus(f"glue:{name}:{train_file}")), list(open_corpus(f"glue:{name}:{test_file}"))
    order = np.random.RandomState(seed).permutation(len(train))
    held_out = max(1, round(VALIDATION_SHARE * len(train)))
    split = Split(np.sort(order[held_out:]), np.sort(order[:held_out]), np.arange(len(train), len(train) + len(test)))
    return ProbeTask(name, (*train, *test), split, kind, metric)


def glue_name(name: str) -> str | None:
    """A GLUE task's own spelling, or None."""
    return _GLUE_NAMES.get(name.lower().replace("-", "").replace("_", ""))


def read_tasks(spec: Any, seed: int = 0) -> list[ProbeTask]:
    """Tasks from what a user gives: a task, a corpus, a path, or several of them (a list, or a text with commas; a mapping gives them names).

    A folder is a GLUE task's, or holds SentEval files or GLUE folders; a file is SentEval's, or any labelled corpus.
    """
    if isinstance(spec, ProbeTask):
        tasks = [spec]
    elif isinstance(spec, Corpus):
        tasks = [task_from_examples(spec, spec.name, seed)]
    elif isinstance(spec, Mapping):
        tasks = [replace(task, name=str(name)) for name, item in spec.items() for task in read_tasks(item, seed)]
    elif isinstance(spec, str | Path):
        paths = [part.strip() for part in spec.split(",")] if isinstance(spec, str) else [spec]
        tasks = [task for path in paths for task in _read_path(path, seed)]
    else:
        tasks = [task for item in spec for task in read_tasks(item, seed)]
    if not tasks:
        raise ParameterError("No task was given; name SentEval files, GLUE folders or a labelled corpus.")
    names = [task.name for task in tasks]
    for name in names:
        if names.count(name) > 1:
            raise ParameterError(f"Two tasks are called '{name}'; give them different names.")
    return tasks


def _read_path(path: str | Path, seed: int) -> list[ProbeTask]:
    where = Path(path)
    if not where.is_dir():
        corpus = open_corpus(path)
        first = where.exists() and _first_line(where)
        return (
            [senteval_task(where)] if first and is_senteval(first) else [task_from_examples(corpus, corpus.name, seed)]
        )
    if glue_name(where.name) is not None:
        return [glue_task(where, seed=seed)]
    found: list[ProbeTask] = []
    for item in sorted(where.iterdir()):
        if item.is_dir() and glue_name(item.name) is not None:
            found.append(glue_task(item, seed=seed))
        elif item.is_file() and ".txt" in item.suffixes and is_senteval(_first_line(item)):
            found.append(senteval_task(item))
    if not found:
        raise InputError(
            f"The folder '{where}' holds neither SentEval files (part, label, sentence) nor folders of GLUE tasks."
        )
    order = list(SENTEVAL)
    return sorted(found, key=lambda task: order.index(task.name) if task.name in order else len(order))


def _first_line(path: Path) -> str:
    from headwise.text.readers.files import Files

    for file in Files(path, (".txt",)):
        for _, line in file.lines():
            if line.strip():
                return line
    return ""
