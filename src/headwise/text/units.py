"""Which unit of sampling each example of a batch is of: its document, or the example itself."""

from __future__ import annotations

from collections.abc import Sequence

from headwise.stats.units import unit_key
from headwise.text.encode import Batch, Encoded


def units_of(batch: Batch) -> list[int]:
    """The unit of each example: its document, or the example itself where it has none."""
    return _units(batch.rows)


def documents_of(batch: Batch) -> list[int] | None:
    """The same where every example is of a document, else None."""
    return documents_of_rows(batch.rows)


def documents_of_rows(rows: Sequence[Encoded]) -> list[int] | None:
    """The same of rows that are not a batch yet."""
    return None if any(row.example.document is None for row in rows) else _units(rows)


def _units(rows: Sequence[Encoded]) -> list[int]:
    return [unit_key(row.example.document, row.index) for row in rows]
