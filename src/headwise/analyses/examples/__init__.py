"""Examples of a head: the rows of a corpus that show what it does, and a search for rows."""

from headwise.analyses.examples.find import Hit, RowCondition, find_rows

__all__ = ["Hit", "RowCondition", "find_rows"]
