"""The result of a run as one labelled file, cards of heads, and what each head does in a word."""

from headwise.atlas.atlas import Atlas, HeadCard, dataset_digest, measures

__all__ = ["Atlas", "HeadCard", "dataset_digest", "measures"]
