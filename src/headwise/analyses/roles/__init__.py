"""Functional roles of heads by sieve bias (Pande et al. 2021)."""
