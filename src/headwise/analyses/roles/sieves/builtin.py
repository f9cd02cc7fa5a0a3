"""Sieves by kind of token: delimiters (Pande et al. 2021), and those other papers name: rare words, repeated words, pieces of one word, question marks."""

from __future__ import annotations

import numpy as np

from headwise.analyses.roles.sieves.registry import sieve
from headwise.analyses.roles.sieves.tokens import Tokens


@sieve("delimiter", "all [CLS] and [SEP] tokens", token_types=["cls", "sep"])
def delimiter(i: Tokens, j: Tokens) -> np.ndarray:
    return j.cls | j.sep


@sieve("cls", "the [CLS] (or beginning-of-text) token", token_types=["cls"])
def cls(i: Tokens, j: Tokens) -> np.ndarray:
    return j.cls


@sieve("sep", "the [SEP] (or end-of-text) tokens", token_types=["sep"])
def sep(i: Tokens, j: Tokens) -> np.ndarray:
    return j.sep


@sieve("rare", "the rarest token of the input, by its place in the tokenizer's vocabulary")
def rare(i: Tokens, j: Tokens) -> np.ndarray:
    # Voita et al. 2019. WordPiece, BPE and unigram vocabularies stand in the order of frequency in the text they were made from, so the largest id is the rarest.
    ordinary = np.where(j.special, -1, j.id)
    return (ordinary == ordinary.max()) & ~j.special


@sieve("same_word", "the same token at other places of the input")
def same_word(i: Tokens, j: Tokens) -> np.ndarray:
    return (i.id == j.id) & (i.position != j.position) & ~i.special & ~j.special


@sieve(
    "same_word:other_segment", "the same token in the other segment (Kovaleva et al. 2019, §5)", requires=["segments"]
)
def same_word_other_segment(i: Tokens, j: Tokens) -> np.ndarray:
    return (i.id == j.id) & (i.segment != j.segment) & ~i.special & ~j.special


@sieve("siblings", "the other pieces of its word (Correia et al. 2019)", requires=["words"])
def siblings(i: Tokens, j: Tokens) -> np.ndarray:
    return (i.word == j.word) & (i.word >= 0) & (i.position != j.position)


@sieve("question_mark", "question marks (Correia et al. 2019)")
def question_mark(i: Tokens, j: Tokens) -> np.ndarray:
    return j.piece == "?"
