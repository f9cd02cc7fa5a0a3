"""The small language in which an analysis says what it wants of attention weights: the tap can then compute it without
ever holding them.

Whatever is asked is linear in the weights of a row, or its entropy or largest weight. A GPU gives all of it inside the
attention kernel (`kernels.py`); elsewhere rows of weights are formed in blocks and reduced at once. Both are the same
numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from headwise.models.view import Rows

LEAST_REST = 1e-4  # of its attention: a row that leaves less to all but the first token has no rest to speak of


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
        Of each row; the entropy is that of the weights made to sum to one (they do unless there is a learned sink).
    rest : bool, default False
        Of each row without the first token: its mass, and the entropy and largest weight of what it is once made to sum
        to one again.
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

    def __or__(self, other: Ask) -> Ask:
        """Both at once. A name that both have is the same thing."""
        return Ask(
            {**self.columns, **other.columns},
            {**self.labels, **other.labels},
            self.offsets | other.offsets,
            {**self.pairs, **other.pairs},
            {**self.rows, **other.rows},
            max(self.reach, other.reach),
            self.distance or other.distance,
            self.received or other.received,
            self.entropy or other.entropy,
            self.largest or other.largest,
            self.rest or other.rest,
            self.uniform or other.uniform,
        )

    @staticmethod
    def together(asks: list[Ask]) -> Ask | None:
        """All of them at once; None where there is none."""
        return reduce(Ask.__or__, asks) if asks else None


@dataclass(frozen=True, slots=True, eq=False)
class Rest:
    """What a row is without the first token: its mass as it is, entropy and largest weight once it sums to one again (0
    where nothing is left). All `[example, head, row]`."""

    mass: Tensor
    entropy: Tensor
    largest: Tensor


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
    single: Mapping[str, Tensor]  # [pair, head]
    rows: Mapping[str, tuple[Tensor, Tensor]]  # weights [example, head, row, key], and V(i) [example, 1, row, key]
    diagonals: Tensor  # [example, head, 2·reach + 1]
    pairs: Tensor  # [example, 2·reach + 1]: how many (i, i + o) can be seen
    offset: Tensor | None  # [example, head], summed over rows; so `distance`
    distance: Tensor | None
    received: Tensor | None  # [example, head, key]
    entropy: Tensor | None
    largest: Tensor | None
    rest: Rest | None
    sink: Tensor | None
    seen: Tensor
    uniform: Answers | None  # where it was asked for

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


def side_by_side(answers: Sequence[Answers]) -> Answers:
    """Several layers as one with all their heads, in order: a GPU takes as long for one layer as for many, so that what
    is done once for all is not done for each. They must have the same `seen` and `uniform`."""
    if len(answers) == 1:
        return answers[0]
    first = answers[0]

    def heads(values: Sequence[Tensor | None]) -> Any:
        return None if values[0] is None else torch.cat([v for v in values if v is not None], dim=1)

    rests = [one.rest for one in answers if one.rest is not None]
    names = [one.name for one in fields(Rest)]
    return Answers(
        first.layer,
        {name: heads([one.columns[name] for one in answers]) for name in first.columns},
        {name: heads([one.labels[name] for one in answers]) for name in first.labels},
        {offset: heads([one.at[offset] for one in answers]) for offset in first.at},
        {name: heads([one.single[name] for one in answers]) for name in first.single},
        {name: (heads([one.rows[name][0] for one in answers]), seen) for name, (_, seen) in first.rows.items()},
        heads([one.diagonals for one in answers]),
        first.pairs,
        heads([one.offset for one in answers]),
        heads([one.distance for one in answers]),
        heads([one.received for one in answers]),
        heads([one.entropy for one in answers]),
        heads([one.largest for one in answers]),
        Rest(*(heads([getattr(one, name) for one in rests]) for name in names)) if rests else None,
        heads([one.sink for one in answers]),
        first.seen,
        first.uniform,
    )


class Gathered:
    """Answers put together from the blocks of rows of one layer."""

    def __init__(self, ask: Ask, length: int) -> None:
        self.ask, self.length = ask, length
        self.blocks: list[dict[str, Tensor]] = []
        self.sums: dict[str, Tensor] = {}
        self.single: dict[str, Tensor] = {}
        self.rows: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in ask.rows}
        self.received: Tensor | None = None
        self.seen: list[Tensor] = []
        self.heads = 1

    def add(self, rows: Rows) -> None:
        ask, weights = self.ask, rows.weights
        self.heads = weights.shape[1]
        found: dict[str, Tensor] = {}
        if ask.columns:
            sets = torch.stack(list(ask.columns.values()), dim=-1)[:, None].to(weights.dtype)
            found["columns"] = weights @ sets
        for name, (own, theirs) in ask.labels.items():
            own = own[:, rows.start : rows.stop, None]
            equal = (own == theirs[:, None]) & (own >= 0)
            found[f"label {name}"] = torch.where(equal[:, None], weights, 0).sum(-1)
        for name, (example, row, key) in ask.pairs.items():
            here = (row >= rows.start) & (row < rows.stop)
            own = weights.new_zeros(len(row), self.heads)
            own[here] = weights[example[here], :, row[here] - rows.start, key[here]]
            self.single[name] = self.single[name] + own if name in self.single else own
        for name, wanted in ask.rows.items():
            here = wanted[(wanted >= rows.start) & (wanted < rows.stop)] - rows.start
            self.rows[name].append((weights[:, :, here], rows.visible[:, :1, here]))
        if ask.received:
            here = weights.sum(-2)
            self.received = here if self.received is None else self.received + here
        for offset in ask.offsets:
            found[f"at {offset}"] = _diagonal(weights, rows.start + offset)
        if ask.rest:
            found |= _without_first(weights, rows.sink)
        elif ask.entropy:
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
        empty = seen.new_zeros(len(seen), self.heads, 1, dtype=torch.float32)
        return Answers(
            layer,
            dict(zip(self.ask.columns, masses, strict=True)),
            {name: parts[f"label {name}"] for name in self.ask.labels},
            {offset: parts[f"at {offset}"] for offset in self.ask.offsets},
            self.single,
            {name: _joined(blocks) for name, blocks in self.rows.items()},
            empty if diagonals is None else diagonals,
            empty[:, 0, :] if pairs is None else pairs[:, 0],
            around @ far if around is not None and self.ask.distance else None,
            around @ far.abs() if around is not None and self.ask.distance else None,
            self.received,
            parts.get("entropy"),
            parts.get("largest"),
            Rest(*(parts[f"rest {name}"] for name in ("mass", "entropy", "largest"))) if self.ask.rest else None,
            parts.get("sink"),
            seen,
            uniform,
        )


def answered(ask: Ask, rows: Rows) -> Answers:
    """The answers for all rows of one layer in one block, wherever they come from."""
    gathered, alike = (Gathered(ask, rows.weights.shape[-1]) for _ in range(2))
    gathered.add(rows)
    if ask.uniform:
        alike.add_uniform(rows)
    return gathered.answers(rows.layer, alike.answers(rows.layer, None) if ask.uniform else None)


def _joined(blocks: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    weights, visible = (torch.cat(side, dim=2) for side in zip(*blocks, strict=True))
    return weights, visible


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


def _without_first(weights: Tensor, sink: Tensor | None) -> dict[str, Tensor]:
    """The rest of each row, and the entropy of the whole: that of the others and that of the first token add up, so
    that nothing is taken from a larger number, however little is left."""
    first, others = weights[..., 0], weights[..., 1:]
    tiny = torch.finfo(weights.dtype).tiny
    mass, entropy = others.sum(-1), row_entropy(others)
    largest = others.amax(-1) if others.shape[-1] else torch.zeros_like(mass)
    some, of = mass > 0, mass.clamp(min=tiny)
    found = {
        "rest mass": mass,
        # −Σ (w/r) ln (w/r) is −Σ w ln w / r + ln r.
        "rest entropy": torch.where(some, entropy / of + of.log(), 0).clamp(min=0),
        "rest largest": torch.where(some, largest / of, 0),
    }
    whole = entropy - torch.xlogy(first, first)
    if sink is not None:
        tokens = (1 - sink).clamp(min=tiny)
        whole = whole / tokens + tokens.log()
    return found | {"entropy": whole}


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
