"""SentEval's probing files: part, label and sentence, separated by tabs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headwise.core.errors import InputError, ParameterError
from headwise.text.corpus import Notes
from headwise.text.example import Example
from headwise.text.readers.files import TextFile

PARTS = {"tr": "train", "va": "validation", "te": "test"}
_GIVEN = {**{short: short for short in PARTS}, **{long: short for short, long in PARTS.items()}, "dev": "va"}


def is_senteval(line: str) -> bool:
    """Whether a line can only be one of SentEval's."""
    columns = line.split("\t")
    return len(columns) == 3 and columns[0] in PARTS


def read_senteval(files: Iterable[TextFile], notes: Notes, *, part: str | None = None) -> Iterator[Example]:
    """One example per row with its label; `part` is `tr`, `va` or `te` (or `train`, `validation`, `test`), None for all."""
    if part is not None and part not in _GIVEN:
        raise ParameterError(f"`part` must be one of {', '.join(_GIVEN)}; it is '{part}'.")
    wanted = None if part is None else _GIVEN[part]
    for file in files:
        for number, line in file.lines():
            if not line.strip():
                continue
            columns = line.split("\t")
            if len(columns) != 3 or columns[0] not in PARTS:
                raise InputError(
                    f"{file.where(number)}: a SentEval row is part (tr, va, te), label and sentence separated by tabs; this one has {len(columns)} columns."
                )
            if not columns[2].strip():
                raise InputError(f"{file.where(number)}: the sentence is empty.")
            if wanted is None or columns[0] == wanted:
                yield Example(text=columns[2].strip(), label=columns[1], origin=file.where(number))
