"""The result of a run: one file of labelled arrays, cards of heads, and the label of each head."""

from headwise.atlas.atlas import Atlas
from headwise.atlas.card import HeadCard
from headwise.atlas.file import dataset_digest
from headwise.atlas.tables import measures

__all__ = ["Atlas", "HeadCard", "dataset_digest", "measures"]
