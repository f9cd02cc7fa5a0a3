"""What changed between models, head by head."""

from headwise.compare.run import compare

__all__ = ["compare"]
