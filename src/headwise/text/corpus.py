"""A stream of examples with a name, a licence and a fingerprint, which can be read repeatedly."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeAlias

from headwise.core.checks import at_least
from headwise.core.errors import InputError, ParameterError
from headwise.text.example import Example

Notes: TypeAlias = Counter[str]  # what a reader left out or replaced, with counts
Stream: TypeAlias = Callable[[Notes], Iterable[Example]]

# A sample is drawn from the first POOL examples, or POOL_FACTOR times its size if that is more.
POOL = 20_000
POOL_FACTOR = 20
MAX_CACHED_WORDS = 2**17  # a sample of at most this size is kept, so that its file is read once
PEEK = 256  # the number of examples that tell which annotations a corpus has


@dataclass(frozen=True, slots=True)
class Survey:
    """Facts about a whole corpus, from reading it once.

    `annotations` and `relations` are those that some example has; `examples_with` counts the
    examples with each annotation; `notes` counts what was left out.
    """

    count: int
    fingerprint: str
    annotations: frozenset[str]
    relations: tuple[str, ...]
    schemes: tuple[str, ...]
    examples_with: dict[str, int]
    notes: dict[str, int]


class Corpus:
    """Examples in a fixed order, read again at every pass: a large file is never held in memory.

    Parameters
    ----------
    name : str
        A short name for figures and provenance.
    stream : callable
        Called with an empty counter at the start of every pass; returns the examples and counts
        what it leaves out.
    licence, description : str, optional
        For the provenance of a run.
    parts : sequence of Corpus, optional
        Further corpora, each for analyses whose annotations the ones before it lack.

    Examples
    --------
    >>> corpus = Corpus.from_texts(["One.", ("Two.", "Three.")])
    >>> corpus.survey().examples_with, corpus.limit(1).peek()[0].text
    ({'segments': 1}, 'One.')
    """

    def __init__(
        self,
        name: str,
        stream: Stream,
        *,
        licence: str = "",
        description: str = "",
        parts: Sequence[Corpus] = (),
    ) -> None:
        self.name = name
        self.licence = licence
        self.description = description
        self.parts = tuple(parts)
        self._stream = stream
        self._annotations: frozenset[str] | None = None
        self._survey: Survey | None = None
        self._notes: Notes = Counter()

    @classmethod
    def from_examples(
        cls,
        examples: Sequence[Example],
        name: str = "examples",
        *,
        licence: str = "",
        description: str = "",
    ) -> Corpus:
        """Return a corpus of these examples."""
        fixed = tuple(examples)
        return cls(name, lambda notes: fixed, licence=licence, description=description)

    @classmethod
    def from_texts(
        cls,
        texts: Sequence[str | tuple[str, str]],
        name: str = "texts",
        *,
        licence: str = "",
        description: str = "",
    ) -> Corpus:
        """Return a corpus of plain texts, or of pairs of texts."""
        if isinstance(texts, str):
            raise ParameterError("`texts` must be a list of texts, not one text.")
        examples = []
        for number, item in enumerate(texts):
            first, second = (item, None) if isinstance(item, str) else item
            examples.append(Example(text=first, pair=second, origin=f"{name}:{number + 1}"))
        return cls.from_examples(examples, name, licence=licence, description=description)

    def __iter__(self) -> Generator[Example]:
        notes: Notes = Counter()
        self._notes = notes
        empty = True
        for example in self._stream(notes):
            empty = False
            yield example
        if empty:
            counts = "; ".join(f"{what}: {count}" for what, count in notes.items())
            left_out = f" ({counts})" if notes else ""
            raise InputError(
                f"{self.name} holds no examples{left_out}; use a corpus with at least one."
            )

    def walk(self, notes: Notes) -> Iterator[Example]:
        """Yield the examples; count what is left out in the counter of a derived corpus."""
        return iter(self._stream(notes))

    def __repr__(self) -> str:
        return f"Corpus({self.name!r})"

    @property
    def notes(self) -> dict[str, int]:
        """What the latest pass left out or replaced, with counts."""
        return dict(self._notes)

    @property
    def annotations(self) -> frozenset[str]:
        """The annotations that some example has: by the survey, or by the first examples."""
        if self._annotations is None:
            if self._survey is not None:
                return self._survey.annotations
            found: set[str] = set()
            for example in self.peek(PEEK):
                found |= example.annotations
            self._annotations = frozenset(found)
        return self._annotations

    def peek(self, count: int = 1) -> list[Example]:
        """Return the first examples."""
        with closing(iter(self)) as examples:  # so that the reader closes its file now
            return list(islice(examples, count))

    def limit(self, count: int | None) -> Corpus:
        """Return a corpus of the first `count` examples; None for all."""
        if count is None:
            return self
        at_least("limit", count, 1)
        return self.derive(lambda notes: islice(self.walk(notes), count))

    def sample(self, count: int | None, seed: int = 0, pool: int = POOL) -> Corpus:
        """Return a corpus of at most `count` random examples, in the order of the corpus.

        Documents are sampled, and one example of each, then a second of each, until there are
        enough: a small sample comes from as many documents as possible. A corpus without documents
        is sampled by examples. Of a corpus longer than `pool` (or twenty times `count`), only the
        beginning of that length is sampled, with a note. Each part is sampled, too.

        Parameters
        ----------
        count : int, optional
            The number of examples; None for all.
        seed : int, default 0
            Of the random generator.
        pool : int, default 20,000
            The number of examples to sample from.

        Examples
        --------
        >>> corpus = Corpus.from_texts([str(number) for number in range(1000)])
        >>> [example.text for example in corpus.sample(3)]
        ['40', '402', '993']
        >>> [example.text for example in corpus.sample(3, seed=1)]
        ['13', '503', '531']
        """
        if count is None:
            return self
        at_least("limit", count, 1)
        sample = _Sample(self, count, seed, max(pool, POOL_FACTOR * count))
        sampled = self.derive(sample.walk)
        sampled.parts = tuple(part.sample(count, seed, pool) for part in self.parts)
        return sampled

    def having(self, annotations: frozenset[str]) -> Corpus:
        """Return this corpus or the first of its parts that has all these annotations; this one
        where none has."""
        for candidate in (self, *self.parts):
            if annotations <= candidate.annotations:
                return candidate
        return self

    def alone(self) -> Corpus:
        """Return the corpus without its parts."""
        without_parts = self.derive(self.walk)
        without_parts.parts = ()
        return without_parts

    def derive(self, stream: Stream) -> Corpus:
        """Return a corpus with other examples and this one's name, licence and parts."""
        return Corpus(
            self.name, stream, licence=self.licence, description=self.description, parts=self.parts
        )

    def survey(self) -> Survey:
        """Read the whole corpus once and keep the facts about it."""
        if self._survey is None:
            digest = hashlib.sha256()
            examples_with: Counter[str] = Counter()
            relations: set[str] = set()
            schemes: set[str] = set()
            count = 0
            for example in self:
                count += 1
                digest.update(example.fingerprint())
                examples_with.update(example.annotations)
                if example.relations is not None:
                    relations.update(example.relations)
                    schemes.add(example.scheme)
            self._survey = Survey(
                count=count,
                fingerprint=digest.hexdigest(),
                annotations=frozenset(examples_with),
                relations=tuple(sorted(relations)),
                schemes=tuple(sorted(schemes)),
                examples_with=dict(sorted(examples_with.items())),
                notes=self.notes,
            )
        return self._survey

    def fingerprint(self) -> str:
        """Return a SHA-256 digest of the examples in order, whatever the file is called or packed
        in."""
        return self.survey().fingerprint


