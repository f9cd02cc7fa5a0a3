"""The options of `patch`; this module imports neither torch nor transformers."""

from __future__ import annotations

from dataclasses import dataclass

from headwise.core.options import option
from headwise.models.options import ModelOptions


@dataclass(frozen=True)
class PatchOptions(ModelOptions):
    """The options of `patch`: which pairs are used, and what is patched."""

    # `limit` and `seed` select the pairs, which the identity of a job lists.
    limit: int = option(32, min=2, in_identity=False, help="Use at most this many pairs.")
    exact: bool = option(
        True,
        flag="exact/first-order",
        help="Run the model for every head, both ways; otherwise only the first-order estimate.",
    )
    positions: int = option(
        0,
        min=0,
        help="Also patch this many positions, counted from the last, one at a time (clean into "
        "corrupted).",
    )
    ablate: int = option(
        10, min=0, help="Also zero this many of the best heads, one at a time, in the clean run."
    )
    seed: int = option(0, min=0, in_identity=False, help="Seed of the built-in pairs.")
    batch: int = option(
        16, min=1, command_line=False, help="Pairs that go through the model at once."
    )
    # Part of the identity although it is for speed: reused activations may round differently.
    share: bool = option(
        True,
        command_line=False,
        help="Reuse the activations of the layers below a patch instead of running these layers "
        "again, where the model allows it.",
    )
