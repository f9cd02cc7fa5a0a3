"""What a planted head can do: each behaviour as a plain rule (the oracle) and as query and key
matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from headwise.core.errors import ParameterError, unknown
from headwise.testing.vocabulary import TOKEN_TYPES, Vocabulary

RULES: dict[str, str] = {
    "previous": "the token before; the first token attends to itself",
    "next": "the token after; the last token attends to itself",
    "self": "the token itself",
    "offset:K": "the token K places on (offset:+3, offset:-2); where there is none, the token "
    "itself",
    "first": "the token at position 0",
    "cls": "all [CLS] (or beginning-of-sequence) tokens alike; where none is visible, all visible "
    "tokens alike",
    "sep": "all [SEP] (or end-of-sequence) tokens alike; where none is visible, all visible tokens "
    "alike",
    "block": "all ordinary tokens of its own segment alike; [CLS] and each [SEP] attend to "
    "themselves",
    "uniform": "all visible tokens alike (queries and keys are zero: the weights do not depend on "
    "the input)",
    "same_word": "all visible tokens with its own token id alike, itself included",
    "same_word_other_segment": "all tokens with its own id in the other segment alike; where there "
    "is none, itself",
    "tree": "all pieces of the word that the table `tree` names for its word alike; where there is "
    "none, itself",
    "children": "all pieces of the words whose entry in the table `tree` is its own word alike; "
    "else itself",
    "to:TABLE": "as `tree`, by another table",
    "from:TABLE": "as `children`, by another table",
    "tree:RELATION": "as `tree` for words of this relation; others attend to all [SEP] alike, each "
    "[SEP] to itself",
}
CAUSAL = (
    "previous, self, offset:-K, first, cls, uniform, same_word, tree, children, to:TABLE, "
    "from:TABLE"
)
NEIGHBOUR_OFFSETS = {"previous": -1, "self": 0, "next": 1}
# Rules without an argument, whose name is the name of the behaviour.
SIMPLE_RULES = ("first", "cls", "sep", "block", "uniform", "same_word", "same_word_other_segment")
NOT_CAUSAL = ("sep", "block", "same_word_other_segment")
# Rules that fall back to all visible tokens where they have no target; others, to the token itself.
UNIFORM_WITHOUT_TARGET = ("cls", "sep", "uniform")
GAP = 25.0  # in units of the logit: what is not attended to keeps exp(-25) of the mass, 1e-11


@dataclass(frozen=True, slots=True)
class Behaviour:
    """A planted behaviour: its rule (`offset`, `sep`, `to`, ...) and the rule's argument."""

    rule: str
    offset: int = 0
    table: str = ""
    relation: str = ""

    @property
    def possible_for_causal(self) -> bool:
        """Whether a decoder, which sees no later tokens, can do it."""
        return self.offset <= 0 and not self.relation and self.rule not in NOT_CAUSAL


def parse_behaviour(name: str, causal: bool, vocabulary: Vocabulary) -> Behaviour:
    """Return the behaviour of a name; reject unknown ones with the list of those that exist."""
    rule, _, argument = name.partition(":")
    if name in NEIGHBOUR_OFFSETS:
        behaviour = Behaviour("offset", NEIGHBOUR_OFFSETS[name])
    elif rule == "offset" and argument.lstrip("+-").isdigit():
        behaviour = Behaviour("offset", int(argument))
    elif name in SIMPLE_RULES:
        behaviour = Behaviour(name)
    elif rule == "tree":
        behaviour = Behaviour("to", table="tree", relation=argument)
    elif name == "children":
        behaviour = Behaviour("from", table="tree")
    elif rule in ("to", "from") and argument:
        behaviour = Behaviour(rule, table=argument)
    else:
        raise ParameterError(unknown("behaviour", name, RULES))
    if causal and not behaviour.possible_for_causal:
        raise ParameterError(
            f"A causal model cannot be made to do '{name}'; possible are {CAUSAL}."
        )
    if behaviour.table and behaviour.table not in vocabulary.tables:
        known_tables = ", ".join(vocabulary.tables) or "none"
        raise ParameterError(
            f"'{name}' needs the table '{behaviour.table}'; `tables` has {known_tables}."
        )
    return behaviour


# --- the oracle: plain rules on token ids, positions and segments ---------------------------------


def expected_weights(
    behaviour: Behaviour,
    ids: Sequence[int],
    segments: Sequence[int],
    vocabulary: Vocabulary,
    causal: bool,
) -> np.ndarray:
    """Return the map `[query, key]` this behaviour has on one row of tokens, by its rule alone."""
    n_tokens = len(ids)
    weights = np.zeros((n_tokens, n_tokens))
    for query in range(n_tokens):
        visible = list(range(query + 1 if causal else n_tokens))
        targets = []
        for key in visible:
            if _is_target(behaviour, query, key, ids, segments, vocabulary):
                targets.append(key)
        if not targets:
            targets = visible if behaviour.rule in UNIFORM_WITHOUT_TARGET else [query]
        weights[query, targets] = 1 / len(targets)
    return weights


