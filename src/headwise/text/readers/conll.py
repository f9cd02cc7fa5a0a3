"""Coreference files of the CoNLL family: OntoGUM's three columns, CoNLL-2012's many; one example
per document (part)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headwise.core.errors import InputError
from headwise.text.corpus import Notes
from headwise.text.example import Example, Mention
from headwise.text.readers.entities import bracketed, in_order
from headwise.text.readers.files import TextFile
from headwise.text.readers.limits import Limits
from headwise.text.readers.ptb import PhraseHeads, number_of, phrases, upos_of

BEGIN, END = "begin document", "end document"
EMPTY = "_"
TOO_FEW = 12  # columns of a CoNLL-2012 row: eleven fixed ones and the coreference column


class _Document:
    """The rows of one document while it is read."""

    def __init__(self, name: str, where: str, limits: Limits) -> None:
        self.name, self.where, self.limits = name, where, limits
        self.held = 0
        self.rows: list[list[str]] = []
        self.places: list[str] = []
        self.sentences: list[int] = []
        self.sentence = 0

    def add(self, row: list[str], where: str, length: int) -> None:
        self.rows.append(row)
        self.held += length
        self.limits.hold("max_words", len(self.rows), where)
        self.limits.hold("max_whole", self.held, where)
        self.places.append(where)
        self.sentences.append(self.sentence)

    def end_sentence(self) -> None:
        if self.sentences and self.sentences[-1] == self.sentence:
            self.sentence += 1

    @property
    def origin(self) -> str:
        return f"{self.where}, document {self.name}"

    def marks(self, column: int) -> Iterator[tuple[str, str]]:
        for row, where in zip(self.rows, self.places, strict=True):
            yield ("" if row[column] in ("_", "-") else row[column]), where


def _documents(file: TextFile, split_tabs: bool) -> Iterator[_Document]:
    current: _Document | None = None
    limits = file.walk.limits
    for number, line in file.lines():
        order = line[1:].lstrip() if line.startswith("#") else ""
        begins = order.startswith(BEGIN)
        if begins or order.startswith(END):
            if current is not None and current.rows:
                yield current
            current = None
            if begins:
                name = _document_name(order.removeprefix(BEGIN)) or file.stem
                current = _Document(name, file.where(number), limits)
        elif not line.strip():
            if current is not None:
                current.end_sentence()
        elif line.startswith("#") and "\t" not in line and current is None:
            continue
        else:
            if current is None:
                current = _Document(file.stem, file.where(number), limits)
            current.add(
                line.split("\t") if split_tabs else line.split(), file.where(number), len(line)
            )
    if current is not None and current.rows:
        yield current


def _document_name(rest: str) -> str:
    """What stands behind `# begin document`: `(name); part 000`, `(name)` or `name`.

    >>> _document_name(" (bc/cctv/00/cctv_0000); part 001"), _document_name(" GUM_bio ")
    ('bc/cctv/00/cctv_0000 part 001', 'GUM_bio')
    """
    rest = rest.strip()
    before, mark, part = rest.rpartition(";")
    number = part.split()[1:] if mark and part.split()[:1] == ["part"] else []
    if len(number) == 1:
        rest = before.strip()
    name = rest[1:-1] if rest.startswith("(") and rest.endswith(")") else rest
    return f"{name} part {number[0]}" if len(number) == 1 else name


def read_ontogum(files: Iterable[TextFile], notes: Notes) -> Iterator[Example]:
    """OntoGUM: index, token and coreference brackets, separated by tabs. Heads of mentions are
    unknown here, see `attach_trees`."""
    for file in files:
        for document in _documents(file, split_tabs=True):
            for row, where in zip(document.rows, document.places, strict=True):
                if len(row) != 3:
                    problem = f"the row has {len(row)} columns separated by tabs"
                    raise InputError(
                        f"{where}: {problem}; OntoGUM has 3 (index, token, coreference)."
                    )
                if not row[1]:  # OntoGUM's own files lost the token `|`
                    row[1] = EMPTY
                    notes["empty tokens, read as _"] += 1
            mentions = [
                Mention(m.start, m.end, m.entity)
                for m in bracketed(document.marks(2), document.limits)
            ]
            yield Example(
                words=tuple(row[1] for row in document.rows),
                sentences=tuple(document.sentences) if document.sentences[-1] > 0 else None,
                mentions=in_order(mentions),
                origin=document.origin,
                document=document.name,
            )


def read_conll2012(files: Iterable[TextFile], notes: Notes) -> Iterator[Example]:
    """CoNLL-2012 (`*_gold_conll`): words, parts of speech as UPOS, number from the tag, mentions
    with the head word their constituent has."""
    for file in files:
        for document in _documents(file, split_tabs=False):
            for row, where in zip(document.rows, document.places, strict=True):
                if len(row) < TOO_FEW:
                    raise InputError(
                        f"{where}: the row has {len(row)} columns; CoNLL-2012 has at least {TOO_FEW}."
                    )
            tags = [row[4] for row in document.rows]
            bits = [row[5] for row in document.rows]
            head_of = PhraseHeads(
                phrases(bits, document.places, document.sentences, document.limits), tags
            )
            mentions = [
                Mention(m.start, m.end, m.entity, head_of(m.start, m.end))
                for m in bracketed(document.marks(-1), document.limits)
            ]
            known_tags = any(tag not in ("-", "_", "*", "XX") for tag in tags)
            yield Example(
                words=tuple(row[3] for row in document.rows),
                upos=tuple(map(upos_of, tags)) if known_tags else None,
                features=tuple(map(number_of, tags)) if known_tags else None,
                sentences=tuple(document.sentences),
                mentions=in_order(mentions),
                origin=document.origin,
                document=document.name,
            )


def read_conll(files: Iterable[TextFile], notes: Notes) -> Iterator[Example]:
    """`.conll` files: three columns with tabs are OntoGUM's, twelve and more are CoNLL-2012's, as
    the first row of each file tells."""
    for file in files:
        first, file = file.first_line(_is_row)
        if not first:
            continue
        if len(first.split("\t")) == 3:
            yield from read_ontogum([file], notes)
        elif len(first.split()) >= TOO_FEW:
            yield from read_conll2012([file], notes)
        else:
            columns = len(first.split("\t"))
            raise InputError(
                f"{file.label}: its rows have {columns} columns; OntoGUM has 3 and CoNLL-2012 at least {TOO_FEW}. "
                "Give another format as format:path, for instance conllu:path."
            )


def _is_row(line: str) -> bool:
    return bool(line.strip()) and (not line.startswith("#") or "\t" in line)
