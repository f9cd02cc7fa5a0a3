"""A corpus as rows of tokens: read and encoded once a run, before any work, and counted on the
way."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, islice
from types import MappingProxyType
from typing import Any

from headwise.core.errors import InputError
from headwise.text.corpus import Corpus
from headwise.text.encode import Encoded, Encoder
from headwise.text.example import Example

KEPT_TOKENS = 150_000  # rows of so many tokens in all are kept in memory (90 MiB where they have trees and lemmas)
CHECKED = 64  # examples of a longer corpus that are read and compared with the first reading before any is used


@dataclass(frozen=True, slots=True)
class Scan:
    """What the reading of a corpus found, before the model is asked anything."""

    examples: int = 0
    tokens: int = 0
    longest: int = 0
    truncated: int = 0
    skipped: int = 0
    unaligned: int = 0
    documents: int = 0  # 0 where some example is of none, or all are of one
    annotations: frozenset[str] = frozenset()  # those some example has
    relations: tuple[str, ...] = ()  # those seen, sorted
    fingerprint: str = ""
    notes: Mapping[str, int] = field(
        default_factory=lambda: MappingProxyType({})
    )  # what the reader left out, counted

    def counts(self) -> dict[str, int]:
        """The numbers, by name."""
        names = ("examples", "tokens", "longest", "truncated", "skipped", "unaligned", "documents")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Some examples that follow each other, with their places in the corpus; their rows where they
    are known already.

    It travels without its rows, which hold their tokenizer: they are encoded again where they are
    wanted."""

    examples: Sequence[tuple[int, Example]]
    of_no_document: bool = False
    rows: list[Encoded] | None = None

    def encoded(self, encoder: Encoder) -> list[Encoded]:
        """The rows of the examples that are not skipped as too long."""
        if self.rows is not None:
            return list(self.rows)
        rows = (encoder.encode(example, index) for index, example in self.examples)
        kept = [row for row in rows if row is not None]
        return [_of_no_document(row) for row in kept] if self.of_no_document else kept

    def __reduce__(self) -> tuple[Any, ...]:
        return Block, (tuple(self.examples), self.of_no_document)


class EncodedCorpus:
    """The rows of a corpus in their order, to be walked through any number of times.

    The corpus is read and encoded when this is made; every row that cannot be used is found then.
    Rows of up to `keep` tokens are kept in memory. A longer corpus is read and encoded again at
    every walk, and refused where it changed.

    Parameters
    ----------
    corpus : Corpus
        What to read.
    encoder : Encoder
        What makes tokens of it.
    keep : int, default KEPT_TOKENS
        Tokens kept in memory.

    Attributes
    ----------
    scan : Scan
        What was found.
    corpus : Corpus
        The same examples, without a file behind them where they are kept.
    """

    def __init__(self, corpus: Corpus, encoder: Encoder, keep: int = KEPT_TOKENS) -> None:
        self._source, self.encoder = corpus, encoder
        self._examples: list[Example] | None = []
        self._rows: list[Encoded] = []
        self._marks: list[bytes] = []  # the digest after every so many examples
        self.scan = self._read(keep)
        held = self._examples
        self.corpus = corpus if held is None else corpus.derive(lambda _: held)

    def _read(self, keep: int) -> Scan:
        count = dict.fromkeys(
            ("examples", "tokens", "longest", "truncated", "skipped", "unaligned"), 0
        )
        annotations: set[str] = set()
        relations: set[str] = set()
        documents: set[str | None] = set()
        digest = hashlib.sha256()
        for index, example in enumerate(self._source):
            digest.update(example.fingerprint())
            if (index + 1) % CHECKED == 0:
                self._marks.append(digest.digest())
            row = self.encoder.encode(example, index)
            if row is None:
                count["skipped"] += 1
            else:
                count["examples"] += 1
                count["tokens"] += len(row)
                count["longest"] = max(count["longest"], len(row))
                count["truncated"] += row.truncated
                seen = row.example  # of a pair whose target a decoder reads, only the target
                count["unaligned"] += seen.words is not None and not row.aligned
                annotations.update(seen.annotations)
                relations.update(seen.relations or ())
                documents.add(seen.document)
            if count["tokens"] > keep:
                self._examples, self._rows = None, []
            if self._examples is not None:
                self._examples.append(example)
                self._rows.extend([row] if row is not None else [])
        self._marks.append(digest.digest())
        if not count["examples"]:
            raise InputError(
                f"Nothing to run on in corpus '{self._source.name}': all {count['skipped']} examples are longer than "
                f"{self.encoder.max_length} tokens; use overlong=truncate."
            )
        self._one_document = len(documents) == 1
        if self._one_document:
            self._rows = [_of_no_document(row) for row in self._rows]
        return Scan(
            **count,
            documents=0 if None in documents or self._one_document else len(documents),
            annotations=frozenset(annotations),
            relations=tuple(sorted(relations)),
            fingerprint=digest.hexdigest(),
            notes=MappingProxyType(dict(self._source.notes)),
        )

    def __len__(self) -> int:
        """The number of examples, with those skipped as too long."""
        return self.scan.examples + self.scan.skipped

    def __iter__(self) -> Iterator[Encoded]:
        """The rows; `index` says where each stood in the corpus, from which those too long are
        missing."""
        for block in self.blocks(CHECKED):
            yield from block.encoded(self.encoder)

    def blocks(self, size: int) -> Iterator[Block]:
        """The examples in blocks of `size`: encoding again is left to who wants their rows."""
        if self._examples is not None:
            grouped = {
                key: list(rows)
                for key, rows in groupby(self._rows, key=lambda row: row.index // size)
            }
            for number in range(-(-len(self) // size)):
                first = number * size
                some = self._examples[first : first + size]
                yield Block(
                    list(enumerate(some, first)), self._one_document, grouped.get(number, [])
                )
            return
        walk = enumerate(self._read_again())
        while block := list(islice(walk, size)):
            yield Block(block, self._one_document)

    def pick(self, indices: Collection[int]) -> dict[int, Encoded]:
        """The rows at these places in the corpus, by their places; of a corpus that is not kept
        only these are held.

        Parameters
        ----------
        indices : collection of int
            Places (`Encoded.index`); those of no row have none.
        """
        wanted, found = set(indices), dict[int, Encoded]()
        numbers = {index // CHECKED for index in wanted}
        for number, block in enumerate(islice(self.blocks(CHECKED), max(numbers, default=-1) + 1)):
            if number in numbers:
                found |= {
                    row.index: row for row in block.encoded(self.encoder) if row.index in wanted
                }
        return found

    def _read_again(self) -> Iterator[Example]:
        digest = hashlib.sha256()
        walk = iter(self._source)
        for mark in self._marks:
            block = list(islice(walk, CHECKED))
            for example in block:
                digest.update(example.fingerprint())
            if digest.digest() != mark:
                raise InputError(
                    f"The corpus '{self._source.name}' changed while it was read; repeat the command when it is whole."
                )
            yield from block


def _of_no_document(row: Encoded) -> Encoded:
    """Where all examples are of one document, nothing is known of how documents differ: the
    examples are the units."""
    return (
        row
        if row.example.document is None
        else replace(row, example=replace(row.example, document=None))
    )
