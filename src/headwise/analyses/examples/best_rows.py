"""The best rows of each head in a stream of batches, no two from one document.

For every head there are several *criteria*: the largest weight outside the sink, then each role,
then each relation (outside the sink)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
# Values that agree in so many digits are equal: the same beginning of two texts has the same
# weights but for rounding, which another batch or another order of heads changes.
COMPARED_DIGITS = 5

# Columns of the places of rows.
COLUMNS = ("example", "document", "query", "key")
DOCUMENT = COLUMNS.index("document")


class BestRows:
    """The `keep` highest values of each cell, and where each was found.

    `values[cell, keep]` and `places[cell, keep, 4]` (example, document, query, key); unused places
    have the value −inf. Of equal values the earlier example is kept, so that the order of merging
    does not matter."""

    def __init__(self, cells: int, keep: int) -> None:
        self.keep = keep
        self.values = np.full((cells, keep), EMPTY)
        self.places = np.full((cells, keep, len(COLUMNS)), -1, dtype=np.int64)

    def add(self, values: np.ndarray, places: np.ndarray) -> None:
        """Add candidates, `values[cell, candidate]` and `places[cell, candidate, 4]`."""
        values = np.concatenate([self.values, np.asarray(values, dtype=float)], axis=1)
        places = np.concatenate([self.places, places], axis=1)
        compared = values.round(COMPARED_DIGITS)
        # Highest value first; equal values by example, query and key.
        order = np.lexsort((places[..., 3], places[..., 2], places[..., 0], -compared), axis=1)
        values = np.take_along_axis(values, order, 1)
        compared = np.take_along_axis(compared, order, 1)
        places = np.take_along_axis(places, order[..., None], 1)
        cells = np.arange(len(values))
        for rank in range(self.keep):
            best = compared.argmax(1)
            self.values[:, rank] = np.where(
                compared[cells, best] > EMPTY, values[cells, best], EMPTY
            )
            self.places[:, rank] = places[cells, best]
            is_found = self.values[:, rank, None] > EMPTY
            same_document = places[..., DOCUMENT] == self.places[:, rank, DOCUMENT][:, None]
            compared = np.where(same_document & is_found, EMPTY, compared)
        self.places[self.values == EMPTY] = -1

    def merge(self, other: BestRows) -> None:
        """Add the rows that another has found."""
        self.add(other.values, other.places)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the state as arrays, for a checkpoint."""
        return {"values": self.values, "places": self.places}

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Take over the state of a checkpoint."""
        self.values = np.array(arrays["values"])
        self.places = np.array(arrays["places"])


@dataclass(slots=True)
class LayerBest:
    """The best row of each example in one layer so far, `[example, head, criterion]`."""

    value: Tensor
    query: Tensor
    key: Tensor

    def improve(self, other: LayerBest) -> None:
        """Replace rows by those of a later block that are better."""
        is_better = other.value > self.value
        self.value = torch.where(is_better, other.value, self.value)
        self.query = torch.where(is_better, other.query, self.query)
        self.key = torch.where(is_better, other.key, self.key)


class BestRowsWatcher(Watcher):
    """Collects the best row of each example by layer, head and criterion, and the mean weight on
    each role and relation.

    `role_mass[layer]` and `role_rows[layer]`, `[head, role or relation]`: the weight on each over
    the rows that have one, and the number of these rows. Of relations both exclude the first token:
    the weight, and in place of the number the attention that the rows leave for other tokens."""

    needs = frozenset({"attention"})

    def __init__(
        self, batch: Batch, sieves: Sequence[Sieve], relations: Sequence[Sieve] = ()
    ) -> None:
        self.batch = batch
        self.sieves = (*sieves, *relations)
        self.n_roles = len(sieves)
        self.best: dict[int, LayerBest] = {}
        self.role_mass: dict[int, Tensor] = {}
        self.role_rows: dict[int, Tensor] = {}
        self._block: tuple[int, int] | None = None
        self._matrices = torch.empty(0)

    def on_rows(self, rows: AttentionRows) -> None:
        device = rows.weights.device
        key_number = torch.arange(rows.weights.shape[-1], device=device)
        outside_sink = rows.visible & (key_number > 0)
        heaviest, key = torch.where(outside_sink, rows.weights, -1.0).max(-1)
        values = [heaviest]  # [example, head, row] for each criterion
        keys = [key]
        if self.sieves:
            self._add_roles(rows, values, keys)

        query_number = torch.arange(rows.start, rows.stop, device=device)
        best_values = []
        best_queries = []
        best_keys = []
        for value, key in zip(values, keys, strict=True):
            best_value, best_row = value.max(-1)
            best_values.append(best_value)
            best_queries.append(query_number[best_row])
            best_keys.append(key.gather(-1, best_row[..., None])[..., 0])
        block_best = LayerBest(
            torch.stack(best_values, -1), torch.stack(best_queries, -1), torch.stack(best_keys, -1)
        )
        if rows.layer in self.best:
            self.best[rows.layer].improve(block_best)
        else:
            self.best[rows.layer] = block_best

    def _add_roles(self, rows: AttentionRows, values: list[Tensor], keys: list[Tensor]) -> None:
        """Add the value of each row for each role and relation, all its weight on their tokens."""
        in_role = self._sieve_matrices(rows.start, rows.stop)[:, :, None] & rows.visible[:, None]
        outside_sink = 1 - rows.weights[..., 0]
        masses = []
        counts = []
        for number, mask in enumerate(in_role.unbind(1)):
            is_relation = number >= self.n_roles
            if is_relation:
                # A sink head gives the first word much weight, whatever relation it stands in.
                mask = mask.clone()
                mask[..., 0] = False
            _, key = torch.where(mask, rows.weights, -1.0).max(-1)
            mass = (rows.weights * mask).sum(-1)
            has_role = mask.any(-1)
            values.append(torch.where(has_role, mass, -1.0))
            keys.append(key)
            masses.append((mass * has_role).sum(-1).sum(0).double())
            available = outside_sink if is_relation else torch.ones_like(mass)
            counts.append((available * has_role).sum(-1).sum(0).double())
        mass_of_block = torch.stack(masses, -1)
        rows_of_block = torch.stack(counts, -1)
        if rows.layer in self.role_mass:
            mass_of_block = self.role_mass[rows.layer] + mass_of_block
            rows_of_block = self.role_rows[rows.layer] + rows_of_block
        self.role_mass[rows.layer] = mass_of_block
        self.role_rows[rows.layer] = rows_of_block

    def _sieve_matrices(self, start: int, stop: int) -> Tensor:
        """Return the matrices of all roles and relations on a block of rows."""
        # They are the same in every layer. Only those of the last block are kept: long inputs come
        # in many blocks, which together would be large.
        if self._block != (start, stop):
            self._matrices = sieve_matrices(self.sieves, self.batch, start, stop)
            self._block = (start, stop)
        return self._matrices


def best_rows_of(
    model: HeadModel,
    sieves: Sequence[Sieve],
    relations: Sequence[Sieve],
    documents: Mapping[int, int],
    keep: int,
    rows: Sequence[Encoded],
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the best rows of some examples for each head and criterion, as a checkpoint.

    Its arrays are those of a `BestRows`, and `mass` and `count[layer, head, role or relation]` as
    in `BestRowsWatcher`."""
    n_roles = len(sieves) + len(relations)
    n_cells = model.layers * model.heads * (1 + n_roles)
    best_rows = BestRows(n_cells, keep)
    mass = np.zeros((model.layers, model.heads, n_roles))
    count = np.zeros_like(mass)
    for batch in batches(rows, BATCH_TOKENS, model.pad_id, model.device):
        watcher = BestRowsWatcher(batch, sieves, relations)
        model.forward(batch, watcher)

        def by_cell(name: str, watcher: BestRowsWatcher = watcher) -> np.ndarray:
            layers = [getattr(watcher.best[layer], name) for layer in range(model.layers)]
            by_example = torch.stack(layers, 1).cpu().numpy()
            return by_example.reshape(len(by_example), n_cells).T

        values = by_cell("value")
        example = np.broadcast_to(np.array(batch.index), values.shape)
        document_of = np.array([documents[index] for index in batch.index])
        document = np.broadcast_to(document_of, values.shape)
        places = np.stack([example, document, by_cell("query"), by_cell("key")], -1)
        best_rows.add(np.where(values > 0, values, EMPTY), places)
        for layer in watcher.role_mass:
            mass[layer] += watcher.role_mass[layer].cpu().numpy()
            count[layer] += watcher.role_rows[layer].cpu().numpy()
        batch.forget()
    return best_rows.arrays() | {"mass": mass, "count": count}, {}
