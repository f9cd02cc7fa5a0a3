"""What changed between models, head by head."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwise.core.lazy import lazy_names

if TYPE_CHECKING:
    from headwise.experiments.comparison.options import ComparisonOptions
    from headwise.experiments.comparison.run import Comparison, compare

__getattr__ = lazy_names(
    __name__,
    {
        "headwise.experiments.comparison.options": ("ComparisonOptions",),
        "headwise.experiments.comparison.run": ("Comparison", "compare"),
    },
)

__all__ = ["Comparison", "ComparisonOptions", "compare"]
