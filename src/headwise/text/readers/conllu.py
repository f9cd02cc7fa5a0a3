"""Read CoNLL-U treebanks: one example per sentence, or one per document with GUM's entities."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
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
    broken: bool = False  # a row could not be read, and such rows are skipped

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

    def surface_tokens(self) -> Iterator[SurfaceToken]:
        """Yield the tokens as they are written: single words, and multiword tokens as a whole."""
        multiword = {first: (last, form, space) for first, last, form, space in self.fused}
        word = 0
        while word < len(self.rows):
            row = self.rows[word]
            single = (word, row[FORM], has_space_after(row[MISC]))
            last, form, space = multiword.get(word, single)
            words = tuple(row[FORM] for row in self.rows[word : last + 1])
            yield SurfaceToken(form, words, space)
            word = last + 1

    @property
    def has_spacing(self) -> bool:
        """Whether the rows tell how the text was written: by SpaceAfter or multiword tokens."""
        if self.fused:
            return True
        return not all(has_space_after(row[MISC]) for row in self.rows)

    def surface(self) -> SentenceText | None:
        """Return the text as it was written, with the span of each word in it.

        The text is that of the comment `# text =`, else it is put together by SpaceAfter and the
        forms of multiword tokens. None where the file has neither, or where the comment has other
        words and the rows do not tell the spacing.
        """
        tokens = list(self.surface_tokens())
        comment = self.comment("text")
        if comment:
            starts = _starts_in(comment, tokens)
            if starts is not None:
                return SentenceText(comment, _word_spans(tokens, starts))
        if not self.has_spacing:
            return None
        return _joined_tokens(tokens)

    def words_joined(self) -> SentenceText:
        """Return the words with a space between any two, whatever the file says of spaces."""
        words = [SurfaceToken(row[FORM], (row[FORM],), True) for row in self.rows]
        return _joined_tokens(words)


@dataclass(frozen=True, slots=True)
class SurfaceToken:
    """A token as it is written: one word, or a multiword token with its words."""

    form: str
    words: tuple[str, ...]
    space_after: bool


@dataclass(frozen=True, slots=True)
class SentenceText:
    """A text, and the span of characters of each word in it."""

    text: str
    spans: tuple[tuple[int, int], ...]


def _starts_in(text: str, tokens: Sequence[SurfaceToken]) -> list[int] | None:
    """Return where each token starts in a text; None where the text has anything but these tokens
    and white space."""
    starts = []
    position = 0
    for token in tokens:
        # A form may begin with white space of its own: it is tried before any is skipped.
        while not text.startswith(token.form, position):
            if position >= len(text) or not text[position].isspace():
                return None
            position += 1
        starts.append(position)
        position += len(token.form)
    if text[position:].strip():
        return None
    return starts


def _joined_tokens(tokens: Sequence[SurfaceToken]) -> SentenceText:
    """Return tokens as one text, with a space after each that is followed by one."""
    texts = []
    starts = []
    position = 0
    for token in tokens:
        starts.append(position)
        written = token.form + " " * token.space_after
        texts.append(written)
        position += len(written)
    return SentenceText("".join(texts).rstrip(" "), _word_spans(tokens, starts))


def _word_spans(
    tokens: Sequence[SurfaceToken], starts: Sequence[int]
) -> tuple[tuple[int, int], ...]:
    """Return the span of each word, from where the tokens start.

    Words of a multiword token whose form is not their concatenation ("du" for "de le") all get the
    span of the whole token.
    """
    spans: list[tuple[int, int]] = []
    for token, start in zip(tokens, starts, strict=True):
        if "".join(token.words) != token.form:
            whole_token = (start, start + len(token.form))
            spans += [whole_token] * len(token.words)
            continue
        for word in token.words:
            spans.append((start, start + len(word)))
            start += len(word)
    return tuple(spans)


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
            if current.rows or current.broken:
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
        elif not current.broken:
            read_row = partial(_add_row, current, line.split("\t"), number, where)
            current.broken = not file.walk.attempt(read_row)
            limits.hold("max_words", len(current.rows) + len(current.fused), where)
    if current.rows or current.broken:
        yield current


def _add_row(sentence: Sentence, row: list[str], number: int, where: str) -> bool:
    """Add a row to a sentence; return True, as a row that is skipped does not."""
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
        return True
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
    return True


def read_conllu(
    files: Iterable[TextFile],
    notes: Notes,
    *,
    documents: bool = False,
    text: bool = True,
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
    text : bool, default True
        Read the text as it was written (`# text =`, else SpaceAfter and multiword tokens), with
        the words as spans in it. With False, and where the file has no such text, the words stand
        apart: "do n't" and "story ." with a space.
    entities : bool, default True
        Whether mentions are read with documents.
    skip_links : collection of str, optional
        Types of GUM links whose mentions are left out, for instance `appos`, `pred`.
    """
    for file in files:
        if documents:
            yield from _read_documents(file, notes, text, entities, skip_links)
        else:
            yield from _read_sentences(file, notes, text)


