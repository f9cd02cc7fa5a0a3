"""Layers of another model than the paper's: those at the same relative depth."""

from __future__ import annotations

PAPER = 12  # layers of BERT-base, which the papers count from 1


def depth(first: int, last: int, layers: int) -> range:
    """The layers (from 0) of a model that stand where the paper's `first` to `last` (from 1, of 12) do.

    >>> depth(6, 10, 12), depth(6, 10, 6), depth(5, 12, 24)
    (range(5, 10), range(2, 5), range(8, 24))
    """
    start = int((first - 1) * layers / PAPER)
    return range(start, max(start + 1, round(last * layers / PAPER)))


def words(found: range) -> str:
    """The layers as one reads them.

    >>> words(range(5, 10))
    'layers 5 to 9'
    """
    return f"layers {found[0]} to {found[-1]}" if len(found) > 1 else f"layer {found[0]}"
