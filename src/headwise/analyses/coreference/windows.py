"""Documents that are too long for the model: their beginnings, or overlapping windows over all of
them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import xarray as xr

from headwise.analyses.coreference.mentions import head_word
from headwise.core.errors import InputError, ParameterError
from headwise.text.corpus import Corpus, Notes
from headwise.text.encode import Encoded, Encoder
from headwise.text.example import ROOT, Example, Mention

NO_LIMIT = 10**9


@dataclass(frozen=True, slots=True)
class Window(Example):
    """A part of a document.

    Its mentions, each with its head word, are those of entities that the *document* mentions more
    than once.

    Attributes
    ----------
    first : int
        The first word that no window before this one had: mentions that end at or before it were
        counted there.
    cut : int
        Of the last window: how many mentions of the document no window holds whole.
    singletons : int
        Of the last window: how many mentions are the only one of their entity.
    shortened : bool
        Whether it is the beginning of a document whose remainder is not read.
    """

    first: int = 0
    cut: int = 0
    singletons: int = 0
    shortened: bool = False


def windows(
    corpus: Corpus, tokenizer: Any, max_tokens: int = 128, overlap: int | None = None
) -> Corpus:
    """Return a corpus whose documents have at most so many tokens.

    Parameters
    ----------
    corpus : Corpus
        Documents; those that fit, pairs of texts and texts without words stay as they are.
    tokenizer : PreTrainedTokenizerFast
        The model's: lengths are counted in its pieces, special tokens included.
    max_tokens : int, default 128
        The longest window. Windows hold whole words.
    overlap : int, optional
        Default: only the beginning of a document, as Clark et al. (2019) do. With a number: windows
        over the whole document, each beginning so many tokens before the end of the last, so that
        mentions near a border still have text before them.
    """
    if max_tokens < 3:
        raise ParameterError(f"`max_tokens` must be at least 3; it is {max_tokens!r}.")
    if overlap is not None and not 0 <= overlap < max_tokens:
        raise ParameterError(
            f"`overlap` must be at least 0 and less than max_tokens ({max_tokens}); "
            f"it is {overlap!r}."
        )
    encoder = Encoder(tokenizer, NO_LIMIT)

    def stream(notes: Notes) -> Iterator[Example]:
        for number, example in enumerate(corpus.walk(notes)):
            needs_document = overlap is not None and example.document is None
            for part in _windows_of(example, encoder, max_tokens, overlap):
                if needs_document and part is not example:
                    # Windows of one text are one unit of the statistics.
                    part = replace(part, document=f"example {number}")
                yield part

    return corpus.derive(stream)


def _windows_of(
    example: Example, encoder: Encoder, max_tokens: int, overlap: int | None
) -> Iterator[Example]:
    """Yield the windows of an example; the example itself if it fits or cannot be cut."""
    row = None
    if example.words is not None and not example.has_pair:
        row = encoder.encode(example)
    if row is None or len(row) <= max_tokens:
        yield example
        return
    spans = _window_spans(example, row, encoder, max_tokens, overlap)
    mentions = _coreferent_mentions(example)
    whole_mentions: set[Mention] = set()
    end_before = 0
    for number, (start, end) in enumerate(spans):
        inside = [m for m in mentions if start <= m.start and m.end <= end]
        whole_mentions.update(inside)
        window = replace(
            _window(example, start, end, inside),
            first=max(end_before - start, 0),
            shortened=overlap is None,
        )
        if number == len(spans) - 1:
            n_singletons = len(example.mentions or ()) - len(mentions)
            n_cut = len(mentions) - len(whole_mentions)
            window = replace(window, cut=n_cut, singletons=n_singletons)
        yield window
        end_before = end


def _window_spans(
    example: Example, row: Encoded, encoder: Encoder, max_tokens: int, overlap: int | None
) -> list[tuple[int, int]]:
    """Return the first word and the word after the last of each window."""
    n_words = len(example.all_words)
    pieces_of_word = np.bincount(row.word[row.word >= 0], minlength=n_words)
    pieces_before = np.concatenate([[0], np.cumsum(pieces_of_word)])
    max_pieces = max_tokens - int(row.special.sum())
    spans: list[tuple[int, int]] = []
    start = 0
    while True:
        last_piece = pieces_before[start] + max_pieces
        estimated_end = int(np.searchsorted(pieces_before, last_piece, "right")) - 1
        end = _fitting_end(example, encoder, start, estimated_end, max_tokens)
        spans.append((start, end))
        if overlap is None or end >= n_words:
            return spans
        first_piece = pieces_before[end] - overlap
        next_start = int(np.searchsorted(pieces_before, first_piece, "left"))
        start = max(next_start, start + 1)


def _fitting_end(example: Example, encoder: Encoder, start: int, end: int, max_tokens: int) -> int:
    """Return the end of the longest window from `start`, at most `end`.

    At the edges of a window words may break into other pieces than in the text."""
    while end > start:
        row = encoder.encode(_window(example, start, end, ()))
        if row is not None and len(row) <= max_tokens:
            return end
        end -= 1
    raise InputError(
        f"{example.where}: word {start + 1} alone is longer than {max_tokens} tokens; "
        "pass a larger `max_tokens`."
    )


def _coreferent_mentions(example: Example) -> list[Mention]:
    """Return the mentions of entities that the document mentions more than once, with heads."""
    mention_counts = Counter(mention.entity for mention in example.mentions or ())
    mentions = []
    for mention in example.mentions or ():
        if mention_counts[mention.entity] > 1:
            mentions.append(replace(mention, head=head_word(example, mention)))
    return mentions


def _window(example: Example, start: int, end: int, mentions: Sequence[Mention]) -> Window:
    """Return the words from `start` to `end` of an example as a window with these mentions."""
    values: dict[str, Any] = {}
    for field in fields(Example):
        values[field.name] = getattr(example, field.name)
    for name in ("words", "relations", "upos", "lemmas", "features", "sentences"):
        if values[name] is not None:
            values[name] = tuple(values[name][start:end])
    if example.heads is not None:
        heads = []
        for head in example.heads[start:end]:
            heads.append(head - start if start <= head < end else ROOT)
        values["heads"] = tuple(heads)
    if example.text is not None and example.spans is not None:
        first_character = example.spans[start][0]
        last_character = example.spans[end - 1][1]
        spans = []
        for span_start, span_end in example.spans[start:end]:
            spans.append((span_start - first_character, span_end - first_character))
        values["text"] = example.text[first_character:last_character]
        values["spans"] = tuple(spans)
    values["frames"] = None
    values["mentions"] = tuple(mention.moved(-start) for mention in mentions)
    return Window(**values)


def cut_text(dataset: xr.Dataset) -> list[str]:
    """Return a sentence on the documents that were cut and the mentions lost with their ends; an
    empty list if none was."""
    n_cut = int(dataset.attrs.get("documents_cut", 0))
    n_lost = int(dataset.attrs.get("mentions_cut", 0))
    if not n_cut and not n_lost:
        return []
    n_texts = int(dataset.attrs["examples"])
    n_mentions = int(dataset.attrs["mentions"])
    if not n_cut:
        # In windows over whole documents, a mention longer than the overlap may lie across two.
        return [
            f"{n_lost:,} of {n_mentions:,} mentions lie in no window as a whole, and are not scored"
        ]
    max_tokens = int(dataset.attrs["max_tokens"])
    limit = f"{max_tokens} tokens" if max_tokens else "as many tokens as the model takes"
    return [
        f"{n_cut:,} of {n_texts:,} texts were cut to their beginnings ({limit} at most): "
        f"{n_lost:,} of {n_mentions:,} mentions lie behind the cut, and are not scored "
        "(documents=windows reads whole documents)"
    ]
