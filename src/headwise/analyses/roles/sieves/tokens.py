"""What a sieve is written on: the looking tokens of an input as a column, the tokens looked at as a
row."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import numpy as np

from headwise.analyses.items import relation_matches
from headwise.text.alignment import NO_WORD
from headwise.text.encode import Encoded
from headwise.text.example import ROLES, ROOT


class TokenAxis:
    """One side of an attention map: arrays over tokens that broadcast against the other side.

    A sieve `f(i, j)` gets the looking tokens `i`, whose arrays have the shape `[rows, 1]`, and the
    tokens looked at `j`, `[1, tokens]`: an expression like `abs(i.position - j.position) <= 2` is
    the whole matrix.

    `position`, `id`, `segment` (−1 for special tokens) and `word` (−1: no word, or none known) are
    numbers; `special`, `cls`, `sep`, `punct` are true or false; `piece` (text of the token), `role`
    (in a conversation), `form`, `lemma` (both in lower case), `upos` and `relation` (of the token's
    word, without subtype) are strings, empty where there is none."""

    def __init__(self, row: Encoded, start: int, stop: int, as_column: bool) -> None:
        self.row = row
        self._here = slice(start, stop)
        self._shape = (-1, 1) if as_column else (1, -1)
        self.position = self._array(np.arange(len(row)))
        self.id, self.segment = self._array(row.ids), self._array(row.segment)
        self.special, self.cls, self.sep, self.punct = map(
            self._array, (row.special, row.cls, row.sep, row.punct)
        )
        # NO_WORD everywhere where pieces and words do not align
        self.word = self._array(row.word if row.aligned else np.full(len(row), NO_WORD))

    def _array(self, values: np.ndarray) -> np.ndarray:
        return values[self._here].reshape(self._shape)

    @property
    def count(self) -> int:
        """How many tokens the whole input has."""
        return len(self.row)

    @cached_property
    def piece(self) -> np.ndarray:
        return self._array(np.array(self.row.pieces, dtype=object))

    @cached_property
    def role(self) -> np.ndarray:
        table = np.array([*ROLES, ""], dtype=object)  # the last entry is what −1 finds
        roles = self.row.roles
        return self._array(table[np.full(len(self.row), -1) if roles is None else roles])

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

    def _of_word(self, values: Iterable[str]) -> np.ndarray:
        table = np.array([*values, ""], dtype=object)  # the last entry is what NO_WORD, −1, finds
        return table[self.word] if len(table) > 1 else np.full(self.word.shape, "", dtype=object)

    def linked(self, other: TokenAxis, relations: Iterable[str]) -> np.ndarray:
        """Bool `[rows, tokens]`: whether the two tokens' words are joined by an arc of one of these
        relations.

        Whichever of them is the head. A name without a subtype stands for its subtypes too: `nsubj`
        for `nsubj:pass`."""
        joined = linked_words(self.row, relations)
        found: np.ndarray = joined[self.word, other.word]
        return found


def linked_words(row: Encoded, relations: Iterable[str], arcs: str = "by") -> np.ndarray:
    """Bool `[word + 1, word + 1]`: words joined by an arc of one of these relations; the last row
    and column belong to tokens without a word.

    `arcs` says which way: `down` (the first word is the head), `up` (the second is) or `by`
    (either)."""
    example, wanted = row.example, frozenset(relations)
    count = len(example.all_words)
    joined = np.zeros((count + 1, count + 1), dtype=bool)
    for word, (head, relation) in enumerate(
        zip(example.heads or (), example.relations or (), strict=False)
    ):
        if head not in (ROOT, word) and relation_matches(relation, wanted):
            joined[head, word] |= arcs != "up"
            joined[word, head] |= arcs != "down"
    return joined


def token_axes(
    row: Encoded, start: int = 0, stop: int | None = None
) -> tuple[TokenAxis, TokenAxis]:
    """The looking tokens `start..stop` (all by default) and all tokens looked at."""
    return TokenAxis(
        row, start, len(row) if stop is None else min(stop, len(row)), True
    ), TokenAxis(row, 0, len(row), False)
