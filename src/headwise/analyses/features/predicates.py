"""Named sets of tokens: predicates on parts of speech, relations, lemmas and forms (Kovaleva et al.
2019, §4.4)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from headwise.analyses.contract import Shape
from headwise.analyses.items import known_relations, missing_annotation_reason, relation_matches
from headwise.core.errors import ParameterError, unknown
from headwise.core.token_types import TOKEN_TYPES
from headwise.text.encode import Encoded
from headwise.text.example import ROLES, UPOS, Example

KEYS = ("upos", "relation", "lemma", "form", "token")
TOKENS = (*(token_type.name for token_type in TOKEN_TYPES), *ROLES)
SYNTAX = (
    "name: key=value|value & key!=value, with the keys upos, relation, lemma, form, token and `;` "
    "between features"
)
# The paper's list (footnote 6).
NEGATIONS = frozenset({
    "neither", "nor", "not", "never", "none", "nothing", "nowhere", "don't", "won't", "didn't",
    "hadn't", "haven't", "can't", "isn't", "wasn't", "shouldn't", "couldn't",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class TokenCondition:
    """One comparison: the `key` of a token (or of its word) is, or is not, among `values`."""

    key: str
    values: frozenset[str]
    negated: bool = False

    def tokens(self, row: Encoded) -> np.ndarray:
        """Return bool `[token]`; False for tokens without a word if the condition is on words,
        negated or not."""
        if self.key == "token":
            matches = np.zeros(len(row), dtype=bool)
            for name in self.values:
                matches |= row.role(name) if name in ROLES else getattr(row, name)
            return ~matches if self.negated else matches
        return tokens_of_words(row, self._words(row.example))

    def _words(self, example: Example) -> np.ndarray:
        """Return bool `[word]`: whether the condition holds."""
        columns: dict[str, Sequence[str] | None] = {
            "upos": example.upos,
            "relation": example.relations,
            "lemma": example.lemmas,
            "form": example.all_words,
        }
        values = columns[self.key] or ()
        return np.array([self._matches(value) != self.negated for value in values], dtype=bool)

    def _matches(self, value: str) -> bool:
        if self.key == "relation":
            return relation_matches(value, self.values)
        if self.key == "upos":
            return value in self.values
        return value.lower() in self.values

    @property
    def requires(self) -> frozenset[str]:
        """Annotations without which the condition cannot be checked."""
        if self.key == "token":
            only_roles = self.values <= set(ROLES)
            return frozenset({"roles"}) if only_roles else frozenset()
        if self.key == "upos":
            return frozenset({"words", "pos"})
        if self.key == "relation":
            return frozenset({"words", "dependencies"})
        return frozenset({"words"})


@dataclass(frozen=True, slots=True)
class Feature:
    """A named set of tokens: those for which all conditions hold, or those that a function
    returns."""

    name: str
    about: str
    conditions: tuple[TokenCondition, ...] = ()
    function: Callable[[Encoded], np.ndarray] | None = None
    needs: frozenset[str] = frozenset()
    own: bool = False  # defined by the user: one that cannot match anything is an error

    def tokens(self, row: Encoded) -> np.ndarray:
        """Return bool `[token]`: the tokens of this feature, with every piece of a word."""
        if self.function is not None:
            return self.function(row)
        matches = np.ones(len(row), dtype=bool)
        for condition in self.conditions:
            matches &= condition.tokens(row)
        return matches

    @property
    def requires(self) -> frozenset[str]:
        """Annotations without which the feature has no tokens."""
        return self.needs.union(*(condition.requires for condition in self.conditions))

    def missing_reason(self, shape: Shape) -> str | None:
        """Return why a corpus or model cannot provide this feature, or None.

        A user's feature on a relation that does not occur is rejected.
        """
        reason = missing_annotation_reason(self.requires, shape)
        if reason is not None:
            return reason
        for condition in self.conditions:
            if condition.negated:
                continue
            values = sorted(condition.values)
            if condition.key == "token" and not condition.values & {*shape.token_types, *ROLES}:
                return f"the tokenizer has no {' or '.join(values)} token"
            if condition.key == "relation":
                relations = known_relations(shape)
                if condition.values & set(relations):
                    continue
                if self.own:
                    reason = unknown("relation in this corpus", values[0], relations)
                    raise ParameterError(f"The feature '{self.name}' matches nothing. {reason}")
                return f"no word of the corpus is {' or '.join(values)}"
        return None


def tokens_of_words(row: Encoded, chosen: np.ndarray) -> np.ndarray:
    """Return bool `[token]` from bool `chosen[word]`: every piece of a chosen word; none if words
    do not align."""
    if not row.aligned or not len(chosen):
        return np.zeros(len(row), dtype=bool)
    # Tokens without a word have index −1, which reads the last entry.
    is_chosen: np.ndarray = np.append(chosen, False)[row.word]
    return is_chosen


def negation(row: Encoded) -> np.ndarray:
    """Return the tokens of words in the paper's list, in lower case.

    Forms that the corpus splits (`do n't`, `don ' t`) are rejoined."""
    example = row.example
    words = [word.lower().replace("’", "'") for word in example.all_words]
    second_segment = len(example.words or ())
    is_negation = np.zeros(len(words), dtype=bool)
    for start in range(len(words)):
        for size in (1, 2, 3):
            stop = start + size
            crosses_segments = start < second_segment < stop
            if stop > len(words) or crosses_segments:
                break
            form = "".join(words[start:stop])
            # Only contractions are split: "no" + "r" is not "nor".
            if form in NEGATIONS and (size == 1 or "'" in form):
                is_negation[start:stop] = True
    return tokens_of_words(row, is_negation)


@cache
def known_features() -> dict[str, Feature]:
    """Return the features of the paper, and one of each token type, by name."""
    features = [
        parse_feature("noun: upos=NOUN", "nouns"),
        parse_feature("verb: upos=VERB", "verbs"),
        parse_feature("pronoun: upos=PRON", "pronouns"),
        parse_feature("subject: relation=nsubj|nsubjpass", "subjects"),
        parse_feature("object: relation=obj|dobj", "direct objects"),
        Feature("negation", "negation words", function=negation, needs=frozenset({"words"})),
    ]
    for token_type in TOKEN_TYPES:
        feature = parse_feature(f"{token_type.name}: token={token_type.name}", token_type.phrase)
        features.append(feature)
    return {feature.name: feature for feature in features}


def parse_features(text: str) -> dict[str, Feature]:
    """Return the features that a user defines, separated by `;`; see `parse_feature`."""
    features: dict[str, Feature] = {}
    for part in text.split(";"):
        if not part.strip():
            continue
        feature = parse_feature(part, own=True)
        if feature.name in features or feature.name in known_features():
            raise ParameterError(f"Two features are called '{feature.name}': rename one of them.")
        features[feature.name] = feature
    return features


def parse_feature(text: str, about: str = "", own: bool = False) -> Feature:
    """Return a feature from `name: key=value|value & key!=value`.

    Keys are `upos`, `relation`, `lemma`, `form` (of the token's word; lemma and form in lower case)
    and `token` (`cls`, `sep`, `punct`, and in conversations `system`, `user`, `assistant`, `tool`,
    `template`)."""
    name, colon, predicate = text.partition(":")
    name = name.strip()
    if not colon or not re.fullmatch(r"[A-Za-z]\w*", name):
        raise ParameterError(f"'{text.strip()}' names no feature; write {SYNTAX}.")
    return Feature(name, about or " ".join(predicate.split()), parse_conditions(predicate), own=own)


def parse_conditions(predicate: str) -> tuple[TokenCondition, ...]:
    """Return conditions joined by `&`."""
    return tuple(_parse_condition(part) for part in predicate.split("&"))


def _parse_condition(text: str) -> TokenCondition:
    match = re.fullmatch(r"\s*(\w+)\s*(!?=)\s*(.*?)\s*", text, flags=re.DOTALL)
    values = [value.strip() for value in match[3].split("|")] if match else []
    if match is None or not all(values):
        raise ParameterError(f"'{text.strip()}' is no condition on tokens; write {SYNTAX}.")
    key = match[1]
    if key not in KEYS:
        raise ParameterError(unknown("key of a feature", key, KEYS))
    if key == "upos":
        values = [value.upper() for value in values]
        _check_values(key, values, UPOS)
    elif key in ("lemma", "form"):
        values = [value.lower() for value in values]
    elif key == "token":
        values = [value.lower() for value in values]
        _check_values(key, values, TOKENS)
    return TokenCondition(key, frozenset(values), negated=match[2] == "!=")


def _check_values(key: str, values: Sequence[str], allowed: Sequence[str]) -> None:
    for value in values:
        if value not in allowed:
            raise ParameterError(unknown(f"{key} of a feature", value, allowed))
