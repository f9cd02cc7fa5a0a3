"""Tables for spreadsheets: text that a spreadsheet would run as a formula stays text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

_RUN = re.compile(r"\s*[=+\-@]|[\t\r\n]")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def inert(text: str) -> str:
    """A cell of text that no spreadsheet runs: one that starts with `=`, `+`, `-`, `@`, a tab or a line end gets an
    apostrophe before it, unless it is a number.

    >>> inert("=1+1"), inert("-0.5"), inert("plain")
    ("'=1+1", '-0.5', 'plain')
    """
    return f"'{text}" if _RUN.match(text) and not _NUMBER.fullmatch(text) else text


def as_written(cell: str) -> str:
    """The text of a cell that `inert` made.

    >>> as_written("'=1+1"), as_written("'tis")
    ('=1+1', "'tis")
    """
    return cell[1:] if cell.startswith("'") and inert(cell[1:]) == cell else cell


def csv_text(table: pd.DataFrame) -> str:
    """A table as CSV, its texts inert, numbers with seven digits."""
    safe = table.map(lambda cell: inert(cell) if isinstance(cell, str) else cell)
    safe.columns = [inert(str(name)) for name in table.columns]
    return str(safe.to_csv(index=False, float_format="%.7g", lineterminator="\n"))
