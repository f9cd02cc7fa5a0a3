"""A stream of examples with a name, a licence and a fingerprint, that can be walked through any
number of times."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias

from headwise.core.checks import at_least
from headwise.core.errors import InputError, ParameterError
from headwise.text.example import Example

Notes: TypeAlias = Counter[str]  # what a reader left out or took on trust, and how often
Stream: TypeAlias = Callable[[Notes], Iterable[Example]]

POOL = 20_000  # examples that a draw reads at least
TIMES = 20  # as many times the examples drawn
HELD = 2**17  # words that are kept of a draw, so that its file is not read again at every walk
PEEK = 256  # examples looked at to tell which annotations a corpus has


@dataclass(frozen=True, slots=True)
class Survey:
    """What one walk through a whole corpus tells.

    `annotations` and `relations` are those that some example has; `examples_with` counts, for each
    annotation, the examples that have it; `notes` is what was left out on the way, with counts."""

    count: int
    fingerprint: str
    annotations: frozenset[str]
    relations: tuple[str, ...]
    schemes: tuple[str, ...]
    examples_with: dict[str, int]
    notes: dict[str, int]


class Corpus:
    """Examples in a fixed order, read anew at every walk, so that a large file is never held in
    memory.

    Parameters
    ----------
    name : str
        A short name for figures and provenance.
    stream : callable
        Called with an empty counter at the start of every walk; gives the examples, and counts what
        it leaves out.
    licence, description : str, optional
        For the provenance of a run.
    parts : sequence of Corpus, optional
        Further corpora that come with it, each for the questions that the ones before it have no
        annotations for.

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
        """A corpus of examples at hand."""
        held = tuple(examples)
        return cls(name, lambda notes: held, licence=licence, description=description)

    @classmethod
    def from_texts(
        cls,
        texts: Sequence[str | tuple[str, str]],
        name: str = "texts",
        *,
        licence: str = "",
        description: str = "",
    ) -> Corpus:
        """A corpus of plain texts, or of pairs of texts."""
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
            left_out = (
                f" ({'; '.join(f'{what}: {count}' for what, count in notes.items())})"
                if notes
                else ""
            )
            raise InputError(
                f"{self.name} holds no examples{left_out}; give a corpus with at least one."
            )

    def walk(self, notes: Notes) -> Iterator[Example]:
        """The examples, counting what is left out in the counter of another corpus that is made
        from this one."""
        return iter(self._stream(notes))

    def __repr__(self) -> str:
        return f"Corpus({self.name!r})"

    @property
    def notes(self) -> dict[str, int]:
        """What the latest walk left out or took on trust, with counts."""
        return dict(self._notes)

    @property
    def annotations(self) -> frozenset[str]:
        """The annotations some example has: as surveyed, or else as seen in the first examples."""
        if self._annotations is None:
            if self._survey is not None:
                return self._survey.annotations
            self._annotations = frozenset().union(
                *(example.annotations for example in self.peek(PEEK))
            )
        return self._annotations

    def peek(self, count: int = 1) -> list[Example]:
        """The first examples."""
        with closing(iter(self)) as walk:  # lets the reader close its file now
            return list(islice(walk, count))

    def limit(self, count: int | None) -> Corpus:
        """The first `count` examples as a corpus (all of them for None)."""
        if count is None:
            return self
        at_least("limit", count, 1)
        return self.derive(lambda notes: islice(self.walk(notes), count))

    def sample(self, count: int | None, seed: int = 0, pool: int = POOL) -> Corpus:
        """At most `count` examples drawn by a seed, in the order of the corpus (all of them for
        None); of its parts as many each.

        Documents are drawn, and of each drawn document one example, then of each a second, until
        there are enough: so few examples come from as many documents as there are. Without
        documents examples are drawn. Of a corpus longer than `pool` (or twenty times `count`) only
        the beginning of that length is drawn from, which a note says.

        Parameters
        ----------
        count : int, optional
            How many; None for all.
        seed : int, default 0
            Another seed gives other examples.
        pool : int, default 20,000
            Examples that are read for the draw.

        Examples
        --------
        >>> corpus = Corpus.from_texts([str(number) for number in range(1000)])
        >>> [example.text for example in corpus.sample(3)], [example.text for example in corpus.sample(3, seed=1)]
        (['40', '402', '993'], ['13', '503', '531'])
        """
        if count is None:
            return self
        at_least("limit", count, 1)
        draw = _Draw(self, count, seed, max(pool, TIMES * count))
        sampled = self.derive(draw.walk)
        sampled.parts = tuple(part.sample(count, seed, pool) for part in self.parts)
        return sampled

    def having(self, annotations: frozenset[str]) -> Corpus:
        """This corpus, or the first of its parts that has all these annotations; this one where
        none has."""
        return next((one for one in (self, *self.parts) if annotations <= one.annotations), self)

    def alone(self) -> Corpus:
        """The corpus without its parts."""
        found = self.derive(self.walk)
        found.parts = ()
        return found

    def derive(self, stream: Stream) -> Corpus:
        """A corpus made from this one, with its name, licence and parts."""
        return Corpus(
            self.name, stream, licence=self.licence, description=self.description, parts=self.parts
        )

    def survey(self) -> Survey:
        """Walk through the whole corpus once and keep what it tells."""
        if self._survey is None:
            digest = hashlib.sha256()
            kinds: Counter[frozenset[str]] = Counter()
            relations: set[str] = set()
            schemes: set[str] = set()
            count = 0
            for example in self:
                count += 1
                digest.update(example.fingerprint())
                kinds[example.annotations] += 1
                if example.relations is not None:
                    relations.update(example.relations)
                    schemes.add(example.scheme)
            seen: Counter[str] = Counter()
            for kind, examples in kinds.items():
                seen.update(dict.fromkeys(kind, examples))
            self._survey = Survey(
                count=count,
                fingerprint=digest.hexdigest(),
                annotations=frozenset(seen),
                relations=tuple(sorted(relations)),
                schemes=tuple(sorted(schemes)),
                examples_with=dict(sorted(seen.items())),
                notes=self.notes,
            )
        return self._survey

    def fingerprint(self) -> str:
        """sha256, in hex, over the fingerprints of the examples in their order: the same whatever
        the file is called and however it is packed."""
        return self.survey().fingerprint


