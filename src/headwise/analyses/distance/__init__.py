"""Families of heads by their distances (Clark et al. 2019, §6)."""
