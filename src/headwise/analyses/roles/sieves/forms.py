"""The forms of sieves that need no matrix: an offset band, a key set, equal labels, arcs.

From its form follows both the boolean matrix of a sieve and the statistics it requests from the
attention kernel (`sieve_stats.py`). A sieve of any other form is a function, and is computed from its
matrix (`sieve_matrices` in `registry.py`, `matrix_bias.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from headwise.analyses.items import relation_matches
from headwise.analyses.roles.sieves.tokens import TokenAxis
from headwise.text.encode import Encoded
from headwise.text.example import ROOT

# Integer labels of the tokens along one axis; −1 equals nothing.
TokenLabels = Callable[[TokenAxis], np.ndarray]


@dataclass(frozen=True, slots=True)
class OffsetBand:
    """All tokens at offsets from `low` to `high`."""

    low: int
    high: int

    def __call__(self, i: TokenAxis, j: TokenAxis) -> np.ndarray:
        offset = j.position - i.position
        inside: np.ndarray = (offset >= self.low) & (offset <= self.high)
        return inside

    @property
    def offsets(self) -> range:
        return range(self.low, self.high + 1)


@dataclass(frozen=True, slots=True)
class KeySet:
    """A set of keys, the same for every query; with `not_for_first_query` empty for the first
    query."""

    of: TokenLabels
    not_for_first_query: bool = False

    def __call__(self, i: TokenAxis, j: TokenAxis) -> np.ndarray:
        keys = self.of(j)
        return keys & (i.position > 0) if self.not_for_first_query else keys


@dataclass(frozen=True, slots=True)
class EqualLabels:
    """All keys whose label equals that of the query.

    Parameters
    ----------
    name : str
        Name of the labels: two sieves that use the same name share them.
    query_labels, key_labels : callable
        Labels of the queries, and of the keys; −1 for none.
    includes_self : bool, default False
        Whether the token itself belongs to its set.
    behind : bool, default False
        Leave out later tokens.
    """

    name: str
    query_labels: TokenLabels
    key_labels: TokenLabels
    includes_self: bool = False
    behind: bool = False

    def __call__(self, i: TokenAxis, j: TokenAxis) -> np.ndarray:
        query_label = self.query_labels(i)
        inside: np.ndarray = (query_label == self.key_labels(j)) & (query_label >= 0)
        if self.behind:
            inside = inside & (j.position <= i.position)
        if not self.includes_self:
            inside = inside & (i.position != j.position)
        return inside


@dataclass(frozen=True, slots=True)
class RelationArcs:
    """All tokens of words that an arc of one of these relations joins to the query's word."""

    relations: frozenset[str]

    def __call__(self, i: TokenAxis, j: TokenAxis) -> np.ndarray:
        return i.linked(j, self.relations)

    def pairs(self, row: Encoded) -> np.ndarray:
        """Return the pairs `[2, pair]` of query and key, each once."""
        example = row.example
        if not row.aligned or not example.heads:
            return np.empty((2, 0), dtype=np.int64)
        tokens_of_word: dict[int, list[int]] = {}
        for token, word in enumerate(row.word.tolist()):
            if word >= 0:
                tokens_of_word.setdefault(word, []).append(token)
        pairs: set[tuple[int, int]] = set()
        relations = example.relations or ()
        for word, (head, relation) in enumerate(zip(example.heads, relations, strict=False)):
            if head in (ROOT, word) or not relation_matches(relation, self.relations):
                continue
            for dependent_token in tokens_of_word.get(word, ()):
                for head_token in tokens_of_word.get(head, ()):
                    pairs.add((dependent_token, head_token))
                    pairs.add((head_token, dependent_token))
        return np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2).T


SieveForm = OffsetBand | KeySet | EqualLabels | RelationArcs
