"""The probing files of SentEval: part, label and sentence, separated by tabs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from headwise.core.checks import one_of
from headwise.core.errors import InputError
from headwise.text.corpus import Notes
from headwise.text.example import Example
from headwise.text.readers.files import TextFile
from headwise.text.readers.limits import BlankRowError

PARTS = {"tr": "train", "va": "validation", "te": "test"}
# What a user may call each part.
_PART_NAMES = {
    "tr": "tr",
    "va": "va",
    "te": "te",
    "train": "tr",
    "validation": "va",
    "test": "te",
    "dev": "va",
}


def is_senteval(line: str) -> bool:
    """Return whether a line has the form of a SentEval row, which no other format has."""
    return _is_row(line.split("\t"))


def _is_row(columns: list[str]) -> bool:
    return len(columns) == 3 and columns[0] in PARTS


def read_senteval(
    files: Iterable[TextFile], notes: Notes, *, part: str | None = None
) -> Iterator[Example]:
    """Yield one example per row with its label.

    Parameters
    ----------
    part : str, optional
        `tr`, `va` or `te` (or `train`, `validation`, `test`); default: all parts.
    """
    if part is not None:
        one_of("part", part, _PART_NAMES)
        part = _PART_NAMES[part]
    for file in files:
        for where, line in file.filled():
            row = file.walk.attempt(partial(_row, line, where))
            if row is not None and (part is None or row[0] == part):
                yield Example(text=row[2].strip(), label=row[1], origin=where)


def _row(line: str, where: str) -> list[str]:
    """Return part, label and sentence of a row."""
    columns = line.split("\t")
    if not _is_row(columns):
        raise InputError(
            f"{where}: a SentEval row is part (tr, va, te), label and sentence separated by tabs; "
            f"this one has {len(columns)} columns."
        )
    if not columns[2].strip():
        raise BlankRowError(f"{where}: the sentence is empty.")
    return columns
