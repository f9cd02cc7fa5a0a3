"""Documents longer than a model is to read at once: their beginnings, or overlapping windows over
all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np
import xarray as xr

from headwise.analyses.coreference.mentions import head_word
from headwise.core.errors import InputError, ParameterError
from headwise.text.corpus import Corpus, Notes
from headwise.text.encode import Encoder
from headwise.text.example import ROOT, Example, Mention

T = TypeVar("T")
NO_LIMIT = 10**9


@dataclass(frozen=True, slots=True)
class Window(Example):
    """A stretch of a document. Its mentions are those of entities that the *document* mentions more
    than once.

    Each has its head word. `first` is the first word that no window before this one had: mentions
    that end at or before it were counted there. `cut` is the number of mentions of the document
    that no window holds whole, `singletons` that of mentions of entities mentioned once (both told
    by its last window); `shortened` says that it is the beginning of a document whose rest is not
    read."""

    first: int = 0
    cut: int = 0
    singletons: int = 0
    shortened: bool = False


def windows(
    corpus: Corpus, tokenizer: Any, max_tokens: int = 128, overlap: int | None = None
) -> Corpus:
    """A corpus of documents cut to size.

    Parameters
    ----------
    corpus : Corpus
        Documents; those that fit, pairs of texts and texts without words are given as they are.
    tokenizer : PreTrainedTokenizerFast
        The model's: lengths are counted in its pieces, special tokens included.
    max_tokens : int, default 128
        The longest window. Windows hold whole words.
    overlap : int, optional
        Only the beginning of a document by default, as Clark et al. (2019) do. With a number:
        windows over the whole document, each beginning so many tokens before the end of the last,
        so that mentions near a border still see what is before them.
    """
    if max_tokens < 3:
        raise ParameterError(f"`max_tokens` must be at least 3; it is {max_tokens!r}.")
    if overlap is not None and not 0 <= overlap < max_tokens:
        raise ParameterError(
            f"`overlap` must be at least 0 and less than max_tokens ({max_tokens}); it is {overlap!r}."
        )
    encoder = Encoder(tokenizer, NO_LIMIT)

    def stream(notes: Notes) -> Iterator[Example]:
        for number, example in enumerate(corpus.walk(notes)):
            parts = _cut(example, encoder, max_tokens, overlap)
            if (
                overlap is not None and example.document is None
            ):  # windows of one text are of one unit
                parts = (
                    part if part is example else replace(part, document=f"example {number}")
                    for part in parts
                )
            yield from parts

    return corpus.derive(stream)


def _cut(
    example: Example, encoder: Encoder, max_tokens: int, overlap: int | None
) -> Iterator[Example]:
    row = encoder.encode(example) if example.words is not None and not example.has_pair else None
    if row is None or len(row) <= max_tokens:
        yield example
        return
    count = len(example.all_words)
    pieces = np.bincount(row.word[row.word >= 0], minlength=count)
    before = np.concatenate([[0], np.cumsum(pieces)])  # pieces before each word
    room = max_tokens - int(row.special.sum())
    spans: list[tuple[int, int]] = []
    start = 0
    while True:
        roughly = int(np.searchsorted(before, before[start] + room, "right")) - 1
        end = _fitting(example, encoder, start, roughly, max_tokens)
        spans.append((start, end))
        if overlap is None or end >= count:
            break
        start = max(int(np.searchsorted(before, before[end] - overlap, "left")), start + 1)
    mentions = _coreferent(example)
    held = {m for a, b in spans for m in mentions if a <= m.start and m.end <= b}
    for number, (a, b) in enumerate(spans):
        first = spans[number - 1][1] - a if number else 0
        inside = [m for m in mentions if a <= m.start and m.end <= b]
        window = _window(example, a, b, inside)
        if number == len(spans) - 1:
            lone = len(example.mentions or ()) - len(mentions)
            window = replace(window, cut=len(mentions) - len(held), singletons=lone)
        yield replace(window, first=first, shortened=overlap is None)


def _fitting(example: Example, encoder: Encoder, start: int, end: int, max_tokens: int) -> int:
    """The end of the longest window from `start`: at its edges words may break into other pieces
    than in the text."""
    while end > start:
        row = encoder.encode(_window(example, start, end, ()))
        if row is not None and len(row) <= max_tokens:
            return end
        end -= 1
    raise InputError(
        f"{example.where}: word {start + 1} alone is longer than {max_tokens} tokens; give a larger `max_tokens`."
    )


def _coreferent(example: Example) -> list[Mention]:
    sizes = Counter(mention.entity for mention in example.mentions or ())
    return [
        replace(m, head=head_word(example, m))
        for m in example.mentions or ()
        if sizes[m.entity] > 1
    ]


def _window(example: Example, start: int, end: int, mentions: Sequence[Mention]) -> Window:
    given: dict[str, Any] = {f.name: getattr(example, f.name) for f in fields(Example)}

    def part(values: Sequence[T] | None) -> tuple[T, ...] | None:
        return None if values is None else tuple(values[start:end])

    for name in ("words", "relations", "upos", "lemmas", "features", "sentences"):
        given[name] = part(given[name])
    if example.heads is not None:
        given["heads"] = tuple(
            h - start if start <= h < end else ROOT for h in example.heads[start:end]
        )
    if example.text is not None and example.spans is not None:
        left = example.spans[start][0]
        given["text"] = example.text[left : example.spans[end - 1][1]]
        given["spans"] = tuple((a - left, b - left) for a, b in example.spans[start:end])
    given["frames"] = None
    given["mentions"] = tuple(
        replace(
            m,
            start=m.start - start,
            end=m.end - start,
            head=None if m.head is None else m.head - start,
        )
        for m in mentions
    )
    return Window(**given)


def cut_text(dataset: xr.Dataset) -> list[str]:
    """A sentence on the documents that were cut and the mentions lost with their ends; nothing
    where none was."""
    cut, lost = (int(dataset.attrs.get(name, 0)) for name in ("documents_cut", "mentions_cut"))
    if not cut and not lost:
        return []
    of, mentions = int(dataset.attrs["examples"]), int(dataset.attrs["mentions"])
    if (
        not cut
    ):  # windows over whole documents: a mention longer than the overlap may fall between two
        return [
            f"{lost:,} of {mentions:,} mentions lie in no window as a whole, and are not scored"
        ]
    most = int(dataset.attrs["max_tokens"])
    where = f"{most} tokens" if most else "as many tokens as the model takes"
    return [
        f"{cut:,} of {of:,} texts were cut to their beginnings ({where} at most): {lost:,} of {mentions:,} mentions "
        "lie behind the cut, and are not scored (documents=windows reads whole documents)"
    ]
