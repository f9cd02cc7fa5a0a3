"""Batches for masked-language-model and next-sentence training, drawn from one array of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

PAD = 0
CLS = 101
SEP = 102
MASK = 103
FULL_STOP = 1012
FIRST_WORD = 1000  # ids below it are unused, special or single signs
IGNORED = -100  # as torch's cross entropy ignores it

HELD_OUT_SHARE = 0.005  # of the tokens, at the end of the text
FULL_LENGTH_SHARE = 0.75  # the other examples have any length: short texts occur in practice
SINGLE_SHARE = 0.15  # examples of one sentence alone
SHORTEST = 14  # tokens, special ones included
MASKED_SHARE = 0.15
KEPT_MASK = 0.8  # of the masked tokens become [MASK], one in ten a random word, one in ten stays
KEPT_RANDOM = 0.9


@dataclass(frozen=True)
class TokenCorpus:
    """Tokens on a device, and where a sentence or paragraph may start."""

    tokens: Tensor
    starts: Tensor

    @classmethod
    def load(cls, folder: Path, device: str) -> TokenCorpus:
        tokens = np.load(folder / "tokens.npy").astype(np.int32)
        paragraphs = np.load(folder / "paragraphs.npy").astype(np.int64)
        on_device = torch.from_numpy(tokens).to(device)
        after_full_stops = (on_device == FULL_STOP).nonzero().squeeze(1) + 1
        starts = torch.cat([torch.from_numpy(paragraphs).to(device), after_full_stops]).unique()
        return cls(on_device, starts)

    def split(self, length: int) -> tuple[TokenCorpus, TokenCorpus]:
        """Return the training and the held-out part; no example reaches from one into the other."""
        n_tokens = len(self.tokens)
        border = int(n_tokens * (1 - HELD_OUT_SHARE))
        margin = 4 * length
        training = self.starts[self.starts < border - margin]
        held_out = self.starts[(self.starts >= border) & (self.starts < n_tokens - margin)]
        if len(held_out) < 2:
            raise ValueError(f"{n_tokens:,} tokens are too few: none are left to be held out.")
        return TokenCorpus(self.tokens, training), TokenCorpus(self.tokens, held_out)


@dataclass(frozen=True)
class Batch:
    """One batch; `first_sep` and `last_sep` are the same where an example has one sentence."""

    input_ids: Tensor  # [example, token]
    segments: Tensor
    attention_mask: Tensor
    masked_positions: Tensor  # [example, masked token]
    masked_labels: Tensor
    is_random_next: Tensor  # [example]; 1: the second sentence comes from elsewhere
    first_sep: Tensor
    last_sep: Tensor

    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(getattr(self, field) for field in self.__dataclass_fields__)


def draw_batch(
    corpus: TokenCorpus, size: int, length: int, vocabulary: int, generator: torch.Generator
) -> Batch:
    """Draw `[CLS] a [SEP] b [SEP]` examples, half of them with the true continuation as `b`."""
    device = corpus.tokens.device
    starts = corpus.starts

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, device=device, generator=generator)

    def integers(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, device=device, generator=generator)

    def next_start(position: Tensor) -> Tensor:
        return starts[torch.searchsorted(starts, position).clamp(max=len(starts) - 1)]

    # Lengths: `a` ends where a sentence ends, near a random share of the room, `b` fills the rest.
    any_length = integers(SHORTEST, length + 1, size)
    total = torch.where(uniform(size) < FULL_LENGTH_SHARE, length, any_length)
    is_single = uniform(size) < SINGLE_SHARE
    room = total - 3
    a_start = starts[integers(0, len(starts) - 1, size)]
    a_wished = (room * (0.25 + 0.5 * uniform(size))).long().clamp(min=4)
    a_length = torch.minimum(next_start(a_start + a_wished) - a_start, room - 3).clamp(min=3)
    one_sentence = torch.minimum(next_start(a_start + 1) - a_start, total - 2).clamp(min=3)
    a_length = torch.where(is_single, one_sentence, a_length)
    b_length = torch.where(is_single, 0, room - a_length)
    is_next = uniform(size) < 0.5
    elsewhere = starts[integers(0, len(starts) - 1, size)]
    b_start = torch.where(is_next, a_start + a_length, elsewhere)

    # Positions: 0 [CLS]; 1 to a_length: a; [SEP]; b; [SEP].
    position = torch.arange(length, device=device)[None]
    first_sep = a_length + 1
    last_sep = torch.where(is_single, first_sep, a_length + b_length + 2)
    in_a = (position >= 1) & (position <= a_length[:, None])
    in_b = (position > first_sep[:, None]) & (position < last_sep[:, None])
    is_word = in_a | in_b
    from_a = a_start[:, None] + position - 1
    from_b = b_start[:, None] + position - first_sep[:, None] - 1
    source = torch.where(in_a, from_a, from_b).clamp(0, len(corpus.tokens) - 1)
    input_ids = torch.where(is_word, corpus.tokens[source].long(), PAD)
    is_sep = (position == first_sep[:, None]) | (position == last_sep[:, None])
    input_ids = torch.where(is_sep, SEP, input_ids)
    input_ids[:, 0] = CLS
    segments = ((position > first_sep[:, None]) & (position <= last_sep[:, None])).long()
    attention_mask = position <= last_sep[:, None]

    # Masking: the same number of slots in each example, unused ones ignored by the loss.
    n_slots = round(length * MASKED_SHARE) + 1
    score, masked_positions = (uniform(size, length) * is_word).topk(n_slots, dim=1)
    n_masked = (is_word.sum(1) * MASKED_SHARE).round().clamp(min=1)
    is_used = (torch.arange(n_slots, device=device)[None] < n_masked[:, None]) & (score > 0)
    original = input_ids.gather(1, masked_positions)
    masked_labels = torch.where(is_used, original, IGNORED)
    random_words = integers(FIRST_WORD, vocabulary, size, n_slots)
    draw = uniform(size, n_slots)
    replaced = torch.where(
        draw < KEPT_MASK, MASK, torch.where(draw < KEPT_RANDOM, random_words, original)
    )
    replaced = torch.where(is_used, replaced, original)
    input_ids = input_ids.scatter(1, masked_positions, replaced)
    is_random_next = torch.where(is_single, IGNORED, (~is_next).long())
    return Batch(
        input_ids=input_ids,
        segments=segments,
        attention_mask=attention_mask,
        masked_positions=masked_positions,
        masked_labels=masked_labels,
        is_random_next=is_random_next,
        first_sep=first_sep,
        last_sep=last_sep,
    )
