"""Patching: what a head carries from one input into another."""

from headwise.experiments.patching.pairs import (
    BUILTIN,
    PromptPair,
    builtin_pairs,
    read_pairs,
    usable_pairs,
)
from headwise.experiments.patching.run import PatchOptions, patch

__all__ = [
    "BUILTIN",
    "PatchOptions",
    "PromptPair",
    "builtin_pairs",
    "patch",
    "read_pairs",
    "usable_pairs",
]
