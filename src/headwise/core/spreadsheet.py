"""Tables for spreadsheets: text that a spreadsheet would run as a formula stays text."""

from __future__ import annotations

import csv
import io
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

_RUN = re.compile(r"\s*[=+\-@]|[\t\r\n]")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def inert(text: str) -> str:
    """A cell of text that no spreadsheet runs: one that starts with `=`, `+`, `-`, `@`, a tab or a
    line end gets an apostrophe before it, unless it is a number.

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
    """A table as CSV, its texts inert, numbers with seven digits, nothing where a value is missing.

    A column at a time: atlases have hundreds of thousands of rows, with few texts and many numbers.
    """
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow([inert(str(name)) for name in table.columns])
    writer.writerows(
        zip(*(_cells(table.iloc[:, place]) for place in range(table.shape[1])), strict=True)
    )
    return written.getvalue()


def _cells(column: pd.Series) -> list[str]:
    """The cells of a column as they are written."""
    if getattr(column.dtype, "kind", "O") == "f":  # few are alike
        return [
            "" if number != number else f"{number:.7g}" for number in column.astype(float).tolist()
        ]
    places, different = (
        column.factorize()
    )  # a text is looked at once, however often it stands there
    texts = [*map(_cell, different.tolist()), ""]  # the last is taken where there is none
    return [texts[place] for place in places.tolist()]


def _cell(value: object) -> str:
    if isinstance(value, str):
        return inert(value)
    return f"{value:.7g}" if isinstance(value, float) else str(value)
