"""The built-in corpus, shipped as data: English from the web with gold trees, and examples of a
small grammar for the annotations that it lacks. `tools/demo_corpus` of the source tree writes
both."""

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
TREEBANK = "UD English EWT"  # the corpus's name in provenance and figures


def builtin_corpus(prose: bool = False) -> Corpus:
    """Open the built-in corpus: 500 sentences of UD English EWT with gold annotations.

    Four consecutive sentences of each of 125 documents, with trees, parts of speech, lemmas and
    features. Every third of the 375 examples is two consecutive sentences, the others are one each.
    The text has the spacing of the original; words are character spans in it. The corpus has one
    part, the demo corpus, with the annotations it lacks (coreference, frames, labels). Licence: CC
    BY-SA 4.0, see `data/LICENSE.md`.

    Parameters
    ----------
    prose : bool, default False
        Whether two sentences are one running text, as suits a causal model, instead of two
        segments, as BERT was trained on. The words of the demo corpus are then joined with ordinary
        spacing.

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
    grammar_examples = demo_corpus()
    if prose:
        grammar_examples = _in_prose(grammar_examples)
    corpus = Corpus(
        TREEBANK,
        partial(_read, "ewt"),
        licence="CC BY-SA 4.0",
        description=description,
        parts=[grammar_examples],
    )
    return _in_prose(corpus) if prose else corpus


def _in_prose(corpus: Corpus) -> Corpus:
    return corpus.derive(lambda notes: map(as_prose, corpus.walk(notes)))


def as_prose(example: Example) -> Example:
    """Return an example as running text of one segment, with its words as character spans.

    >>> prose = as_prose(Example(words=("Dogs", "do", "n't", "bark", "."), words_pair=("Why", "?")))
    >>> prose.text, [prose.text[start:end] for start, end in prose.spans]
    ("Dogs don't bark. Why?", ['Dogs', 'do', "n't", 'bark', '.', 'Why', '?'])
    """
    if example.words is None:
        return example
    segments = []
    if example.text is None or example.spans is None:
        for words in (example.words, example.words_pair):
            if words:
                segments.append(_joined_with_spaces(words))
    else:
        n_first = len(example.words)
        segments.append((example.text, example.spans[:n_first]))
        if example.pair is not None:
            segments.append((example.pair, example.spans[n_first:]))

    text = ""
    spans: list[tuple[int, int]] = []
    for segment_text, segment_spans in segments:
        if text:
            text += " "
        offset = len(text)
        text += segment_text
        spans += [(start + offset, end + offset) for start, end in segment_spans]
    return replace(
        example, text=text, pair=None, words=example.all_words, words_pair=None, spans=tuple(spans)
    )


def _joined_with_spaces(words: tuple[str, ...]) -> tuple[str, tuple[tuple[int, int], ...]]:
    """Join words with ordinary spacing: no space before punctuation and endings (`'s`, `n't`)."""
    text = ""
    spans = []
    for word in words:
        attaches_to_previous = word in {".", ",", ";", ":", "?", "!"} or "'" in word
        if text and not attaches_to_previous:
            text += " "
        start = len(text)
        text += word
        spans.append((start, len(text)))
    return text, tuple(spans)


def demo_corpus(size: int = SIZE) -> Corpus:
    """Open the demo corpus: English examples whose annotations are correct by construction.

    Of ten examples, five are pairs of consecutive sentences (two segments, always linked by
    coreference), four are single sentences and one is a passage of three to five sentences, in a
    constant mixture from the beginning. Every word has its head, UD relation, UPOS, lemma and
    features; entities that occur at least twice have their mentions with head words (as in
    OntoNotes: no singletons); frame links name the frames and elements of FrameNet. The label is
    the tense of all main clauses, `past` or `present`.

    Parameters
    ----------
    size : int, default 400
        The number of examples, from the beginning.

    Examples
    --------
    >>> demo_corpus(30).peek()[0].words
    ('We', 'did', 'not', 'discuss', 'our', 'secret', 'last', 'night', '.')
    """
    at_least("size", size, 1)
    if size > SIZE:
        raise ParameterError(
            f"`size` must be at most {SIZE}; it is {size}. "
            "`tools/demo_corpus` writes larger corpora."
        )
    description = (
        "English sentences, pairs and short passages made by the headwise demo grammar, "
        "with true trees, coreference and frames."
    )
    stream = partial(_read, "demo")
    return Corpus("demo", stream, licence="Apache-2.0", description=description).limit(size)


def demo_examples(size: int = SIZE) -> list[Example]:
    """Return the first examples of the demo corpus as a list; see `demo_corpus`."""
    return list(demo_corpus(size))


def _read(name: str, notes: Notes) -> Iterator[Example]:
    return iter(_examples(name))


@cache
def _examples(name: str) -> tuple[Example, ...]:
    """Return all examples of a data file. They are cached: a run reads its corpus several times."""
    file = TextFile(name, partial(_open, name))
    return tuple(example_of_row(row, where) for where, row in json_rows(file))


def _open(name: str) -> IO[bytes]:
    path = resources.files("headwise.text").joinpath("data", f"{name}.jsonl.bz2")
    return bz2.open(path.open("rb"))
