"""What a planted head can be made to do: each behaviour as a plain rule (the oracle) and as query
and key matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from headwise.core.errors import ParameterError, unknown
from headwise.testing.vocabulary import KINDS, Vocabulary

RULES: dict[str, str] = {
    "previous": "the token before; the first token attends to itself",
    "next": "the token after; the last real token attends to itself",
    "self": "the token itself",
    "offset:K": "the token K places on (offset:+3, offset:-2); where there is none, the token itself",
    "first": "the token at position 0",
    "cls": "all [CLS] (or beginning-of-sequence) tokens alike; where none is visible, all visible tokens alike",
    "sep": "all [SEP] (or end-of-sequence) tokens alike; where none is visible, all visible tokens alike",
    "block": "all ordinary tokens of its own segment alike; [CLS] and each [SEP] attend to themselves",
    "uniform": "all visible tokens alike (queries and keys are zero: the weights do not depend on the input)",
    "same_word": "all visible tokens with its own token id alike, itself included",
    "same_word_other_segment": "all tokens with its own id in the other segment alike; where there is none, itself",
    "tree": "all pieces of the word that the table `tree` names for its word alike; where there is none, itself",
    "children": "all pieces of the words whose entry in the table `tree` is its own word alike; else itself",
    "to:TABLE": "as `tree`, by another table",
    "from:TABLE": "as `children`, by another table",
    "tree:RELATION": "as `tree` for words of this relation; others attend to all [SEP] alike, each [SEP] to itself",
}
CAUSAL = "previous, self, offset:-K, first, cls, uniform, same_word, tree, children, to:TABLE, from:TABLE"
NEAR = {"previous": -1, "self": 0, "next": 1}
GAP = 25.0  # in units of the logit: what is not attended to keeps exp(-25) of the mass, 1e-11


@dataclass(frozen=True, slots=True)
class Behaviour:
    """One planted behaviour, taken apart: its kind (`offset`, `sep`, `to`, ...) and its
    argument."""

    kind: str
    offset: int = 0
    table: str = ""
    relation: str = ""


def parse_behaviour(name: str, causal: bool, vocabulary: Vocabulary) -> Behaviour:
    """Take a behaviour's name apart, or refuse it with the list of those that exist."""
    kind, _, argument = name.partition(":")
    if name in NEAR or (kind == "offset" and argument.lstrip("+-").isdigit()):
        found = Behaviour("offset", NEAR[name] if name in NEAR else int(argument))
    elif name in (
        "first",
        "cls",
        "sep",
        "block",
        "uniform",
        "same_word",
        "same_word_other_segment",
    ):
        found = Behaviour(name)
    elif kind == "tree":
        found = Behaviour("to", table="tree", relation=argument)
    elif name == "children":
        found = Behaviour("from", table="tree")
    elif kind in ("to", "from") and argument:
        found = Behaviour(kind, table=argument)
    else:
        raise ParameterError(unknown("behaviour", name, RULES))
    if causal and (
        found.offset > 0
        or found.relation
        or found.kind in ("sep", "block", "same_word_other_segment")
    ):
        raise ParameterError(
            f"A causal model cannot be made to do '{name}'; possible are {CAUSAL}."
        )
    if found.table and found.table not in vocabulary.tables:
        raise ParameterError(
            f"'{name}' needs the table '{found.table}'; `tables` has {', '.join(vocabulary.tables) or 'none'}."
        )
    return found


# --- the oracle: plain rules on token ids, positions and token types ------------------------------


def expected_weights(
    behaviour: Behaviour,
    ids: Sequence[int],
    types: Sequence[int],
    vocabulary: Vocabulary,
    causal: bool,
) -> np.ndarray:
    """The map [query, key] this behaviour has on one row of tokens, by its rule alone."""
    n = len(ids)
    out = np.zeros((n, n))
    for i in range(n):
        visible = range(i + 1) if causal else range(n)
        targets = [j for j in visible if _is_target(behaviour, i, j, ids, types, vocabulary)]
        if not targets:
            targets = list(visible) if behaviour.kind in ("cls", "sep", "uniform") else [i]
        out[i, targets] = 1 / len(targets)
    return out


