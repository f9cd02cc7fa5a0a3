"""JSON lines: rows of text or words with annotations; articles and FrameNet exemplars are known by their keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headwise.text.corpus import Notes
from headwise.text.example import Example
from headwise.text.readers.files import Files
from headwise.text.readers.framenet import CoreTypes, exemplar
from headwise.text.readers.paragraphs import article_pairs
from headwise.text.readers.rows import example_of_row, json_rows


def read_jsonl(
    files: Files, notes: Notes, *, tokenizer: Any = None, max_tokens: int = 128, overlapping: bool = False
) -> Iterator[Example]:
    """One example per row (see `example_of_row`); the pairs of a row with `paragraphs`; a FrameNet exemplar of a row with `frame`, `target` and `fe`."""
    core = CoreTypes.beside(files.path)
    for file in files:
        for line, row in json_rows(file):
            where = file.where(line)
            if "text" not in row and "words" not in row and "paragraphs" in row:
                yield from article_pairs(
                    row, where, notes, tokenizer=tokenizer, max_tokens=max_tokens, overlapping=overlapping
                )
            elif {"frame", "target", "fe"} <= row.keys():
                yield exemplar(row, where, core, notes)
            else:
                yield example_of_row(row, where)
