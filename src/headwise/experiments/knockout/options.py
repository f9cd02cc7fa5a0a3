"""The options of `knockout`; this module imports neither torch nor transformers."""

from __future__ import annotations

from dataclasses import dataclass

from headwise.core.options import option
from headwise.models.options import ModelOptions

ROWS = ("last", "after")


@dataclass(frozen=True)
class KnockoutOptions(ModelOptions):
    """The options of `knockout`: which attention is cut, and where."""

    # `limit` and `seed` select the texts, which the identity of a job lists.
    limit: int = option(50, min=1, in_identity=False, help="Use at most this many texts.")
    rows: str = option(
        "last",
        choices=ROWS,
        help="Which tokens lose sight of the span: the last token alone, or all tokens after it.",
    )
    window: int = option(
        0,
        min=0,
        help="Number of neighbouring layers in which attention is cut; 0: a fifth of the layers.",
    )
    heads: str = option(
        "", help="Cut the attention of these heads alone (L3H1,L5H2); by default of all heads."
    )
    seed: int = option(0, min=0, in_identity=False, help="Seed of the built-in texts.")
    batch: int = option(
        64, min=1, command_line=False, help="Cut copies of a text that go through at once."
    )
