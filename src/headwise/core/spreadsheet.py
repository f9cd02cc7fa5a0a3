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
    """Return a text that no spreadsheet runs as a formula.

    One that starts with `=`, `+`, `-`, `@`, a tab or a line end gets an apostrophe before it, unless
    it is a number.

    >>> inert("=1+1"), inert("-0.5"), inert("plain")
    ("'=1+1", '-0.5', 'plain')
    """
    return f"'{text}" if _RUN.match(text) and not _NUMBER.fullmatch(text) else text


def as_written(cell: str) -> str:
    """Return the text from which `inert` made a cell.

    >>> as_written("'=1+1"), as_written("'tis")
    ('=1+1', "'tis")
    """
    return cell[1:] if cell.startswith("'") and inert(cell[1:]) == cell else cell


def csv_text(table: pd.DataFrame) -> str:
    """Return a table as CSV: texts inert, numbers with seven digits, missing values empty."""
    content = io.StringIO()
    writer = csv.writer(content, lineterminator="\n")
    writer.writerow([inert(str(name)) for name in table.columns])
    # A column at a time: atlases have hundreds of thousands of rows, with few different texts.
    columns = [_cells(table.iloc[:, number]) for number in range(table.shape[1])]
    writer.writerows(zip(*columns, strict=True))
    return content.getvalue()


def _cells(column: pd.Series) -> list[str]:
    """Return the cells of a column as they are written."""
    if getattr(column.dtype, "kind", "O") == "f":
        cells = []
        for number in column.astype(float).tolist():
            cells.append("" if number != number else f"{number:.7g}")
        return cells
    # A text is escaped once, however often it occurs; the code -1 (missing) takes the last one.
    codes, values = column.factorize()
    texts = [*map(_cell, values.tolist()), ""]
    return [texts[code] for code in codes.tolist()]


def _cell(value: object) -> str:
    if isinstance(value, str):
        return inert(value)
    return f"{value:.7g}" if isinstance(value, float) else str(value)
