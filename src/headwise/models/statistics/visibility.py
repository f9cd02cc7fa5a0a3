"""Which keys each query may attend to, and what follows from it for all layers alike."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.models.statistics.reducer import PreparedRequest, StatsReducer, WeightBlock
from headwise.models.statistics.request import StatsRequest, StatsResult
from headwise.models.view import AttentionRows


@dataclass(frozen=True, slots=True, eq=False)
class Visibility:
    """Who may attend to whom, in all layers that have the same mask.

    Attributes
    ----------
    n_visible
        How many keys each row may attend to, `[example, row]`; 0 for padding.
    n_pairs
        How many visible pairs (i, i + o) there are, `[example, 2·max_offset + 1]`.
    rows
        V(i) of the requested rows, bool `[example, 1, row, key]`, by name.
    uniform
        The statistics of uniform attention to all visible keys, if requested.
    """

    n_visible: Tensor
    n_pairs: Tensor
    rows: dict[str, Tensor]
    uniform: StatsResult | None = None


class VisibilityBuilder:
    """Builds a `Visibility` from blocks of rows of V(i), bool `[example, 1, row, key]`."""

    def __init__(
        self, prepared: PreparedRequest, layer: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.prepared = prepared
        self.layer = layer
        n_examples, n_queries, n_keys = prepared.sizes
        like = torch.zeros((), dtype=dtype, device=device)
        self._n_visible = torch.zeros(n_examples, n_queries, dtype=torch.int64, device=device)
        self._n_pairs = like.new_zeros(n_examples, 1, n_keys + n_queries - 1)
        self._rows: dict[str, list[Tensor]] = {name: [] for name in prepared.request.rows}
        self._uniform = StatsReducer(prepared, 1, like)

    def add(self, visible: Tensor, rows: slice) -> None:
        """Add the next block of rows."""
        request = self.prepared.request
        self._n_visible[:, rows] = visible[:, 0].sum(-1)
        for name, row_numbers in request.rows.items():
            in_block = (row_numbers >= rows.start) & (row_numbers < rows.stop)
            self._rows[name].append(visible[:, :1, row_numbers[in_block] - rows.start])
        weights = visible[:, :1].to(self._n_pairs.dtype)
        if request.max_offset or request.distance:
            where = self.prepared.diagonal_slice(rows)
            self._n_pairs[..., where] += self.prepared.diagonal_sums(weights)
        if request.uniform:
            uniform_weights = weights / weights.sum(-1, keepdim=True).clamp(min=1)
            self._uniform.add(WeightBlock(uniform_weights, rows))

    def build(self) -> Visibility:
        """Return the visibility, once all rows have been added."""
        n_pairs = self.prepared.within_max_offset(self._n_pairs)[:, 0]
        rows = {name: torch.cat(blocks, dim=2) for name, blocks in self._rows.items()}
        visibility = Visibility(self._n_visible, n_pairs, rows)
        if not self.prepared.request.uniform:
            return visibility
        uniform = self._uniform.result(self.layer, visibility)
        return Visibility(self._n_visible, n_pairs, rows, uniform)


def compute_statistics(request: StatsRequest, rows: AttentionRows) -> StatsResult:
    """Compute the statistics of one layer whose rows are all in one block.

    Parameters
    ----------
    request : StatsRequest
        The statistics to compute.
    rows : AttentionRows
        All rows of the layer.
    """
    weights = rows.weights
    n_examples, n_heads, n_queries, n_keys = weights.shape
    prepared = PreparedRequest(request, (n_examples, n_queries, n_keys), weights.device)
    all_rows = slice(0, n_queries)
    reducer = StatsReducer(prepared, n_heads, weights)
    reducer.add(WeightBlock(weights, all_rows, learned_sink=rows.sink))
    builder = VisibilityBuilder(prepared, rows.layer, weights.dtype, weights.device)
    builder.add(rows.visible, all_rows)
    return reducer.result(rows.layer, builder.build())
