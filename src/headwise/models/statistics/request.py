"""What an analysis may request of attention weights, and the result.

An analysis that states its request (`StatsRequest`) lets the tap compute the statistics without
ever holding the weights of a layer. Every statistic is linear in the weights of a row, or is the
row's entropy or largest weight. A GPU computes all of them inside the attention kernel
(`kernels.py`); elsewhere, weights are formed in blocks and reduced at once (`reducer.py`). Both
give the same numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

# A row that gives less than this share of its attention to all tokens but the first has too little
# left for a distribution without the first token.
MIN_MASS_WITHOUT_FIRST = 1e-4


@dataclass(frozen=True, slots=True, eq=False)
class StatsRequest:
    """Statistics to compute from the weights `A[i, j]` of every layer.

    Parameters
    ----------
    columns : mapping of str to Tensor, default {}
        Sets of keys, bool `[example, key]`: `Σ_j A[i, j]` over the set, for each row.
    equal_labels : mapping of str to (Tensor, Tensor), default {}
        Labels of queries and of keys, integers `[example, token]`: for each row the mass on keys
        that have the query's label. −1 equals nothing.
    offsets : frozenset of int, default {}
        `A[i, i + o]` for each row.
    pairs : mapping of str to Tensor, default {}
        Single weights: integers `[3, pair]`, example, row and key.
    rows : mapping of str to Tensor, default {}
        A few whole rows: sorted integers `[row]`, the same for every example.
    max_offset : int, default 0
        Sums along the diagonals, from −max_offset to max_offset.
    distance : bool, default False
        `Σ_i Σ_j A[i, j]·(j − i)` and the same of `|j − i|`.
    received : bool, default False
        The attention each key receives, `Σ_i A[i, j]`.
    entropy, max_weight : bool, default False
        Entropy and largest weight of each row. The entropy is that of the weights scaled to sum to
        one (they already do unless the model has a learned sink).
    without_first : bool, default False
        Each row without its first token: the mass that is left, and entropy and largest weight of
        the remaining weights scaled to sum to one.
    uniform : bool, default False
        Also compute everything for a head that attends uniformly to all visible keys.
    """

    columns: Mapping[str, Tensor] = field(default_factory=dict)
    equal_labels: Mapping[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    offsets: frozenset[int] = frozenset()
    pairs: Mapping[str, Tensor] = field(default_factory=dict)
    rows: Mapping[str, Tensor] = field(default_factory=dict)
    max_offset: int = 0
    distance: bool = False
    received: bool = False
    entropy: bool = False
    max_weight: bool = False
    without_first: bool = False
    uniform: bool = False

    def __or__(self, other: StatsRequest) -> StatsRequest:
        """Return a request for the statistics of both. A name in both must mean the same thing."""
        merged: dict[str, Any] = {}
        for option in fields(self):
            left = getattr(self, option.name)
            right = getattr(other, option.name)
            if option.name == "max_offset":
                merged[option.name] = max(left, right)
            else:
                merged[option.name] = left | right
        return StatsRequest(**merged)

    @staticmethod
    def merge(requests: Sequence[StatsRequest]) -> StatsRequest | None:
        """Return one request for the statistics of all; None if there are no requests."""
        merged: StatsRequest | None = None
        for request in requests:
            merged = request if merged is None else merged | request
        return merged


@dataclass(frozen=True, slots=True, eq=False)
class WithoutFirst:
    """Statistics of each row without its first token, all `[example, head, row]`.

    `mass` is what is left as it is; `entropy` and `max_weight` are those of the remaining weights
    scaled to sum to one (0 where nothing is left)."""

    mass: Tensor
    entropy: Tensor
    max_weight: Tensor


# Fields of a result with one entry per head (dim 1 of their tensors), besides `rows`.
PER_HEAD_FIELDS = (
    "columns",
    "equal_labels",
    "at_offset",
    "pair_weights",
    "diagonals",
    "offset_sum",
    "distance_sum",
    "received",
    "entropy",
    "max_weight",
    "without_first",
    "learned_sink",
)


@dataclass(frozen=True, slots=True, eq=False)
class StatsResult:
    """Statistics of one layer, `[example, head, row]` unless stated, 0 for rows of padding.

    Attributes
    ----------
    columns, equal_labels
        Mass of each row on the requested keys.
    at_offset
        `A[i, i + o]` by offset.
    pair_weights
        Weights of the requested pairs, `[pair, head]`.
    rows
        Requested rows: weights `[example, head, row, key]` and V(i) `[example, 1, row, key]`.
    diagonals, n_pairs
        Sums along diagonals, `[example, head, 2·max_offset + 1]`, and how many visible pairs
        (i, i + o) each has, `[example, 2·max_offset + 1]`.
    offset_sum, distance_sum
        `Σ A[i, j]·(j − i)` and `Σ A[i, j]·|j − i|` over all rows, `[example, head]`.
    received
        `[example, head, key]`.
    entropy, max_weight, without_first
        Of each row.
    learned_sink
        Mass on a learned sink; None where the model has none.
    n_visible
        How many keys each row may attend to, `[example, row]`.
    uniform
        The same statistics of uniform attention, `[example, 1, row]`, if requested.
    """

    layer: int
    columns: Mapping[str, Tensor]
    equal_labels: Mapping[str, Tensor]
    at_offset: Mapping[int, Tensor]
    pair_weights: Mapping[str, Tensor]
    rows: Mapping[str, tuple[Tensor, Tensor]]
    diagonals: Tensor
    n_pairs: Tensor
    offset_sum: Tensor | None
    distance_sum: Tensor | None
    received: Tensor | None
    entropy: Tensor | None
    max_weight: Tensor | None
    without_first: WithoutFirst | None
    learned_sink: Tensor | None
    n_visible: Tensor
    uniform: StatsResult | None

    @property
    def heads(self) -> int:
        return self.diagonals.shape[1]

    @property
    def nbytes(self) -> int:
        """Approximate size in bytes."""
        n_tensors = len(self.columns) + len(self.equal_labels) + len(self.at_offset)
        for tensor in (self.entropy, self.max_weight, self.received):
            if tensor is not None:
                n_tensors += 1
        if self.without_first is not None:
            n_tensors += 3
        return self.diagonals.nbytes + n_tensors * self.n_visible.numel() * self.heads * 4

    def rows_without_first(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return which of these rows leave enough to tokens but the first, and their scales.

        Every variable that describes rows without the first token uses these rows and scales.

        Parameters
        ----------
        rows : Tensor
            Candidate rows, bool `[example, 1 or head, row]`.

        Returns
        -------
        usable : Tensor
            Bool `[example, head, row]`: rows whose tokens but the first have more than
            `MIN_MASS_WITHOUT_FIRST` of what all tokens have.
        scale : Tensor
            `[example, head, row]`: what makes the remaining weights sum to one; 0 for other rows.
        """
        assert self.without_first is not None
        mass = self.without_first.mass
        tiny = torch.finfo(mass.dtype).tiny
        share = mass
        if self.learned_sink is not None:  # a learned sink takes its mass from all tokens
            share = mass / (1 - self.learned_sink).clamp(min=tiny)
        usable = rows & (share > MIN_MASS_WITHOUT_FIRST)
        scale = torch.where(usable, 1 / mass.clamp(min=tiny), 0.0)
        return usable, scale

    def diagonals_within(self, max_offset: int) -> tuple[Tensor, Tensor]:
        """Return the sums along diagonals from −max_offset to max_offset, and their numbers of
        pairs."""
        middle = self.diagonals.shape[-1] // 2
        window = slice(middle - max_offset, middle + max_offset + 1)
        return self.diagonals[..., window], self.n_pairs[..., window]


