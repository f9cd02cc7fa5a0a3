"""Parsing from all heads together (Clark et al. 2019, §5)."""
