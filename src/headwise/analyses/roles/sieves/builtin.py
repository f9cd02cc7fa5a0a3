"""The built-in sieves: those of Pande et al. 2021 (position, segment, token type, dependency), and
some of other papers."""

from __future__ import annotations

import numpy as np

from headwise.analyses.roles.sieves.forms import EqualLabels, KeySet, OffsetBand, RelationArcs
from headwise.analyses.roles.sieves.registry import TREE, sieve
from headwise.analyses.roles.sieves.tokens import TokenAxis

LOCAL_REACH = 2


def token(axis: TokenAxis) -> np.ndarray:
    """Label each token by its id; special tokens equal nothing."""
    return np.where(axis.special, -1, axis.id)


def segment(axis: TokenAxis) -> np.ndarray:
    """Label each token by its segment; inputs of one segment have no blocks."""
    if axis.row.example.has_pair:
        return axis.segment
    return np.full_like(axis.segment, -1)


def rarest(axis: TokenAxis) -> np.ndarray:
    """Mark the rarest tokens of the input (Voita et al. 2019)."""
    # WordPiece, BPE and unigram vocabularies are sorted by the frequency in their training text, so
    # the largest id is the rarest.
    ordinary = token(axis)
    is_rarest: np.ndarray = (ordinary >= ordinary.max()) & ~axis.special
    return is_rarest


def token_and_segment(axis: TokenAxis, other_segment: bool) -> np.ndarray:
    """Label each token by its id and its segment, or by its id and the other segment."""
    place = 1 - axis.segment if other_segment else axis.segment
    return np.where(axis.special | (axis.segment < 0), -1, 2 * axis.id + place)


def token_before(axis: TokenAxis) -> np.ndarray:
    """Label each token by the id of the token before it."""
    ids = np.where(axis.row.special, -1, axis.row.ids)
    shifted = np.concatenate([[-1], ids[:-1]])
    labels: np.ndarray = shifted[axis.position]
    return labels


sieve("local", "tokens within two places, itself included")(OffsetBand(-LOCAL_REACH, LOCAL_REACH))
sieve("local:prev", "the two tokens before")(OffsetBand(-LOCAL_REACH, -1))
sieve("local:next", "the two tokens after", ahead=True)(OffsetBand(1, LOCAL_REACH))
sieve("block", "tokens of its own segment, in an input of two", requires=["segments"])(
    EqualLabels("segment", segment, segment, includes_self=True)
)
sieve("first", "the first token of the input (the sink of many models)")(
    KeySet(lambda j: j.position == 0)
)

# Both annotation schemes: Stanford's dobj is UD's obj.
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
        "token of the other segment",
        lambda i: token_and_segment(i, other_segment=False),
        lambda j: token_and_segment(j, other_segment=True),
    )
)
sieve("siblings", "the other pieces of its word (Correia et al. 2019)", requires=["words"])(
    EqualLabels("word", lambda i: i.word, lambda j: j.word)
)
sieve("question_mark", "question marks (Correia et al. 2019)")(KeySet(lambda j: j.piece == "?"))

# Decoder-only sieves: what decoders do with text that repeats itself (Elhage et al. 2021, Olsson et
# al. 2022), and their attention sink.
sieve("previous", "the token before", behind=True)(OffsetBand(-1, -1))
sieve("duplicate", "the same token earlier in the input", behind=True)(
    EqualLabels("token", token, token, behind=True)
)
sieve("induction", "the token after an earlier occurrence of this token", behind=True)(
    EqualLabels("token before", token, token_before, includes_self=True, behind=True)
)
sieve("sink", "the first token, from any later one", behind=True)(
    KeySet(lambda j: j.position == 0, not_for_first_query=True)
)
