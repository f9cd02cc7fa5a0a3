"""What changed between models, head by head."""

from headwise.experiments.comparison.run import compare

__all__ = ["compare"]
