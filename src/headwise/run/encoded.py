"""A corpus as rows of tokens: read and encoded once a run, before any work, and counted on the
way."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from types import MappingProxyType
from typing import Any

from headwise.core.errors import InputError
from headwise.text.corpus import Corpus
from headwise.text.encode import Encoded, Encoder
from headwise.text.example import Example

# Rows of up to so many tokens in all are kept in memory: 90 MiB where they have trees and lemmas.
KEPT_TOKENS = 150_000
# Examples of a longer corpus that are read and compared with the first reading before any is used.
CHECKED = 64


@dataclass(frozen=True, slots=True)
class CorpusScan:
    """What a corpus holds, counted before the model runs.

    Attributes
    ----------
    examples, tokens, longest : int
        Examples that are used, their tokens, and the tokens of the longest.
    truncated, skipped, unaligned : int
        Examples that were truncated, skipped as too long, or whose words do not align with tokens.
    documents : int
        Documents; 0 where some example belongs to none, or all belong to one.
    annotations : frozenset of str
        Those that some example has.
    relations : tuple of str
        Dependency relations that occur, sorted.
    fingerprint : str
        A digest of all examples.
    notes : mapping of str to int
        What the reader left out, counted.
    """

    examples: int = 0
    tokens: int = 0
    longest: int = 0
    truncated: int = 0
    skipped: int = 0
    unaligned: int = 0
    documents: int = 0
    annotations: frozenset[str] = frozenset()
    relations: tuple[str, ...] = ()
    fingerprint: str = ""
    notes: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))

    def counts(self) -> dict[str, int]:
        """Return the numbers by name."""
        return {
            "examples": self.examples,
            "tokens": self.tokens,
            "longest": self.longest,
            "truncated": self.truncated,
            "skipped": self.skipped,
            "unaligned": self.unaligned,
            "documents": self.documents,
        }


COUNTED = ("examples", "tokens", "longest", "truncated", "skipped", "unaligned")


@dataclass(slots=True)
class _Counter:
    """Counts the rows of a corpus while it is read."""

    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTED, 0))
    annotations: set[str] = field(default_factory=set)
    relations: set[str] = field(default_factory=set)
    documents: set[str | None] = field(default_factory=set)

    def add(self, row: Encoded | None) -> None:
        """Count a row; None is an example that was skipped as too long."""
        counts = self.counts
        if row is None:
            counts["skipped"] += 1
            return
        example = row.example  # of a pair whose target a decoder reads, only the target
        counts["examples"] += 1
        counts["tokens"] += len(row)
        counts["longest"] = max(counts["longest"], len(row))
        counts["truncated"] += row.truncated
        counts["unaligned"] += example.words is not None and not row.aligned
        self.annotations.update(example.annotations)
        self.relations.update(example.relations or ())
        self.documents.add(example.document)

    @property
    def n_documents(self) -> int:
        if None in self.documents or len(self.documents) == 1:
            return 0
        return len(self.documents)


@dataclass(frozen=True, slots=True, eq=False)
class ExampleBlock:
    """Consecutive examples with their indices in the corpus; their rows where these are known.

    It is pickled without its rows, which hold their tokenizer: a worker encodes them again."""

    examples: Sequence[tuple[int, Example]]
    of_no_document: bool = False
    rows: list[Encoded] | None = None

    def encoded(self, encoder: Encoder) -> list[Encoded]:
        """Return the rows of the examples that are not skipped as too long."""
        if self.rows is not None:
            return list(self.rows)
        rows = []
        for index, example in self.examples:
            row = encoder.encode(example, index)
            if row is None:
                continue
            if self.of_no_document:
                row = _without_document(row)
            rows.append(row)
        return rows

    def __reduce__(self) -> tuple[Any, ...]:
        return ExampleBlock, (tuple(self.examples), self.of_no_document)


class EncodedCorpus:
    """The rows of a corpus in their order, to be iterated any number of times.

    The corpus is read and encoded when this is made; every row that cannot be used is found then.
    Rows of up to `keep` tokens are kept in memory. A longer corpus is read and encoded again at
    every iteration, and rejected if it has changed.

    Parameters
    ----------
    corpus : Corpus
        What to read.
    encoder : Encoder
        Turns examples into tokens.
    keep : int, default KEPT_TOKENS
        Tokens kept in memory.

    Attributes
    ----------
    scan : CorpusScan
        What the corpus holds.
    corpus : Corpus
        The same examples, without a file behind them where they are kept.
    """

    def __init__(self, corpus: Corpus, encoder: Encoder, keep: int = KEPT_TOKENS) -> None:
        self._source = corpus
        self.encoder = encoder
        self._examples: list[Example] | None = []  # None for a corpus that is too long to keep
        self._rows: list[Encoded] = []
        self._digests: list[bytes] = []  # of all examples so far, after every CHECKED of them
        self.scan = self._read(keep)
        self.corpus = corpus
        kept_examples = self._examples
        if kept_examples is not None:
            self.corpus = corpus.derive(lambda _: kept_examples)

    def _read(self, keep: int) -> CorpusScan:
        counter = _Counter()
        digest = hashlib.sha256()
        for index, example in enumerate(self._source):
            digest.update(example.fingerprint())
            if (index + 1) % CHECKED == 0:
                self._digests.append(digest.digest())
            row = self.encoder.encode(example, index)
            counter.add(row)
            if counter.counts["tokens"] > keep:
                self._examples = None
                self._rows = []
            if self._examples is not None:
                self._examples.append(example)
                if row is not None:
                    self._rows.append(row)
        self._digests.append(digest.digest())
        if not counter.counts["examples"]:
            raise InputError(
                f"Nothing to run on in corpus '{self._source.name}': all "
                f"{counter.counts['skipped']} examples are longer than {self.encoder.max_length} "
                "tokens; use overlong='truncate'.",
                option="overlong truncate",
            )
        self._one_document = len(counter.documents) == 1
        if self._one_document:
            self._rows = [_without_document(row) for row in self._rows]
        return CorpusScan(
            **counter.counts,
            documents=counter.n_documents,
            annotations=frozenset(counter.annotations),
            relations=tuple(sorted(counter.relations)),
            fingerprint=digest.hexdigest(),
            notes=MappingProxyType(dict(self._source.notes)),
        )

    def __len__(self) -> int:
        """Return the number of examples, with those skipped as too long."""
        return self.scan.examples + self.scan.skipped

    def __iter__(self) -> Iterator[Encoded]:
        """Yield the rows; `index` is the place in the corpus, where those too long are counted."""
        for block in self.blocks(CHECKED):
            yield from block.encoded(self.encoder)

    def blocks(self, size: int) -> Iterator[ExampleBlock]:
        """Yield the examples in blocks of `size`; encoding them again is left to who needs rows."""
        if self._examples is None:
            numbered = enumerate(self._read_again())
            while True:
                examples = list(islice(numbered, size))
                if not examples:
                    return
                yield ExampleBlock(examples, self._one_document)
        rows_by_block: dict[int, list[Encoded]] = {}
        for row in self._rows:
            rows_by_block.setdefault(row.index // size, []).append(row)
        for first in range(0, len(self), size):
            examples = list(enumerate(self._examples[first : first + size], first))
            rows = rows_by_block.get(first // size, [])
            yield ExampleBlock(examples, self._one_document, rows)

    def pick(self, indices: Collection[int]) -> dict[int, Encoded]:
        """Return the rows at some indices in the corpus, by index; of a corpus that is not kept,
        only these are held in memory.

        Parameters
        ----------
        indices : collection of int
            Indices (`Encoded.index`); those without a row have none.
        """
        wanted = set(indices)
        block_numbers = {index // CHECKED for index in wanted}
        last_block = max(block_numbers, default=-1)
        picked: dict[int, Encoded] = {}
        for number, block in enumerate(islice(self.blocks(CHECKED), last_block + 1)):
            if number not in block_numbers:
                continue
            for row in block.encoded(self.encoder):
                if row.index in wanted:
                    picked[row.index] = row
        return picked

    def _read_again(self) -> Iterator[Example]:
        digest = hashlib.sha256()
        unread = iter(self._source)
        for expected in self._digests:
            examples = list(islice(unread, CHECKED))
            for example in examples:
                digest.update(example.fingerprint())
            if digest.digest() != expected:
                raise InputError(
                    f"The corpus '{self._source.name}' changed while it was read; "
                    "repeat the command when it is complete."
                )
            yield from examples


def _without_document(row: Encoded) -> Encoded:
    """Return a row that belongs to no document.

    Where all examples are of one document, nothing is known of how documents differ: the examples
    are the units of intervals and tests."""
    if row.example.document is None:
        return row
    return replace(row, example=replace(row.example, document=None))
