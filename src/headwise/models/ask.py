"""The small language in which an analysis says what it wants of attention weights: the tap can then compute it without
ever holding them.

Whatever is asked is linear in the weights of a row, or its entropy or largest weight. A GPU gives all of it inside the
attention kernel (`kernels.py`); elsewhere rows of weights are formed in blocks and reduced at once. Both are the same
numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce

import torch
from torch import Tensor

from headwise.models.view import Rows


@dataclass(frozen=True, slots=True, eq=False)
class Ask:
    """What is wanted of the weights `A[i, j]` of every layer.

    Parameters
    ----------
    columns : mapping of str to Tensor, default {}
        Sets of keys, bool `[example, key]`: `Σ_j A[i, j]` over the set, for each row.
    labels : mapping of str to (Tensor, Tensor), default {}
        Labels of queries and of keys, integers `[example, token]`: for each row the mass on keys whose label is the
        query's. −1 is equal to nothing.
    offsets : frozenset of int, default {}
        `A[i, i + o]` for each row.
    reach : int, default 0
        Sums along the diagonals, from −reach to reach.
    distance : bool, default False
        `Σ_i Σ_j A[i, j]·(j − i)` and the same of `|j − i|`.
    entropy, largest : bool, default False
        Of each row; the entropy is that of the weights made to sum to one (they do unless there is a learned sink).
    uniform : bool, default False
        All of it also for a head that attends alike to all it can see.
    """

    columns: Mapping[str, Tensor] = field(default_factory=dict)
    labels: Mapping[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    offsets: frozenset[int] = frozenset()
    reach: int = 0
    distance: bool = False
    entropy: bool = False
    largest: bool = False
    uniform: bool = False

    def __or__(self, other: Ask) -> Ask:
        """Both at once. A name that both have is the same thing."""
        return Ask(
            {**self.columns, **other.columns},
            {**self.labels, **other.labels},
            self.offsets | other.offsets,
            max(self.reach, other.reach),
            self.distance or other.distance,
            self.entropy or other.entropy,
            self.largest or other.largest,
            self.uniform or other.uniform,
        )

    @staticmethod
    def together(asks: list[Ask]) -> Ask | None:
        """All of them at once; None where there is none."""
        return reduce(Ask.__or__, asks) if asks else None


@dataclass(frozen=True, slots=True, eq=False)
class Answers:
    """What was asked of one layer: of each row `[example, head, row]` unless said, 0 for rows that are padding.

    `uniform` is what a head would have that attends to all it can see alike, `[example, 1, row]`; `seen[example, row]`,
    how many keys that is. `sink[example, head, row]` is the mass on a learned sink, None where there is none.
    """

    layer: int
    columns: Mapping[str, Tensor]
    labels: Mapping[str, Tensor]
    at: Mapping[int, Tensor]
    diagonals: Tensor  # [example, head, 2·reach + 1]
    pairs: Tensor  # [example, 2·reach + 1]: how many (i, i + o) can be seen
    offset: Tensor | None  # [example, head], summed over rows; so `distance`
    distance: Tensor | None
    entropy: Tensor | None
    largest: Tensor | None
    sink: Tensor | None
    seen: Tensor
    uniform: Answers | None  # where it was asked for

    def diagonals_within(self, reach: int) -> tuple[Tensor, Tensor]:
        """The sums along diagonals from −reach to reach, and their pairs."""
        middle = self.diagonals.shape[-1] // 2
        near = slice(middle - reach, middle + reach + 1)
        return self.diagonals[..., near], self.pairs[..., near]


class Gathered:
    """Answers put together from the blocks of rows of one layer."""

    def __init__(self, ask: Ask, length: int) -> None:
        self.ask, self.length = ask, length
        self.blocks: list[dict[str, Tensor]] = []
        self.sums: dict[str, Tensor] = {}
        self.seen: list[Tensor] = []

    def add(self, rows: Rows) -> None:
        ask, weights = self.ask, rows.weights
        found: dict[str, Tensor] = {}
        if ask.columns:
            sets = torch.stack(list(ask.columns.values()), dim=-1)[:, None].to(weights.dtype)
            found["columns"] = weights @ sets
        for name, (own, theirs) in ask.labels.items():
            own = own[:, rows.start : rows.stop, None]
            equal = (own == theirs[:, None]) & (own >= 0)
            found[f"label {name}"] = torch.where(equal[:, None], weights, 0).sum(-1)
        for offset in ask.offsets:
            found[f"at {offset}"] = _diagonal(weights, rows.start + offset)
        if ask.entropy:
            found["entropy"] = row_entropy(_of_tokens(weights, rows.sink))
        if ask.largest:
            found["largest"] = weights.amax(-1)
        if rows.sink is not None:
            found["sink"] = rows.sink
        self.blocks.append(found)
        visible = rows.visible[:, :1]
        self.seen.append(visible[:, 0].sum(-1))
        if ask.reach or ask.distance:
            totals = {"mass": sum_by_offset(weights, rows.start, self.length)}
            totals["pairs"] = sum_by_offset(visible.to(weights.dtype), rows.start, self.length)
            for name, value in totals.items():
                self.sums[name] = self.sums[name] + value if name in self.sums else value

    def add_uniform(self, rows: Rows) -> None:
        """Add what a head would have in these rows that attends alike to all it sees."""
        visible = rows.visible[:, :1].to(rows.weights.dtype)
        alike = visible / visible.sum(-1, keepdim=True).clamp(min=1)
        self.add(Rows(rows.layer, rows.start, rows.stop, alike, rows.visible))

    def answers(self, layer: int, uniform: Answers | None) -> Answers:
        parts = {name: torch.cat([block[name] for block in self.blocks], dim=2) for name in self.blocks[0]}
        masses = parts["columns"].unbind(-1) if self.ask.columns else ()
        around = diagonals = pairs = None
        seen = torch.cat(self.seen, dim=1)
        if self.sums:
            around = self.sums["mass"].double()
            far = torch.arange(1 - self.length, self.length, device=around.device, dtype=around.dtype)
            diagonals, pairs = (_within(self.sums[name], self.ask.reach) for name in ("mass", "pairs"))
        empty = seen.new_zeros(len(seen), 1, 1, dtype=torch.float32)
        return Answers(
            layer,
            dict(zip(self.ask.columns, masses, strict=True)),
            {name: parts[f"label {name}"] for name in self.ask.labels},
            {offset: parts[f"at {offset}"] for offset in self.ask.offsets},
            empty if diagonals is None else diagonals,
            empty[:, 0] if pairs is None else pairs[:, 0],
            around @ far if around is not None and self.ask.distance else None,
            around @ far.abs() if around is not None and self.ask.distance else None,
            parts.get("entropy"),
            parts.get("largest"),
            parts.get("sink"),
            seen,
            uniform,
        )


def answered(ask: Ask, rows: Rows) -> Answers:
    """The answers for all rows of one layer in one block, wherever they come from."""
    gathered = Gathered(ask, rows.weights.shape[-1])
    gathered.add(rows)
    return gathered.answers(rows.layer, None)


def _within(sums: Tensor, reach: int) -> Tensor:
    """Sums over offsets −(n − 1)..n − 1, cut or filled with zeros to −reach..reach."""
    furthest = sums.shape[-1] // 2
    if furthest >= reach:
        return sums[..., furthest - reach : furthest + reach + 1]
    return torch.nn.functional.pad(sums, (reach - furthest, reach - furthest))


def _of_tokens(weights: Tensor, sink: Tensor | None) -> Tensor:
    """The weights made to sum to one, where a learned sink takes part of them."""
    if sink is None:
        return weights
    return weights / (1 - sink.unsqueeze(-1)).clamp(min=torch.finfo(weights.dtype).tiny)


def _diagonal(values: Tensor, offset: int) -> Tensor:
    """The entries (r, r + offset) of each row r of a block, 0 where there is none."""
    rows, keys = values.shape[-2:]
    out = values.new_zeros(values.shape[:-1])
    first, last = max(0, -offset), min(rows, keys - offset)
    if last > first:
        out[..., first:last] = values.diagonal(offset, dim1=-2, dim2=-1)
    return out


def row_entropy(weights: Tensor) -> Tensor:
    """Entropy of each row in nats, `[..., row, key]` to `[..., row]`; 0·ln 0 is 0."""
    if weights.device.type != "cpu":
        entropies: Tensor = torch.special.entr(weights).sum(-1)
        return entropies
    # One example at a time stays in the processor's cache. A floor under the logarithm is cheaper than a masked one,
    # and exact: weights below it add less than 1e-36.
    out = weights.new_empty(weights.shape[:-1])
    buffer = weights.new_empty(weights.shape[1:])
    for example, own in enumerate(weights):
        torch.clamp(own, min=1e-38, out=buffer).log_().mul_(own)
        torch.sum(buffer, dim=-1, out=out[example])
    return out.neg_()


def sum_by_offset(values: Tensor, start: int, length: int) -> Tensor:
    """Sums of a block of rows along its diagonals: `[example, head, row, key]` to `[example, head, offset]` with
    offsets −(length−1)..length−1.

    Row r is written into a buffer shifted so that equal offsets share a column: one copy and one sum, whatever the
    number of offsets. One example is done at a time in the same buffer, which then stays in the processor's cache, and
    whose zeros need writing only once.
    """
    examples, heads, rows, keys = values.shape
    width = keys + rows - 1
    at_once = 1 if values.device.type == "cpu" else examples
    buffer = values.new_zeros(at_once, heads, rows, width)
    # Row r starts r columns further left than row 0, so column c holds offset c − (rows − 1) − start.
    shifted = buffer.as_strided(
        (at_once, heads, rows, keys), (heads * rows * width, rows * width, width - 1, 1), storage_offset=rows - 1
    )
    out = values.new_zeros(examples, heads, 2 * length - 1)
    first = length - 1 - (rows - 1) - start
    for example in range(0, examples, at_once):
        shifted.copy_(values[example : example + at_once])
        torch.sum(buffer, dim=-2, out=out[example : example + at_once, :, first : first + width])
    return out
