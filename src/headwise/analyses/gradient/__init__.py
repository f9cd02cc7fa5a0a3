"""How much the loss depends on attention to each kind of token (Clark et al. 2019, Fig 3)."""
