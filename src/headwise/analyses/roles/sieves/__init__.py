"""Sieves: for each token, the tokens a head of some role should attend to. One small function each,
with a name."""

from headwise.analyses.roles.sieves.registry import (
    Sieve,
    find_sieve,
    known_sieves,
    load_sieves,
    sieve,
    sieve_matrices,
    sieve_matrix,
)
from headwise.analyses.roles.sieves.tokens import TokenAxis

__all__ = [
    "Sieve",
    "TokenAxis",
    "find_sieve",
    "known_sieves",
    "load_sieves",
    "sieve",
    "sieve_matrices",
    "sieve_matrix",
]
