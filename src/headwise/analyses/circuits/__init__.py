"""Circuits from weights: what heads copy, match and compose with, without any text (Elhage et al.
2021)."""
