"""Patching: what a head carries from one input into another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwise.core.lazy import lazy_names

if TYPE_CHECKING:
    from headwise.experiments.patching.options import PatchOptions
    from headwise.experiments.patching.pairs import builtin_pairs, read_pairs, usable_pairs
    from headwise.experiments.patching.run import patch, patch_in_job
    from headwise.experiments.patching.templates import BUILTIN, PromptPair

_PACKAGE = "headwise.experiments.patching"
__getattr__ = lazy_names(
    __name__,
    {
        f"{_PACKAGE}.options": ("PatchOptions",),
        f"{_PACKAGE}.pairs": ("builtin_pairs", "read_pairs", "usable_pairs"),
        f"{_PACKAGE}.run": ("patch", "patch_in_job"),
        f"{_PACKAGE}.templates": ("BUILTIN", "PromptPair"),
    },
)

__all__ = [
    "BUILTIN",
    "PatchOptions",
    "PromptPair",
    "builtin_pairs",
    "patch",
    "patch_in_job",
    "read_pairs",
    "usable_pairs",
]
