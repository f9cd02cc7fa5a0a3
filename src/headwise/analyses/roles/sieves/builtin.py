"""The built-in sieves: those of Pande et al. 2021 (position, segment, kind, dependency), and some of other papers."""

from __future__ import annotations

import numpy as np

from headwise.analyses.roles.sieves.registry import TREE, linked_by, sieve
from headwise.analyses.roles.sieves.tokens import Tokens

REACH = 2

sieve("local", "tokens within two places, itself included")(lambda i, j: abs(j.position - i.position) <= REACH)
sieve("local:prev", "the two tokens before")(
    lambda i, j: (j.position < i.position) & (j.position >= i.position - REACH)
)
sieve("local:next", "the two tokens after", ahead=True)(
    lambda i, j: (j.position > i.position) & (j.position <= i.position + REACH)
)
# Special tokens have no segment, and an input of one segment has no block.
sieve("block", "tokens of its own segment, in an input of two", requires=["segments"])(
    lambda i, j: (i.segment >= 0) & (i.segment == j.segment) & i.row.example.has_pair
)
sieve("first", "the first token of the input (the sink of many models)")(lambda i, j: j.position == 0)

# Both schemes: Stanford's dobj is UD's obj.
for name, about, relations in (
    ("syntactic", "words linked to its word by nsubj, dobj, amod or advmod", "nsubj dobj obj amod advmod"),
    ("nsubj", "the subject of its word, or what its word is the subject of", "nsubj"),
    ("dobj", "the direct object of its word, or what its word is the object of", "dobj obj"),
    ("amod", "the adjective of its word, or the noun its word modifies", "amod"),
    ("advmod", "the adverb of its word, or what its word modifies", "advmod"),
):
    sieve(name, about, requires=TREE)(linked_by(relations.split()))

sieve("delimiter", "all [CLS] and [SEP] tokens", token_types=["cls", "sep"])(lambda i, j: j.cls | j.sep)
sieve("cls", "the [CLS] (or beginning-of-text) token", token_types=["cls"])(lambda i, j: j.cls)
sieve("sep", "the [SEP] (or end-of-text) tokens", token_types=["sep"])(lambda i, j: j.sep)


@sieve("rare", "the rarest token of the input, by its place in the tokenizer's vocabulary")
def rare(i: Tokens, j: Tokens) -> np.ndarray:
    # Voita et al. 2019. WordPiece, BPE and unigram vocabularies stand in the order of frequency in the text they were
    # made from, so the largest id is the rarest.
    ordinary = np.where(j.special, -1, j.id)
    rarest: np.ndarray = (ordinary >= ordinary.max()) & ~j.special
    return rarest


sieve("same_word", "the same token at other places of the input")(
    lambda i, j: (i.id == j.id) & (i.position != j.position) & ~i.special & ~j.special
)
sieve(
    "same_word:other_segment", "the same token in the other segment (Kovaleva et al. 2019, §5)", requires=["segments"]
)(lambda i, j: (i.id == j.id) & (i.segment != j.segment) & ~i.special & ~j.special)
sieve("siblings", "the other pieces of its word (Correia et al. 2019)", requires=["words"])(
    lambda i, j: (i.word == j.word) & (i.word >= 0) & (i.position != j.position)
)
sieve("question_mark", "question marks (Correia et al. 2019)")(lambda i, j: j.piece == "?")


# What decoders do with text that repeats itself (Elhage et al. 2021, Olsson et al. 2022), and where they rest.
sieve("previous", "the token before", behind=True)(lambda i, j: j.position == i.position - 1)
sieve("duplicate", "the same token earlier in the input", behind=True)(
    lambda i, j: (i.id == j.id) & (j.position < i.position) & ~i.special
)


@sieve("induction", "the token after an earlier occurrence of this token", behind=True)
def induction(i: Tokens, j: Tokens) -> np.ndarray:
    before = np.concatenate([[-1], j.row.ids[:-1]])[None, :]  # the token before each token looked at
    opened = np.concatenate([[True], j.row.special[:-1]])[None, :]
    found: np.ndarray = (i.id == before) & ~opened & ~i.special & (j.position <= i.position)
    return found


sieve("sink", "the first token, from any later one", behind=True)(lambda i, j: (j.position == 0) & (i.position > 0))
