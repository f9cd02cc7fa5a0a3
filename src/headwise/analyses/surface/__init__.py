"""What heads attend to at first sight: positions, kinds of token, breadth (Clark et al. 2019,
§3)."""