@dataclass(slots=True, eq=False)
class _Sample:
    """A random sample of a corpus, drawn in its first pass, and cached where it is small."""

    corpus: Corpus
    count: int
    seed: int
    pool: int
    positions: list[int] | None = None  # of the sampled examples in the corpus
    truncation_note: Notes = field(default_factory=Counter)  # where it is longer than the pool
    cached: list[Example] | None = None
    cached_notes: Notes = field(default_factory=Counter)  # of a pass up to the last cached example

    def walk(self, notes: Notes) -> Iterator[Example]:
        """Yield the sampled examples, in the order of the corpus."""
        positions = self._draw() if self.positions is None else self.positions
        if self.cached is None:
            yield from self._read(positions, notes)
        else:
            notes.update(self.cached_notes)
            yield from self.cached

    def _read(self, positions: list[int], notes: Notes) -> Iterator[Example]:
        notes_before = Counter(notes)
        notes.update(self.truncation_note)
        is_sampled = set(positions)
        examples: list[Example] = []
        n_words = 0
        corpus = islice(self.corpus.walk(notes), positions[-1] + 1)
        for position, example in enumerate(corpus):
            if position not in is_sampled:
                continue
            n_words += _n_words(example)
            if n_words <= MAX_CACHED_WORDS:
                examples.append(example)
            yield example
        if n_words <= MAX_CACHED_WORDS:
            self.cached = examples
            self.cached_notes = notes - notes_before

    def _draw(self) -> list[int]:
        """Draw the positions of the sample; a small corpus is cached meanwhile, to read it once."""
        notes: Notes = Counter()
        documents: list[str | None] = []
        # Each example with the notes up to it: consecutive examples share the same counter.
        pool_examples: list[tuple[Example, Notes]] = []
        notes_so_far: Notes = Counter()
        n_words = 0
        corpus = self.corpus.walk(notes)
        for example in islice(corpus, self.pool):
            documents.append(example.document)
            n_words += _n_words(example)
            if n_words > MAX_CACHED_WORDS:
                pool_examples.clear()
                continue
            if notes_so_far != notes:
                notes_so_far = Counter(notes)
            pool_examples.append((example, notes_so_far))
        positions = drawn(documents, self.count, self.seed)
        if next(corpus, None) is not None:
            note = f"examples drawn from the first {self.pool:,} of the corpus"
            self.truncation_note[note] = len(positions)
        if n_words <= MAX_CACHED_WORDS:
            self.cached = [pool_examples[position][0] for position in positions]
            if positions:
                notes_so_far = pool_examples[positions[-1]][1]
            self.cached_notes = notes_so_far + self.truncation_note
        self.positions = positions
        return positions


def _n_words(example: Example) -> int:
    """Return the approximate number of words; five characters of plain text count as one."""
    n_characters = len(example.text or "") + len(example.pair or "")
    return len(example.all_words) + n_characters // 5


def drawn(documents: Sequence[str | None], count: int, seed: int) -> list[int]:
    """Return the sorted positions of `count` examples from as many documents as possible.

    >>> drawn(["a", "a", "a", "b", None], 3, seed=0)
    [2, 3, 4]
    """
    generator = random.Random(seed)
    keys = [generator.random() for _ in documents]
    positions_by_document: dict[str | int, list[int]] = {}
    for position in sorted(range(len(documents)), key=keys.__getitem__):
        name = documents[position]
        # An example without a document is a document of its own.
        document = position if name is None else name
        positions_by_document.setdefault(document, []).append(position)
    turns = []
    for number, positions in enumerate(positions_by_document.values()):
        for turn, position in enumerate(positions):
            turns.append((turn, number, position))
    return sorted(position for _, _, position in sorted(turns)[:count])
