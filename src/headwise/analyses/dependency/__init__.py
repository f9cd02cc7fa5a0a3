"""Heads that follow a syntactic relation (Clark et al. 2019, §4.2)."""
