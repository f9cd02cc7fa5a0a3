"""The alignment of tokens and words: which word each token of a row belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from headwise.text.example import Example

if TYPE_CHECKING:
    from transformers import BatchEncoding

NO_WORD = -1
NO_SEGMENT = -1


def aligned_words(
    example: Example, row: BatchEncoding, keep: np.ndarray, segment: np.ndarray, splits_words: bool
) -> tuple[np.ndarray, bool]:
    """Return the word of each kept token, and whether all words are covered by tokens.

    A token without a word has NO_WORD. Words that truncation removed from the end of a segment need
    not be covered.

    Parameters
    ----------
    example : Example
        The source of the words; it has some.
    row : BatchEncoding
        The tokenizer's output for the whole example, with offsets unless it got separate words.
    keep : ndarray
        The positions of the tokens that are kept.
    segment : ndarray
        The segment of each kept token.
    splits_words : bool
        Whether the tokenizer got the words one by one where the example has no text.
    """
    word = np.full(len(segment), NO_WORD, dtype=np.int64)
    assert example.words is not None
    n_first = len(example.words)
    n_words = len(example.all_words)
    if example.text is None and splits_words:
        # The tokenizer counts the words of each segment from 0.
        words_within_segment = row.word_ids(0)
        for token, position in enumerate(keep.tolist()):
            word_within_segment = words_within_segment[position]
            if word_within_segment is not None and segment[token] != NO_SEGMENT:
                word[token] = word_within_segment + n_first * int(segment[token])
        covered = np.unique(word[word != NO_WORD])
    else:
        spans = example.spans
        if example.text is None:
            spans = _joined_spans(example.words) + _joined_spans(example.words_pair or ())
        offsets = [row["offset_mapping"][position] for position in keep.tolist()]
        covered = by_offsets(word, offsets, segment, spans or (), n_first)
    was_truncated = len(keep) < len(row["input_ids"])
    if was_truncated:
        return word, _no_holes(covered, n_first, n_words)
    return word, len(covered) == n_words


def by_offsets(
    word: np.ndarray,
    offsets: Sequence[tuple[int, int]],
    segment: np.ndarray,
    spans: Sequence[tuple[int, int]],
    first: int,
) -> np.ndarray:
    """Set the word of each token by the characters it covers, and return the words covered.

    A token over several words (`."` is often one token, where a parser sees two words) belongs to
    the word that shares most characters with it, the first of equals. The other word then has no
    token of its own, like a truncated word, and every analysis leaves it out.

    Parameters
    ----------
    word : ndarray
        The word of each token; filled in place.
    offsets : sequence of (int, int)
        The characters of each token, within its segment.
    segment : ndarray
        The segment of each token.
    spans : sequence of (int, int)
        The characters of each word, within its segment.
    first : int
        The number of words in the first segment.
    """
    covered: set[int] = set()
    segments = ((0, 0, spans[:first]), (1, first, spans[first:]))
    for segment_number, first_word, segment_spans in segments:
        starts, ends = np.array(segment_spans, dtype=np.int64).reshape(-1, 2).T
        for token in np.flatnonzero(segment == segment_number).tolist():
            begin, end = offsets[token]
            n_shared = np.minimum(ends, end) - np.maximum(starts, begin)
            if len(n_shared) and n_shared.max() > 0:
                word[token] = first_word + int(n_shared.argmax())
                covered.update((first_word + np.flatnonzero(n_shared > 0)).tolist())
    return np.array(sorted(covered), dtype=np.int64)


def _joined_spans(words: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """Return the character spans of words that are joined by spaces."""
    spans = []
    start = 0
    for word in words:
        spans.append((start, start + len(word)))
        start += len(word) + 1
    return tuple(spans)


def _no_holes(covered: np.ndarray, n_first: int, n_words: int) -> bool:
    """Return whether the covered words are the beginnings of their segments: truncation removes
    words from the ends only."""
    for low, high in ((0, n_first), (n_first, n_words)):
        words = covered[(covered >= low) & (covered < high)]
        if len(words) and (words[0] != low or words[-1] - words[0] + 1 != len(words)):
            return False
    return True
