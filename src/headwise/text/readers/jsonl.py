"""JSON lines: rows of text or words with annotations; articles and FrameNet exemplars are known by
their keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
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
            has_text = "text" in row or "words" in row
            if text_field is None and not has_text and "paragraphs" in row:
                document = files.walk.attempt(partial(article, row, where))
                if document is not None:
                    paragraphs, title = document
                    yield from paragraph_pairs(paragraphs, **how, document=title)
                continue
            if text_field is None and {"frame", "target", "fe"} <= row.keys():
                read_row = partial(exemplar, row, where, core, files.walk)
            else:
                read_row = partial(_example, row, where, text_field)
            example = files.walk.attempt(read_row)
            if example is not None:
                yield example


def _example(row: Mapping[str, Any], where: str, text_field: str | None) -> Example:
    return example_of_row(with_text(row, where, text_field), where)
