"""Patching: what a head carries from one input into another."""

from headwise.experiments.patching.pairs import (
    BUILTIN,
    Pair,
    builtin_pairs,
    read_pairs,
    usable_pairs,
)
from headwise.experiments.patching.run import PatchOptions, patch

__all__ = [
    "BUILTIN",
    "Pair",
    "PatchOptions",
    "builtin_pairs",
    "patch",
    "read_pairs",
    "usable_pairs",
]
