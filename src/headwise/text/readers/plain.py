"""Plain text: paragraphs separated by blank lines, one example each, or two consecutive ones as a pair."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from headwise.text.corpus import Notes
from headwise.text.example import Example
from headwise.text.readers.files import TextFile
from headwise.text.readers.paragraphs import paragraph_pairs

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def paragraphs_of(file: TextFile) -> Iterator[tuple[int, str]]:
    """Paragraphs with the number of their first line; the lines of a paragraph are joined by spaces."""
    start, held = 0, list[str]()
    for number, line in file.lines():
        if line.strip():
            start = start if held else number
            held.append(line.strip())
        elif held:
            yield start, " ".join(held)
            held = []
    if held:
        yield start, " ".join(held)


def read_txt(files: Iterable[TextFile], notes: Notes) -> Iterator[Example]:
    """One example per paragraph."""
    for file in files:
        for line, text in paragraphs_of(file):
            yield Example(text=text, origin=file.where(line))


def read_txt_pairs(
    files: Iterable[TextFile],
    notes: Notes,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    max_tokens: int = 128,
    overlapping: bool = False,
) -> Iterator[Example]:
    """Pairs of consecutive paragraphs (Clark et al. 2019, §3), cut to `max_tokens` where a tokenizer is given."""
    for file in files:
        paragraphs = ((file.where(line), text) for line, text in paragraphs_of(file))
        yield from paragraph_pairs(paragraphs, tokenizer, max_tokens, overlapping=overlapping, notes=notes)
