"""Encode the examples of a task, and batch them by similar length, shuffled by seed and epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headwise.core.errors import InputError
from headwise.text.encode import Encoder
from headwise.text.example import Example

# Batches whose examples are sorted by length together: enough for similar lengths within a batch,
# few enough that the order stays random.
POOL = 50


@dataclass(frozen=True, slots=True, eq=False)
class TaskRows:
    """Token ids and segment ids of examples, with the target of each."""

    ids: list[list[int]]
    types: list[list[int]]
    targets: np.ndarray

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True, eq=False)
class RowBatch:
    """Some rows, padded on the right to the longest of them."""

    ids: Tensor
    types: Tensor
    attention_mask: Tensor
    targets: Tensor


def encode_rows(
    examples: Sequence[Example], targets: np.ndarray, tokenizer: Any, max_length: int
) -> TaskRows:
    """Tokenize examples; longer ones are cut, of a pair the longer sentence first."""
    if any(example.text is None for example in examples):
        return _encode_words(examples, targets, tokenizer, max_length)
    second_sentences = None
    if examples and examples[0].pair is not None:
        second_sentences = [example.pair for example in examples]
    encoding = tokenizer(
        [example.text for example in examples],
        second_sentences,
        truncation="longest_first" if second_sentences else True,
        max_length=max_length,
        return_token_type_ids="token_type_ids" in tokenizer.model_input_names,
        verbose=False,
    )
    ids_of_rows = encoding["input_ids"]
    for example, ids in zip(examples, ids_of_rows, strict=True):
        if not ids:
            raise InputError(f"{example.where}: the text has no tokens; remove the empty row.")
    types = encoding.get("token_type_ids") or [[0] * len(ids) for ids in ids_of_rows]
    return TaskRows(ids_of_rows, types, targets)


def _encode_words(
    examples: Sequence[Example], targets: np.ndarray, tokenizer: Any, max_length: int
) -> TaskRows:
    """Encode examples that are given as words, not as a text."""
    encoder = Encoder(tokenizer, max_length)
    ids = []
    types = []
    for index, example in enumerate(examples):
        row = encoder.encode(example, index)
        if row:
            ids.append(row.ids.tolist())
            types.append(row.types.tolist())
    return TaskRows(ids, types, targets)


def collate_rows(
    rows: TaskRows, index: Sequence[int], pad_id: int, device: torch.device | str
) -> RowBatch:
    """Return one batch of these rows."""
    width = max(len(rows.ids[row]) for row in index)
    padded_ids = []
    padded_types = []
    lengths = []
    for row in index:
        length = len(rows.ids[row])
        padded_ids.append(rows.ids[row] + [pad_id] * (width - length))
        padded_types.append(rows.types[row] + [0] * (width - length))
        lengths.append(length)
    attention_mask = torch.arange(width)[None] < torch.tensor(lengths)[:, None]
    return RowBatch(
        ids=torch.tensor(padded_ids).to(device, non_blocking=True),
        types=torch.tensor(padded_types).to(device, non_blocking=True),
        attention_mask=attention_mask.to(device, non_blocking=True),
        targets=torch.from_numpy(rows.targets[list(index)]).to(device, non_blocking=True),
    )


def training_order(rows: TaskRows, batch_size: int, seed: int, epoch: int) -> list[list[int]]:
    """Return the batches of an epoch: rows shuffled, sorted by length within pools of some batches,
    batches shuffled. They are the same for the same seed and epoch."""
    random = np.random.default_rng([seed, epoch])
    order = random.permutation(len(rows))
    pool_size = batch_size * POOL
    batches = []
    for pool_start in range(0, len(order), pool_size):
        pool = order[pool_start : pool_start + pool_size].tolist()
        pool.sort(key=lambda row: len(rows.ids[row]))
        for start in range(0, len(pool), batch_size):
            batches.append(pool[start : start + batch_size])
    return [batches[number] for number in random.permutation(len(batches))]


def scoring_order(rows: TaskRows, batch_size: int) -> Iterator[list[int]]:
    """Yield all rows in batches, shortest first."""
    order = sorted(range(len(rows)), key=lambda row: len(rows.ids[row]))
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]
