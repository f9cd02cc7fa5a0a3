"""JSON lines: rows of text or words with annotations; articles and FrameNet exemplars are known by
their keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from headwise.text.corpus import Notes
from headwise.text.example import Example
from headwise.text.readers.columns import with_text
from headwise.text.readers.files import Files
from headwise.text.readers.framenet import core_types_beside, exemplar
from headwise.text.readers.paragraphs import article, paragraph_pairs
from headwise.text.readers.rows import example_of_row, json_rows

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def read_jsonl(
    files: Files,
    notes: Notes,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    max_tokens: int = 128,
    overlapping: bool = False,
    text_field: str | None = None,
) -> Iterator[Example]:
    """One example per row (see `example_of_row`); the pairs of a row with `paragraphs`; a FrameNet
    exemplar of a row with `frame`, `target` and `fe`. The options are those of `paragraph_pairs`,
    and:

    Parameters
    ----------
    text_field : str, optional
        The field of the text (or of the words, if it is a list), or `text,pair`; by default `text`
        or `words`, and else those that `with_text` knows (`content`, `prompt` and `completion`,
        GLUE's).
    """
    how: Any = {
        "tokenizer": tokenizer,
        "max_tokens": max_tokens,
        "overlapping": overlapping,
        "notes": notes,
    }
    core = core_types_beside(files.path, files.walk)
    for file in files:
        for where, row in json_rows(file):
            if text_field is not None:
                yield example_of_row(with_text(row, where, text_field), where)
            elif "text" not in row and "words" not in row and "paragraphs" in row:
                paragraphs, title = article(row, where)
                yield from paragraph_pairs(paragraphs, **how, document=title)
            elif {"frame", "target", "fe"} <= row.keys():
                yield exemplar(row, where, core, files.walk)
            else:
                yield example_of_row(with_text(row, where), where)
