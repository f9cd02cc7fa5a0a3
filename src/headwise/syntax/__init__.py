"""Syntax for analyses: the pairs of words that a treebank links, and what heads do where their relation does not apply."""
