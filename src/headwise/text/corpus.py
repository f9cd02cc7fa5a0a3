"""A stream of examples with a name, a licence and a fingerprint, that can be walked through any number of times."""

from __future__ import annotations

import hashlib
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

PEEK = 256  # examples looked at to tell which annotations a corpus has


@dataclass(frozen=True, slots=True)
class Survey:
    """What one walk through a whole corpus tells.

    `annotations` and `relations` are those that some example has; `examples_with` counts, for each annotation, the
    examples that have it; `notes` is what was left out on the way, with counts.
    """

    count: int
    fingerprint: str
    annotations: frozenset[str]
    relations: tuple[str, ...]
    schemes: tuple[str, ...]
    examples_with: dict[str, int]
    notes: dict[str, int]


class Corpus:
    """Examples in a fixed order, read anew at every walk, so that a large file is never held in memory.

    Parameters
    ----------
    name : str
        A short name for figures and provenance.
    stream : callable
        Called with an empty counter at the start of every walk; gives the examples, and counts what it leaves out.
    licence, description : str, optional
        For the provenance of a run.

    Examples
    --------
    >>> corpus = Corpus.from_texts(["One.", ("Two.", "Three.")])
    >>> corpus.survey().examples_with, corpus.limit(1).peek()[0].text
    ({'segments': 1}, 'One.')
    """

    def __init__(self, name: str, stream: Stream, *, licence: str = "", description: str = "") -> None:
        self.name = name
        self.licence = licence
        self.description = description
        self._stream = stream
        self._annotations: frozenset[str] | None = None
        self._survey: Survey | None = None
        self._notes: Notes = Counter()

    @classmethod
    def from_examples(
        cls, examples: Sequence[Example], name: str = "examples", *, licence: str = "", description: str = ""
    ) -> Corpus:
        """A corpus of examples at hand."""
        held = tuple(examples)
        return cls(name, lambda notes: held, licence=licence, description=description)

    @classmethod
    def from_texts(
        cls, texts: Sequence[str | tuple[str, str]], name: str = "texts", *, licence: str = "", description: str = ""
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
            left_out = f" ({'; '.join(f'{what}: {count}' for what, count in notes.items())})" if notes else ""
            raise InputError(f"{self.name} holds no examples{left_out}; give a corpus with at least one.")

    def walk(self, notes: Notes) -> Iterator[Example]:
        """The examples, counting what is left out in the counter of another corpus that is made from this one."""
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
            self._annotations = frozenset().union(*(example.annotations for example in self.peek(PEEK)))
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

    def derive(self, stream: Stream, name: str | None = None) -> Corpus:
        """A corpus made from this one, with its name and licence."""
        return Corpus(name or self.name, stream, licence=self.licence, description=self.description)

    def survey(self) -> Survey:
        """Walk through the whole corpus once and keep what it tells."""
        if self._survey is None:
            digest = hashlib.sha256()
            seen: Counter[str] = Counter()
            relations: set[str] = set()
            schemes: set[str] = set()
            count = 0
            for example in self:
                count += 1
                digest.update(example.fingerprint())
                seen.update(example.annotations)
                if example.relations is not None:
                    relations.update(example.relations)
                    schemes.add(example.scheme)
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
        """sha256, in hex, over the fingerprints of the examples in their order: the same whatever the file is called
        and however it is packed."""
        return self.survey().fingerprint
