"""The built-in demo corpus: annotated English examples, shipped as data. The grammar that made them is
`tools/demo_corpus` of the source tree."""

from __future__ import annotations

import bz2
from collections.abc import Iterator
from importlib import resources
from typing import IO

from headwise.core.checks import at_least
from headwise.core.errors import ParameterError
from headwise.text.corpus import Corpus, Notes
from headwise.text.example import Example
from headwise.text.readers.files import TextFile
from headwise.text.readers.rows import example_of_row, json_rows

SIZE = 400


def demo_corpus(size: int = SIZE) -> Corpus:
    """The demo corpus: English examples whose annotations are true by construction.

    Of ten examples, five are pairs of consecutive sentences (two segments, always joined by coreference), four are
    single sentences and one is a passage of three to five sentences: any beginning is a fair mixture. Every word has
    its head, UD relation, UPOS, lemma and features; mentions of entities that occur at least twice are given with their
    head words (as OntoNotes does: no singletons); frame links name the frames and elements of FrameNet. The label is
    the tense of all main clauses, `past` or `present`.

    Parameters
    ----------
    size : int, default 400
        Only so many examples, from the first on.

    Examples
    --------
    >>> demo_corpus(30).peek()[0].words
    ('We', 'did', 'not', 'discuss', 'our', 'secret', 'last', 'night', '.')
    """
    at_least("size", size, 1)
    if size > SIZE:
        raise ParameterError(f"`size` must be at most {SIZE}; it is {size}. `tools/demo_corpus` makes larger corpora.")
    description = (
        "English sentences, pairs and short passages made by the headwise demo grammar, "
        "with true trees, coreference and frames."
    )
    return Corpus("demo", _read, licence="Apache-2.0", description=description).limit(size)


def demo_examples(size: int = SIZE) -> list[Example]:
    """The first examples of the demo corpus as a list, see `demo_corpus`."""
    return list(demo_corpus(size))


def _read(notes: Notes) -> Iterator[Example]:
    file = TextFile("demo", _open)
    return (example_of_row(row, where) for where, row in json_rows(file))


def _open() -> IO[bytes]:
    return bz2.open(resources.files("headwise.text").joinpath("data", "demo.jsonl.bz2").open("rb"))
