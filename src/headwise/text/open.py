"""From the name of a corpus, as a user gives it, to the corpus."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwise.core.errors import InputError, ParameterError, unknown
from headwise.text.attach import attach_trees
from headwise.text.corpus import Corpus, Notes
from headwise.text.demo import builtin_corpus
from headwise.text.example import Example
from headwise.text.readers import BY_ENDING, FORMATS, Format, checked_options, options_of
from headwise.text.readers.files import Files, TextFile, plain_name
from headwise.text.readers.hub import open_hub
from headwise.text.readers.limits import Limits, Walk, guarded, reading, shown
from headwise.text.readers.packed import endings
from headwise.text.readers.plain import read_txt
from headwise.text.readers.senteval import is_senteval, read_senteval
from headwise.text.readers.tsv import is_glue_header, read_tsv

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

HOW = (
    f"The ending tells the format ({', '.join(BY_ENDING)}, each also .gz, .xz, .bz2, .zst or in a .tar of them), or "
    f"give format:path with one of {', '.join(FORMATS)}."
)


@dataclass(frozen=True)
class Spec:
    """The name of a corpus together with options of its reader: wherever a corpus may be named, it
    may be named so.

    >>> Spec("stories.txt", {"split": "lines"}).name
    'stories.txt'
    """

    name: str | Path
    options: Mapping[str, Any] = field(default_factory=dict)


def open_corpus(
    spec: str | Path | Corpus | Spec | None = None,
    *,
    limit: int | None = None,
    seed: int = 0,
    prose: bool = False,
    tokenizer: PreTrainedTokenizerBase | None = None,
    max_tokens: int = 128,
    **options: Any,
) -> Corpus:
    """Open a corpus.

    Parameters
    ----------
    spec : str, Path, Spec or Corpus, optional
        A file whose ending tells its format (`.txt`, `.jsonl`, `.conllu`, `.conll`, `.tsv`, `.csv`,
        each also compressed or in a tar), `format:path`, `glue:TASK:path`,
        `hf:dataset/config:split`, one of them with options (`Spec`), a corpus; by default the
        built-in one (`headwise.text.demo.builtin_corpus`).
    limit : int, optional
        Only so many examples, drawn at random (see `Corpus.sample`).
    seed : int, default 0
        What they are drawn by.
    prose : bool, default False
        The built-in corpus as running text, for a causal model.
    tokenizer : PreTrainedTokenizerBase, optional
        For pairs of paragraphs: the model's fast tokenizer. Without one pairs are left whole.
    max_tokens : int, default 128
        For pairs of paragraphs: the longest pair in tokens.
    options
        `name` and `licence` for provenance (by default the file's name and nothing); `trees`:
        another corpus that has the trees of the same documents (`trees="gum:FILE"` for OntoGUM's).
        Options of the format's reader, for instance `text_field="body"` (jsonl, csv, tsv, hf),
        `split="lines"` (txt), `documents=True` (conllu), `part="tr"` (senteval), `task="MRPC"`
        (tsv); and, for every format, the limits of `headwise.text.readers.limits.Limits` by their
        names, for instance `max_line=10_000_000`.

    The first example is read at once, so that a file that cannot be read fails here.

    Examples
    --------
    >>> open_corpus(limit=2).survey().count
    2
    """
    if isinstance(spec, Spec):
        options = {**spec.options, **options}
        spec = spec.name
    if spec is None or isinstance(spec, Corpus):
        if options:
            what = "The built-in corpus" if spec is None else "A corpus that is open already"
            raise ParameterError(f"{what} takes no reader options; given: {', '.join(options)}.")
        return (builtin_corpus(prose) if spec is None else spec).sample(limit, seed)
    from_hub = isinstance(spec, str) and spec.startswith("hf:")
    common = {"tokenizer": tokenizer, "max_tokens": max_tokens}
    named = {key: str(options.pop(key)) for key in ("name", "licence") if options.get(key)}
    limits, options = Limits.among(options)
    trees = options.pop("trees", None)
    if from_hub:
        corpus = open_hub(str(spec), limits, **checked_options("hf", options_of(open_hub), options))
    else:
        with reading(shown(spec), "the corpus cannot be opened"):  # paths that the system refuses
            corpus = _open_path(spec, common, options, limits)
    if trees is not None:
        corpus = attach_trees(corpus, open_corpus(trees))
    corpus.name, corpus.licence = (
        named.get("name", corpus.name),
        named.get("licence", corpus.licence),
    )
    corpus = corpus.sample(limit, seed)
    corpus.peek()
    return corpus


def _open_path(
    spec: str | Path, common: dict[str, Any], options: dict[str, Any], limits: Limits
) -> Corpus:
    format_name, path = parse_spec(spec, options)
    if not path.exists():
        raise InputError(f"There is no file '{path}'; check the path.")
    if format_name is None:
        if path.is_dir():
            known = ", ".join(FORMATS)
            raise InputError(
                f"'{path}' is a folder; name a file, or give format:folder with one of {known}."
            )
        format_name = format_by_ending(path)
    chosen = SNIFFED_TXT if format_name == "txt" else FORMATS[format_name]
    own = {key: value for key, value in common.items() if key in chosen.options}
    own |= checked_options(chosen.name, chosen.options, options)

    def stream(notes: Notes) -> Iterator[Example]:
        walk = Walk(limits, notes)
        return guarded(
            chosen.read(Files(path, chosen.members, walk), notes, **own), walk, chosen.about
        )

    return Corpus(plain_name(path.name), stream, description=chosen.about)


def parse_spec(spec: str | Path, options: dict[str, Any] | None = None) -> tuple[str | None, Path]:
    """The format a spec names (None where the ending must tell) and its path; `glue:TASK:path` puts
    the task into the options."""
    if isinstance(spec, Path):
        return None, spec
    if not spec.strip():
        raise ParameterError(f"The corpus is named by an empty text. {HOW}")
    head, colon, rest = spec.partition(":")
    if colon and head in FORMATS:
        if not rest:
            raise ParameterError(f"'{spec}' names no file; give {head}:path.")
        return head, Path(rest)
    if colon and head == "glue":
        task, second, path = rest.partition(":")
        if not second:
            return "tsv", Path(rest)
        if options is not None:
            options["task"] = task
        return "tsv", Path(path)
    if colon and not Path(spec).exists() and len(head) > 1 and head.replace("-", "").isalnum():
        raise ParameterError(unknown("format", head, [*FORMATS, "glue", "hf"]))
    return None, Path(spec)


def format_by_ending(path: Path) -> str:
    """The format that a file's ending, or the first fitting member of an archive, tells."""
    ending = endings(path.name)[0]
    if ending == ".tar":
        found = next(filter(None, map(_by_name, Files(path, ()).member_names())), None)
        if found is not None:
            return found
        raise InputError(f"The archive '{path}' holds no file of a known format. {HOW}")
    by_name = _by_name(path.name)
    if by_name is None:
        raise ParameterError(f"The ending of '{path.name}' tells no format. {HOW}")
    return by_name


def _by_name(name: str) -> str | None:
    ending, compression = endings(name)
    if ending.endswith("_conll") or name.removesuffix(compression).endswith("_conll"):
        return "conll"
    return BY_ENDING.get(ending)


def _read_by_first_line(
    files: Iterable[TextFile],
    notes: Notes,
    *,
    part: str | None = None,
    task: str | None = None,
    split: str | None = None,
) -> Iterator[Example]:
    """A `.txt` file: SentEval's and MRPC's are known by their first line, all else is prose."""
    for file in files:
        first, file = file.first_line(lambda line: bool(line.strip()))
        if split is not None:
            yield from read_txt([file], notes, split=split)
        elif is_senteval(first):
            yield from read_senteval([file], notes, part=part)
        elif is_glue_header(first) or task is not None:
            yield from read_tsv([file], notes, task=task)
        else:
            yield from read_txt([file], notes)


SNIFFED_TXT = Format("txt", FORMATS["txt"].about, _read_by_first_line, FORMATS["txt"].members)
