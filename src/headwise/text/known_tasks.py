"""The one table of tasks that are known by name: GLUE's with the columns of their files, and
SentEval's."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KnownTask:
    """Which columns of a task's file are text, second text and label; how it is scored; which files
    train and score it.

    A file without header has a number of `columns`, which are numbered. `metrics[0]` is the one
    that decides. GLUE's own test files have no labels (except MRPC's), so that the dev file scores.
    """

    name: str
    text: str
    pair: str | None
    label: str
    metrics: tuple[str, ...] = ("accuracy",)
    train: tuple[str, ...] = ()
    dev: tuple[str, ...] = ()
    columns: int = 0

    @property
    def header(self) -> bool:
        return not self.columns

    @property
    def regression(self) -> bool:
        return "pearson" in self.metrics

    @property
    def files(self) -> tuple[str, ...]:
        """All names its files may have."""
        return self.train + self.dev


NUMBERS = ("pearson", "spearman")
_PLAIN = ("train.tsv",), ("dev.tsv",)
_MRPC = (
    ("msr_paraphrase_train.txt", "train.tsv"),
    ("msr_paraphrase_test.txt", "test.tsv", "dev.tsv"),
)
_STSB = ("glue-train.tsv", "train.tsv"), ("glue-dev.tsv", "dev.tsv")
_MNLI = ("train.tsv",), ("dev_matched.tsv", "dev.tsv")
# The order matters: the first task whose columns a header has is taken.
TASKS = (
    KnownTask("MRPC", "#1 String", "#2 String", "Quality", ("accuracy", "f1"), *_MRPC),
    KnownTask("STS-B", "sentence1", "sentence2", "score", NUMBERS, *_STSB),
    KnownTask("QQP", "question1", "question2", "is_duplicate", ("accuracy", "f1"), *_PLAIN),
    KnownTask("QNLI", "question", "sentence", "label", ("accuracy",), *_PLAIN),
    KnownTask("MNLI", "sentence1", "sentence2", "gold_label", ("accuracy",), *_MNLI),
    KnownTask("RTE", "sentence1", "sentence2", "label", ("accuracy",), *_PLAIN),
    KnownTask("WNLI", "sentence1", "sentence2", "label"),
    KnownTask("SST-2", "sentence", None, "label", ("accuracy",), *_PLAIN),
    KnownTask("CoLA", "3", None, "1", ("matthews", "accuracy"), *_PLAIN, columns=4),
    KnownTask("XNLI", "0", "1", "2", columns=3),
    KnownTask("pairs of texts", "text1", "text2", "label"),
    KnownTask("premise and hypothesis", "premise", "hypothesis", "label"),
    KnownTask("text and pair", "text", "pair", "label"),
    KnownTask("text", "text", None, "label"),
    KnownTask("scored text", "text", None, "score", NUMBERS),
    KnownTask("content", "content", None, "label"),
    KnownTask("prompt and completion", "prompt", "completion", "label"),
    KnownTask("source and target", "source", "target", "label"),
)
NAMED = {task.name.lower().replace("-", ""): task for task in TASKS[:10]}
GLUE = {task.name: task for task in TASKS if task.files}
_ALSO = {"stsbenchmark": "stsb", "mnlim": "mnli", "mnlimm": "mnli"}


def known_task(name: str) -> KnownTask | None:
    """A task of GLUE (or WNLI, XNLI) by its name, however it is spelled.

    >>> known_task("sst_2").name
    'SST-2'
    """
    plain = name.lower().replace("-", "").replace("_", "")
    return NAMED.get(_ALSO.get(plain, plain))


# SentEval's probing files: what Jo & Myaeng 2020 call each, and its group (Table 2; Fig 5 leaves
# `surface` out).
SENTEVAL: dict[str, tuple[str, str]] = {
    "sentence_length": ("Length", "surface"),
    "word_content": ("WordContent", "surface"),
    "tree_depth": ("Depth", "syntactic"),
    "top_constituents": ("TopConst", "syntactic"),
    "bigram_shift": ("BigramShift", "syntactic"),
    "past_present": ("Tense", "semantic"),
    "subj_number": ("SubjNum", "semantic"),
    "obj_number": ("ObjNum", "semantic"),
    "odd_man_out": ("OddManOut", "semantic"),
    "coordination_inversion": ("CoordInv", "semantic"),
}
