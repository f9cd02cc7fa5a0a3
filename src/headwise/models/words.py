"""Attention between words: to a word it is the sum over its subwords, from a word the mean over its
subwords."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.models.view import AttentionRows
from headwise.text.encode import Batch


@dataclass(frozen=True, slots=True, eq=False)
class WordIndex:
    """Which tokens of a batch make up which words; examples whose words do not align have none.

    Attributes
    ----------
    member
        1 for the subwords of a word, `[example, token, word]`.
    pieces
        Number of subwords, `[example, word]` (0: no such word in this example).
    spans
        Runs of examples of similar length: (first, last, tokens, words), the last two of the
        longest.
    leading
        Attention *from* a word is that of its first subword instead of the mean, as in some
        released code.
    """

    member: Tensor
    pieces: Tensor
    spans: tuple[tuple[int, int, int, int], ...]
    leading: bool = False

    def part(self, examples: slice, rows: slice, words: int, dtype: torch.dtype) -> Tensor:
        """Return the share of each of these rows in the row of its word, `[example, row, word]`.

        The division is done in the requested dtype: thirds of float32 add up to more than one, and
        would break ties in float64."""
        member = self.member[examples, rows, :words].to(dtype)
        if not self.leading:
            return member / self.pieces[examples, None, :words].clamp(min=1)
        # 0 if there is no such word; `member` is 0 there too.
        first = self.member[examples, :, :words].argmax(1, keepdim=True)
        position = torch.arange(rows.start, rows.start + member.shape[1], device=member.device)
        return member * (position[:, None] == first)

    @property
    def count(self) -> int:
        """The number of columns for words: those of the longest example."""
        return self.pieces.shape[1]

    @property
    def present(self) -> Tensor:
        """Bool [example, word]."""
        return self.pieces > 0


def word_index(batch: Batch) -> WordIndex:
    """Return the index of a batch, made once for all layers."""
    return batch.remember("word_index", lambda: _make_index(batch))


def _make_index(batch: Batch) -> WordIndex:
    aligned = torch.tensor([row.aligned for row in batch.rows], device=batch.device)
    word = torch.where(aligned[:, None], batch.word, -1)
    count = int(word.max().item()) + 1 if word.numel() else 0
    member = (word[:, :, None] == torch.arange(count, device=batch.device)).float()
    words = (word.amax(1) + 1).tolist() if word.numel() else []
    return WordIndex(member, member.sum(1), _spans([len(row) for row in batch.rows], words))


def _spans(tokens: list[int], words: list[int]) -> tuple[tuple[int, int, int, int], ...]:
    """Divide a batch (usually sorted by length) where examples get much longer: the work grows with
    the square of the length."""
    spans = []
    first = 0
    for last in range(1, len(tokens) + 1):
        if last == len(tokens) or tokens[last] > 1.2 * tokens[first] + 2:
            spans.append((first, last, max(tokens[first:last]), max(words[first:last])))
            first = last
    return tuple(spans)


def word_maps(rows: AttentionRows, index: WordIndex, extra: Tensor | None = None) -> Tensor:
    """Return word-level maps of a block of rows, `[example, head, from word, to word]`; those of
    several blocks add up.

    Parameters
    ----------
    rows : AttentionRows
        A block of query rows of one layer.
    index : WordIndex
        Of the same batch.
    extra : Tensor, optional
        Sets of tokens `[example, token, set]` (bool or float) that become columns after the words:
        mass on special tokens, for instance.
    """
    return fold(rows.weights, index, rows.start, extra)


def word_visibility(rows: AttentionRows, index: WordIndex) -> Tensor:
    """Return `[example, 1, from word, to word]` of a block of rows: above zero where a subword of
    the one may attend to a subword of the other."""
    return fold(rows.visible.to(index.member), index, rows.start)


def fold(weights: Tensor, index: WordIndex, start: int = 0, extra: Tensor | None = None) -> Tensor:
    """Fold token-level weights `[example, head, row, key]` into word-level maps.

    Columns are summed by words (and by the sets `extra`), rows averaged by words (or taken from
    their first subwords). In batched products: examples of similar length go together, and padding
    is left out.

    Parameters
    ----------
    weights : Tensor
        `[example, head, row, key]`.
    index : WordIndex
        Of the same batch.
    start : int, default 0
        The first of the rows.
    extra : Tensor, optional
        As in `word_maps`.
    """
    n_examples, n_heads, n_rows, _ = weights.shape
    n_extra = 0 if extra is None else extra.shape[-1]
    maps = weights.new_zeros(n_examples, n_heads, index.count, index.count + n_extra)
    for first, last, tokens, words in index.spans:
        height = min(n_rows, tokens - start)
        if height <= 0 or not words:
            continue
        examples = slice(first, last)
        n_span = last - first
        width = words + n_extra
        to_words = index.member[examples, :tokens, :words]
        if extra is not None:
            to_words = torch.cat([to_words, extra[examples, :tokens].to(to_words)], -1)
        block = weights[examples, :, :height, :tokens].reshape(n_span, n_heads * height, tokens)
        columns = torch.bmm(block, to_words.to(weights.dtype))
        columns = columns.view(n_span, n_heads, height, width)
        from_words = index.part(examples, slice(start, start + height), words, weights.dtype)
        # One product for all heads of an example: [word, row] x [row, head · column].
        columns = columns.transpose(1, 2).reshape(n_span, height, n_heads * width)
        folded = torch.bmm(from_words.transpose(1, 2), columns)
        folded = folded.view(n_span, words, n_heads, width).transpose(1, 2)
        maps[examples, :, :words, :words] = folded[..., :words]
        if n_extra:
            maps[examples, :, :words, index.count :] = folded[..., words:]
    return maps


@dataclass(frozen=True, slots=True, eq=False)
class WordQuestions:
    """Questions: which of its candidates does a word attend to most?"""

    example: Tensor  # int64 [question]
    word: Tensor  # int64 [question]: the word that attends
    candidate: Tensor  # bool [question, word]
    wanted: Tensor  # bool [question, word]: the right answers


def find_words(maps: Tensor, visible: Tensor, questions: WordQuestions) -> tuple[Tensor, Tensor]:
    """Return whether each head attends most to a wanted word, and whether a wanted word is visible:
    bool `[question, head]` both.

    Parameters
    ----------
    maps : Tensor
        `[example, head, from word, to word]`; of equally attended words the first counts.
    visible : Tensor
        Bool `[example, 1, from word, to word]`.
    questions : WordQuestions
        Of the same batch.
    """
    weights = maps[questions.example, :, questions.word]  # question, head, word
    is_visible = visible[questions.example, :, questions.word]
    is_candidate = questions.candidate[:, None] & is_visible
    most_attended = weights.masked_fill(~is_candidate, -1.0).argmax(-1, keepdim=True)
    is_right = (questions.wanted[:, None] & is_visible).expand(-1, maps.shape[1], -1)
    return is_right.gather(-1, most_attended)[..., 0], is_right.any(-1)


def simple_maps(batch: Batch, causal: bool) -> tuple[Tensor, Tensor]:
    """Return word-level maps `[example, 2, from word, to word]` of two simple heads, and which words
    are visible in such a model, bool `[example, 1, from word, to word]`.

    The first head attends uniformly. The second attends to the first token alone: all words tie
    (unless that token is the first word), and as for every tie the first visible word counts."""
    return batch.remember((simple_maps.__name__, causal), lambda: _make_simple(batch, causal))


def _make_simple(batch: Batch, causal: bool) -> tuple[Tensor, Tensor]:
    index = word_index(batch)
    attention_mask = batch.attention_mask
    visible = (attention_mask[:, :, None] & attention_mask[:, None, :])[:, None]
    if causal:
        triangle = torch.ones(visible.shape[-2:], dtype=torch.bool, device=visible.device).tril()
        visible = visible & triangle
    uniform = visible.double() / visible.sum(-1, keepdim=True).clamp(min=1)
    maps = fold(torch.cat([uniform, torch.zeros_like(uniform)], 1), index)
    # Rounded: words of equally many subwords tie, in whatever order their parts were added up.
    maps = (maps * 2**32).round()
    return maps, fold(visible.to(index.member), index) > 0
