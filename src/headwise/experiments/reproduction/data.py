"""Data sets by name, found in one folder: as their owners ship them, or packed as headwise's own
tests have them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headwise.core.errors import InputError, ParameterError, unknown
from headwise.experiments.reproduction.schema import NotRunError
from headwise.text.known_tasks import GLUE, SENTEVAL, known_task

_PACKED = ("", ".gz", ".xz", ".bz2", ".zst")
_UD = "https://universaldependencies.org"
_GLUE = "https://gluebenchmark.com/tasks"
_DEEPEST = 4  # folders below the one that is given


@dataclass(frozen=True, slots=True)
class DataSet:
    """A data set: what it is, where to get it, the names its file or folder may have (the first
    that is there is taken; `*` stands for anything), and the format to read it by where the ending
    does not tell."""

    title: str
    origin: str
    names: tuple[str, ...]
    format: str = ""


DATA_SETS: dict[str, DataSet] = {
    "wikipedia": DataSet(
        "paragraphs of English Wikipedia (JSON lines with `paragraphs`)",
        "https://dumps.wikimedia.org, an article a line",
        ("articles.jsonl", "wikipedia.jsonl", "wiki*.jsonl"),
        "articles",
    ),
    "ptb-dev": DataSet(
        "Penn Treebank WSJ section 22 in Stanford Dependencies (.conllu or .conll)",
        "https://catalog.ldc.upenn.edu/LDC99T42, converted with Stanford CoreNLP",
        ("ptb-dev.conllu", "ptb*dev*.conllu", "wsj*22*.conllu", "wsj*dev*.conllu"),
        "conllu",
    ),
    "ptb-train": DataSet(
        "Penn Treebank WSJ sections 2-21 in Stanford Dependencies (.conllu)",
        "https://catalog.ldc.upenn.edu/LDC99T42, converted with Stanford CoreNLP",
        ("ptb-train.conllu", "ptb*train*.conllu", "wsj*train*.conllu"),
        "conllu",
    ),
    "ewt-dev": DataSet("UD English EWT, dev", _UD, ("en_ewt-ud-dev.conllu",)),
    "ewt-train": DataSet("UD English EWT, train", _UD, ("en_ewt-ud-train.conllu",)),
    "pud-en": DataSet("UD English PUD", _UD, ("en_pud-ud-test.conllu",)),
    "pud-de": DataSet("UD German PUD", _UD, ("de_pud-ud-test.conllu",)),
    "pud-ar": DataSet("UD Arabic PUD", _UD, ("ar_pud-ud-test.conllu",)),
    "conll2012": DataSet(
        "CoNLL-2012 English dev (`*_gold_conll`)",
        "https://conll.cemantix.org/2012 with OntoNotes 5 (LDC2013T19)",
        ("conll-2012*dev*english*", "dev.english*_gold_conll", "conll2012*dev*", "conll-2012"),
        "conll2012",
    ),
    "ontogum": DataSet(
        "OntoGUM (`*.conll`, a file a document)",
        "https://github.com/yilunzhu/ontogum",
        ("ontogum_conll.tar", "ontogum"),
        "conll",
    ),
    "gum": DataSet(
        "GUM (trees of OntoGUM's documents, CoNLL-U)",
        "https://github.com/amir-zeldes/gum",
        ("gum_conllu.tar", "gum"),
        "gum",
    ),
    "framenet": DataSet(
        "FrameNet 1.7",
        "https://framenet.icsi.berkeley.edu (also nltk's `framenet_v17`)",
        ("exemplars.jsonl", "framenet_v17", "fndata-1.7", "framenet"),
        "framenet",
    ),
    "xnli-en": DataSet(
        "XNLI dev, English", "https://github.com/facebookresearch/XNLI", ("dev-en.tsv",)
    ),
    "xnli-de": DataSet(
        "XNLI dev, German", "https://github.com/facebookresearch/XNLI", ("dev-de.tsv",)
    ),
    "xnli-ar": DataSet(
        "XNLI dev, Arabic", "https://github.com/facebookresearch/XNLI", ("dev-ar.tsv",)
    ),
    "glove": DataSet(
        "GloVe vectors (6B, 100d)",
        "https://nlp.stanford.edu/projects/glove",
        ("glove_6B_100d_bertvocab_f16.npz", "glove.6B.100d.txt", "glove*.npz", "glove*.txt"),
    ),
    "jo2020": DataSet(
        "Jo & Myaeng's released accuracies of heads",
        "https://github.com/heartcored98/transformer_anatomy",
        ("jo2020_head_accuracy.csv",),
    ),
    **{
        f"senteval-{key}": DataSet(
            f"SentEval's probing task {title} ({key}.txt)",
            "https://github.com/facebookresearch/SentEval, data/probing",
            (f"{key}.txt",),
            "senteval",
        )
        for key, (title, _) in SENTEVAL.items()
    },
    **{f"glue-{name}": DataSet(f"GLUE's {name}, train and dev", _GLUE, ()) for name in GLUE},
    **{f"glue-{name}-dev": DataSet(f"GLUE's {name}, dev", _GLUE, ()) for name in GLUE},
}


class DataSets:
    """The data sets in a folder.

    Parameters
    ----------
    folder : str or Path, optional
        Where they lie, up to four folders deep; None where none were given.

    Examples
    --------
    >>> DataSets(None).find("ewt-dev") is None
    True
    >>> DataSets(None).missing("ewt-dev")
    'needs UD English EWT, dev, from https://universaldependencies.org; name its folder with --data'
    """

    def __init__(self, folder: str | Path | None) -> None:
        self.folder = None if folder is None else Path(folder)
        if self.folder is not None and not self.folder.is_dir():
            raise InputError(f"There is no folder '{self.folder}'; check --data.")
        self._paths = [] if self.folder is None else sorted(_below(self.folder, _DEEPEST))

    def find(self, name: str) -> Path | None:
        """The file or folder of a data set, or None."""
        if name not in DATA_SETS:
            raise ParameterError(unknown("data set", name, DATA_SETS))
        if name.startswith("glue-"):
            return self._glue(name.removeprefix("glue-"))
        for wanted in DATA_SETS[name].names:
            for path in self._paths:
                if any(path.match(f"{wanted}{packing}") for packing in _PACKED):
                    return path
        return None

    def _glue(self, name: str) -> Path | None:
        """A task's folder: with a training file in it, but for the dev part alone."""
        known = GLUE[name.removesuffix("-dev")]
        wanted = (known.dev,) if name.endswith("-dev") else (known.train, known.dev)
        own = (path for path in self._paths if path.is_dir() and known_task(path.name) is known)
        return next(
            (
                path
                for path in own
                if all(any((path / one).is_file() for one in part) for part in wanted)
            ),
            None,
        )

    def path(self, name: str) -> Path:
        """The same; a data set that is not there is a reason not to run."""
        found = self.find(name)
        if found is None:
            raise NotRunError(self.missing(name))
        return found

    def spec(self, name: str) -> str:
        """The data set as `open_corpus` takes it."""
        path, format_name = self.path(name), DATA_SETS[name].format
        return f"{format_name}:{path}" if format_name else str(path)

    def first(self, *names: str) -> str:
        """The first of several data sets that is there; where none is, the first is missed."""
        return next((name for name in names if self.find(name) is not None), names[0])

    def missing(self, name: str) -> str:
        """What to say of a data set that is not there."""
        about = DATA_SETS[name]
        return f"needs {about.title}, from {about.origin}; name its folder with --data"


def _below(folder: Path, depth: int) -> Iterator[Path]:
    for path in folder.iterdir():
        if not path.name.startswith("."):
            yield path
            if path.is_dir() and depth > 1:
                yield from _below(path, depth - 1)