class _Draw:
    """Examples of a corpus that are drawn by a seed at the first walk, and kept where they are
    few."""

    def __init__(self, corpus: Corpus, count: int, seed: int, longest: int) -> None:
        self.corpus, self.count, self.seed, self.longest = corpus, count, seed, longest
        self.chosen: list[int] | None = None  # places in the corpus
        self.cut: Notes = (
            Counter()
        )  # what is said where the corpus is longer than what was drawn from
        self.held: list[Example] | None = None
        self.notes: Notes = Counter()  # of a walk to the last of those that are held

    def walk(self, notes: Notes) -> Iterator[Example]:
        """The drawn examples, in the order of the corpus."""
        chosen = self._draw() if self.chosen is None else self.chosen
        if self.held is None:
            yield from self._read(chosen, notes)
        else:
            notes.update(self.notes)
            yield from self.held

    def _read(self, chosen: list[int], notes: Notes) -> Iterator[Example]:
        places, held, size, before = set(chosen), list[Example](), 0, Counter(notes)
        notes.update(self.cut)
        for place, example in enumerate(islice(self.corpus.walk(notes), chosen[-1] + 1)):
            if place in places:
                size += _size(example)
                if size <= HELD:
                    held.append(example)
                yield example
        if size <= HELD:
            self.held, self.notes = held, notes - before

    def _draw(self) -> list[int]:
        """Read as much of the corpus as is drawn from; kept meanwhile while it is little, so that
        it is read once."""
        notes: Notes = Counter()
        documents, size = list[str | None](), 0
        kept: list[tuple[Example, Notes]] = []  # each with the notes so far
        so_far: Notes = Counter()
        walk = self.corpus.walk(notes)
        for example in islice(walk, self.longest):
            documents.append(example.document)
            size += _size(example)
            if size > HELD:
                kept.clear()
                continue
            so_far = so_far if so_far == notes else Counter(notes)
            kept.append((example, so_far))
        chosen = drawn(documents, self.count, self.seed)
        if next(walk, None) is not None:
            self.cut[f"examples drawn from the first {self.longest:,} of the corpus"] = len(chosen)
        if size <= HELD:
            self.held = [kept[place][0] for place in chosen]
            self.notes = (kept[chosen[-1]][1] if chosen else so_far) + self.cut
        self.chosen = chosen
        return chosen


def _size(example: Example) -> int:
    """About how many words an example has."""
    return len(example.all_words) + (len(example.text or "") + len(example.pair or "")) // 5


def drawn(documents: Sequence[str | None], count: int, seed: int) -> list[int]:
    """The places of `count` examples, drawn so that they come from as many documents as there are;
    in order.

    >>> drawn(["a", "a", "a", "b", None], 3, seed=0)
    [2, 3, 4]
    """
    dice = random.Random(seed)
    keys = [dice.random() for _ in documents]
    of_document: dict[str | int, list[int]] = {}
    for place in sorted(range(len(documents)), key=keys.__getitem__):
        own = documents[place]
        of_document.setdefault(place if own is None else own, []).append(place)
    order = [
        (turn, number, place)
        for number, own in enumerate(of_document.values())
        for turn, place in enumerate(own)
    ]
    return sorted(place for _, _, place in sorted(order)[:count])
