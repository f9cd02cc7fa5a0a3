"""Attention to linguistic features (Kovaleva et al. 2019, §4.4)."""
