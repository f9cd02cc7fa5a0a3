"""What a sieve is written on: the queries of an input as a column, its keys as a row."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import numpy as np

from headwise.analyses.items import relation_matches
from headwise.core.token_types import TYPE_NAMES
from headwise.text.alignment import NO_WORD
from headwise.text.encode import Encoded
from headwise.text.example import ROLES, ROOT


class TokenAxis:
    """One axis of an attention map: arrays over tokens that broadcast against the other axis.

    A sieve `f(i, j)` gets the queries `i`, whose arrays have the shape `[rows, 1]`, and the keys
    `j`, `[1, tokens]`: an expression like `abs(i.position - j.position) <= 2` is the whole matrix.

    `position`, `id`, `segment` (−1 for special tokens) and `word` (−1: no word, or none known) are
    numbers; `special`, `cls`, `sep`, `punct` are true or false; `token_type` (`cls`, `other`),
    `piece` (text of the token), `role` (in a conversation), `form`, `lemma` (both in lower case),
    `upos` and `relation` (of the token's word, without subtype) are strings, empty where there is none."""

    def __init__(self, row: Encoded, start: int, stop: int, as_column: bool) -> None:
        self.row = row
        self._tokens = slice(start, stop)
        self._shape = (-1, 1) if as_column else (1, -1)
        self.position = self._array(np.arange(len(row)))
        self.id = self._array(row.ids)
        self.segment = self._array(row.segment)
        self.special = self._array(row.special)
        self.cls = self._array(row.cls)
        self.sep = self._array(row.sep)
        self.punct = self._array(row.punct)
        # Where pieces and words do not align, no token has a word.
        self.word = self._array(row.word if row.aligned else np.full(len(row), NO_WORD))

    def _array(self, values: np.ndarray) -> np.ndarray:
        return values[self._tokens].reshape(self._shape)

    @property
    def count(self) -> int:
        """Number of tokens of the whole input."""
        return len(self.row)

    @cached_property
    def token_type(self) -> np.ndarray:
        return self._array(np.array(TYPE_NAMES, dtype=object)[self.row.token_type])

    @cached_property
    def piece(self) -> np.ndarray:
        return self._array(np.array(self.row.pieces, dtype=object))

    @cached_property
    def role(self) -> np.ndarray:
        roles = self.row.roles
        if roles is None:
            roles = np.full(len(self.row), -1)
        # Index −1 (no role) reads the last entry, the empty string.
        names = np.array([*ROLES, ""], dtype=object)
        return self._array(names[roles])

    @cached_property
    def form(self) -> np.ndarray:
        return self._of_word([word.lower() for word in self.row.example.all_words])

    @cached_property
    def lemma(self) -> np.ndarray:
        return self._of_word([lemma.lower() for lemma in self.row.example.lemmas or ()])

    @cached_property
    def upos(self) -> np.ndarray:
        return self._of_word(self.row.example.upos or ())

    @cached_property
    def relation(self) -> np.ndarray:
        return self._of_word([name.split(":", 1)[0] for name in self.row.example.relations or ()])

    def _of_word(self, word_values: Iterable[str]) -> np.ndarray:
        # Index NO_WORD (−1) reads the last entry, the empty string.
        table = np.array([*word_values, ""], dtype=object)
        if len(table) == 1:
            return np.full(self.word.shape, "", dtype=object)
        return np.asarray(table[self.word])

    def linked(self, other: TokenAxis, relations: Iterable[str]) -> np.ndarray:
        """Return bool `[rows, tokens]`: whether an arc of these relations joins the two words.

        Whichever of them is the head. A name without a subtype stands for its subtypes too: `nsubj`
        for `nsubj:pass`."""
        linked: np.ndarray = linked_words(self.row, relations)[self.word, other.word]
        return linked


def linked_words(row: Encoded, relations: Iterable[str], arcs: str = "by") -> np.ndarray:
    """Return bool `[word + 1, word + 1]`: words joined by an arc of one of these relations.

    The last row and column belong to tokens without a word. `arcs` says which way: `down` (the
    first word is the head), `up` (the second is) or `by` (either)."""
    example = row.example
    wanted_relations = frozenset(relations)
    n_words = len(example.all_words)
    linked = np.zeros((n_words + 1, n_words + 1), dtype=bool)
    annotated = zip(example.heads or (), example.relations or (), strict=False)
    for word, (head, relation) in enumerate(annotated):
        if head not in (ROOT, word) and relation_matches(relation, wanted_relations):
            linked[head, word] |= arcs != "up"
            linked[word, head] |= arcs != "down"
    return linked


def token_axes(
    row: Encoded, start: int = 0, stop: int | None = None
) -> tuple[TokenAxis, TokenAxis]:
    """Return the queries `start..stop` (default: all) and all keys of an input."""
    stop = len(row) if stop is None else min(stop, len(row))
    queries = TokenAxis(row, start, stop, as_column=True)
    keys = TokenAxis(row, 0, len(row), as_column=False)
    return queries, keys
