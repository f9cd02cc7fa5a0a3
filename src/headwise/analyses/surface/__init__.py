"""What heads attend to at first sight: positions, token types, breadth (Clark et al. 2019,
§3)."""
