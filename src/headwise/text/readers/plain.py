"""Plain text: one example per line, or per paragraph where blank lines separate them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headwise.core.checks import one_of
from headwise.text.corpus import Notes
from headwise.text.example import Example
from headwise.text.readers.files import TextFile
from headwise.text.readers.paragraphs import Document

SPLITS = ("lines", "paragraphs")
AS_LINES = "text files read line by line, no blank line between (by paragraphs: split=paragraphs)"
AS_PARAGRAPHS = "text files read by paragraphs, blank lines between (by lines: split=lines)"
SAMPLED_LINES = 1000  # lines in which a blank line tells that there are paragraphs


def paragraphs_of(file: TextFile) -> Iterator[tuple[int, str]]:
    """Yield paragraphs with the number of their first line; their lines are joined by spaces."""
    first_line = 0
    lines: list[str] = []
    length = 0
    for number, line in file.lines():
        text = line.strip()
        if text:
            if not lines:
                first_line = number
            lines.append(text)
            length += len(text) + 1
            file.walk.limits.hold("max_text", length, file.where(first_line))
        elif lines:
            yield first_line, " ".join(lines)
            lines = []
            length = 0
    if lines:
        yield first_line, " ".join(lines)


def _filled_lines(file: TextFile) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not blank, with their numbers."""
    for number, line in file.lines():
        text = line.strip()
        if text:
            yield number, text


def read_txt(
    files: Iterable[TextFile], notes: Notes, *, split: str | None = None
) -> Iterator[Example]:
    """Yield one example per line or per paragraph; the notes say which.

    Parameters
    ----------
    split : {"lines", "paragraphs"}, optional
        Default: paragraphs for a file with a blank line between others in its first thousand
        lines, lines for any other.
    """
    if split is not None:
        one_of("split", split, SPLITS)
    for file in files:
        file_split = split
        if file_split is None:
            file_split, file = _split_of(file)
        by_lines = file_split == "lines"
        is_filled = False
        for number, text in _filled_lines(file) if by_lines else paragraphs_of(file):
            # Nothing is said of how a file without text was read.
            if split is None and not is_filled:
                notes[AS_LINES if by_lines else AS_PARAGRAPHS] += 1
            is_filled = True
            yield Example(text=text, origin=file.where(number))


def _split_of(file: TextFile) -> tuple[str, TextFile]:
    """Return whether a file has lines or paragraphs, and the file from its start."""
    text_has_begun = False
    previous_is_blank = False

    def begins_paragraph(line: str) -> bool:
        """Whether a line follows a blank one, and text before that."""
        nonlocal text_has_begun, previous_is_blank
        is_filled = bool(line.strip())
        begins = is_filled and text_has_begun and previous_is_blank
        text_has_begun = text_has_begun or is_filled
        previous_is_blank = not is_filled
        return begins

    second_paragraph, file, _ = file.find_line(begins_paragraph, SAMPLED_LINES)
    return "lines" if second_paragraph is None else "paragraphs", file


def text_in(file: TextFile) -> Iterator[Document]:
    """Yield a file as one document without a name."""
    yield ((file.where(line), text) for line, text in paragraphs_of(file)), None
