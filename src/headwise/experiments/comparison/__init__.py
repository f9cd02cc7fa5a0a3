"""What changed between models, head by head."""

from headwise.experiments.comparison.run import ComparisonOptions, compare

__all__ = ["ComparisonOptions", "compare"]
