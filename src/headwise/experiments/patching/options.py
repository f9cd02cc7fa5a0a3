"""The options of `patch`; this module imports neither torch nor transformers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headwise.core.options import option
from headwise.models.options import ModelOptions


@dataclass(frozen=True)
class PatchOptions(ModelOptions):
    """The options of `patch`: which pairs are used, and what is patched."""

    limit: int = option(32, min=2, help="Use at most this many pairs.")
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
    seed: int = option(0, min=0, help="Seed of the built-in pairs.")
    batch: int = option(
        16, min=1, command_line=False, help="Pairs that go through the model at once."
    )
    share: bool = option(
        True,
        command_line=False,
        help="Run the layers below a patch only once, where the model allows it.",
    )

    def measured(self) -> dict[str, Any]:
        """Return the options that decide the numbers, by name, for provenance."""
        return {
            "exact": self.exact,
            "positions": self.positions,
            "ablate": self.ablate,
            "batch": self.batch,
            "share": self.share,
        }
