"""Sieves by dependency relations: the words a token's word is linked to, as head or as dependent (Pande et al. 2021)."""

from __future__ import annotations

import numpy as np

from headwise.analyses.roles.sieves.registry import sieve
from headwise.analyses.roles.sieves.tokens import Tokens

TREE = ("words", "dependencies")
# Both schemes: Stanford's dobj is UD's obj.
RELATIONS = {"nsubj": ("nsubj",), "dobj": ("dobj", "obj"), "amod": ("amod",), "advmod": ("advmod",)}


@sieve("syntactic", "words linked to its word by nsubj, dobj, amod or advmod", requires=TREE)
def syntactic(i: Tokens, j: Tokens) -> np.ndarray:
    return i.linked(j, [name for names in RELATIONS.values() for name in names])


@sieve("nsubj", "the subject of its word, or what its word is the subject of", requires=TREE)
def nsubj(i: Tokens, j: Tokens) -> np.ndarray:
    return i.linked(j, RELATIONS["nsubj"])


@sieve("dobj", "the direct object of its word, or what its word is the object of", requires=TREE)
def dobj(i: Tokens, j: Tokens) -> np.ndarray:
    return i.linked(j, RELATIONS["dobj"])


@sieve("amod", "the adjective of its word, or the noun its word modifies", requires=TREE)
def amod(i: Tokens, j: Tokens) -> np.ndarray:
    return i.linked(j, RELATIONS["amod"])


@sieve("advmod", "the adverb of its word, or what its word modifies", requires=TREE)
def advmod(i: Tokens, j: Tokens) -> np.ndarray:
    return i.linked(j, RELATIONS["advmod"])
