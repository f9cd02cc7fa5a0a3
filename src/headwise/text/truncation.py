"""Truncation of texts that are too long: which tokens of a row, which words of a text are kept."""

from __future__ import annotations

from typing import Any

import numpy as np

NO_SEGMENT = -1


def kept_places(segment: np.ndarray, longest: int) -> np.ndarray:
    """Return the positions of the tokens that a row truncated to `longest` tokens keeps.

    These are the special tokens and the beginning of each segment; the longer segment is shortened
    first. Tokenizers keep the same tokens, but they also build all overflowing parts, for a pair
    every combination of them, which takes gigabytes for two long texts.
    """
    first = np.flatnonzero(segment == 0)
    second = np.flatnonzero(segment == 1)
    special = np.flatnonzero(segment == NO_SEGMENT)
    budget = max(longest - len(special), 0)
    shorter_length = min(len(first), len(second))
    if 2 * shorter_length > budget:
        shorter_length = budget // 2
    longer_length = budget - shorter_length
    if len(first) > len(second):
        first = first[:longer_length]
        second = second[:shorter_length]
    else:
        first = first[:shorter_length]
        second = second[:longer_length]
    return np.sort(np.concatenate([special, first, second]))


def beginning_of(part: Any, longest: int) -> Any:
    """Return the first whole words of a text, or of a list of words, within a number of characters.

    The same object is returned where nothing needs to be removed.
    """
    if part is None:
        return None
    if isinstance(part, str):
        if len(part) <= longest:
            return part
        text_and_last_word = part[:longest].rsplit(None, 1)
        return text_and_last_word[0] if text_and_last_word else part
    length = 0
    for index, word in enumerate(part):
        length += len(word) + 1
        if length > longest:
            return part[: max(index, 1)]
    return part
