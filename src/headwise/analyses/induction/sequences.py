"""Random sequences written twice, and the passes of a model over them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headwise.core.errors import ModelError
from headwise.models import HeadModel
from headwise.models.direct import Recorded
from headwise.models.interventions import head_interventions, plan_interventions
from headwise.models.prefix import Prefix
from headwise.models.session import Session
from headwise.models.structure import Structure
from headwise.models.view import AttentionRows, Watcher
from headwise.text.encode import Batch, Encoded, collate
from headwise.text.synthetic import synthetic_row, word_ids

SHORTEST = 4  # tokens of a sequence: below that every offset is special
# Offsets before the earlier occurrence: a preference for far tokens does not end at it.
BEYOND = 2
LOGITS_BYTES = 2**28
# The largest relative difference of runs that share their lower layers from whole ones.
SHARING_ERROR = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class RepeatedSequences:
    """Rows `[bos] r r`; the first r begins at `start` and has `length` tokens."""

    rows: tuple[Encoded, ...]
    start: int
    length: int

    @property
    def second(self) -> slice:
        """The tokens of the second r."""
        return slice(self.start + self.length, self.start + 2 * self.length)


def make_sequences(model: HeadModel, count: int, length: int, seed: int) -> RepeatedSequences:
    """Return random sequences of whole words, each written twice, after a beginning token if there
    is one.

    Words are drawn without repetition if the vocabulary has enough; sequences are shorter if the
    model takes less."""
    encoder = model.encoder
    beginning = [] if encoder.cls_id is None else [encoder.cls_id]
    length = min(length, (encoder.max_length - len(beginning)) // 2)
    if length < SHORTEST:
        raise ModelError(
            f"{model.name} takes {encoder.max_length} tokens, too few for a sequence of {SHORTEST} "
            "written twice; raise max_length.",
            option="max_length",
        )
    words = word_ids(encoder)
    if len(words) < 2:
        raise ModelError(
            f"The vocabulary of {model.name} has fewer than two ordinary tokens to make sequences "
            "of."
        )
    random = np.random.default_rng(seed)
    rows = []
    for index in range(count):
        drawn = random.choice(words, length, replace=len(words) < length)
        rows.append(synthetic_row(encoder, [*beginning, *drawn, *drawn], index))
    return RepeatedSequences(tuple(rows), len(beginning), length)


def sequences_at_once(model: HeadModel, repeated: RepeatedSequences) -> int:
    """Return how many sequences fit into one batch; their logits are in memory."""
    head = model.module.get_output_embeddings()
    vocabulary = getattr(head, "out_features", None) or model.config.vocab_size
    bytes_per_sequence = 4 * int(vocabulary) * len(repeated.rows[0])
    return max(1, LOGITS_BYTES // bytes_per_sequence)


class OffsetWatcher(Watcher):
    """Collects mean weights by offset from the second halves of one batch.

    Attributes
    ----------
    profile
        By layer, `[example, head, offset]`: the mean of `A[i, i − offset]` over the rows i of the
        second half that have a token of the sequence there; offsets from 0 to two more than a
        sequence is long.
    uniform
        By layer, what a uniform head would have.
    most
        By layer, blocks `[example, head, row]`: the key each row attends to most.
    """

    needs = frozenset({"attention"})

    def __init__(self, repeated: RepeatedSequences) -> None:
        self.repeated = repeated
        self.profile: dict[int, Tensor] = {}
        self.uniform: dict[int, float] = {}
        self.most: dict[int, list[Tensor]] = {}

    def on_rows(self, rows: AttentionRows) -> None:
        second = self.repeated.second
        length = self.repeated.length
        first_row = max(rows.start, second.start)
        last_row = min(rows.stop, second.stop)
        if first_row >= last_row:
            return
        query = torch.arange(first_row, last_row, device=rows.weights.device)
        weights = rows.weights[:, :, query - rows.start]
        offsets = torch.arange(length + 1 + BEYOND, device=query.device)
        key = query[:, None] - offsets
        in_sequence = key >= self.repeated.start
        index = key.clamp(min=0)[None, None].expand(*weights.shape[:2], -1, -1)
        at_offset = torch.where(in_sequence, weights.gather(-1, index), 0).sum(-2).double()
        # Offsets beyond one sequence reach back before its beginning from the first rows.
        n_rows = length - (offsets - length).clamp(min=0)
        mean = at_offset / n_rows
        n_visible = rows.visible[0, 0, query - rows.start].sum(-1).double()
        uniform = float((1 / n_visible).sum()) / length
        layer = rows.layer
        if layer in self.profile:
            mean = self.profile[layer] + mean
        self.profile[layer] = mean
        self.uniform[layer] = self.uniform.get(layer, 0.0) + uniform
        self.most.setdefault(layer, []).append(weights.argmax(-1))


def _loss_rows(repeated: RepeatedSequences) -> tuple[slice, slice]:
    """Return the rows that predict the tokens of the first and of the second half: a token is
    predicted from the one before it."""
    beginning = max(repeated.start - 1, 0)
    middle = repeated.second.start - 1
    return slice(beginning, middle), slice(middle, repeated.second.stop - 1)


def _losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the loss in nats of each target, `[example, row]`."""
    losses = torch.nn.functional.cross_entropy(
        logits.float().flatten(0, 1), targets.flatten(), reduction="none"
    )
    return losses.view(targets.shape)