def _read_sentences(file: TextFile, notes: Notes, text: bool) -> Iterator[Example]:
    document: str | None = None
    for sentence in sentences_of(file):
        named = sentence.comment("newdoc id")
        if named:
            document = named
        elif sentence.comment("newdoc") is not None:
            document = None  # a new document without a name
        if sentence.broken:
            continue
        annotations = {"document": document}
        example = file.walk.attempt(
            partial(_sentence_example, sentence, file, notes, text, annotations)
        )
        if example is not None:
            yield example


def _sentence_example(
    sentence: Sentence, file: TextFile, notes: Notes, text: bool, annotations: Mapping[str, Any]
) -> Example:
    heads = _heads([sentence], file)
    surface = _surface([sentence], notes) if text else None
    return _example([sentence], heads, file, surface, annotations)


def _read_documents(
    file: TextFile, notes: Notes, text: bool, entities: bool, skip_links: Collection[str]
) -> Iterator[Example]:
    limits = file.walk.limits
    sentences: list[Sentence] = []
    marks: EntityMarks | None = None

    def document_of(sentences: list[Sentence]) -> Example | None:
        """Return a document; None where it, or one of its sentences, is skipped."""
        if any(sentence.broken for sentence in sentences):
            notes["documents left out: a row cannot be read"] += 1
            return None
        read_document = partial(
            _document, sentences, file, marks, notes, text=text, skip_links=skip_links
        )
        return file.walk.attempt(read_document)

    n_words = 0
    n_characters = 0
    for sentence in sentences_of(file):
        starts_document = (
            sentence.comment("newdoc") is not None or sentence.comment("newdoc id") is not None
        )
        if sentences and starts_document:
            document = document_of(sentences)
            if document is not None:
                yield document
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
        document = document_of(sentences)
        if document is not None:
            yield document


def read_gum(
    files: Iterable[TextFile], notes: Notes, *, text: bool = True, skip_links: Collection[str] = ()
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
    surface = _surface(sentences, notes) if text else None
    return _example(sentences, heads, file, surface, annotations)


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
    surface: SentenceText | None,
    annotations: Mapping[str, Any],
) -> Example:
    """Return sentences as one example; without a `surface` the words stand apart.

    A column that some sentence lacks is left out, except features, which a word may lack.
    """
    words: list[str] = []
    for sentence in sentences:
        words += [row[FORM] for row in sentence.rows]
    values = {"origin": file.where(sentences[0].line), **annotations}
    return Example(
        text=None if surface is None else surface.text,
        spans=None if surface is None else surface.spans,
        words=tuple(words),
        heads=heads,
        relations=_joined([sentence.column(DEPREL) for sentence in sentences]),
        upos=_joined([sentence.column(UPOS) for sentence in sentences]),
        lemmas=_joined([sentence.column(LEMMA) for sentence in sentences]),
        features=_joined_features(sentences),
        scheme="ud",
        **values,
    )


def _surface(sentences: list[Sentence], notes: Notes) -> SentenceText | None:
    """Return the texts of sentences with a space between; None where no sentence has a text."""
    surfaces = []
    for sentence in sentences:
        surface = sentence.surface()
        if surface is None and sentence.comment("text"):
            notes["sentences whose `# text` has other words: words used"] += 1
        surfaces.append(surface)
    if all(surface is None for surface in surfaces):
        return None

    texts: list[str] = []
    spans: list[tuple[int, int]] = []
    start = 0
    for sentence, surface in zip(sentences, surfaces, strict=True):
        if surface is None:
            surface = sentence.words_joined()
        texts.append(surface.text)
        spans += [(first + start, last + start) for first, last in surface.spans]
        start += len(surface.text) + 1
    return SentenceText(" ".join(texts), tuple(spans))


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
