"""The best rows of a stream: what one batch has to offer each head (its sharpest row outside the
sink, and its best row for each role), and the few that are kept, no two from one document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headwise.analyses.roles.sieves import Sieve, sieve_matrices
from headwise.models import HeadModel
from headwise.models.view import AttentionRows, Watcher
from headwise.text.encode import Batch, Encoded, batches

BATCH_TOKENS = 2048
EMPTY = -np.inf
COLUMNS = ("example", "document", "query", "key")


class Best:
    """For each cell the `keep` highest values, with where each was found.

    `values[cell, keep]` and `places[cell, keep, 4]` (example, document, query, key); places without
    a find have the value −inf. Equal values go to the earlier example, so that the order of merging
    does not matter."""

    def __init__(self, cells: int, keep: int) -> None:
        self.keep = keep
        self.values = np.full((cells, keep), EMPTY)
        self.places = np.full((cells, keep, len(COLUMNS)), -1, dtype=np.int64)

    def add(self, values: np.ndarray, places: np.ndarray) -> None:
        """Take in finds, `values[cell, find]` and `places[cell, find, 4]`."""
        values = np.concatenate([self.values, np.asarray(values, dtype=float)], axis=1)
        places = np.concatenate([self.places, places], axis=1)
        order = np.lexsort((places[..., 3], places[..., 2], places[..., 0], -values), axis=1)
        values, places = (
            np.take_along_axis(values, order, 1),
            np.take_along_axis(places, order[..., None], 1),
        )
        cells = np.arange(len(values))
        for rank in range(self.keep):
            at = values.argmax(1)
            self.values[:, rank], self.places[:, rank] = values[cells, at], places[cells, at]
            taken = (places[..., 1] == self.places[:, rank, 1][:, None]) & (
                self.values[:, rank, None] > EMPTY
            )
            values = np.where(taken, EMPTY, values)
        self.places[self.values == EMPTY] = -1

    def merge(self, other: Best) -> None:
        """Take in what another has found."""
        self.add(other.values, other.places)

    def arrays(self) -> dict[str, np.ndarray]:
        return {"values": self.values, "places": self.places}

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        self.values, self.places = np.array(arrays["values"]), np.array(arrays["places"])


class Watch(Watcher):
    """Keeps, for each example, layer, head and kind (sharp, then each role), the best value, its
    query and its key; and adds up the weight on each role over the rows that have one."""

    needs = frozenset({"attention"})

    def __init__(self, batch: Batch, sieves: Sequence[Sieve]) -> None:
        self.batch, self.sieves = batch, tuple(sieves)
        self.best: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
        self.mass: dict[int, tuple[Tensor, Tensor]] = {}

    def on_rows(self, rows: AttentionRows) -> None:
        weights = rows.weights
        key = torch.arange(weights.shape[-1], device=weights.device)
        row = torch.arange(rows.start, rows.stop, device=weights.device)
        outside = rows.visible & (key > 0)  # the first token is where heads rest
        masks = [outside]
        if self.sieves:
            inside = (
                sieve_matrices(self.sieves, self.batch, rows.start, rows.stop)[:, :, None]
                & rows.visible[:, None]
            )
            masks += list(inside.unbind(1))
        values, queries, keys, masses, counts = [], [], [], [], []
        for number, mask in enumerate(masks):
            shown = torch.where(mask, weights, -1.0)
            largest, at = shown.max(-1)
            if number:  # a role's row is as good as all the weight on its sieve
                total = (weights * mask).sum(-1)
                has = mask.any(-1)
                largest = torch.where(has, total, -1.0)
                masses.append((total * has).sum(-1).sum(0).double())
                counts.append(has.expand_as(total).sum(-1).sum(0).double())
            best, which = largest.max(-1)
            values.append(best)
            queries.append(row[which])
            keys.append(at.gather(-1, which[..., None])[..., 0])
        found = tuple(torch.stack(x, -1) for x in (values, queries, keys))  # example, head, kind
        before = self.best.get(rows.layer)
        if before is not None:
            better = found[0] > before[0]
            found = tuple(
                torch.where(better, new, old) for new, old in zip(found, before, strict=True)
            )
        self.best[rows.layer] = found  # type: ignore[assignment]
        if masses:
            added = torch.stack(masses, -1), torch.stack(counts, -1)  # head, role
            old = self.mass.get(rows.layer)
            self.mass[rows.layer] = added if old is None else (old[0] + added[0], old[1] + added[1])


def observe_piece(
    model: HeadModel,
    sieves: Sequence[Sieve],
    documents: Mapping[int, int],
    keep: int,
    rows: Sequence[Encoded],
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """A piece: the best rows of these examples for each head and kind, as arrays of a `Best`, and
    the mean weight on roles as `mass`, `count[layer, head, role]`."""
    kinds = 1 + len(sieves)
    cells = model.layers * model.heads * kinds
    best = Best(cells, keep)
    mass = np.zeros((2, model.layers, model.heads, len(sieves)))
    for batch in batches(rows, BATCH_TOKENS, model.pad_id, model.device):
        watch = Watch(batch, sieves)
        model.forward(batch, watch)
        parts = [
            torch.stack([watch.best[layer][part] for layer in range(model.layers)], 1)
            for part in range(3)
        ]
        values, queries, keys = (p.cpu().numpy().reshape(len(batch), cells).T for p in parts)
        example = np.broadcast_to(np.array(batch.index), values.shape)
        document = np.broadcast_to(
            np.array([documents[index] for index in batch.index]), values.shape
        )
        places = np.stack([example, document, queries, keys], -1)
        best.add(np.where(values > 0, values, EMPTY), places)
        for layer, own in watch.mass.items():
            for part in range(2):
                mass[part, layer] += own[part].cpu().numpy()
        batch.forget()
    return best.arrays() | {"mass": mass[0], "count": mass[1]}, {}
