"""Attention maps read in other units than tokens: between words, and at chosen pairs of tokens."""
