"""Find data sets by name in one folder, as their owners ship them or compressed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from headwise.core.errors import InputError, ParameterError, unknown
from headwise.experiments.reproduction.schema import NotRunError
from headwise.text.known_tasks import GLUE, SENTEVAL, known_task
from headwise.text.readers.files import plain_name

_COMPRESSED_ENDINGS = ("", ".gz", ".xz", ".bz2", ".zst")
_UD = "https://universaldependencies.org"
_GLUE = "https://gluebenchmark.com/tasks"
_MAX_DEPTH = 4  # levels of folders that are searched
SOURCES_FILE = "sources.json"  # beside data: what its files are and where they come from


@dataclass(frozen=True, slots=True)
class DataSet:
    """A data set that a paper uses.

    Parameters
    ----------
    title : str
        What it is.
    origin : str
        Where to get it.
    names : tuple of str
        Names that its file or folder may have; the first that exists is used, `*` matches anything.
    format : str, default ""
        The format to read it by, where the file's ending does not tell.
    """

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


class DataFolder:
    """The data sets in a folder.

    Parameters
    ----------
    folder : str or Path, optional
        Searched up to four levels deep; None for no data sets.
    sources : str or Path, optional
        A file that states what the data are (see `read_sources`), for all of them; by default
        the `sources.json` nearest to each.

    Examples
    --------
    >>> DataFolder(None).find("ewt-dev") is None
    True
    >>> DataFolder(None).missing("ewt-dev")
    'needs UD English EWT, dev, from https://universaldependencies.org'
    """

    def __init__(self, folder: str | Path | None, sources: str | Path | None = None) -> None:
        self.folder = None if folder is None else Path(folder)
        self._sources = None if sources is None else read_sources(Path(sources))
        self._paths: list[Path] = []
        if self.folder is not None:
            if not self.folder.is_dir():
                raise InputError(f"There is no folder '{self.folder}'.", option="data")
            self._paths = sorted(_paths_below(self.folder, _MAX_DEPTH))

    def find(self, name: str) -> Path | None:
        """Return the file or folder of a data set, or None."""
        if name not in DATA_SETS:
            raise ParameterError(unknown("data set", name, DATA_SETS))
        if name.startswith("glue-"):
            return self._find_glue(name.removeprefix("glue-"))
        for pattern in DATA_SETS[name].names:
            for path in self._paths:
                if any(path.match(f"{pattern}{ending}") for ending in _COMPRESSED_ENDINGS):
                    return path
        return None

    def _find_glue(self, name: str) -> Path | None:
        """Return a task's folder: with a training and a dev file, or for `NAME-dev` a dev file."""
        task = GLUE[name.removesuffix("-dev")]
        required_parts = [task.dev]
        if not name.endswith("-dev"):
            required_parts.append(task.train)
        for path in self._paths:
            if not path.is_dir() or known_task(path.name) is not task:
                continue
            if all(_has_any(path, file_names) for file_names in required_parts):
                return path
        return None

    def path(self, name: str) -> Path:
        """Return the file or folder of a data set; raise `NotRunError` where it is missing."""
        path = self.find(name)
        if path is None:
            raise NotRunError(self.missing(name), option="data")
        return path

    def spec(self, name: str) -> str:
        """Return the data set as `open_corpus` takes it."""
        path = self.path(name)
        format_name = DATA_SETS[name].format
        return f"{format_name}:{path}" if format_name else str(path)

    def first(self, *names: str) -> str:
        """Return the first of several data sets that exists, or the first of all."""
        for name in names:
            if self.find(name) is not None:
                return name
        return names[0]

    def source(self, name: str) -> str:
        """Return what a data set is and where it comes from, as far as someone has stated it.

        A file has the name of a data set because a reader looks for that name: it need not be the
        data set of that name. "" where nothing is stated.
        """
        path = self.path(name)
        if self._sources is not None:
            return _stated_source(self._sources, path)
        folder = path.parent
        while True:
            file = folder / SOURCES_FILE
            if file.is_file():
                return _stated_source(read_sources(file), path)
            if folder == self.folder:
                return ""
            folder = folder.parent

    def missing(self, name: str) -> str:
        """Return what a report says about a data set that is missing."""
        data_set = DATA_SETS[name]
        return f"needs {data_set.title}, from {data_set.origin}"


def read_sources(file: Path) -> dict[str, str]:
    """Read a file that states what data are: a JSON object of texts by the name of a file (with or
    without its ending) or folder; `*` in a name matches anything."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"'{file}' cannot be read as JSON: {error}.", option="sources") from None
    is_text = isinstance(content, dict) and all(isinstance(v, str) for v in content.values())
    if not is_text:
        raise InputError(
            f"'{file}' must be a JSON object of texts by the names of files.", option="sources"
        )
    return dict(content)


def _stated_source(sources: Mapping[str, str], path: Path) -> str:
    name = plain_name(path.name)
    source_of_name = {plain_name(stated_name): text for stated_name, text in sources.items()}
    if name in source_of_name:
        return source_of_name[name]
    for pattern, source in source_of_name.items():
        if fnmatchcase(name, pattern):
            return source
    return ""


def _has_any(folder: Path, file_names: tuple[str, ...]) -> bool:
    return any((folder / name).is_file() for name in file_names)


def _paths_below(folder: Path, depth: int) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.name.startswith("."):
            continue
        yield path
        if path.is_dir() and depth > 1:
            yield from _paths_below(path, depth - 1)
