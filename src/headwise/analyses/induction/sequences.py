"""Random sequences written twice, and one pass of a model over some of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headwise.core.errors import ModelError
from headwise.models import HeadModel
from headwise.models.direct import Recorded
from headwise.models.structure import Structure
from headwise.models.view import AttentionRows, Watcher
from headwise.text.encode import Batch, Encoded, collate
from headwise.text.synthetic import synthetic_row, word_ids

SHORTEST = 4  # tokens of a sequence: below that every offset is special
BEYOND = 2  # offsets before the earlier occurrence: a taste for far tokens has no end there
LOGITS_BYTES = 2**28


@dataclass(frozen=True, slots=True, eq=False)
class RepeatedSequences:
    """Rows `[bos] r r`; `start` is where the first r starts, `length` how long r is."""

    rows: tuple[Encoded, ...]
    start: int
    length: int

    @property
    def second(self) -> slice:
        """Where the second r stands."""
        return slice(self.start + self.length, self.start + 2 * self.length)


def repeats(model: HeadModel, count: int, length: int, seed: int) -> RepeatedSequences:
    """So many random sequences of whole words, each written twice, after a beginning token where
    there is one.

    Drawn without repetition where the vocabulary has enough words; shorter where the model takes
    less."""
    encoder = model.encoder
    opening = [] if encoder.cls_id is None else [encoder.cls_id]
    length = min(length, (encoder.max_length - len(opening)) // 2)
    if length < SHORTEST:
        raise ModelError(
            f"{model.name} takes {encoder.max_length} tokens, too few for a sequence of {SHORTEST} written twice; "
            "raise --max-length."
        )
    words = word_ids(encoder)
    if len(words) < 2:
        raise ModelError(
            f"The vocabulary of {model.name} has fewer than two ordinary tokens to make sequences of."
        )
    random = np.random.default_rng(seed)
    rows = []
    for index in range(count):
        drawn = random.choice(words, length, replace=len(words) < length)
        rows.append(synthetic_row(encoder, [*opening, *drawn, *drawn], index))
    return RepeatedSequences(tuple(rows), len(opening), length)


def at_once(model: HeadModel, repeated: RepeatedSequences) -> int:
    """How many sequences go through the model together: their scores over the vocabulary are
    held."""
    head = model.module.get_output_embeddings()
    vocabulary = getattr(head, "out_features", None) or model.config.vocab_size
    return max(1, LOGITS_BYTES // (4 * int(vocabulary) * len(repeated.rows[0])))


class OffsetWatcher(Watcher):
    """Takes mean weights by offset from the second halves of one batch.

    `profile[layer]` is `[example, head, offset]`, the mean of `A[i, i − offset]` over the rows i of
    the second half that have a token of the sequence there, offsets from 0 to two more than a
    sequence is long; `uniform[layer]`, what a uniform head would have; `most[layer]` `[example,
    head, row]`, where each row looks most."""

    needs = frozenset({"attention"})

    def __init__(self, repeated: RepeatedSequences) -> None:
        self.repeated = repeated
        self.profile: dict[int, Tensor] = {}
        self.uniform: dict[int, float] = {}
        self.most: dict[int, list[Tensor]] = {}

    def on_rows(self, rows: AttentionRows) -> None:
        second, length = self.repeated.second, self.repeated.length
        first, last = max(rows.start, second.start), min(rows.stop, second.stop)
        if first >= last:
            return
        here = torch.arange(first, last, device=rows.weights.device)
        own = rows.weights[:, :, here - rows.start]
        offsets = torch.arange(length + 1 + BEYOND, device=here.device)
        place = here[:, None] - offsets
        there = place >= self.repeated.start
        at = place.clamp(min=0)[None, None].expand(*own.shape[:2], -1, -1)
        rows_with = length - (offsets - length).clamp(min=0)
        share = torch.where(there, own.gather(-1, at), 0).sum(-2).double() / rows_with
        seen = rows.visible[0, 0, here - rows.start].sum(-1).double()
        before = self.profile.get(rows.layer)
        self.profile[rows.layer] = share if before is None else before + share
        self.uniform[rows.layer] = (
            self.uniform.get(rows.layer, 0.0) + float((1 / seen).sum()) / length
        )
        self.most.setdefault(rows.layer, []).append(own.argmax(-1))


def halves(logits: Tensor, batch: Batch, repeated: RepeatedSequences) -> Tensor:
    """Mean loss in nats of the tokens of the first and of the second half, `[example, half]`."""
    targets = batch.ids[:, 1:]
    losses = torch.nn.functional.cross_entropy(
        logits[:, :-1].float().flatten(0, 1), targets.flatten(), reduction="none"
    )
    losses = losses.view(targets.shape)  # the loss of token t stands at t − 1
    middle = repeated.second.start - 1
    return torch.stack(
        [losses[:, max(repeated.start - 1, 0) : middle].mean(-1), losses[:, middle:].mean(-1)],
        dim=-1,
    )


def observe(
    model: HeadModel,
    structure: Structure | None,
    repeated: RepeatedSequences,
    rows: tuple[Encoded, ...],
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Scores of every head on these sequences: `profile[sequence, layer, head, offset]`,
    `uniform[layer]`, `copying[sequence, layer, head]` where the model has direct contributions, and
    `loss[sequence, half]`."""
    batch = collate(rows, model.pad_id, model.device)
    watch = OffsetWatcher(repeated)
    recorded = None if structure is None else Recorded(model, structure, batch, watch.on_rows)
    output = model.forward(batch, watch, logits=True) if recorded is None else recorded.output
    layers = sorted(watch.profile)
    found = {
        "profile": torch.stack([watch.profile[layer] for layer in layers], 1).float().cpu().numpy(),
        "uniform": np.array([watch.uniform[layer] for layer in layers]),
        "loss": halves(output.logits, batch, repeated).double().cpu().numpy(),
    }
    if recorded is not None:
        copied = []
        for layer in layers:
            looked = torch.cat(watch.most[layer], -1)
            target = batch.ids[:, None].expand(-1, looked.shape[1], -1).gather(-1, looked)
            copied.append(recorded.of_heads(layer, target, repeated.second).mean(-1))
        found["copying"] = torch.stack(copied, 1).float().cpu().numpy()
    return found, {}


def disabled_piece(
    model: HeadModel,
    repeated: RepeatedSequences,
    rows: tuple[Encoded, ...],
    heads: Sequence[tuple[int, int]],
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The loss of the second half `[sequence]` without these heads, as a piece."""
    with torch.no_grad():
        return {
            "loss": disabled_loss(model, repeated, rows, dict.fromkeys(heads, "uniform"))[:, 1]
        }, {}


def disabled_loss(
    model: HeadModel,
    repeated: RepeatedSequences,
    rows: tuple[Encoded, ...],
    heads: Mapping[tuple[int, int], str],
) -> np.ndarray:
    """Loss of both halves `[sequence, half]` with heads disabled."""
    found = []
    size = at_once(model, repeated)
    for start in range(0, len(rows), size):
        batch = collate(rows[start : start + size], model.pad_id, model.device)
        output = model.forward(batch, interventions=dict(heads), logits=True)
        found.append(halves(output.logits, batch, repeated).double().cpu().numpy())
    return np.concatenate(found)
