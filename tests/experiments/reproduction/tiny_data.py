"""Every data set that the papers need, a few rows each, in the format of its owner."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from headwise.text import Example
from headwise.text.demo import demo_corpus
from headwise.text.example import ROOT
from headwise.text.known_tasks import SENTEVAL

WORDS = ("the", "a", "old", "cat", "dog", "saw", "sleeps", "runs", "loudly", "and", ".", ",")
JO_MODEL = "bert-base-uncased"
JO_TASKS = (
    "Length",
    "WordContent",
    "Depth",
    "TopConstituents",
    "BigramShift",
    "Tense",
    "SubjNumber",
    "ObjNumber",
    "OddManOut",
    "CoordinationInversion",
)


def tree_examples(count: int, longest: int = 20) -> list[Example]:
    """Single sentences of the built-in grammar with trees."""
    examples = []
    for example in demo_corpus():
        has_tree = example.heads is not None and not example.has_pair
        if has_tree and len(example.all_words) <= longest:
            examples.append(example)
        if len(examples) == count:
            break
    return examples


def conllu(examples: Sequence[Example], per_document: int | None = None) -> str:
    """The sentences as a treebank; with `per_document`, that many sentences to a document."""
    lines = []
    for number, example in enumerate(examples):
        if per_document is not None and number % per_document == 0:
            lines.append(f"# newdoc id = document-{number // per_document}")
        assert example.words is not None
        assert example.heads is not None
        assert example.upos is not None
        assert example.relations is not None
        for index, word in enumerate(example.words):
            head = example.heads[index]
            head_column = 0 if head == ROOT else head + 1
            columns = [index + 1, word, word, example.upos[index], "_", "_", head_column]
            columns += [example.relations[index], "_", "_"]
            lines.append("\t".join(map(str, columns)))
        lines.append("")
    return "\n".join(lines) + "\n"


class TinyTexts:
    """Random short texts of few words, the same for the same seed."""

    def __init__(self, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)

    def sentence(self, n_words: int = 5) -> str:
        return " ".join(self.random.choice(WORDS, n_words))

    def labelled(self, label: int, n_words: int = 5) -> str:
        """A sentence whose first word tells its label."""
        return f"{('dog', 'cat')[label]} {self.sentence(n_words - 1)}"

    def pair(self) -> tuple[str, str]:
        return self.sentence(4), self.sentence(4)


def write_table(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A tab-separated file; no header line where the header is empty."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ["\t".join(header)] if header else []
    for row in rows:
        lines.append("\t".join(str(cell) for cell in row))
    path.write_text("\n".join(lines) + "\n")


def write_glue(folder: Path, n_train: int, n_dev: int) -> None:
    """The seven tasks that the papers fine-tune on."""
    texts = TinyTexts(1)
    for part, count in (("train", n_train), ("dev", n_dev)):
        labels = [row % 2 for row in range(count)]
        mrpc_file = {"train": "msr_paraphrase_train.txt", "dev": "msr_paraphrase_test.txt"}[part]
        write_table(
            folder / "MRPC" / mrpc_file,
            ("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"),
            [(label, i, i, *texts.pair()) for i, label in enumerate(labels)],
        )
        write_table(
            folder / "STS-B" / f"{part}.tsv",
            ("index", "sentence1", "sentence2", "score"),
            [(i, *texts.pair(), 0.5 + label) for i, label in enumerate(labels)],
        )
        write_table(
            folder / "SST-2" / f"{part}.tsv",
            ("sentence", "label"),
            [(texts.labelled(label), label) for label in labels],
        )
        write_table(
            folder / "QQP" / f"{part}.tsv",
            ("id", "question1", "question2", "is_duplicate"),
            [(i, *texts.pair(), label) for i, label in enumerate(labels)],
        )
        entailment = ("entailment", "not_entailment")
        write_table(
            folder / "RTE" / f"{part}.tsv",
            ("index", "sentence1", "sentence2", "label"),
            [(i, *texts.pair(), entailment[label]) for i, label in enumerate(labels)],
        )
        write_table(
            folder / "QNLI" / f"{part}.tsv",
            ("index", "question", "sentence", "label"),
            [(i, *texts.pair(), entailment[label]) for i, label in enumerate(labels)],
        )


def write_senteval(folder: Path, sizes: Sequence[int]) -> None:
    """The ten probing tasks, with train, validation and test parts of these sizes."""
    texts = TinyTexts(2)
    folder.mkdir(parents=True)
    for name in SENTEVAL:
        rows = []
        for part, count in zip(("tr", "va", "te"), sizes, strict=True):
            for row in range(count):
                rows.append((part, row % 2, texts.labelled(row % 2)))
        write_table(folder / f"{name}.txt", (), rows)


def write_jo_reference(path: Path) -> None:
    """Accuracies of four heads on each probing task, as the authors released them."""
    random = np.random.default_rng(3)
    lines = ["model,task,layer,head,validation,test"]
    for task in JO_TASKS:
        for layer in range(2):
            for head in range(2):
                validation, test = random.uniform(30, 90, 2)
                lines.append(f"{JO_MODEL},{task},{layer},{head},{validation:.1f},{test:.1f}")
    path.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode()))


def write_framenet(folder: Path, count: int = 6) -> None:
    """Exemplars with one target and one core element two words apart."""
    rows = []
    for number in range(count):
        # target "copied" at 11:17, element "the cat" at 0:7
        text = f"the cat old copied the dog {' '.join(WORDS[: number % 3])} . "
        row = {
            "frame": "Copying",
            "lu": "copy.v",
            "id": number,
            "text": text,
            "target": [[12, 18]],
            "fe": [["Copier", 0, 7]],
        }
        rows.append(json.dumps(row))
    (folder / "exemplars.jsonl").write_text("\n".join(rows) + "\n")
    frames = {"Copying": {"fe": {"Copier": "Core"}}}
    (folder / "frames.json.gz").write_bytes(gzip.compress(json.dumps(frames).encode()))


def write_ontogum(folder: Path) -> None:
    """Two documents with three coreferent mentions each."""
    folder.mkdir(parents=True)
    for number in range(2):
        words = ["the", "cat", "saw", "a", "dog", ".", "the", "cat", "runs", ".", "it", "sleeps"]
        marks = {0: "(1", 1: "1)", 6: "(1", 7: "1)", 10: "(1)"}
        lines = [f"# begin document doc_{number}"]
        for index, word in enumerate(words):
            lines.append(f"{index}\t{word}\t{marks.get(index, '_')}")
        lines.append("# end document")
        (folder / f"doc_{number}.conll").write_text("\n".join(lines) + "\n")


def write_all(folder: Path) -> Path:
    """Write every data set into a folder, and return the folder."""
    texts = TinyTexts(0)
    folder.mkdir(parents=True, exist_ok=True)
    articles = []
    for number in range(4):
        paragraphs = [texts.sentence(6) for _ in range(4)]
        articles.append(json.dumps({"title": f"article {number}", "paragraphs": paragraphs}))
    (folder / "articles.jsonl").write_text("\n".join(articles) + "\n")
    trees = tree_examples(36, longest=14)
    (folder / "en_ewt-ud-dev.conllu").write_text(conllu(trees[:18], per_document=3))
    (folder / "en_ewt-ud-train.conllu").write_text(conllu(trees[18:], per_document=3))
    for language in ("en", "de", "ar"):
        rows = [(*texts.pair(), "neutral") for _ in range(8)]
        write_table(folder / f"dev-{language}.tsv", (), rows)
    vectors = [f"{word} 0.{number} 1.0 -0.5" for number, word in enumerate(WORDS)]
    (folder / "glove.6B.100d.txt").write_text("\n".join(vectors) + "\n")
    write_framenet(folder)
    write_ontogum(folder / "ontogum")
    write_jo_reference(folder / "jo2020_head_accuracy.csv.gz")
    write_senteval(folder / "probing", (24, 12, 12))
    write_glue(folder / "glue", 8, 8)
    return folder
