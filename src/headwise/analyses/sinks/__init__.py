"""Attention sinks: attention to the first token (Xiao et al. 2023, Gu et al. 2024)."""
