"""Coreference files of the CoNLL family: OntoGUM's three columns, CoNLL-2012's many; one example per document
(part)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from headwise.core.errors import InputError
from headwise.text.corpus import Notes
from headwise.text.example import Example, Mention
from headwise.text.readers.entities import bracketed, in_order
from headwise.text.readers.files import TextFile
from headwise.text.readers.ptb import number_of, phrase_head, phrases, upos_of

BEGIN = re.compile(r"#\s*begin document\s*(?:\((?P<id>.*)\))?(?P<bare>[^;()]*)(?:;\s*part\s+(?P<part>\S+))?\s*$")
END = re.compile(r"#\s*end document\b.*")
EMPTY = "_"
TOO_FEW = 12  # columns of a CoNLL-2012 row: eleven fixed ones and the coreference column


class _Document:
    """The rows of one document while it is read."""

    def __init__(self, name: str, where: str) -> None:
        self.name, self.where = name, where
        self.rows: list[list[str]] = []
        self.places: list[str] = []
        self.sentences: list[int] = []
        self.sentence = 0

    def add(self, row: list[str], where: str) -> None:
        self.rows.append(row)
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
    for number, line in file.lines():
        begin = BEGIN.match(line)
        if begin or END.match(line):
            if current is not None and current.rows:
                yield current
            current = None
            if begin:
                name = begin["id"] or begin["bare"].strip() or file.stem
                current = _Document(f"{name} part {begin['part']}" if begin["part"] else name, file.where(number))
        elif not line.strip():
            if current is not None:
                current.end_sentence()
        elif line.startswith("#") and "\t" not in line and current is None:
            continue
        else:
            if current is None:
                current = _Document(file.stem, file.where(number))
            current.add(line.split("\t") if split_tabs else line.split(), file.where(number))
    if current is not None and current.rows:
        yield current


def read_ontogum(files: Iterable[TextFile], notes: Notes) -> Iterator[Example]:
    """OntoGUM: index, token and coreference brackets, separated by tabs. Heads of mentions are unknown here, see
    `attach_trees`."""
    for file in files:
        for document in _documents(file, split_tabs=True):
            for row, where in zip(document.rows, document.places, strict=True):
                if len(row) != 3:
                    problem = f"the row has {len(row)} columns separated by tabs"
                    raise InputError(f"{where}: {problem}; OntoGUM has 3 (index, token, coreference).")
                if not row[1]:  # OntoGUM's own files lost the token `|`
                    row[1] = EMPTY
                    notes["empty tokens, read as _"] += 1
            mentions = [Mention(m.start, m.end, m.entity) for m in bracketed(document.marks(2))]
            yield Example(
                words=tuple(row[1] for row in document.rows),
                sentences=tuple(document.sentences) if document.sentences[-1] > 0 else None,
                mentions=in_order(mentions),
                origin=document.origin,
            )


def read_conll2012(files: Iterable[TextFile], notes: Notes) -> Iterator[Example]:
    """CoNLL-2012 (`*_gold_conll`): words, parts of speech as UPOS, number from the tag, mentions with the head word
    their constituent has."""
    for file in files:
        for document in _documents(file, split_tabs=False):
            for row, where in zip(document.rows, document.places, strict=True):
                if len(row) < TOO_FEW:
                    raise InputError(f"{where}: the row has {len(row)} columns; CoNLL-2012 has at least {TOO_FEW}.")
            tags = [row[4] for row in document.rows]
            nested = phrases([row[5] for row in document.rows], document.places, document.sentences)
            mentions = [
                Mention(m.start, m.end, m.entity, phrase_head(m.start, m.end, nested, tags))
                for m in bracketed(document.marks(-1))
            ]
            known_tags = any(tag not in ("-", "_", "*", "XX") for tag in tags)
            yield Example(
                words=tuple(row[3] for row in document.rows),
                upos=tuple(map(upos_of, tags)) if known_tags else None,
                features=tuple(map(number_of, tags)) if known_tags else None,
                sentences=tuple(document.sentences),
                mentions=in_order(mentions),
                origin=document.origin,
            )


def read_conll(files: Iterable[TextFile], notes: Notes) -> Iterator[Example]:
    """`.conll` files: three columns with tabs are OntoGUM's, twelve and more are CoNLL-2012's, as the first row of each
    file tells."""
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