def _is_target(
    behaviour: Behaviour,
    i: int,
    j: int,
    ids: Sequence[int],
    types: Sequence[int],
    vocabulary: Vocabulary,
) -> bool:
    kind = vocabulary.kind
    match behaviour.kind:
        case "offset":
            return j == i + behaviour.offset
        case "first":
            return j == 0
        case "cls" | "sep":
            return kind[ids[j]] == behaviour.kind
        case "block":
            if kind[ids[i]] != "ordinary":
                return i == j
            return kind[ids[j]] == "ordinary" and types[i] == types[j]
        case "uniform":
            return True
        case "same_word":
            return ids[i] == ids[j]
        case "same_word_other_segment":
            return ids[i] == ids[j] and types[i] != types[j]
        case "to" | "from":
            own, other = vocabulary.word_of.get(ids[i]), vocabulary.word_of.get(ids[j])
            if behaviour.relation and (
                own is None or vocabulary.relation.get(own) != behaviour.relation
            ):
                return i == j if kind[ids[i]] == "sep" else kind[ids[j]] == "sep"
            table = vocabulary.tables[behaviour.table]
            return (
                own is not None
                and other is not None
                and (table.get(own) == other if behaviour.kind == "to" else table.get(other) == own)
            )
    raise AssertionError(behaviour)


# --- the same as bilinear forms of one-hot codes --------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Term:
    """A score `(query · code of query_block at i) · (key · code of key_block at j)` in units of
    GAP; block "" is 1."""

    query_block: str
    query: np.ndarray  # [rank, size of the block]
    key_block: str
    key: np.ndarray


def terms(behaviour: Behaviour, sizes: Mapping[str, int], relations: Sequence[str]) -> list[Term]:
    """Terms whose sum prefers the targets of the rule by at least one GAP to everything else, and
    all of them alike."""

    def match(query_block: str, key_block: str, weight: float, skip: int = 0) -> Term:
        picked = np.eye(sizes[query_block])[skip:]
        return Term(query_block, weight * picked, key_block, picked)

    def one_key(key_block: str, index: int, weight: float) -> Term:
        return Term("", np.array([[weight]]), key_block, np.eye(sizes[key_block])[[index]])

    itself = match("position", "position", 1.0)
    match behaviour.kind:
        case "offset":
            # Row p asks for p + offset twice as loudly as for p itself, which remains where there
            # is no such token.
            asks = 2 * np.eye(sizes["position"], k=-behaviour.offset) + np.eye(sizes["position"])
            return [Term("position", asks, "position", np.eye(sizes["position"]))]
        case "first":
            return [one_key("position", 0, 1.0)]
        case "cls" | "sep":
            return [one_key("kind", KINDS.index(behaviour.kind), 1.0)]
        case "block":
            # Same kind and same segment: for [CLS] and each [SEP] that is the token itself.
            return [match("kind", "kind", 1.0), match("segment", "segment", 1.0)]
        case "uniform":
            return []
        case "same_word":
            return [match("token", "token", 1.0)]
        case "same_word_other_segment":
            other = np.array([[0.0, 1.0], [1.0, 0.0]])
            return [
                match("token", "token", 2.0),
                Term("segment", 2 * other, "segment", np.eye(2)),
                itself,
            ]
        case "to" | "from":
            blocks = (f"table:{behaviour.table}", "word")
            query_block, key_block = blocks if behaviour.kind == "to" else blocks[::-1]
            out = [match(query_block, key_block, 2.0, skip=1), itself]
            if behaviour.relation:
                elsewhere = np.array(
                    [[0.0 if name == behaviour.relation else 4.0 for name in relations]]
                )
                out.append(
                    Term("relation", elsewhere, "kind", np.eye(sizes["kind"])[[KINDS.index("sep")]])
                )
            return out
    raise AssertionError(behaviour)
