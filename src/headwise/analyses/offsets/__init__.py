"""How far heads look, and in which direction (Pascual et al. 2021, §6)."""
