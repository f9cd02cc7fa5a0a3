"""Plain text: lines, or paragraphs separated by blank lines, one example each; or two consecutive
paragraphs as a pair."""

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
LOOKED_AT = 1000  # lines in which a blank one tells paragraphs


def paragraphs_of(file: TextFile) -> Iterator[tuple[int, str]]:
    """Paragraphs with the number of their first line; the lines of a paragraph are joined by
    spaces."""
    start, held, length = 0, list[str](), 0
    for number, line in file.lines():
        if line.strip():
            start = start if held else number
            held.append(line.strip())
            length += len(held[-1]) + 1
            file.walk.limits.hold("max_text", length, file.where(start))
        elif held:
            yield start, " ".join(held)
            held, length = [], 0
    if held:
        yield start, " ".join(held)


def read_txt(
    files: Iterable[TextFile], notes: Notes, *, split: str | None = None
) -> Iterator[Example]:
    """One example per line or per paragraph; which it was is noted.

    Parameters
    ----------
    split : {"lines", "paragraphs"}, optional
        By default a file with a blank line between others in its first thousand lines has
        paragraphs, any other has lines.
    """
    if split is not None:
        one_of("split", split, SPLITS)
    for file in files:
        chosen = split
        if chosen is None:
            chosen, file = _split_of(file)
            notes[AS_LINES if chosen == "lines" else AS_PARAGRAPHS] += 1
        if chosen == "lines":
            found: Iterator[tuple[int, str]] = (
                (number, line.strip()) for number, line in file.lines() if line.strip()
            )
        else:
            found = paragraphs_of(file)
        for number, text in found:
            yield Example(text=text, origin=file.where(number))


def _split_of(file: TextFile) -> tuple[str, TextFile]:
    """Whether a file has lines or paragraphs, and the file from its start."""
    begun = blank = False

    def follows_blank(line: str) -> bool:
        nonlocal begun, blank
        filled = bool(line.strip())
        after = filled and begun and blank
        begun, blank = begun or filled, not filled
        return after

    found, file, _ = file.look(follows_blank, LOOKED_AT)
    return "lines" if found is None else "paragraphs", file


def text_in(file: TextFile) -> Iterator[Document]:
    """A file as one document without a name."""
    yield ((file.where(line), text) for line, text in paragraphs_of(file)), None