def observe_sequences(
    model: HeadModel,
    structure: Structure | None,
    repeated: RepeatedSequences,
    rows: tuple[Encoded, ...],
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the observations of every head on these sequences, as arrays of a checkpoint.

    `profile[sequence, layer, head, offset]`, `uniform[layer]`, `loss[sequence, half]`, and
    `copying[sequence, layer, head]` if the model has direct contributions.
    """
    batch = collate(rows, model.pad_id, model.device)
    watcher = OffsetWatcher(repeated)
    recorded = None
    both_halves = slice(0, repeated.second.stop - 1)
    if structure is None:
        logits = model.forward(batch, watcher, logits=True).logits[:, both_halves]
        losses = _losses(logits, batch.ids[:, 1:])
    else:
        recorded = Recorded(model, structure, batch, watcher.on_rows)
        losses = recorded.token_losses(both_halves)
    half_losses = [losses[:, rows].mean(-1) for rows in _loss_rows(repeated)]
    layers = sorted(watcher.profile)
    profile = torch.stack([watcher.profile[layer] for layer in layers], 1)
    arrays = {
        "profile": profile.float().cpu().numpy(),
        "uniform": np.array([watcher.uniform[layer] for layer in layers]),
        "loss": torch.stack(half_losses, dim=-1).double().cpu().numpy(),
    }
    if recorded is not None:
        copied = []
        for layer in layers:
            attended = torch.cat(watcher.most[layer], -1)
            ids = batch.ids[:, None].expand(-1, attended.shape[1], -1)
            attended_token = ids.gather(-1, attended)
            copied.append(recorded.of_heads(layer, attended_token, repeated.second).mean(-1))
        arrays["copying"] = torch.stack(copied, 1).float().cpu().numpy()
    return arrays, {}


class SecondHalfLoss:
    """Computes the loss of the second half with uniform attention in some heads.

    Layers below the first with such a head are run once for all sets of heads, and logits are
    computed for the second half alone.

    Parameters
    ----------
    model : HeadModel
        A causal language model.
    repeated : RepeatedSequences
        The sequences.
    rows : tuple of Encoded
        Those that are read.
    first_layer : int
        The first layer in which a set has heads.
    """

    def __init__(
        self,
        model: HeadModel,
        repeated: RepeatedSequences,
        rows: tuple[Encoded, ...],
        first_layer: int,
    ) -> None:
        self.model = model
        self.repeated = repeated
        self.rows = rows
        self.first_layer = first_layer
        # By the first row of the batch; None where layers cannot be shared.
        self._prefixes: dict[int, Prefix | None] = {}

    def __reduce__(self) -> tuple[type[SecondHalfLoss], tuple[Any, ...]]:
        # What the lower layers gave is not sent to workers: they compute it themselves.
        return SecondHalfLoss, (self.model, self.repeated, self.rows, self.first_layer)

    @torch.no_grad()
    def __call__(
        self, heads: Sequence[tuple[int, int]]
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return the loss `[sequence]` without these heads, as arrays of a checkpoint."""
        model = self.model
        losses = []
        batch_size = sequences_at_once(model, self.repeated)
        for start in range(0, len(self.rows), batch_size):
            rows = self.rows[start : start + batch_size]
            batch = collate(rows, model.pad_id, model.device)
            losses.append(self._batch_losses(batch, start, heads).double().cpu().numpy())
        return {"loss": np.concatenate(losses)}, {}

    def _batch_losses(self, batch: Batch, start: int, heads: Sequence[tuple[int, int]]) -> Tensor:
        model = self.model
        _, second = _loss_rows(self.repeated)
        plan = None
        if heads:
            uniform = head_interventions(dict.fromkeys(heads, "uniform"))
            plan = plan_interventions(uniform, model.layers, model.heads, model.d_head)
        session = Session(model.sites, batch.attention_mask, None, plan)
        logit_rows = torch.arange(second.start, second.stop, device=batch.device)
        with ExitStack() as stack:
            stack.enter_context(model.evaluating())
            prefix = self._prefix(batch, start)
            if prefix is not None:
                stack.enter_context(prefix.skipping(self.first_layer, session))
            stack.enter_context(session.running())
            output = model.run(
                batch.ids, batch.attention_mask, batch.types, logits=True, logit_rows=logit_rows
            )
        targets = batch.ids[:, second.start + 1 : second.stop + 1]
        return _losses(output.logits, targets).mean(-1)

    def _prefix(self, batch: Batch, start: int) -> Prefix | None:
        """Return what the lower layers give on a batch, which is run once; None where the upper
        layers of this model need more than that."""
        if start not in self._prefixes:
            self._prefixes[start] = self._shared_layers(batch)
        return self._prefixes[start]

    def _shared_layers(self, batch: Batch) -> Prefix | None:
        model = self.model
        if not self.first_layer or not Prefix.supports(model.sites):
            return None
        whole = Prefix(model)
        session = Session(model.sites, batch.attention_mask)
        with whole.recording(), session.running():
            expected = model.run(batch.ids, batch.attention_mask, batch.types)
        if len(whole.outputs) != model.layers:
            return None
        prefix = whole.repeated(1, self.first_layer)
        session = Session(model.sites, batch.attention_mask)
        with prefix.skipping(self.first_layer, session), session.running():
            repeated = model.run(batch.ids, batch.attention_mask, batch.types)
        difference = (repeated[0] - expected[0]).abs().max()
        if not difference <= SHARING_ERROR * expected[0].abs().max():
            return None
        return prefix
