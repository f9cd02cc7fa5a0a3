"""Heads that link a frame's target to its elements (Kovaleva et al. 2019, §4.2)."""
