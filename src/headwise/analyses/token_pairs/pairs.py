"""Kinds of pairs: words of two features in one sentence, linked by an arc or not (Kovaleva et al.
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
    "name: A -> B, or name: A -> B by RELATION (down: A is the head; up: B is), where A and B are features, `any`, "
    "or predicates, with `;` between pairs"
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
        """Bool `[token, token]`: all pairs of pieces of such words; two pieces of one word are no
        pair."""
        if not row.aligned:
            return np.zeros((len(row), len(row)), dtype=bool)
        word = row.word
        found: np.ndarray = self.source.tokens(row)[:, None] & self.target.tokens(row)[None]
        found &= (word[:, None] >= 0) & (word[None] >= 0) & (word[:, None] != word[None])
        found &= row.segment[:, None] == row.segment[None]
        if row.example.sentences is not None:
            sentence = np.append(row.example.sentences, -1)[word]
            found &= sentence[:, None] == sentence[None]
        if self.arc:
            found &= linked_words(row, self.relations, self.arc)[word[:, None], word[None]]
        return found

    @property
    def requires(self) -> frozenset[str]:
        return (
            self.source.requires
            | self.target.requires
            | {"words"}
            | ({"dependencies"} if self.arc else set())
        )

    def missing_reason(self, shape: Shape) -> str | None:
        """Why a corpus cannot give these pairs, or None."""
        conditions = (TokenCondition("relation", self.relations),) if self.arc else ()
        link = Feature(self.name, "", conditions, own=self.source.own)
        return (
            missing_annotation_reason(self.requires, shape)
            or self.source.missing_reason(shape)
            or self.target.missing_reason(shape)
            or link.missing_reason(shape)
        )


@cache
def known_pairs() -> dict[str, PairType]:
    """The pairs of the paper, both ways, by name."""
    subject = frozenset({"nsubj", "nsubjpass"})
    features = known_features()
    made = [
        PairType("verb->subject", ANY, ANY, "down", subject),
        PairType("subject->verb", ANY, ANY, "up", subject),
        PairType("noun->pronoun", features["noun"], features["pronoun"]),
        PairType("pronoun->noun", features["pronoun"], features["noun"]),
    ]
    return {pair.name: pair for pair in made}


def parse_pairs(text: str, features: Mapping[str, Feature]) -> dict[str, PairType]:
    """Pairs that a user names, `;` between them; see `SYNTAX`."""
    out: dict[str, PairType] = {}
    for part in filter(str.strip, text.split(";")):
        match = re.fullmatch(
            r"\s*([A-Za-z][\w>\-]*)\s*:\s*(.+?)\s*->\s*(.+?)(?:\s+(by|down|up)\s+(\S+))?\s*",
            part,
            flags=re.DOTALL,
        )
        if match is None:
            raise ParameterError(f"'{part.strip()}' names no pair; write {SYNTAX}.")
        name, source, target, arc, relations = match.groups()
        if name in out or name in known_pairs():
            raise ParameterError(f"Two pairs are called '{name}': give one of them another name.")
        joined_by = frozenset((relations or "").split("|")) - {""}
        out[name] = PairType(
            name, _side(source, features), _side(target, features), arc or "", joined_by
        )
    return out


def _side(text: str, features: Mapping[str, Feature]) -> Feature:
    if text == ANY.name:
        return Feature("any", "any word", own=True)
    if "=" in text:
        return Feature(text, text, parse_conditions(text), own=True)
    if text not in features:
        raise ParameterError(
            f"'{text}' is no feature; known are any, {', '.join(features)}, or write a predicate like upos=NOUN."
        )
    return features[text]
