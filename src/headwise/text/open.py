"""Open a corpus by its name: a file, a format and a path, or a dataset of the hub."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwise.core.checks import one_of
from headwise.core.errors import InputError, ParameterError, unknown
from headwise.core.files import similar_path
from headwise.text.attach import attach_trees
from headwise.text.corpus import Corpus, Notes
from headwise.text.demo import builtin_corpus
from headwise.text.example import Example
from headwise.text.readers import BY_ENDING, FORMATS, Format, checked_options, options_of
from headwise.text.readers.files import Files, TextFile, plain_name
from headwise.text.readers.hub import open_hub
from headwise.text.readers.limits import BAD_ROWS, Limits, Walk, guarded, reading, shown
from headwise.text.readers.packed import endings
from headwise.text.readers.plain import read_txt
from headwise.text.readers.senteval import is_senteval, read_senteval
from headwise.text.readers.tsv import is_glue_header, read_tsv

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

HOW = (
    f"The ending tells the format ({', '.join(BY_ENDING)}, each also .gz, .xz, .bz2, .zst or in a "
    f".tar of them), or give format:path with one of {', '.join(FORMATS)}."
)


@dataclass(frozen=True)
class Spec:
    """The name of a corpus with options of its reader; accepted wherever a corpus is named.

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
        `hf:dataset/config:split`, one of them with options (`Spec`), or an open corpus; default:
        the built-in corpus (`headwise.text.demo.builtin_corpus`).
    limit : int, optional
        The number of examples, drawn at random (see `Corpus.sample`); default: all.
    seed : int, default 0
        Seed of that draw.
    prose : bool, default False
        Whether the built-in corpus is running text, for a causal model.
    tokenizer : PreTrainedTokenizerBase, optional
        For pairs of paragraphs: the model's fast tokenizer. Without one, pairs are not shortened.
    max_tokens : int, default 128
        For pairs of paragraphs: the greatest length of a pair in tokens.
    options
        `name` and `licence` for provenance (default: the file's name, and no licence); `trees`:
        another corpus that has the trees of the same documents (`trees="gum:FILE"` for OntoGUM's).
        Options of the format's reader, for instance `text_field="body"` (jsonl, csv, tsv, hf),
        `split="lines"` (txt), `documents=True` (conllu), `part="tr"` (senteval), `task="MRPC"`
        (tsv). For every format, `bad_rows`: by default blank rows are skipped and counted and
        malformed ones are errors (in GLUE's own files skipped, too); `error` makes both errors,
        `skip` skips and counts both. Also for every format, the limits of
        `headwise.text.readers.limits.Limits` by their names, for instance `max_line=10_000_000`.

    The first example is read at once, so that an unreadable file fails here.

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
            subject = "The built-in corpus" if spec is None else "A corpus that is open already"
            raise ParameterError(f"{subject} takes no reader options; given: {', '.join(options)}.")
        corpus = builtin_corpus(prose) if spec is None else spec
        return corpus.sample(limit, seed)

    provenance = {}
    for key in ("name", "licence"):
        if options.get(key):
            provenance[key] = str(options.pop(key))
    trees = options.pop("trees", None)
    bad_rows = options.pop("bad_rows", None)
    if bad_rows is not None:
        one_of("bad_rows", bad_rows, BAD_ROWS)
    limits, reader_options = Limits.among(options)
    if isinstance(spec, str) and spec.startswith("hf:"):
        reader_options = checked_options("hf", options_of(open_hub), reader_options)
        corpus = open_hub(spec, limits, bad_rows, **reader_options)
    else:
        model_options = {"tokenizer": tokenizer, "max_tokens": max_tokens}
        # The operating system may reject a path (too long, a null byte).
        with reading(shown(spec), "the corpus cannot be opened"):
            corpus = _open_path(spec, model_options, reader_options, limits, bad_rows)
    if trees is not None:
        corpus = attach_trees(corpus, open_corpus(trees))
    corpus.name = provenance.get("name", corpus.name)
    corpus.licence = provenance.get("licence", corpus.licence)
    corpus = corpus.sample(limit, seed)
    corpus.peek()
    return corpus


def _open_path(
    spec: str | Path,
    model_options: dict[str, Any],
    options: dict[str, Any],
    limits: Limits,
    bad_rows: str | None,
) -> Corpus:
    """Open a file, an archive or a folder.

    `model_options` go to readers that take them; `options` are the user's, and unknown ones are
    rejected.
    """
    format_name, path = parse_spec(spec, options)
    if path.is_symlink() and not path.exists():
        raise InputError(f"'{path}' is a link to itself or to no file; check where it leads.")
    if not path.exists():
        raise InputError(f"There is no file '{path}'; check the path.{similar_path(path)}")
    if format_name is None:
        if path.is_dir():
            known = ", ".join(FORMATS)
            raise InputError(
                f"'{path}' is a folder; name a file, or give format:folder with one of {known}."
            )
        format_name = format_by_ending(path)
    file_format = SNIFFED_TXT if format_name == "txt" else FORMATS[format_name]
    reader_options = {}
    for name, value in model_options.items():
        if name in file_format.options:
            reader_options[name] = value
    reader_options |= checked_options(file_format.name, file_format.options, options)

    def stream(notes: Notes) -> Iterator[Example]:
        walk = Walk(limits, notes, bad_rows=bad_rows)
        files = Files(path, file_format.members, walk)
        return guarded(file_format.read(files, notes, **reader_options), walk, file_format.about)

    return Corpus(plain_name(path.name), stream, description=file_format.about)


def parse_spec(spec: str | Path, options: dict[str, Any] | None = None) -> tuple[str | None, Path]:
    """Return the format that a spec names (None where the ending must tell) and its path.

    `glue:TASK:path` puts the task into the options.
    """
    if isinstance(spec, Path):
        return None, spec
    if not spec.strip():
        raise ParameterError(f"The name of the corpus is empty. {HOW}")
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
    # A file may have a colon in its name, and `C:` is a drive.
    looks_like_format = len(head) > 1 and head.replace("-", "").isalnum()
    if colon and looks_like_format and not Path(spec).exists():
        raise ParameterError(unknown("format", head, [*FORMATS, "glue", "hf"]))
    return None, Path(spec)


def format_by_ending(path: Path) -> str:
    """Return the format by a file's ending, or by the first member of an archive whose ending is
    known."""
    ending = endings(path.name)[0]
    if ending == ".tar":
        for member_name in Files(path, ()).member_names():
            format_of_member = _format_by_name(member_name)
            if format_of_member is not None:
                return format_of_member
        raise InputError(f"The archive '{path}' holds no file of a known format. {HOW}")
    format_name = _format_by_name(path.name)
    if format_name is None:
        raise ParameterError(f"The ending of '{path.name}' tells no format. {HOW}")
    return format_name


def _format_by_name(name: str) -> str | None:
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
    """Read `.txt` files: those of SentEval and MRPC are recognised by their first line, all others
    are prose."""
    for file in files:
        first_line, file = file.first_line(lambda line: bool(line.strip()))
        if split is not None:
            yield from read_txt([file], notes, split=split)
        elif is_senteval(first_line):
            yield from read_senteval([file], notes, part=part)
        elif is_glue_header(first_line) or task is not None:
            yield from read_tsv([file], notes, task=task)
        else:
            yield from read_txt([file], notes)


SNIFFED_TXT = Format("txt", FORMATS["txt"].about, _read_by_first_line, FORMATS["txt"].members)
