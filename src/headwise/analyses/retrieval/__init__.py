"""Retrieval heads: which heads find a needle in unrelated text (Wu et al. 2024)."""
