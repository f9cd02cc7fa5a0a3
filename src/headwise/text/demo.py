"""The built-in corpus, shipped as data: English that people wrote, with gold trees, and the
examples of a small grammar for what those have no annotations for. `tools/demo_corpus` of the
source tree writes both."""

from __future__ import annotations

import bz2
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from importlib import resources
from typing import IO

from headwise.core.checks import at_least
from headwise.core.errors import ParameterError
from headwise.text.corpus import Corpus, Notes
from headwise.text.example import Example
from headwise.text.readers.files import TextFile
from headwise.text.readers.rows import example_of_row, json_rows

SIZE = 400
REAL = "UD English EWT"  # its name in provenance and figures


def builtin_corpus(prose: bool = False) -> Corpus:
    """The built-in corpus: 500 sentences of UD English EWT, four consecutive ones of each of 125
    documents, with gold trees, parts of speech, lemmas and features; its one part, the demo corpus,
    has what it lacks (coreference, frames, labels).

    Of the 375 examples, every third is two consecutive sentences, the others are one each. The text
    has the spacing of the original; words are places in it. Licence: CC BY-SA 4.0, see
    `data/LICENSE.md`.

    Parameters
    ----------
    prose : bool, default False
        Two sentences are two segments, as BERT was trained on; with True they are running text, as
        suits a causal model. The same goes for the demo corpus, whose words are then joined as one
        writes.

    Examples
    --------
    >>> first = builtin_corpus(prose=True).peek()[0]
    >>> first.text[:25], first.words[:3], first.relations[:3]
    ('You need to check with on', ('You', 'need', 'to'), ('nsubj', 'root', 'mark'))
    >>> [part.name for part in builtin_corpus().parts]
    ['demo']
    """
    description = (
        "English that people wrote on the web, with gold trees, parts of speech and lemmas."
    )
    grammar = demo_corpus()
    real = Corpus(
        REAL,
        partial(_read, "ewt"),
        licence="CC BY-SA 4.0",
        description=description,
        parts=[_prose(grammar, prose)],
    )
    return _prose(real, prose)


def _prose(corpus: Corpus, wanted: bool) -> Corpus:
    return corpus.derive(lambda notes: map(as_prose, corpus.walk(notes))) if wanted else corpus


def as_prose(example: Example) -> Example:
    """The example as running text of one segment, with its words as places in it.

    >>> made = as_prose(Example(words=("Dogs", "do", "n't", "bark", "."), words_pair=("Why", "?")))
    >>> made.text, [made.text[a:b] for a, b in made.spans]
    ("Dogs don't bark. Why?", ['Dogs', 'do', "n't", 'bark', '.', 'Why', '?'])
    """
    if example.words is None:
        return example
    if example.text is None or example.spans is None:
        segments = [_joined(words) for words in (example.words, example.words_pair) if words]
    else:
        first = len(example.words)
        segments = [(example.text, example.spans[:first])]
        segments += [(example.pair, example.spans[first:])] if example.pair is not None else []
    text, spans = "", list[tuple[int, int]]()
    for written, places in segments:
        start = len(text) + (1 if text else 0)
        text = f"{text} {written}" if text else written
        spans += [(a + start, b + start) for a, b in places]
    return replace(
        example, text=text, pair=None, words=example.all_words, words_pair=None, spans=tuple(spans)
    )


def _joined(words: tuple[str, ...]) -> tuple[str, tuple[tuple[int, int], ...]]:
    """Words as one writes them: no space before a mark or an ending (`'s`, `n't`)."""
    text, spans = "", list[tuple[int, int]]()
    for word in words:
        close = word in {".", ",", ";", ":", "?", "!"} or "'" in word
        text += word if close or not text else f" {word}"
        spans.append((len(text) - len(word), len(text)))
    return text, tuple(spans)


def demo_corpus(size: int = SIZE) -> Corpus:
    """The demo corpus: English examples whose annotations are true by construction.

    Of ten examples, five are pairs of consecutive sentences (two segments, always joined by
    coreference), four are single sentences and one is a passage of three to five sentences: any
    beginning is a fair mixture. Every word has its head, UD relation, UPOS, lemma and features;
    mentions of entities that occur at least twice are given with their head words (as OntoNotes
    does: no singletons); frame links name the frames and elements of FrameNet. The label is the
    tense of all main clauses, `past` or `present`.

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
        raise ParameterError(
            f"`size` must be at most {SIZE}; it is {size}. `tools/demo_corpus` makes larger corpora."
        )
    description = (
        "English sentences, pairs and short passages made by the headwise demo grammar, "
        "with true trees, coreference and frames."
    )
    stream = partial(_read, "demo")
    return Corpus("demo", stream, licence="Apache-2.0", description=description).limit(size)


def demo_examples(size: int = SIZE) -> list[Example]:
    """The first examples of the demo corpus as a list, see `demo_corpus`."""
    return list(demo_corpus(size))


def _read(name: str, notes: Notes) -> Iterator[Example]:
    return iter(_examples(name))


@cache
def _examples(name: str) -> tuple[Example, ...]:
    """All of them, read once: they never change, and a run walks through its corpus several
    times."""
    file = TextFile(name, partial(_open, name))
    return tuple(example_of_row(row, where) for where, row in json_rows(file))


def _open(name: str) -> IO[bytes]:
    return bz2.open(
        resources.files("headwise.text").joinpath("data", f"{name}.jsonl.bz2").open("rb")
    )
