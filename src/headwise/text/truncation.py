"""What is kept of texts that are too long: which tokens of a row, which words of a text."""

from __future__ import annotations

from typing import Any

import numpy as np

NO_SEGMENT = -1


def kept_places(segment: np.ndarray, longest: int) -> np.ndarray:
    """The places of the tokens that a row cut to `longest` keeps: the special ones, and the first
    of each segment, of which the longer is shortened first.

    It is what tokenizers themselves keep. But they also make every other piece that a cut row could
    have, for a pair all pairs of pieces, which takes gigabytes for two long texts."""
    first, second = (np.flatnonzero(segment == part) for part in (0, 1))
    special = np.flatnonzero(segment == NO_SEGMENT)
    room = max(longest - len(special), 0)
    fewer = min(len(first), len(second))
    few, many = (fewer, room - fewer) if 2 * fewer <= room else (room // 2, room - room // 2)
    rooms = (many, few) if len(first) > len(second) else (few, many)
    return np.sort(np.concatenate([special, first[: rooms[0]], second[: rooms[1]]]))


def beginning_of(part: Any, longest: int) -> Any:
    """The first whole words of a text, or of a list of words, that have at most so many characters
    in all; the very same where that is everything."""
    if part is None or isinstance(part, str):
        if part is None or len(part) <= longest:
            return part
        words = part[:longest].rsplit(None, 1)
        return words[0] if words else part
    length = 0
    for place, word in enumerate(part):
        length += len(word) + 1
        if length > longest:
            return part[: max(place, 1)]
    return part
