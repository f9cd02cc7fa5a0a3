"""The built-in sieves: those of Pande et al. 2021 (position, segment, kind, dependency), and some
of other papers."""

from __future__ import annotations

import numpy as np

from headwise.analyses.roles.sieves.forms import EqualLabels, KeySet, OffsetBand, RelationArcs
from headwise.analyses.roles.sieves.registry import TREE, sieve
from headwise.analyses.roles.sieves.tokens import TokenAxis

REACH = 2


def token(side: TokenAxis) -> np.ndarray:
    """Which token it is; special ones are equal to nothing."""
    return np.where(side.special, -1, side.id)


def segment(side: TokenAxis) -> np.ndarray:
    """Special tokens have no segment, and an input of one segment has no block."""
    return side.segment if side.row.example.has_pair else np.full_like(side.segment, -1)


def rarest(side: TokenAxis) -> np.ndarray:
    # Voita et al. 2019. WordPiece, BPE and unigram vocabularies stand in the order of frequency in
    # the text they were made from, so the largest id is the rarest.
    ordinary = token(side)
    found: np.ndarray = (ordinary >= ordinary.max()) & ~side.special
    return found


def of_segment(side: TokenAxis, other: bool) -> np.ndarray:
    """Which token it is and in which of two segments, or in the other one."""
    place = 1 - side.segment if other else side.segment
    return np.where(side.special | (side.segment < 0), -1, 2 * side.id + place)


def token_before(side: TokenAxis) -> np.ndarray:
    before = np.concatenate([[-1], np.where(side.row.special, -1, side.row.ids)[:-1]])
    found: np.ndarray = before[side.position]
    return found


sieve("local", "tokens within two places, itself included")(OffsetBand(-REACH, REACH))
sieve("local:prev", "the two tokens before")(OffsetBand(-REACH, -1))
sieve("local:next", "the two tokens after", ahead=True)(OffsetBand(1, REACH))
sieve("block", "tokens of its own segment, in an input of two", requires=["segments"])(
    EqualLabels("segment", segment, segment, itself=True)
)
sieve("first", "the first token of the input (the sink of many models)")(
    KeySet(lambda j: j.position == 0)
)

# Both schemes: Stanford's dobj is UD's obj.
for name, about, relations in (
    (
        "syntactic",
        "words linked to its word by nsubj, dobj, amod or advmod",
        "nsubj dobj obj amod advmod",
    ),
    ("nsubj", "the subject of its word, or what its word is the subject of", "nsubj"),
    ("dobj", "the direct object of its word, or what its word is the object of", "dobj obj"),
    ("amod", "the adjective of its word, or the noun its word modifies", "amod"),
    ("advmod", "the adverb of its word, or what its word modifies", "advmod"),
):
    sieve(name, about, requires=TREE)(RelationArcs(frozenset(relations.split())))

sieve("delimiter", "all [CLS] and [SEP] tokens", token_types=["cls", "sep"])(
    KeySet(lambda j: j.cls | j.sep)
)
sieve("cls", "the [CLS] (or beginning-of-text) token", token_types=["cls"])(KeySet(lambda j: j.cls))
sieve("sep", "the [SEP] (or end-of-text) tokens", token_types=["sep"])(KeySet(lambda j: j.sep))
sieve("rare", "the rarest token of the input, by its place in the tokenizer's vocabulary")(
    KeySet(rarest)
)
sieve("same_word", "the same token at other places of the input")(
    EqualLabels("token", token, token)
)
sieve(
    "same_word:other_segment",
    "the same token in the other segment (Kovaleva et al. 2019, §5)",
    requires=["segments"],
)(
    EqualLabels(
        "token of the other segment", lambda i: of_segment(i, False), lambda j: of_segment(j, True)
    )
)
sieve("siblings", "the other pieces of its word (Correia et al. 2019)", requires=["words"])(
    EqualLabels("word", lambda i: i.word, lambda j: j.word)
)
sieve("question_mark", "question marks (Correia et al. 2019)")(KeySet(lambda j: j.piece == "?"))

# What decoders do with text that repeats itself (Elhage et al. 2021, Olsson et al. 2022), and where
# they rest.
sieve("previous", "the token before", behind=True)(OffsetBand(-1, -1))
sieve("duplicate", "the same token earlier in the input", behind=True)(
    EqualLabels("token", token, token, behind=True)
)
sieve("induction", "the token after an earlier occurrence of this token", behind=True)(
    EqualLabels("token before", token, token_before, itself=True, behind=True)
)
sieve("sink", "the first token, from any later one", behind=True)(
    KeySet(lambda j: j.position == 0, from_later=True)
)