def can_join(first: StatsResult, second: StatsResult) -> bool:
    """Return whether `second` may be joined to `first` by `join_layers`.

    They must be of consecutive layers with equal visibility, and have the same fields (one may
    have a learned sink, for instance)."""
    if second.layer != first.layer + 1 or first.heads != second.heads:
        return False
    if first.uniform is not second.uniform:
        return False
    for name in PER_HEAD_FIELDS:
        if (getattr(first, name) is None) != (getattr(second, name) is None):
            return False
    if first.n_visible is second.n_visible:
        return True
    # Comparing values on a GPU would wait for it, so unequal tensors count as different there.
    return not first.n_visible.is_cuda and torch.equal(first.n_visible, second.n_visible)


def join_layers(results: Sequence[StatsResult]) -> StatsResult:
    """Return the results of several layers as one with the heads of all, in order.

    A GPU takes as long for one layer as for many, so the analyses reduce many at once. Each result
    must satisfy `can_join` with the one before it."""
    if len(results) == 1:
        return results[0]
    joined: dict[str, Any] = {}
    for name in PER_HEAD_FIELDS:
        joined[name] = _join_heads([getattr(result, name) for result in results])
    rows = {}
    for name, (_, visible) in results[0].rows.items():
        weights = _join_heads([result.rows[name][0] for result in results])
        rows[name] = (weights, visible)
    return replace(results[0], rows=rows, **joined)


def _join_heads(parts: Sequence[Any]) -> Any:
    """Concatenate the heads of several layers: of a tensor, of each tensor in a mapping, or of the
    fields of a `WithoutFirst`."""
    first = parts[0]
    if first is None:
        return None
    if isinstance(first, Mapping):
        return {name: _join_heads([part[name] for part in parts]) for name in first}
    if isinstance(first, WithoutFirst):
        return WithoutFirst(
            mass=_join_heads([part.mass for part in parts]),
            entropy=_join_heads([part.entropy for part in parts]),
            max_weight=_join_heads([part.max_weight for part in parts]),
        )
    return torch.cat(list(parts), dim=1)
