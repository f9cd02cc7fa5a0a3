"""The small language in which an analysis says what it wants of attention weights: the tap can then
compute it without ever holding them.

Whatever is asked is linear in the weights of a row, or its entropy or largest weight. A GPU gives
all of it inside the attention kernel (`kernels.py`); elsewhere weights are formed in blocks and
reduced at once (`gathered.py`). Both are the same numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor

LEAST_REST = 1e-4  # of its attention: a row that leaves less to all but the first token has no rest to speak of


@dataclass(frozen=True, slots=True, eq=False)
class StatsRequest:
    """What is wanted of the weights `A[i, j]` of every layer.

    Parameters
    ----------
    columns : mapping of str to Tensor, default {}
        Sets of keys, bool `[example, key]`: `Σ_j A[i, j]` over the set, for each row.
    labels : mapping of str to (Tensor, Tensor), default {}
        Labels of queries and of keys, integers `[example, token]`: for each row the mass on keys
        whose label is the query's. −1 is equal to nothing.
    offsets : frozenset of int, default {}
        `A[i, i + o]` for each row.
    pairs : mapping of str to Tensor, default {}
        Single weights: integers `[3, pair]`, example, row and key.
    rows : mapping of str to Tensor, default {}
        Whole rows, where few are wanted: sorted integers `[row]`, the same of every example.
    reach : int, default 0
        Sums along the diagonals, from −reach to reach.
    distance : bool, default False
        `Σ_i Σ_j A[i, j]·(j − i)` and the same of `|j − i|`.
    received : bool, default False
        What each key receives, `Σ_i A[i, j]`.
    entropy, largest : bool, default False
        Of each row; the entropy is that of the weights made to sum to one (they do unless there is
        a learned sink).
    rest : bool, default False
        Of each row without the first token: its mass, and the entropy and largest weight of what it
        is once made to sum to one again.
    uniform : bool, default False
        All of it also for a head that attends alike to all it can see.
    """

    columns: Mapping[str, Tensor] = field(default_factory=dict)
    labels: Mapping[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    offsets: frozenset[int] = frozenset()
    pairs: Mapping[str, Tensor] = field(default_factory=dict)
    rows: Mapping[str, Tensor] = field(default_factory=dict)
    reach: int = 0
    distance: bool = False
    received: bool = False
    entropy: bool = False
    largest: bool = False
    rest: bool = False
    uniform: bool = False

    def __or__(self, other: StatsRequest) -> StatsRequest:
        """Both at once. A name that both have is the same thing."""
        sides = (
            (one.name, getattr(self, one.name), getattr(other, one.name)) for one in fields(self)
        )
        return StatsRequest(
            **{name: max(a, b) if name == "reach" else a | b for name, a, b in sides}
        )

    @staticmethod
    def together(asks: list[StatsRequest]) -> StatsRequest | None:
        """All of them at once; None where there is none."""
        return reduce(StatsRequest.__or__, asks) if asks else None


@dataclass(frozen=True, slots=True, eq=False)
class WithoutSink:
    """What a row is without the first token: its mass as it is, entropy and largest weight once it
    sums to one again (0 where nothing is left). All `[example, head, row]`."""

    mass: Tensor
    entropy: Tensor
    largest: Tensor


# What of the answers is said of each head, beside `rows`: dim 1 of its tensors.
BY_HEAD = (
    "columns", "labels", "at", "single", "diagonals", "offset", "distance", "received", "entropy", "largest", "rest",
    "sink",
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class StatsResult:
    """What was asked of one layer: of each row `[example, head, row]` unless said, 0 for rows that
    are padding.

    `uniform` is what a head would have that attends to all it can see alike, `[example, 1, row]`;
    `seen[example, row]`, how many keys that is. `sink[example, head, row]` is the mass on a learned
    sink, None where there is none."""

    layer: int
    columns: Mapping[str, Tensor]
    labels: Mapping[str, Tensor]
    at: Mapping[int, Tensor]
    single: Mapping[str, Tensor]  # [pair, head]
    rows: Mapping[
        str, tuple[Tensor, Tensor]
    ]  # weights [example, head, row, key], and V(i) [example, 1, row, key]
    diagonals: Tensor  # [example, head, 2·reach + 1]
    pairs: Tensor  # [example, 2·reach + 1]: how many (i, i + o) can be seen
    offset: Tensor | None  # [example, head], summed over rows; so `distance`
    distance: Tensor | None
    received: Tensor | None  # [example, head, key]
    entropy: Tensor | None
    largest: Tensor | None
    rest: WithoutSink | None
    sink: Tensor | None
    seen: Tensor
    uniform: StatsResult | None  # where it was asked for

    @property
    def heads(self) -> int:
        return self.diagonals.shape[1]

    @property
    def bytes(self) -> int:
        """About so many are held."""
        rows = [*self.columns.values(), *self.labels.values(), *self.at.values()]
        rows += [one for one in (self.entropy, self.largest, self.received) if one is not None]
        held = len(rows) + (0 if self.rest is None else 3)
        return self.diagonals.nbytes + held * self.seen.numel() * self.heads * 4

    def diagonals_within(self, reach: int) -> tuple[Tensor, Tensor]:
        """The sums along diagonals from −reach to reach, and their pairs."""
        middle = self.diagonals.shape[-1] // 2
        near = slice(middle - reach, middle + reach + 1)
        return self.diagonals[..., near], self.pairs[..., near]


def alike(one: StatsResult, other: StatsResult) -> bool:
    """Whether two layers follow each other, see the same keys and have the same parts (a sink,
    say), so that one may stand beside the other."""
    # A GPU is not asked whether they are equal: it would have to be waited for.
    seen = one.seen is other.seen or (not one.seen.is_cuda and torch.equal(one.seen, other.seen))
    parts = all((getattr(one, name) is None) == (getattr(other, name) is None) for name in BY_HEAD)
    return (
        seen
        and parts
        and one.uniform is other.uniform
        and one.heads == other.heads
        and other.layer == one.layer + 1
    )


def side_by_side(answers: Sequence[StatsResult]) -> StatsResult:
    """Several layers as one with all their heads, in order: a GPU takes as long for one layer as
    for many, so that what is done once for all is not done for each. They must be `alike`."""
    if len(answers) == 1:
        return answers[0]
    return replace(
        answers[0],
        rows={
            name: (_joined([one.rows[name][0] for one in answers]), seen)
            for name, (_, seen) in answers[0].rows.items()
        },
        **{name: _joined([getattr(one, name) for one in answers]) for name in BY_HEAD},
    )


def _joined(parts: Sequence[Any]) -> Any:
    """The heads of several layers in one tensor, in each of several under a name, or in the parts
    of a rest."""
    first = parts[0]
    if first is None:
        return None
    if isinstance(first, Mapping):
        return {name: _joined([part[name] for part in parts]) for name in first}
    if isinstance(first, WithoutSink):
        return WithoutSink(
            *(_joined([getattr(part, one.name) for part in parts]) for one in fields(WithoutSink))
        )
    return torch.cat(list(parts), dim=1)
