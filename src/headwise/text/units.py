"""Which unit of sampling each example of a batch is of: its document, or the example itself."""

from __future__ import annotations

from headwise.stats.units import unit_key
from headwise.text.encode import Batch


def units_of(batch: Batch) -> list[int]:
    """The unit of each example: its document, or the example itself where it has none."""
    return [unit_key(row.example.document, row.index) for row in batch.rows]


def documents_of(batch: Batch) -> list[int] | None:
    """The same where every example is of a document, else None."""
    return None if any(row.example.document is None for row in batch.rows) else units_of(batch)
