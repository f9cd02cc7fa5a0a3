"""The forms a sieve can have that need no matrix: a band, a set of keys, equal labels, pairs. The
matrix follows from the form, and so does what is asked of the attention kernel; a sieve of any
other form is a function and stays a matrix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from headwise.analyses.items import relation_matches
from headwise.analyses.roles.sieves.tokens import TokenAxis
from headwise.text.encode import Encoded
from headwise.text.example import ROOT

Labels = Callable[[TokenAxis], np.ndarray]  # of one side: −1 is equal to nothing


@dataclass(frozen=True, slots=True)
class OffsetBand:
    """Tokens from `low` to `high` places away."""

    low: int
    high: int

    def __call__(self, i: TokenAxis, j: TokenAxis) -> np.ndarray:
        away = j.position - i.position
        found: np.ndarray = (away >= self.low) & (away <= self.high)
        return found

    @property
    def offsets(self) -> range:
        return range(self.low, self.high + 1)


@dataclass(frozen=True, slots=True)
class KeySet:
    """A set of tokens, the same for every looking token (or for those after the first alone)."""

    of: Callable[[TokenAxis], np.ndarray]
    from_later: bool = False

    def __call__(self, i: TokenAxis, j: TokenAxis) -> np.ndarray:
        return self.of(j) & (i.position > 0) if self.from_later else self.of(j)


@dataclass(frozen=True, slots=True)
class EqualLabels:
    """Tokens whose label is the looking token's own.

    Parameters
    ----------
    name : str
        Of the labels: two sieves that name the same ones share them.
    own, theirs : callable
        The labels of the looking tokens, and of those looked at; −1 for none.
    itself : bool, default False
        Whether a token may look at itself.
    behind : bool, default False
        Later tokens are left out.
    """

    name: str
    own: Labels
    theirs: Labels
    itself: bool = False
    behind: bool = False

    def __call__(self, i: TokenAxis, j: TokenAxis) -> np.ndarray:
        own = self.own(i)
        found: np.ndarray = (own == self.theirs(j)) & (own >= 0)
        if self.behind:
            found = found & (j.position <= i.position)
        return found if self.itself else found & (i.position != j.position)


@dataclass(frozen=True, slots=True)
class RelationArcs:
    """Tokens of words that are joined to the looking token's word by an arc of one of these
    relations."""

    relations: frozenset[str]

    def __call__(self, i: TokenAxis, j: TokenAxis) -> np.ndarray:
        return i.linked(j, self.relations)

    def pairs(self, row: Encoded) -> np.ndarray:
        """`[2, pair]`: the looking token and the one looked at, each pair once."""
        example = row.example
        if not row.aligned or not example.heads:
            return np.empty((2, 0), dtype=np.int64)
        pieces: dict[int, list[int]] = {}
        for place, word in enumerate(row.word.tolist()):
            if word >= 0:
                pieces.setdefault(word, []).append(place)
        found = set()
        for word, (head, relation) in enumerate(
            zip(example.heads, example.relations or (), strict=False)
        ):
            if head not in (ROOT, word) and relation_matches(relation, self.relations):
                for a in pieces.get(word, ()):
                    for b in pieces.get(head, ()):
                        found |= {(a, b), (b, a)}
        return np.array(sorted(found), dtype=np.int64).reshape(-1, 2).T


SieveForm = OffsetBand | KeySet | EqualLabels | RelationArcs
