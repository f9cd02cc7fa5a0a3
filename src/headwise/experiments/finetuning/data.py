"""Examples of a task as token ids, and batches of similar length from them, shuffled by seed and
epoch."""

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

POOL = 50  # batches whose examples are sorted by length together: near enough in length, far enough from sorted


@dataclass(frozen=True, slots=True, eq=False)
class TaskRows:
    """Token ids and segment ids of examples, with what is to be predicted of each."""

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
    """Tokenize examples; longer ones are cut, of the longer sentence first."""
    if any(example.text is None for example in examples):
        encoder = Encoder(tokenizer, max_length)
        encoded = [encoder.encode(example, i) for i, example in enumerate(examples)]
        return TaskRows(
            [row.ids.tolist() for row in encoded if row],
            [row.types.tolist() for row in encoded if row],
            targets,
        )
    second = (
        [example.pair for example in examples]
        if examples and examples[0].pair is not None
        else None
    )
    found = tokenizer(
        [example.text for example in examples],
        second,
        truncation="longest_first" if second else True,
        max_length=max_length,
        return_token_type_ids="token_type_ids" in tokenizer.model_input_names,
        verbose=False,
    )
    for example, ids in zip(examples, found["input_ids"], strict=True):
        if not ids:
            raise InputError(f"{example.where}: the text has no tokens; remove the empty row.")
    types = found.get("token_type_ids") or [[0] * len(ids) for ids in found["input_ids"]]
    return TaskRows(found["input_ids"], types, targets)


def collate_rows(
    rows: TaskRows, index: Sequence[int], pad_id: int, device: torch.device | str
) -> RowBatch:
    """One batch of these rows."""
    width = max(len(rows.ids[i]) for i in index)
    ids = torch.tensor([rows.ids[i] + [pad_id] * (width - len(rows.ids[i])) for i in index])
    types = torch.tensor([rows.types[i] + [0] * (width - len(rows.types[i])) for i in index])
    lengths = torch.tensor([len(rows.ids[i]) for i in index])
    attention_mask = torch.arange(width)[None] < lengths[:, None]
    targets = torch.from_numpy(rows.targets[list(index)])
    return RowBatch(
        *(part.to(device, non_blocking=True) for part in (ids, types, attention_mask, targets))
    )


def training_order(rows: TaskRows, batch_size: int, seed: int, epoch: int) -> list[list[int]]:
    """The batches of an epoch: rows shuffled, sorted by length within pools of some batches,
    batches shuffled. The same for the same seed and epoch."""
    random = np.random.default_rng([seed, epoch])
    order = random.permutation(len(rows))
    found = []
    for start in range(0, len(order), batch_size * POOL):
        pool = sorted(
            order[start : start + batch_size * POOL].tolist(), key=lambda i: len(rows.ids[i])
        )
        found += [pool[i : i + batch_size] for i in range(0, len(pool), batch_size)]
    return [found[i] for i in random.permutation(len(found))]


def scoring_order(rows: TaskRows, batch_size: int) -> Iterator[list[int]]:
    """All rows, shortest first."""
    order = sorted(range(len(rows)), key=lambda i: len(rows.ids[i]))
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]
