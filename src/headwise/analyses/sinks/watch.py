"""What one pass shows of the first token: weights on it, its values, its hidden states, and rows without it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headwise.analyses.surface.analysis import FIRST, LATER, TOKEN_TYPES, kind_columns
from headwise.models import HeadModel
from headwise.models.ask import Answers, Ask
from headwise.models.view import Layer, Rows
from headwise.text.encode import Batch, Encoded, batches
from headwise.text.made import made_row

LEAST = 1e-6  # a row that leaves less than this to other tokens has no rest to speak of
BATCH_TOKENS = 4096


class Watch:
    """Adds up, for each example of a batch and each layer, what is said of the first token.

    Everything is over the rows i > 0 that see token 0: `first`, `above` (weights over the threshold), `uniform`
    (`1/|V(i)|`), `rest_entropy`, `rest_mass`, `rest_largest` (of rows without token 0, made to sum to one), `learned`
    (mass on a learned sink).
    """

    needs = frozenset({"hidden"})

    def __init__(self, batch: Batch, threshold: float) -> None:
        self.batch, self.threshold = batch, threshold
        self.ask: Ask | None = Ask(kind_columns(batch), rest=True, uniform=True)
        self.sums: dict[int, dict[str, Tensor]] = {}

    def rows(self, rows: Rows) -> None: ...

    def answers(self, answers: Answers) -> None:
        rest, even, real = answers.rest, answers.uniform, self.batch.real[:, None]
        assert rest is not None
        assert even is not None
        first = answers.columns[FIRST]
        later = torch.arange(first.shape[-1], device=first.device) > 0
        sees = (even.columns[FIRST] > 0) & real & later  # example, 1, row
        some = sees & (rest.mass > LEAST)
        masses = torch.stack([answers.columns[name] for name in LATER], dim=-1)
        shares = torch.where(some, 1 / rest.mass.clamp(min=LEAST), 0)[..., None] * masses
        found = {
            "rows": sees,
            "first": first * sees,
            "above": (first > self.threshold) & sees,
            "uniform": even.columns[FIRST] * sees,
            "rest_rows": some,
            "rest_entropy": rest.entropy * some,
            "rest_largest": rest.largest * some,
        }
        if answers.sink is not None:
            found["learned"] = answers.sink * real
            found["learned_rate"] = (answers.sink > self.threshold) & real
        own = {name: value.double().sum(-1) for name, value in found.items()}
        self.sums[answers.layer] = own | {"rest_mass": shares.double().sum(-2)}

    def layer(self, layer: Layer) -> None:
        own, real = self.sums[layer.layer], self.batch.real
        if layer.value is not None:
            norms = layer.value.double().norm(dim=-1) * real[:, None]  # example, group, token
            others = norms[..., 1:].sum(-1) / (real.sum(-1) - 1).clamp(min=1)[:, None]
            ratio = norms[..., 0] / others.clamp(min=1e-30)
            heads = own["first"].shape[1]
            own["value_norm_ratio"] = ratio.repeat_interleave(heads // ratio.shape[1], dim=1)
        if layer.hidden is not None:
            norms = layer.hidden.double().norm(dim=-1)
            middle = torch.stack([n[:length].median() for n, length in zip(norms, self.batch.lengths, strict=True)])
            own["hidden_norm_ratio"] = norms[:, 0] / middle


def with_opening(model: HeadModel, row: Encoded, opening: bool) -> Encoded:
    """The row with or without its opening token; as it is where it already is so."""
    encoder = model.encoder
    has = bool(row.ids[0] == encoder.cls_id)
    if has == opening or encoder.cls_id is None:
        return row
    ids = row.ids[1:] if has else np.r_[encoder.cls_id, row.ids][: encoder.max_length]
    return replace(made_row(encoder, ids, row.index), example=row.example)


def observe_piece(
    model: HeadModel, threshold: float, rows: Sequence[Encoded]
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """What `observe` gives, as a piece."""
    return observe(model, rows, threshold), {}


def observe(model: HeadModel, rows: Sequence[Encoded], threshold: float) -> dict[str, np.ndarray]:
    """Means of each example, `[example, layer, head, ...]`, in the order of the rows; NaN where an example has none."""
    order = {row.index: place for place, row in enumerate(rows)}
    found: dict[str, list[np.ndarray]] = {}
    places: list[int] = []
    for batch in batches(rows, BATCH_TOKENS, model.pad_id, model.device):
        watch = Watch(batch, threshold)
        model.forward(batch, watch)
        for name, value in _means(watch, model.layers).items():
            found.setdefault(name, []).append(value)
        places += [order[index] for index in batch.index]
        batch.forget()
    turn = np.argsort(places)
    return {name: np.concatenate(parts)[turn] for name, parts in found.items()}


def _means(watch: Watch, layers: int) -> dict[str, np.ndarray]:
    by = {"first": "rows", "above": "rows", "uniform": "rows", "learned": "", "learned_rate": ""}
    by |= {"rest_entropy": "rest_rows", "rest_largest": "rest_rows", "rest_mass": "rest_rows"}
    by |= {"value_norm_ratio": "", "hidden_norm_ratio": ""}
    out: dict[str, np.ndarray] = {}
    lengths = watch.batch.lengths[:, None].double()
    for name, count in by.items():
        own = [watch.sums[layer].get(name) for layer in range(layers)]
        if any(value is None for value in own):
            continue
        parts = []
        for layer, value in enumerate(own):
            assert value is not None
            if count:
                number = watch.sums[layer][count]
                number = number[..., None] if value.ndim > number.ndim else number
                value = torch.where(number > 0, value / number.clamp(min=1), torch.nan)
            elif name.startswith("learned"):
                value = value / lengths
            parts.append(value)
        out[name] = torch.stack(parts, 1).float().cpu().numpy()
    return out


__all__ = ["TOKEN_TYPES", "observe", "with_opening"]
