"""Docstrings in numpy's style, as Markdown."""

from __future__ import annotations

import inspect
import re

SECTION = re.compile(r"^(\w[\w ]*)\n-{3,}\n", re.M)
LISTED = re.compile(r"^(?=\S)", re.M)


def sections(thing: object) -> dict[str, str]:
    """The parts of a docstring by their headings; what stands before the first is under ""."""
    text = inspect.getdoc(thing) or ""
    first, *rest = SECTION.split(text)
    return {"": first.strip()} | {
        name: body.strip() for name, body in zip(rest[::2], rest[1::2], strict=True)
    }


def parameters(section: str) -> list[tuple[str, str, str]]:
    """(names, type and default, meaning) of each entry of a section `Parameters`."""
    found = []
    for entry in filter(None, map(str.strip, re.split(r"\n(?=\S)", section))):
        head, _, body = entry.partition("\n")
        names, _, kind = head.partition(" : ")
        found.append((names.strip(), kind.strip(), one_line(body)))
    return found


def notes(section: str) -> dict[str, str]:
    """The paragraphs of a section `Notes` that begin with a word and a colon (`Assumes: ...`), by
    that word."""
    found = {}
    for paragraph in re.split(r"\n\s*\n", section):
        word, colon, text = paragraph.partition(":")
        if colon and word.isalpha():
            found[word] = one_line(text)
    return found


def one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def cell(text: str) -> str:
    """Fit for a cell of a table."""
    return one_line(text).replace("|", "\\|")


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(map(cell, line)) + " |" for line in lines) + "\n"
