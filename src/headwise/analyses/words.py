"""Attention between words: to a word is the sum over its pieces, from a word the mean over its pieces."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from headwise.models.view import Rows
from headwise.text.encode import Batch


@dataclass(frozen=True, slots=True, eq=False)
class WordIndex:
    """Which tokens of a batch make up which words; examples whose words do not align have none.

    `member[example, token, word]` is 1 for the pieces of a word, `pieces[example, word]` their number (0: no such word in this example).
    """

    member: Tensor
    pieces: Tensor

    @property
    def count(self) -> int:
        """The number of columns for words: those of the longest example."""
        return self.pieces.shape[1]

    @property
    def present(self) -> Tensor:
        """Bool [example, word]."""
        return self.pieces > 0


@lru_cache(maxsize=4)
def word_index(batch: Batch) -> WordIndex:
    """The index of a batch, kept for as long as its layers are looked at."""
    aligned = torch.tensor([row.aligned for row in batch.rows], device=batch.device)
    word = torch.where(aligned[:, None], batch.word, -1)
    count = int(word.max().item()) + 1 if word.numel() else 0
    member = (word[:, :, None] == torch.arange(count, device=batch.device)).float()
    return WordIndex(member, member.sum(1))


def word_maps(rows: Rows, index: WordIndex, extra: Tensor | None = None) -> Tensor:
    """Word-level maps of a block of rows, `[example, head, from word, to word]`: they add up over blocks.

    Parameters
    ----------
    rows
        A block of query rows of one layer.
    index
        Of the same batch.
    extra
        Sets of tokens `[example, token, set]` (bool or float) that become further columns behind the words: mass on special tokens, for instance.
    """
    to = index.member if extra is None else torch.cat([index.member, extra.to(index.member)], -1)
    return fold(rows.weights, to, index, rows.start)


def word_visibility(rows: Rows, index: WordIndex) -> Tensor:
    """For a block of rows `[example, 1 or head, from word, to word]`: greater than zero where some piece of the one may see some piece of the other."""
    return fold(rows.visible.to(index.member), index.member, index, rows.start)


def fold(weights: Tensor, to: Tensor, index: WordIndex, start: int) -> Tensor:
    """`F A T`: columns of `[example, head, row, key]` summed by the sets `to`, rows averaged by words, in two batched products."""
    examples, heads, rows, keys = weights.shape
    columns = torch.bmm(weights.reshape(examples, heads * rows, keys), to.to(weights.dtype)).view(examples, heads, rows, -1)
    part = index.member[:, start : start + rows] / index.pieces.clamp(min=1)[:, None]
    return torch.matmul(part.to(weights.dtype).transpose(1, 2)[:, None], columns)
