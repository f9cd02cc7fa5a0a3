"""Which word each token of a row is a piece of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from headwise.text.example import Example
from headwise.text.truncation import NO_SEGMENT

if TYPE_CHECKING:
    from transformers import BatchEncoding

NO_WORD = -1


def aligned_words(
    example: Example, row: BatchEncoding, keep: np.ndarray, segment: np.ndarray, splits_words: bool
) -> tuple[np.ndarray, bool]:
    """The word of each kept token (NO_WORD where there is none), and whether the words are all
    there.

    Parameters
    ----------
    example : Example
        Whose words they are.
    row : BatchEncoding
        What the tokenizer gave for all of it, with offsets unless words were given apart.
    keep : ndarray
        The places of the tokens that are kept.
    segment : ndarray
        The segment of each kept token.
    splits_words : bool
        Whether words without a text were given to the tokenizer apart.
    """
    word = np.full(len(segment), NO_WORD, dtype=np.int64)
    if example.words is None:
        return word, False
    first, total = len(example.words), len(example.all_words)
    if example.text is None and splits_words:
        local_words = row.word_ids(0)
        for token, local in enumerate(local_words[place] for place in keep.tolist()):
            if local is not None and segment[token] != NO_SEGMENT:
                word[token] = local + first * int(segment[token])
        covered = np.unique(word[word != NO_WORD])
    else:
        spans = example.spans
        if example.text is None:
            spans = _joined_spans(example.words) + _joined_spans(example.words_pair or ())
        offsets = [row["offset_mapping"][place] for place in keep.tolist()]
        covered = by_offsets(word, offsets, segment, spans or (), first)
    cut = len(keep) < len(row["input_ids"])
    return word, bool(_no_holes(covered, first, total) if cut else len(covered) == total)


def by_offsets(
    word: np.ndarray,
    offsets: Sequence[tuple[int, int]],
    segment: np.ndarray,
    spans: Sequence[tuple[int, int]],
    first: int,
) -> np.ndarray:
    """Fill in the word of each piece by the characters it covers; gives the words that are covered.

    A piece on several words (`."` is often one piece, where a parser sees two words) is a piece of
    the one that most of its characters are of, the first of equals. The other then has no piece of
    its own, like a word behind a cut, and whatever is asked about it is left out."""
    covered: set[int] = set()
    for part, base, own in ((0, 0, spans[:first]), (1, first, spans[first:])):
        starts, ends = np.array(own, dtype=np.int64).reshape(-1, 2).T
        for token in np.flatnonzero(segment == part).tolist():
            begin, end = offsets[token]
            shared = np.minimum(ends, end) - np.maximum(starts, begin)
            if len(shared) and shared.max() > 0:
                word[token] = base + int(shared.argmax())
                covered.update((base + np.flatnonzero(shared > 0)).tolist())
    return np.array(sorted(covered), dtype=np.int64)


def _joined_spans(words: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """Where words lie in their text when they are joined by spaces."""
    spans, start = [], 0
    for word in words:
        spans.append((start, start + len(word)))
        start += len(word) + 1
    return tuple(spans)


def _no_holes(seen: np.ndarray, first: int, total: int) -> bool:
    """Whether the words present are the beginnings of their segments (a cut takes words from the
    ends only)."""
    for low, high in ((0, first), (first, total)):
        part = seen[(seen >= low) & (seen < high)]
        if len(part) and (part[0] != low or part[-1] - part[0] + 1 != len(part)):
            return False
    return True
