"""Attention between types of words (Kovaleva et al. 2019, §4.5)."""
