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
from headwise.text.encode import Encoded
from headwise.text.example import ROLES, UPOS, Example

KEYS = ("upos", "relation", "lemma", "form", "token")
TOKENS = ("cls", "sep", "punct", *ROLES)
SYNTAX = "name: key=value|value & key!=value, with the keys upos, relation, lemma, form, token and `;` between features"
# The paper's list (footnote 6).
NEGATIONS = frozenset({
    "neither", "nor", "not", "never", "none", "nothing", "nowhere", "don't", "won't", "didn't", "hadn't", "haven't",
    "can't", "isn't", "wasn't", "shouldn't", "couldn't",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class TokenCondition:
    """One comparison: a token's (or its word's) `key` is, or is not, among `values`."""

    key: str
    values: frozenset[str]
    negated: bool = False

    def tokens(self, row: Encoded) -> np.ndarray:
        """Bool `[token]`; False for tokens without a word where the condition is on words, whatever
        it says."""
        if self.key == "token":
            found = np.zeros(len(row), dtype=bool)
            for name in self.values:
                found |= row.role(name) if name in ROLES else getattr(row, name)
            return ~found if self.negated else found
        return of_words(row, self._words(row.example))

    def _words(self, example: Example) -> np.ndarray:
        has: Sequence[str] = {
            "upos": example.upos,
            "relation": example.relations,
            "lemma": example.lemmas,
            "form": example.all_words,
        }[self.key] or ()
        return np.array([self._holds(value) != self.negated for value in has], dtype=bool)

    def _holds(self, value: str) -> bool:
        if self.key == "relation":  # a relation without subtype stands for its subtypes
            return relation_matches(value, self.values)
        return (value if self.key == "upos" else value.lower()) in self.values

    @property
    def requires(self) -> frozenset[str]:
        more = {"upos": {"pos"}, "relation": {"dependencies"}}.get(self.key, set())
        if self.key == "token":
            return frozenset({"roles"} if self.values <= set(ROLES) else set())
        return frozenset({"words"} | more)


@dataclass(frozen=True, slots=True)
class Feature:
    """A named set of tokens: those for which all conditions hold, or those a function of its own
    finds."""

    name: str
    about: str
    conditions: tuple[TokenCondition, ...] = ()
    function: Callable[[Encoded], np.ndarray] | None = None
    needs: frozenset[str] = frozenset()
    own: bool = False  # named by a user: what cannot match anything is an error

    def tokens(self, row: Encoded) -> np.ndarray:
        """Bool `[token]`: the tokens of this feature; every piece of a word is one."""
        if self.function is not None:
            return self.function(row)
        out = np.ones(len(row), dtype=bool)
        for condition in self.conditions:
            out &= condition.tokens(row)
        return out

    @property
    def requires(self) -> frozenset[str]:
        return self.needs.union(*(condition.requires for condition in self.conditions))

    def missing_reason(self, shape: Shape) -> str | None:
        """Why a corpus or model cannot give this feature, or None.

        A user's feature on a relation that does not occur is refused.
        """
        if reason := missing_annotation_reason(self.requires, shape):
            return reason
        for condition in self.conditions:
            values = sorted(condition.values)
            if condition.negated:
                continue
            if condition.key == "token" and not condition.values & {*shape.token_types, *ROLES}:
                return f"the tokenizer has no {' or '.join(values)} token"
            if condition.key == "relation" and not condition.values & set(
                known := known_relations(shape)
            ):
                if self.own:
                    reason = unknown("relation in this corpus", values[0], known)
                    raise ParameterError(f"The feature '{self.name}' matches nothing. {reason}")
                return f"no word of the corpus is {' or '.join(values)}"
        return None


def of_words(row: Encoded, words: np.ndarray) -> np.ndarray:
    """Bool `[token]` from bool `[word]`: every piece of a chosen word; none where words do not
    align."""
    if not row.aligned or not len(words):
        return np.zeros(len(row), dtype=bool)
    found: np.ndarray = np.append(words, False)[
        row.word
    ]  # the last entry is what NO_WORD, −1, finds
    return found


def negation(row: Encoded) -> np.ndarray:
    """Words of the paper's list, in lower case; forms that the corpus splits (`do n't`, `don ' t`)
    are rejoined."""
    example = row.example
    words = [word.lower().replace("’", "'") for word in example.all_words]
    first = len(example.words or ())
    found = np.zeros(len(words), dtype=bool)
    for start in range(len(words)):
        for size in (1, 2, 3):
            stop = start + size
            if stop > len(words) or start < first < stop:  # no form lies in two segments
                break
            form = "".join(words[start:stop])
            if form in NEGATIONS and (size == 1 or "'" in form):
                found[start:stop] = True
    return of_words(row, found)


@cache
def known_features() -> dict[str, Feature]:
    """The features of the paper, by name."""
    made = [
        parse_feature("noun: upos=NOUN", "nouns"),
        parse_feature("verb: upos=VERB", "verbs"),
        parse_feature("pronoun: upos=PRON", "pronouns"),
        parse_feature("subject: relation=nsubj|nsubjpass", "subjects"),
        parse_feature("object: relation=obj|dobj", "direct objects"),
        Feature("negation", "negation words", function=negation, needs=frozenset({"words"})),
        parse_feature("cls: token=cls", "[CLS] tokens"),
        parse_feature("sep: token=sep", "[SEP] tokens"),
        parse_feature("punct: token=punct", "punctuation: . and ,"),
    ]
    return {feature.name: feature for feature in made}


def parse_features(text: str) -> dict[str, Feature]:
    """Features that a user names, `;` between them; see `parse_feature`."""
    out: dict[str, Feature] = {}
    for part in filter(str.strip, text.split(";")):
        feature = parse_feature(part, own=True)
        if feature.name in out or feature.name in known_features():
            raise ParameterError(
                f"Two features are called '{feature.name}': give one of them another name."
            )
        out[feature.name] = feature
    return out


def parse_feature(text: str, about: str = "", own: bool = False) -> Feature:
    """A feature from `name: key=value|value & key!=value`.

    Keys are `upos`, `relation`, `lemma`, `form` (of the token's word; lemma and form in lower case)
    and `token` (`cls`, `sep`, `punct`, and in conversations `system`, `user`, `assistant`, `tool`,
    `template`)."""
    name, colon, predicate = text.partition(":")
    name = name.strip()
    if not colon or not re.fullmatch(r"[A-Za-z]\w*", name):
        raise ParameterError(f"'{text.strip()}' names no feature; write {SYNTAX}.")
    return Feature(name, about or " ".join(predicate.split()), parse_conditions(predicate), own=own)


def parse_conditions(predicate: str) -> tuple[TokenCondition, ...]:
    """Conditions joined by `&`."""
    return tuple(_condition(part) for part in predicate.split("&"))


def _condition(text: str) -> TokenCondition:
    match = re.fullmatch(r"\s*(\w+)\s*(!?=)\s*(.*?)\s*", text, flags=re.DOTALL)
    values = [value.strip() for value in match[3].split("|")] if match else []
    if match is None or not all(values):
        raise ParameterError(f"'{text.strip()}' is no condition on tokens; write {SYNTAX}.")
    key = match[1]
    if key not in KEYS:
        raise ParameterError(unknown("key of a feature", key, KEYS))
    if key == "upos":
        values = [value.upper() for value in values]
    elif key in ("lemma", "form", "token"):
        values = [value.lower() for value in values]
    for allowed, what in ((UPOS, "upos"), (TOKENS, "token")):
        for value in values if key == what else ():
            if value not in allowed:
                raise ParameterError(unknown(f"{what} of a feature", value, allowed))
    return TokenCondition(key, frozenset(values), match[2] == "!=")
