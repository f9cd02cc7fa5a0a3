"""Repeated sequences: heads that continue what was seen before (Elhage et al. 2021, Olsson et al.
2022)."""
