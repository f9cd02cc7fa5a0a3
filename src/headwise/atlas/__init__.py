"""The result of a run as one labelled file, cards of heads, and what each head does in a word."""

from headwise.atlas.atlas import Atlas
from headwise.atlas.card import HeadCard
from headwise.atlas.file import dataset_digest
from headwise.atlas.tables import measures

__all__ = ["Atlas", "HeadCard", "dataset_digest", "measures"]
