"""Read CoNLL-U treebanks: one example per sentence, or one per document with GUM's entities."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
    """The rows of one sentence; multiword tokens and empty nodes are not words."""

    line: int = 0
    size: int = 0  # characters
    comments: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)  # of each row
    # Multiword tokens: first word, last word, form, space after.
    fused: list[tuple[int, int, str, bool]] = field(default_factory=list)

    def comment(self, key: str) -> str | None:
        """Return the value of a comment `# key = value`; "" for a bare `# key`."""
        for text in self.comments:
            name, equals, value = text.partition("=")
            if name.strip() == key:
                return value.strip() if equals else ""
        return None

    def heads(self, file: TextFile) -> tuple[int, ...] | None:
        """Return the 0-based head of each word; None where no word of the sentence has one."""
        n_words = len(self.rows)
        if all(row[HEAD] == "_" for row in self.rows):
            return None
        heads = []
        for row, line in zip(self.rows, self.lines, strict=True):
            number = whole_number(row[HEAD])
            if number is None:
                raise InputError(
                    f"{file.where(line)}: HEAD is '{shown(row[HEAD])}'; it must be a number from 0 "
                    f"to {n_words}."
                )
            if number > n_words:
                raise InputError(
                    f"{file.where(line)}: HEAD is {number}, but the sentence has {n_words} words."
                )
            heads.append(number - 1)  # HEAD 0 is the root: ROOT is -1
        cyclic_word = word_in_cycle(heads)
        if cyclic_word is not None:
            raise InputError(
                f"{file.where(self.lines[cyclic_word])}: {CYCLE.format(cyclic_word + 1)}"
            )
        return tuple(heads)

    def column(self, index: int) -> tuple[str, ...] | None:
        """Return a column; None where it is empty in every row."""
        values = tuple(row[index] for row in self.rows)
        if all(value == "_" for value in values):
            return None
        return values

    def features(self) -> tuple[dict[str, str], ...] | None:
        """Return the morphological features of each word; None where no word has any."""
        column = self.column(FEATS)
        if column is None:
            return None
        return tuple(map(features_of, column))

    def surface(self) -> tuple[str, tuple[tuple[int, int], ...]]:
        """Return the original text, by SpaceAfter, and the span of each word in it.

        Words of a multiword token whose form is not their concatenation ("du" for "de le") all get
        the span of the whole token.
        """
        text: list[str] = []
        spans: list[tuple[int, int]] = []
        multiword = {first: (last, form, space) for first, last, form, space in self.fused}
        start = 0
        word = 0
        while word < len(self.rows):
            row = self.rows[word]
            single = (word, row[FORM], has_space_after(row[MISC]))
            last, form, space = multiword.get(word, single)
            end = start + len(form)
            word_forms = [row[FORM] for row in self.rows[word : last + 1]]
            if "".join(word_forms) == form:
                for word_form in word_forms:
                    spans.append((start, start + len(word_form)))
                    start += len(word_form)
            else:
                spans.extend([(start, end)] * len(word_forms))
            text.append(form + " " * space)
            start = end + space
            word = last + 1
        return "".join(text).rstrip(" "), tuple(spans)


def has_space_after(misc: str) -> bool:
    """Return whether a space follows the token, by its MISC column."""
    return "SpaceAfter=No" not in misc.split("|")


_ID = re.compile(r"(\d{1,9})(?:([-.])(\d{1,9}))?")


def sentences_of(file: TextFile) -> Iterator[Sentence]:
    """Yield the sentences of a CoNLL-U file; check the columns and the number of each row."""
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
        raise InputError(f"{where}: ID is '{shown(row[0])}', which is not a word number.")
    first, separator, second = match.groups()
    if not row[FORM]:
        raise InputError(f"{where}: FORM is empty.")
    if separator == ".":  # an empty node
        return
    expected = len(sentence.rows) + 1
    if int(first) != expected:
        raise InputError(f"{where}: ID is {row[0]}; word {expected} is expected here.")
    if separator == "-":
        if int(second) < int(first):
            raise InputError(f"{where}: the multiword token {row[0]} ends before it starts.")
        sentence.fused.append(
            (int(first) - 1, int(second) - 1, row[FORM], has_space_after(row[MISC]))
        )
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
    """Read Universal Dependencies treebanks.

    Parameters
    ----------
    files : iterable of TextFile
        The files.
    notes : Notes
        Counts what was left out.
    documents : bool, default False
        One example per document (`# newdoc`, or the whole file where there is none), with sentence
        numbers and, where the file marks them (`Entity=`), mentions.
    text : bool, default False
        Use the original text, by SpaceAfter, with the words as spans in it; otherwise each word is
        tokenized separately.
    entities : bool, default True
        Whether mentions are read with documents.
    skip_links : collection of str, optional
        Types of GUM links whose mentions are left out, for instance `appos`, `pred`.
    """
    for file in files:
        if documents:
            yield from _read_documents(file, notes, text, entities, skip_links)
        else:
            yield from _read_sentences(file, text)


def _read_sentences(file: TextFile, text: bool) -> Iterator[Example]:
    document: str | None = None
    for sentence in sentences_of(file):
        named = sentence.comment("newdoc id")
        if named:
            document = named
        elif sentence.comment("newdoc") is not None:
            document = None  # a new document without a name
        heads = _heads([sentence], file)
        yield _example([sentence], heads, file, text, {"document": document})


def _read_documents(
    file: TextFile, notes: Notes, text: bool, entities: bool, skip_links: Collection[str]
) -> Iterator[Example]:
    limits = file.walk.limits
    sentences: list[Sentence] = []
    marks: EntityMarks | None = None
    n_words = 0
    n_characters = 0
    for sentence in sentences_of(file):
        starts_document = (
            sentence.comment("newdoc") is not None or sentence.comment("newdoc id") is not None
        )
        if sentences and starts_document:
            yield _document(sentences, file, marks, notes, text=text, skip_links=skip_links)
            sentences = []
            n_words = 0
            n_characters = 0
        entity_fields = sentence.comment("global.Entity")
        if entity_fields is not None and entities:
            marks = EntityMarks(entity_fields)
        sentences.append(sentence)
        n_words += len(sentence.rows)
        n_characters += sentence.size
        limits.hold("max_words", n_words, file.where(sentence.line))
        limits.hold("max_whole", n_characters, file.where(sentence.line))
    if sentences:
        yield _document(sentences, file, marks, notes, text=text, skip_links=skip_links)


def read_gum(
    files: Iterable[TextFile], notes: Notes, *, text: bool = False, skip_links: Collection[str] = ()
) -> Iterator[Example]:
    """Read GUM and other CoNLL-U files with `Entity=`: one example per document."""
    return read_conllu(files, notes, documents=True, text=text, skip_links=skip_links)


def _document(
    sentences: list[Sentence],
    file: TextFile,
    marks: EntityMarks | None,
    notes: Notes,
    *,
    text: bool,
    skip_links: Collection[str],
) -> Example:
    name = sentences[0].comment("newdoc id") or file.stem
    heads = _heads(sentences, file)
    mentions = None
    if marks is not None:
        rows = _entity_rows(sentences, file)
        mentions = marks.mentions(rows, heads, notes, skip_links, file.walk.limits)
    sentence_numbers: list[int] = []
    for number, sentence in enumerate(sentences):
        sentence_numbers += [number] * len(sentence.rows)
    annotations = {
        "document": name or None,
        "origin": f"{file.where(sentences[0].line)}, document {name}",
        "sentences": tuple(sentence_numbers),
        "mentions": mentions,
    }
    return _example(sentences, heads, file, text, annotations)


def _entity_rows(sentences: list[Sentence], file: TextFile) -> Iterator[tuple[str, str]]:
    """Yield the MISC column of each word and where it is in the file."""
    for sentence in sentences:
        for row, line in zip(sentence.rows, sentence.lines, strict=True):
            yield row[MISC], file.where(line)


def _heads(sentences: list[Sentence], file: TextFile) -> tuple[int, ...] | None:
    """Return the heads of all words, counted through all sentences; None where some sentence has
    none."""
    all_heads: list[int] = []
    for sentence in sentences:
        heads = sentence.heads(file)
        if heads is None:
            return None
        start = len(all_heads)
        all_heads += [ROOT if head == ROOT else head + start for head in heads]
    return tuple(all_heads)


def _example(
    sentences: list[Sentence],
    heads: tuple[int, ...] | None,
    file: TextFile,
    text: bool,
    annotations: Mapping[str, Any],
) -> Example:
    """Return sentences as one example.

    A column that some sentence lacks is left out, except features, which a word may lack.
    """
    words: list[str] = []
    for sentence in sentences:
        words += [row[FORM] for row in sentence.rows]
    original_text: str | None = None
    spans: tuple[tuple[int, int], ...] | None = None
    if text:
        original_text, spans = _joined_surfaces(sentences)
    values = {"origin": file.where(sentences[0].line), **annotations}
    return Example(
        text=original_text,
        spans=spans,
        words=tuple(words),
        heads=heads,
        relations=_joined([sentence.column(DEPREL) for sentence in sentences]),
        upos=_joined([sentence.column(UPOS) for sentence in sentences]),
        lemmas=_joined([sentence.column(LEMMA) for sentence in sentences]),
        features=_joined_features(sentences),
        scheme="ud",
        **values,
    )


def _joined_surfaces(sentences: list[Sentence]) -> tuple[str, tuple[tuple[int, int], ...]]:
    """Return the texts of sentences with a space between, and the span of each word."""
    texts: list[str] = []
    spans: list[tuple[int, int]] = []
    start = 0
    for sentence in sentences:
        text, sentence_spans = sentence.surface()
        texts.append(text)
        spans += [(first + start, last + start) for first, last in sentence_spans]
        start += len(text) + 1
    return " ".join(texts), tuple(spans)


def _joined_features(sentences: list[Sentence]) -> tuple[dict[str, str], ...] | None:
    """Return the features of all words, empty for words without; None where no word has any."""
    joined: list[dict[str, str]] = []
    any_features = False
    for sentence in sentences:
        features = sentence.features()
        if features is None:
            joined += [{} for _ in sentence.rows]
        else:
            any_features = True
            joined += features
    return tuple(joined) if any_features else None


def _joined(columns: Sequence[tuple[Value, ...] | None]) -> tuple[Value, ...] | None:
    """Return the columns of several sentences as one; None where some sentence lacks it."""
    joined: list[Value] = []
    for column in columns:
        if column is None:
            return None
        joined += column
    return tuple(joined)
