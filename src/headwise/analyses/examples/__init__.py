"""Examples of a head: the rows of a corpus where it is most itself, and a search for rows."""

from headwise.analyses.examples.find import Condition, Hit, find_rows

__all__ = ["Condition", "Hit", "find_rows"]
