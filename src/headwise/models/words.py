"""Attention between words: to a word is the sum over its pieces, from a word the mean over its
pieces."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.models.view import AttentionRows
from headwise.text.encode import Batch


@dataclass(frozen=True, slots=True, eq=False)
class WordIndex:
    """Which tokens of a batch make up which words; examples whose words do not align have none.

    `member[example, token, word]` is 1 for the pieces of a word, `pieces[example, word]` their
    number (0: no such word in this example). `spans` are stretches of examples of similar length:
    (first, last, tokens, words) with the longest's tokens and words. `leading`: attention *from* a
    word is that of its first piece, as some released code has it, instead of the mean."""

    member: Tensor
    pieces: Tensor
    spans: tuple[tuple[int, int, int, int], ...]
    leading: bool = False

    def part(self, examples: slice, rows: slice, words: int, dtype: torch.dtype) -> Tensor:
        """`[example, row, word]`: the share that each of these rows has in the row of its word.

        Divided in the type that is asked for: thirds of float32 add up to more than one, and break
        ties in float64."""
        member = self.member[examples, rows, :words].to(dtype)
        if not self.leading:
            return member / self.pieces[examples, None, :words].clamp(min=1)
        first = self.member[examples, :, :words].argmax(
            1, keepdim=True
        )  # 0 where there is no such word
        place = torch.arange(rows.start, rows.start + member.shape[1], device=member.device)
        return member * (place[:, None] == first)

    @property
    def count(self) -> int:
        """The number of columns for words: those of the longest example."""
        return self.pieces.shape[1]

    @property
    def present(self) -> Tensor:
        """Bool [example, word]."""
        return self.pieces > 0


def word_index(batch: Batch) -> WordIndex:
    """The index of a batch, made once for all its layers."""
    return batch.remember("word_index", lambda: _make_index(batch))


def _make_index(batch: Batch) -> WordIndex:
    aligned = torch.tensor([row.aligned for row in batch.rows], device=batch.device)
    word = torch.where(aligned[:, None], batch.word, -1)
    count = int(word.max().item()) + 1 if word.numel() else 0
    member = (word[:, :, None] == torch.arange(count, device=batch.device)).float()
    words = (word.amax(1) + 1).tolist() if word.numel() else []
    return WordIndex(member, member.sum(1), _spans([len(row) for row in batch.rows], words))


def _spans(tokens: list[int], words: list[int]) -> tuple[tuple[int, int, int, int], ...]:
    """Cut a batch (sorted by length, as a rule) where examples get much longer: work goes with the
    square of length."""
    out = []
    first = 0
    for last in range(1, len(tokens) + 1):
        if last == len(tokens) or tokens[last] > 1.2 * tokens[first] + 2:
            out.append((first, last, max(tokens[first:last]), max(words[first:last])))
            first = last
    return tuple(out)


def word_maps(rows: AttentionRows, index: WordIndex, extra: Tensor | None = None) -> Tensor:
    """Word-level maps of a block of rows, `[example, head, from word, to word]`: they add up over
    blocks.

    Parameters
    ----------
    rows : AttentionRows
        A block of query rows of one layer.
    index : WordIndex
        Of the same batch.
    extra : Tensor, optional
        Sets of tokens `[example, token, set]` (bool or float) that become further columns behind
        the words: mass on special tokens, for instance.
    """
    return fold(rows.weights, index, rows.start, extra)


def word_visibility(rows: AttentionRows, index: WordIndex) -> Tensor:
    """`[example, 1, from word, to word]` of a block of rows: above zero where a piece of the one
    may see a piece of the other."""
    return fold(rows.visible.to(index.member), index, rows.start)


def fold(weights: Tensor, index: WordIndex, start: int = 0, extra: Tensor | None = None) -> Tensor:
    """`F A T`: columns of `[example, head, row, key]` summed by words (and the sets `extra`), rows
    averaged by words (or taken from their first pieces).

    Batched products: examples of similar length go together and padding is left out. `start` is the
    first of the rows."""
    examples, heads, rows, _ = weights.shape
    more = 0 if extra is None else extra.shape[-1]
    out = weights.new_zeros(examples, heads, index.count, index.count + more)
    for first, last, tokens, words in index.spans:
        height = min(rows, tokens - start)
        if height <= 0 or not words:
            continue
        own = slice(first, last)
        to = index.member[own, :tokens, :words]
        if extra is not None:
            to = torch.cat([to, extra[own, :tokens].to(to)], -1)
        block = weights[own, :, :height, :tokens].reshape(last - first, heads * height, tokens)
        columns = torch.bmm(block, to.to(weights.dtype)).view(
            last - first, heads, height, words + more
        )
        part = index.part(own, slice(start, start + height), words, weights.dtype)
        # One product for all heads of an example: [word, row] x [row, head · column].
        side = columns.transpose(1, 2).reshape(last - first, height, heads * (words + more))
        made = torch.bmm(part.transpose(1, 2), side)
        made = made.view(last - first, words, heads, words + more).transpose(1, 2)
        out[own, :, :words, :words] = made[..., :words]
        if more:
            out[own, :, :words, index.count :] = made[..., words:]
    return out


@dataclass(frozen=True, slots=True, eq=False)
class WordQuestions:
    """Which of its candidates does a word attend to most? Right is any of those wanted."""

    example: Tensor  # int64 [question]
    word: Tensor  # int64 [question]: the word that looks
    candidate: Tensor  # bool [question, word]
    wanted: Tensor  # bool [question, word]


def find_words(maps: Tensor, visible: Tensor, questions: WordQuestions) -> tuple[Tensor, Tensor]:
    """Whether each head finds a word that is wanted, and whether it could: bool `[question, head]`.

    Parameters
    ----------
    maps : Tensor
        `[example, head, from word, to word]`; of equally attended words the first is taken.
    visible : Tensor
        Bool `[example, 1, from word, to word]`.
    questions : WordQuestions
        Of the same batch.
    """
    weights = maps[questions.example, :, questions.word]  # question, head, word
    seen = visible[questions.example, :, questions.word]
    chosen = weights.masked_fill(~(questions.candidate[:, None] & seen), -1.0).argmax(
        -1, keepdim=True
    )
    shown = (questions.wanted[:, None] & seen).expand(-1, maps.shape[1], -1)
    return shown.gather(-1, chosen)[..., 0], shown.any(-1)


def simple_maps(batch: Batch, causal: bool) -> tuple[Tensor, Tensor]:
    """Word-level maps `[example, 2, from word, to word]` of a head that attends evenly and of one
    that rests on the first token, and what words of such a model see, bool `[example, 1, from word,
    to word]`.

    Of a head on the first token no word gets more than another, but for the first where that token
    is its own: the first word that is seen is taken, as for every tie."""
    return batch.remember((simple_maps.__name__, causal), lambda: _make_simple(batch, causal))


def _make_simple(batch: Batch, causal: bool) -> tuple[Tensor, Tensor]:
    index = word_index(batch)
    seen = (batch.attention_mask[:, :, None] & batch.attention_mask[:, None, :])[:, None]
    if causal:
        seen = seen & torch.ones(seen.shape[-2:], dtype=torch.bool, device=seen.device).tril()
    even = seen.double() / seen.sum(-1, keepdim=True).clamp(min=1)
    # Words of equally many pieces tie, whatever the order in which their parts were added up.
    maps = (fold(torch.cat([even, torch.zeros_like(even)], 1), index) * 2**32).round()
    return maps, fold(seen.to(index.member), index) > 0
