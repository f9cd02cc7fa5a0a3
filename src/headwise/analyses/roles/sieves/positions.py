"""Sieves by position and segment (Pande et al. 2021)."""

from __future__ import annotations

import numpy as np

from headwise.analyses.roles.sieves.registry import sieve
from headwise.analyses.roles.sieves.tokens import Tokens

REACH = 2


@sieve("local", "tokens within two places, itself included")
def local(i: Tokens, j: Tokens) -> np.ndarray:
    return abs(j.position - i.position) <= REACH


@sieve("local:prev", "the two tokens before")
def local_prev(i: Tokens, j: Tokens) -> np.ndarray:
    return (j.position < i.position) & (j.position >= i.position - REACH)


@sieve("local:next", "the two tokens after", ahead=True)
def local_next(i: Tokens, j: Tokens) -> np.ndarray:
    return (j.position > i.position) & (j.position <= i.position + REACH)


@sieve("block", "tokens of its own segment, in an input of two", requires=["segments"])
def block(i: Tokens, j: Tokens) -> np.ndarray:
    # Special tokens have no segment, and an input of one segment has no block.
    return (i.segment >= 0) & (i.segment == j.segment) & i.row.example.has_pair


@sieve("first", "the first token of the input (the sink of many models)")
def first(i: Tokens, j: Tokens) -> np.ndarray:
    return j.position == 0
