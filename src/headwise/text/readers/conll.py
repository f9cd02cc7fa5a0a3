"""Read coreference files: OntoGUM (three columns) and CoNLL-2012; one example per document part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from headwise.core.errors import InputError
from headwise.text.corpus import Notes
from headwise.text.example import Example, Mention
from headwise.text.readers.entities import bracketed, in_order
from headwise.text.readers.files import TextFile
from headwise.text.readers.limits import Limits
from headwise.text.readers.ptb import PhraseHeads, number_of, phrases, upos_of

BEGIN = "begin document"
END = "end document"
EMPTY = "_"
MIN_COLUMNS = 12  # of a CoNLL-2012 row: eleven fixed ones and the coreference column
NO_TAG = ("-", "_", "*", "XX")


class _Document:
    """The rows of one document while it is read."""

    def __init__(self, name: str, where: str, limits: Limits) -> None:
        self.name = name
        self.where = where
        self.limits = limits
        self.n_characters = 0
        self.rows: list[list[str]] = []
        self.places: list[str] = []  # file and line of each row
        self.sentences: list[int] = []  # the sentence of each row
        self.sentence = 0

    def add(self, row: list[str], where: str, length: int) -> None:
        """Add a row of so many characters."""
        self.rows.append(row)
        self.n_characters += length
        self.limits.hold("max_words", len(self.rows), where)
        self.limits.hold("max_whole", self.n_characters, where)
        self.places.append(where)
        self.sentences.append(self.sentence)

    def end_sentence(self) -> None:
        """Start the next sentence; several blank lines in a row count once."""
        if self.sentences and self.sentences[-1] == self.sentence:
            self.sentence += 1

    @property
    def origin(self) -> str:
        return f"{self.where}, document {self.name}"

    def marks(self, column: int) -> Iterator[tuple[str, str]]:
        """Yield the coreference brackets of each row, and where they are."""
        for row, where in zip(self.rows, self.places, strict=True):
            brackets = "" if row[column] in ("_", "-") else row[column]
            yield brackets, where


def _documents(file: TextFile, split_tabs: bool) -> Iterator[_Document]:
    current: _Document | None = None
    limits = file.walk.limits
    for number, line in file.lines():
        comment = line[1:].lstrip() if line.startswith("#") else ""
        begins = comment.startswith(BEGIN)
        if begins or comment.startswith(END):
            if current is not None and current.rows:
                yield current
            current = None
            if begins:
                name = _document_name(comment.removeprefix(BEGIN)) or file.stem
                current = _Document(name, file.where(number), limits)
        elif not line.strip():
            if current is not None:
                current.end_sentence()
        elif line.startswith("#") and "\t" not in line and current is None:
            continue
        else:
            if current is None:
                current = _Document(file.stem, file.where(number), limits)
            row = line.split("\t") if split_tabs else line.split()
            current.add(row, file.where(number), len(line))
    if current is not None and current.rows:
        yield current


def _document_name(rest: str) -> str:
    """Return the name in `# begin document (name); part 000`, `(name)` or `name`.

    >>> _document_name(" (bc/cctv/00/cctv_0000); part 001"), _document_name(" GUM_bio ")
    ('bc/cctv/00/cctv_0000 part 001', 'GUM_bio')
    """
    name = rest.strip()
    part_number = ""
    before, semicolon, part = name.rpartition(";")
    part_words = part.split()
    if semicolon and len(part_words) == 2 and part_words[0] == "part":
        name = before.strip()
        part_number = part_words[1]
    if name.startswith("(") and name.endswith(")"):
        name = name[1:-1]
    return f"{name} part {part_number}" if part_number else name


def read_ontogum(files: Iterable[TextFile], notes: Notes) -> Iterator[Example]:
    """Read OntoGUM: index, token and coreference brackets, separated by tabs.

    The heads of mentions are unknown; `attach_trees` adds them.
    """
    for file in files:
        for document in _documents(file, split_tabs=True):
            example = file.walk.attempt(partial(_ontogum_example, document, notes))
            if example is not None:
                yield example


def _ontogum_example(document: _Document, notes: Notes) -> Example:
    for row, where in zip(document.rows, document.places, strict=True):
        if len(row) != 3:
            raise InputError(
                f"{where}: the row has {len(row)} columns separated by tabs; OntoGUM has 3 (index, "
                "token, coreference)."
            )
        if not row[1]:  # OntoGUM's own files lost the token `|`
            row[1] = EMPTY
            notes["empty tokens, read as _"] += 1
    mentions = []
    for span in bracketed(document.marks(2), document.limits):
        mentions.append(Mention(span.start, span.end, span.entity))
    several_sentences = document.sentences[-1] > 0
    return Example(
        words=tuple(row[1] for row in document.rows),
        sentences=tuple(document.sentences) if several_sentences else None,
        mentions=in_order(mentions),
        origin=document.origin,
        document=document.name,
    )


def read_conll2012(files: Iterable[TextFile], notes: Notes) -> Iterator[Example]:
    """Read CoNLL-2012 (`*_gold_conll`): words, parts of speech as UPOS, number from the tag, and
    mentions with the head word of their constituent."""
    for file in files:
        for document in _documents(file, split_tabs=False):
            example = file.walk.attempt(partial(_conll2012_example, document))
            if example is not None:
                yield example


def _conll2012_example(document: _Document) -> Example:
    for row, where in zip(document.rows, document.places, strict=True):
        if len(row) < MIN_COLUMNS:
            raise InputError(
                f"{where}: the row has {len(row)} columns; CoNLL-2012 has at least {MIN_COLUMNS}."
            )
    tags = [row[4] for row in document.rows]
    parse_bits = [row[5] for row in document.rows]
    tree = phrases(parse_bits, document.places, document.sentences, document.limits)
    head_of = PhraseHeads(tree, tags)
    mentions = []
    for span in bracketed(document.marks(-1), document.limits):
        head = head_of(span.start, span.end)
        mentions.append(Mention(span.start, span.end, span.entity, head))
    known_tags = any(tag not in NO_TAG for tag in tags)
    return Example(
        words=tuple(row[3] for row in document.rows),
        upos=tuple(map(upos_of, tags)) if known_tags else None,
        features=tuple(map(number_of, tags)) if known_tags else None,
        sentences=tuple(document.sentences),
        mentions=in_order(mentions),
        origin=document.origin,
        document=document.name,
    )


def read_conll(files: Iterable[TextFile], notes: Notes) -> Iterator[Example]:
    """Read `.conll` files: OntoGUM where the first row has three columns separated by tabs,
    CoNLL-2012 where it has twelve or more."""
    for file in files:
        first, file = file.first_line(_is_row)
        if not first:
            continue
        if len(first.split("\t")) == 3:
            yield from read_ontogum([file], notes)
        elif len(first.split()) >= MIN_COLUMNS:
            yield from read_conll2012([file], notes)
        else:
            columns = len(first.split("\t"))
            raise InputError(
                f"{file.label}: its rows have {columns} columns; OntoGUM has 3 and CoNLL-2012 at "
                f"least {MIN_COLUMNS}. Name another format as format:path, for instance "
                "conllu:path."
            )


def _is_row(line: str) -> bool:
    return bool(line.strip()) and (not line.startswith("#") or "\t" in line)
