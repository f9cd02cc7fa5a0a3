"""Types of pairs: words of two features in one sentence, linked by an arc or not (Kovaleva et al.
2019, §4.5)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np

from headwise.analyses.contract import Shape
from headwise.analyses.features.predicates import (
    Feature,
    TokenCondition,
    known_features,
    parse_conditions,
)
from headwise.analyses.items import missing_annotation_reason
from headwise.analyses.roles.sieves.tokens import linked_words
from headwise.core.errors import ParameterError
from headwise.text.encode import Encoded

ANY = Feature("any", "any word")
SYNTAX = (
    "name: A -> B, or name: A -> B by RELATION (down: A is the head; up: B is), where A and B are "
    "features, `any`, or predicates, with `;` between pairs"
)
_PAIR = re.compile(
    r"\s*([A-Za-z][\w>\-]*)\s*:\s*(.+?)\s*->\s*(.+?)(?:\s+(by|down|up)\s+(\S+))?\s*",
    flags=re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class PairType:
    """Pairs of words from `source` to `target` in the same sentence; with `arc`, only those joined
    by one of `relations`.

    `arc` is `down` (the source is the head), `up` (the target is), `by` (either) or empty.
    """

    name: str
    source: Feature
    target: Feature
    arc: str = ""
    relations: frozenset[str] = frozenset()

    def matrix(self, row: Encoded) -> np.ndarray:
        """Return bool `[token, token]`: all pairs of pieces of such words; two pieces of one word
        are no pair."""
        if not row.aligned:
            return np.zeros((len(row), len(row)), dtype=bool)
        word = row.word
        has_word = word >= 0
        is_pair: np.ndarray = self.source.tokens(row)[:, None] & self.target.tokens(row)[None]
        is_pair &= has_word[:, None] & has_word[None] & (word[:, None] != word[None])
        is_pair &= row.segment[:, None] == row.segment[None]
        if row.example.sentences is not None:
            sentence = np.append(row.example.sentences, -1)[word]
            is_pair &= sentence[:, None] == sentence[None]
        if self.arc:
            linked = linked_words(row, self.relations, self.arc)
            is_pair &= linked[word[:, None], word[None]]
        return is_pair

    @property
    def requires(self) -> frozenset[str]:
        """Annotations without which there are no such pairs."""
        required = self.source.requires | self.target.requires | {"words"}
        if self.arc:
            required |= {"dependencies"}
        return required

    def missing_reason(self, shape: Shape) -> str | None:
        """Return why a corpus cannot provide these pairs, or None."""
        conditions = (TokenCondition("relation", self.relations),) if self.arc else ()
        arc = Feature(self.name, "", conditions, own=self.source.own)
        return (
            missing_annotation_reason(self.requires, shape)
            or self.source.missing_reason(shape)
            or self.target.missing_reason(shape)
            or arc.missing_reason(shape)
        )


@cache
def known_pairs() -> dict[str, PairType]:
    """Return the pair types of the paper, in both directions, by name."""
    subject = frozenset({"nsubj", "nsubjpass"})
    features = known_features()
    pair_types = [
        PairType("verb->subject", ANY, ANY, "down", subject),
        PairType("subject->verb", ANY, ANY, "up", subject),
        PairType("noun->pronoun", features["noun"], features["pronoun"]),
        PairType("pronoun->noun", features["pronoun"], features["noun"]),
    ]
    return {pair_type.name: pair_type for pair_type in pair_types}


def parse_pairs(text: str, features: Mapping[str, Feature]) -> dict[str, PairType]:
    """Return the pair types that a user defines, separated by `;`; see `SYNTAX`."""
    pair_types: dict[str, PairType] = {}
    for part in text.split(";"):
        if not part.strip():
            continue
        match = _PAIR.fullmatch(part)
        if match is None:
            raise ParameterError(f"'{part.strip()}' names no pair; write {SYNTAX}.")
        name, source, target, arc, relations = match.groups()
        if name in pair_types or name in known_pairs():
            raise ParameterError(f"Two pairs are called '{name}': rename one of them.")
        pair_types[name] = PairType(
            name,
            _parse_side(source, features),
            _parse_side(target, features),
            arc or "",
            frozenset((relations or "").split("|")) - {""},
        )
    return pair_types


def _parse_side(text: str, features: Mapping[str, Feature]) -> Feature:
    """Return one side of a pair: `any`, a predicate like `upos=NOUN`, or a known feature."""
    if text == ANY.name:
        return Feature("any", "any word", own=True)
    if "=" in text:
        return Feature(text, text, parse_conditions(text), own=True)
    if text not in features:
        raise ParameterError(
            f"'{text}' is no feature; known are any, {', '.join(features)}, or write a predicate "
            "like upos=NOUN."
        )
    return features[text]
