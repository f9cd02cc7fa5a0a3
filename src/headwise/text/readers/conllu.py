"""CoNLL-U treebanks: one example per sentence, or one per document with the entities that GUM
marks."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import Any, TypeVar

from headwise.core.errors import InputError
from headwise.text.corpus import Notes
from headwise.text.example import CYCLE, ROOT, Example, word_in_cycle
from headwise.text.readers.entities import EntityMarks
from headwise.text.readers.files import TextFile
from headwise.text.readers.limits import shown, whole_number
from headwise.text.readers.rows import features_of

Value = TypeVar("Value")
COLUMNS = 10
FORM, LEMMA, UPOS, FEATS, HEAD, DEPREL, MISC = 1, 2, 3, 5, 6, 7, 9


@dataclass
class Sentence:
    """The words of one sentence as they stand in the file; multiword tokens and empty nodes are no
    words."""

    line: int = 0
    size: int = 0  # characters
    comments: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)  # of each row
    # Multiword tokens: first word, last word, form, space after.
    fused: list[tuple[int, int, str, bool]] = field(default_factory=list)

    def comment(self, key: str) -> str | None:
        """The value of a comment `# key = value`, or "" of a bare `# key`."""
        for text in self.comments:
            name, equals, value = text.partition("=")
            if name.strip() == key:
                return value.strip() if equals else ""
        return None

    def heads(self, file: TextFile) -> tuple[int, ...] | None:
        """0-based heads; None where no word of the sentence has one."""
        given = [row[HEAD] for row in self.rows]
        if given.count("_") == len(given):
            return None
        heads = []
        for head, line in zip(given, self.lines, strict=True):
            above = whole_number(head)
            if above is None:
                need = f"a number from 0 to {len(given)} is needed"
                raise InputError(f"{file.where(line)}: HEAD is '{shown(head)}' where {need}.")
            if above > len(given):
                raise InputError(
                    f"{file.where(line)}: HEAD is {above}, but the sentence has {len(given)} words."
                )
            heads.append(above - 1)
        looped = word_in_cycle(heads)
        if looped is not None:
            raise InputError(f"{file.where(self.lines[looped])}: {CYCLE.format(looped + 1)}")
        return tuple(heads)

    def column(self, index: int) -> tuple[str, ...] | None:
        """A column, None where it is empty throughout."""
        values = tuple([row[index] for row in self.rows])
        return None if values.count("_") == len(values) else values

    def features(self) -> tuple[dict[str, str], ...] | None:
        column = self.column(FEATS)
        return None if column is None else tuple(map(features_of, column))

    def surface(self) -> tuple[str, tuple[tuple[int, int], ...]]:
        """The text, put together by SpaceAfter, and each word's place in it. Words fused into one
        token whose form is not just theirs all get its whole place."""
        text, spans = list[str](), list[tuple[int, int]]()
        start = 0
        fused = {first: (last, form, space) for first, last, form, space in self.fused}
        word = 0
        while word < len(self.rows):
            last, form, space = fused.get(
                word, (word, self.rows[word][FORM], spaced(self.rows[word][MISC]))
            )
            end = start + len(form)
            parts = [row[FORM] for row in self.rows[word : last + 1]]
            if "".join(parts) == form:
                for part in parts:
                    spans.append((start, start + len(part)))
                    start += len(part)
            else:
                spans.extend((start, end) for _ in parts)
            text.append(form + " " * space)
            start = end + space
            word = last + 1
        return "".join(text).rstrip(" "), tuple(spans)


def spaced(misc: str) -> bool:
    """Whether a space follows the token."""
    return "SpaceAfter=No" not in misc.split("|")


_ID = re.compile(r"(\d{1,9})(?:([-.])(\d{1,9}))?")


def sentences_of(file: TextFile) -> Iterator[Sentence]:
    """The sentences of a CoNLL-U file, each row checked for its ten columns and its number."""
    current = Sentence()
    limits = file.walk.limits
    for number, line in file.lines():
        if not line.strip():
            if current.rows:
                yield current
                current = Sentence()
            continue
        where = file.where(number)
        current.size += len(line)
        limits.hold("max_whole", current.size, where)
        current.line = current.line or number
        if line.startswith("#"):
            current.comments.append(line[1:].strip())
            limits.hold("max_words", len(current.comments), where)
        else:
            _add_row(current, line.split("\t"), number, where)
            limits.hold("max_words", len(current.rows) + len(current.fused), where)
    if current.rows:
        yield current


def _add_row(sentence: Sentence, row: list[str], number: int, where: str) -> None:
    if len(row) != COLUMNS:
        raise InputError(
            f"{where}: the row has {len(row)} columns separated by tabs; CoNLL-U has {COLUMNS}."
        )
    match = _ID.fullmatch(row[0])
    if match is None:
        raise InputError(f"{where}: ID is '{shown(row[0])}', which is no word number.")
    first, kind, second = match.groups()
    if not row[FORM]:
        raise InputError(f"{where}: FORM is empty.")
    if kind == ".":  # an empty node
        return
    if int(first) != len(sentence.rows) + 1:
        raise InputError(f"{where}: ID is {row[0]} where word {len(sentence.rows) + 1} is due.")
    if kind == "-":
        if int(second) < int(first):
            raise InputError(f"{where}: the multiword token {row[0]} ends before it begins.")
        sentence.fused.append((int(first) - 1, int(second) - 1, row[FORM], spaced(row[MISC])))
    else:
        sentence.rows.append(row)
        sentence.lines.append(number)


def read_conllu(
    files: Iterable[TextFile],
    notes: Notes,
    *,
    documents: bool = False,
    text: bool = False,
    entities: bool = True,
    skip_links: Collection[str] = (),
) -> Iterator[Example]:
    """Universal Dependencies treebanks.

    Parameters
    ----------
    documents : bool, default False
        One example per document (`# newdoc`, or the whole file where there is none), with sentence
        numbers and, where the file marks them (`Entity=`), mentions.
    text : bool, default False
        Give the text as it was written, by SpaceAfter, and the words as places in it; otherwise
        each word is tokenized apart.
    entities : bool, default True
        Whether the mentions of documents are read.
    skip_links : collection of str, optional
        Kinds of GUM links whose mentions are left out, for instance `appos`, `pred`.
    """
    for file in files:
        if not documents:
            name: str | None = None
            for sentence in sentences_of(file):
                name = sentence.comment("newdoc id") or (
                    name if sentence.comment("newdoc") is None else None
                )
                yield _example([sentence], _heads([sentence], file), file, text=text, document=name)
            continue
        held: list[Sentence] = []
        marks: EntityMarks | None = None
        words, size = 0, 0
        for sentence in sentences_of(file):
            if held and (
                sentence.comment("newdoc") is not None or sentence.comment("newdoc id") is not None
            ):
                yield _document(held, file, marks, notes, text=text, skip_links=skip_links)
                held, words, size = [], 0, 0
            declared = sentence.comment("global.Entity")
            if declared is not None and entities:
                marks = EntityMarks(declared)
            held.append(sentence)
            words, size = words + len(sentence.rows), size + sentence.size
            file.walk.limits.hold("max_words", words, file.where(sentence.line))
            file.walk.limits.hold("max_whole", size, file.where(sentence.line))
        if held:
            yield _document(held, file, marks, notes, text=text, skip_links=skip_links)


def read_gum(
    files: Iterable[TextFile], notes: Notes, *, text: bool = False, skip_links: Collection[str] = ()
) -> Iterator[Example]:
    """GUM and other CoNLL-U files with `Entity=`: one example per document, with trees and
    mentions."""
    return read_conllu(files, notes, documents=True, text=text, skip_links=skip_links)


def _document(
    held: list[Sentence],
    file: TextFile,
    marks: EntityMarks | None,
    notes: Notes,
    *,
    text: bool,
    skip_links: Collection[str],
) -> Example:
    name = held[0].comment("newdoc id") or file.stem
    heads = _heads(held, file)
    mentions = None
    if marks is not None:
        rows = (
            (row[MISC], file.where(line))
            for part in held
            for row, line in zip(part.rows, part.lines, strict=True)
        )
        mentions = marks.mentions(rows, heads, notes, skip_links, file.walk.limits)
    origin = f"{file.where(held[0].line)}, document {name}"
    numbers = tuple(number for number, part in enumerate(held) for _ in part.rows)
    known = {"document": name or None, "origin": origin, "sentences": numbers, "mentions": mentions}
    return _example(held, heads, file, text=text, **known)


def _heads(parts: list[Sentence], file: TextFile) -> tuple[int, ...] | None:
    """The heads of the words of all sentences; None where some sentence has none."""
    starts = accumulate((len(part.rows) for part in parts), initial=0)
    pairs = zip(
        [part.heads(file) for part in parts], starts, strict=False
    )  # the last start is the end
    return _joined(
        [tree and tuple([h if h == ROOT else h + start for h in tree]) for tree, start in pairs]
    )


def _example(
    parts: list[Sentence],
    heads: tuple[int, ...] | None,
    file: TextFile,
    *,
    text: bool,
    **known: Any,
) -> Example:
    """Sentences as one example. A column that some sentence has not is left out, but features,
    which a word may lack."""
    features = [part.features() for part in parts]
    written, spans = list[str](), list[tuple[int, int]]()
    start = 0
    for surface, places in (part.surface() for part in parts if text):
        written.append(surface)
        spans.extend((a + start, b + start) for a, b in places)
        start += len(surface) + 1
    return Example(
        text=" ".join(written) if text else None,
        spans=tuple(spans) if text else None,
        words=tuple([row[FORM] for part in parts for row in part.rows]),
        heads=heads,
        relations=_joined([part.column(DEPREL) for part in parts]),
        upos=_joined([part.column(UPOS) for part in parts]),
        lemmas=_joined([part.column(LEMMA) for part in parts]),
        features=_joined(
            [own or ({},) * len(part.rows) for own, part in zip(features, parts, strict=True)]
        )
        if any(own is not None for own in features)
        else None,
        scheme="ud",
        **{"origin": file.where(parts[0].line), **known},
    )


def _joined(columns: Sequence[tuple[Value, ...] | None]) -> tuple[Value, ...] | None:
    """The columns of several sentences one after another; None where some sentence has none."""
    known = [column for column in columns if column is not None]
    return tuple(chain.from_iterable(known)) if len(known) == len(columns) else None