def _is_target(
    behaviour: Behaviour,
    query: int,
    key: int,
    ids: Sequence[int],
    segments: Sequence[int],
    vocabulary: Vocabulary,
) -> bool:
    query_type = vocabulary.token_type[ids[query]]
    key_type = vocabulary.token_type[ids[key]]
    same_id = ids[query] == ids[key]
    same_segment = segments[query] == segments[key]
    match behaviour.rule:
        case "offset":
            return key == query + behaviour.offset
        case "first":
            return key == 0
        case "cls" | "sep":
            return key_type == behaviour.rule
        case "block":
            if query_type != "ordinary":
                return query == key
            return key_type == "ordinary" and same_segment
        case "uniform":
            return True
        case "same_word":
            return same_id
        case "same_word_other_segment":
            return same_id and not same_segment
        case "to" | "from":
            query_word = vocabulary.word_of.get(ids[query])
            key_word = vocabulary.word_of.get(ids[key])
            if behaviour.relation:
                has_relation = (
                    query_word is not None
                    and vocabulary.relation.get(query_word) == behaviour.relation
                )
                if not has_relation:
                    return query == key if query_type == "sep" else key_type == "sep"
            if query_word is None or key_word is None:
                return False
            table = vocabulary.tables[behaviour.table]
            if behaviour.rule == "to":
                return table.get(query_word) == key_word
            return table.get(key_word) == query_word
    raise AssertionError(behaviour)


# --- the same as bilinear forms of one-hot codes --------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Term:
    """One summand of the score of query i and key j, in units of GAP:
    `(query · code of query_block at i) · (key · code of key_block at j)`; block "" is 1."""

    query_block: str
    query: np.ndarray  # [rank, size of the block]
    key_block: str
    key: np.ndarray


def terms(behaviour: Behaviour, sizes: Mapping[str, int], relations: Sequence[str]) -> list[Term]:
    """Return terms whose sum prefers the targets of the rule to everything else by at least one
    GAP, and all targets alike.

    Parameters
    ----------
    behaviour : Behaviour
        What the head does.
    sizes : mapping of str to int
        The size of each block of codes.
    relations : sequence of str
        The relations in the order of their codes.
    """

    def match_codes(query_block: str, key_block: str, weight: float, skip: int = 0) -> Term:
        codes = np.eye(sizes[query_block])[skip:]
        return Term(query_block, weight * codes, key_block, codes)

    def prefer_code(key_block: str, index: int) -> Term:
        return Term("", np.array([[1.0]]), key_block, np.eye(sizes[key_block])[[index]])

    itself = match_codes("position", "position", 1.0)
    match behaviour.rule:
        case "offset":
            # Position p scores p + offset twice as high as p itself, which remains where there is
            # no such token.
            positions = np.eye(sizes["position"])
            preferences = 2 * np.eye(sizes["position"], k=-behaviour.offset) + positions
            return [Term("position", preferences, "position", positions)]
        case "first":
            return [prefer_code("position", 0)]
        case "cls" | "sep":
            return [prefer_code("token_type", TOKEN_TYPES.index(behaviour.rule))]
        case "block":
            # Same token type and same segment: for [CLS] and each [SEP] that is the token itself.
            same_type = match_codes("token_type", "token_type", 1.0)
            same_segment = match_codes("segment", "segment", 1.0)
            return [same_type, same_segment]
        case "uniform":
            return []
        case "same_word":
            return [match_codes("token", "token", 1.0)]
        case "same_word_other_segment":
            same_word = match_codes("token", "token", 2.0)
            swapped = np.array([[0.0, 1.0], [1.0, 0.0]])
            other_segment = Term("segment", 2 * swapped, "segment", np.eye(2))
            return [same_word, other_segment, itself]
        case "to" | "from":
            query_block = f"table:{behaviour.table}"
            key_block = "word"
            if behaviour.rule == "from":
                query_block, key_block = key_block, query_block
            # Code 0 is "no word": two tokens without a word must not match.
            score_terms = [match_codes(query_block, key_block, 2.0, skip=1), itself]
            if behaviour.relation:
                # Words of other relations prefer [SEP] to the target (2) and to themselves (1).
                is_other = np.array([name != behaviour.relation for name in relations])
                sep_code = np.eye(sizes["token_type"])[[TOKEN_TYPES.index("sep")]]
                score_terms.append(Term("relation", 4.0 * is_other[None], "token_type", sep_code))
            return score_terms
    raise AssertionError(behaviour)
