"""The result of a run as one labelled file, cards of heads, and what each head does in a word."""

from headwise.atlas.atlas import HEAD_NAME, Atlas, HeadCard, dataset_digest, head_name, measures

__all__ = ["HEAD_NAME", "Atlas", "HeadCard", "dataset_digest", "head_name", "measures"]
