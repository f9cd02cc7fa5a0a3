"""The real part of the built-in corpus: passages of a treebank, chosen by a stated rule and never
by hand."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, zip_longest
from pathlib import Path

from headwise.text import open_corpus
from headwise.text.example import ROOT, Example

DOCUMENTS = 125
SENTENCES = 4  # consecutive ones of each document
GROUPS = (2, 1, 1)  # how they are given: a pair of sentences, and two single ones
SHORTEST, LONGEST = 5, 30  # words of a sentence
LONGEST_WORD, MOST_DIGITS = 18, 4  # no web addresses, no telephone numbers
UNPLAIN = re.compile(r"[^A-Za-z0-9 .,;:!?'\"()$%&-]| [.,;:!?)]|  ")  # odd characters, odd spacing
UNSOUND = frozenset(
    ("goeswith", "dep", "reparandum", "list", "orphan")
)  # slips of the pen, and what is no sentence


def treebank_examples(path: Path) -> list[Example]:
    """Passages of the documents of a treebank, four consecutive sentences of each.

    A sentence fits that has 5 to 30 words, one of them a verb or an auxiliary, begins with a
    capital and ends with a full stop, question or exclamation mark; of plain English characters and
    spacing; without words of over 18 letters or 4 digits, without slips (`goeswith`, `reparandum`),
    lists and what is left unanalysed; and in which no two words touch that are both letters and
    digits or both punctuation (`do|n't`, `.|"`), since one piece of a tokenizer may lie on both. A
    document gives the first four consecutive sentences that fit. The genres take turns, in each the
    documents in the order of the sha256 of their names, until there are 125.

    The first two sentences are an example of two segments, the third and the fourth are one each.
    """
    found: dict[str, list[tuple[str, list[Example]]]] = {}
    for document in open_corpus(path, documents=True, text=True):
        name = document.document or ""
        passage = _passage(document)
        if passage:
            found.setdefault(name.split("-")[0], []).append(
                (hashlib.sha256(name.encode()).hexdigest(), passage)
            )
    genres = [
        [passage for _, passage in sorted(own, key=lambda item: item[0])]
        for _, own in sorted(found.items())
    ]
    turns = [passage for turn in zip_longest(*genres) for passage in turn if passage is not None]
    return [example for passage in turns[:DOCUMENTS] for example in _grouped(passage)]


def _passage(document: Example) -> list[Example]:
    """The first sentences in a row that fit; none where there are none."""
    run: list[Example] = []
    for sentence in _sentences(document):
        run = [*run, sentence] if _fits(sentence) else []
        if len(run) == SENTENCES:
            return run
    return []


def _sentences(document: Example) -> Iterator[Example]:
    numbers = document.sentences or ()
    for number in range(numbers[-1] + 1):
        own = [word for word, sentence in enumerate(numbers) if sentence == number]
        yield _part(document, own[0], own[-1] + 1)


def _part(document: Example, start: int, end: int) -> Example:
    """Words `start..end` of a document as an example of their own."""
    columns = ("words", "relations", "upos", "lemmas", "features")
    left = document.spans[start][0]  # type: ignore[index]
    return replace(
        document,
        text=document.text[left : document.spans[end - 1][1]],  # type: ignore[index]
        spans=tuple((a - left, b - left) for a, b in document.spans[start:end]),  # type: ignore[index]
        heads=tuple(head if head == ROOT else head - start for head in document.heads[start:end]),  # type: ignore[index]
        sentences=None,
        **{name: tuple(getattr(document, name)[start:end]) for name in columns},
    )


def _fits(sentence: Example) -> bool:
    text, words, spans = sentence.text or "", sentence.words or (), sentence.spans or ()
    touching = [(a, b) for (_, a), (b, _) in pairwise(spans) if b <= a]
    return (
        SHORTEST <= len(words) <= LONGEST
        and not {"VERB", "AUX"}.isdisjoint(sentence.upos or ())
        and text[0].isupper()
        and text[-1] in ".?!"
        and UNPLAIN.search(text) is None
        and all(
            len(word) <= LONGEST_WORD and sum(map(str.isdigit, word)) <= MOST_DIGITS
            for word in words
        )
        and UNSOUND.isdisjoint(sentence.relations or ())
        and all(a == b and text[a - 1].isalnum() != text[b].isalnum() for a, b in touching)
    )


def _grouped(passage: list[Example]) -> Iterator[Example]:
    start = 0
    for size in GROUPS:
        own = passage[start : start + size]
        start += size
        yield own[0] if size == 1 else _pair(*own)


def _pair(first: Example, second: Example) -> Example:
    """Two sentences as the two segments of one example."""
    columns = ("spans", "relations", "upos", "lemmas", "features")
    shift = len(first.words or ())
    heads = (first.heads or ()) + tuple(
        head if head == ROOT else head + shift for head in second.heads or ()
    )
    numbers = (0,) * shift + (1,) * len(second.words or ())
    joined = {name: getattr(first, name) + getattr(second, name) for name in columns}
    return replace(
        first, pair=second.text, words_pair=second.words, heads=heads, sentences=numbers, **joined
    )
