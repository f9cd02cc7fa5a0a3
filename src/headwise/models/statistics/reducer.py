"""StatsResult put together from blocks of weights, wherever those come from: what of an ask is the
same for all blocks is made ready once (`PreparedRequest`), each block is reduced while it is in the
processor's cache (`StatsReducer`)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.models.statistics.equal_labels import Equal, Picked
from headwise.models.statistics.request import StatsRequest, StatsResult, WithoutSink
from headwise.models.view import AttentionRows

ALL = slice(None)
AT_ONCE = 2**19  # weights that a processor works on at a time, so that they stay in its cache
WIDTH = 16  # products with so many columns, or a multiple, are quicker than with fewer


@dataclass(frozen=True, slots=True, eq=False)
class WeightBlock:
    """Weights of some rows of some heads of some examples, `[example, head, row, key]`; the mass on
    a learned sink; and the scores that the weights are the softmax of, where they are known. A
    block holds all keys."""

    weights: Tensor
    rows: slice
    examples: slice
    heads: slice
    sink: Tensor | None = None
    scores: Tensor | None = None

    @property
    def here(self) -> tuple[slice, slice, slice]:
        return self.examples, self.heads, self.rows


class PreparedRequest:
    """An ask made ready for blocks of a batch of so many examples, queries and keys."""

    def __init__(
        self, ask: StatsRequest, sizes: tuple[int, int, int], device: torch.device
    ) -> None:
        self.ask, self.sizes = ask, sizes
        self.equal = Equal(ask.equal_labels, sizes)
        self.picked = Picked([*ask.pairs.values(), *self.equal.sparse.values()], sizes)
        sets = {f"column {name}": keys for name, keys in ask.columns.items()}
        self.spread = (
            ask.without_sink or ask.entropy
        )  # the entropy of a row is that of its rest and that of its first token
        if self.spread:
            sets["rest"] = (torch.arange(sizes[2], device=device) > 0).expand(sizes[0], -1)
        self.place, rows = _distinct(sets)
        for name, alike in self.equal.columns.items():
            self.place[f"label {name}"] = len(rows)
            rows += list(alike.unbind(1))
        if rows:
            rows += [torch.zeros_like(rows[0])] * (-len(rows) % WIDTH)
        self._table = torch.stack(rows, dim=1) if rows else None
        self._ready: dict[torch.dtype, Tensor] = {}
        self._shifted: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}

    def table(self, dtype: torch.dtype) -> Tensor | None:
        """The sets of keys, `[example, set, key]`; None where none is asked for."""
        if self._table is not None and dtype not in self._ready:
            self._ready[dtype] = self._table.to(dtype)
        return self._ready.get(dtype)

    def by_offset(self, values: Tensor) -> Tensor:
        """Sums of a block along its diagonals, `[example, head, row, key]` to `[example, head, rows
        + keys − 1]`.

        Row r is written into a buffer shifted so that equal offsets share a column: one copy and
        one sum, whatever the number of offsets. The zeros around it are written once. On a
        processor few examples are done at a time: the buffer then stays in its cache."""
        examples, heads, rows, keys = values.shape
        width = rows + keys - 1
        at_once = (
            max(1, AT_ONCE // (heads * rows * keys)) if values.device.type == "cpu" else examples
        )
        shape = min(at_once, examples), heads, rows, keys
        if shape not in self._shifted:
            self._shifted.clear()
            buffer = values.new_zeros(*shape[:3], width)
            strides = (*buffer.stride()[:2], width - 1, 1)
            self._shifted[shape] = buffer, buffer.as_strided(shape, strides, rows - 1)
        buffer, shifted = self._shifted[shape]
        out = values.new_empty(examples, heads, width)
        for first in range(0, examples, shape[0]):
            own = values[first : first + shape[0]]
            shifted[: len(own)].copy_(own)
            torch.sum(buffer[: len(own)], dim=-2, out=out[first : first + len(own)])
        return out


def _distinct(sets: dict[str, Tensor]) -> tuple[dict[str, int], list[Tensor]]:
    """Where each set stands among those that differ, and these: sets are often asked for under
    several names."""
    place: dict[str, int] = {}
    rows: list[Tensor] = []
    known: dict[bytes, int] = {}
    for name, keys in sets.items():
        held = keys.cpu().numpy().tobytes() if keys.device.type == "cpu" else name.encode()
        if held not in known:
            known[held] = len(rows)
            rows.append(keys)
        place[name] = known[held]
    return place, rows


@dataclass(frozen=True, slots=True, eq=False)
class Sight:
    """What all layers share in which the same tokens see each other: how many keys each row sees,
    `[example, row]`, how many pairs there are at each offset, V(i) of the rows asked for, and what
    even attention gives."""

    seen: Tensor
    pairs: Tensor
    rows: dict[str, Tensor]
    uniform: StatsResult | None


class Seeing:
    """Puts a `Sight` together from blocks of rows of V(i), `[example, 1, row, key]`."""

    def __init__(
        self, wanted: PreparedRequest, layer: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.wanted, self.layer = wanted, layer
        examples, queries, keys = wanted.sizes
        self.seen = torch.zeros(examples, queries, dtype=torch.int64, device=device)
        like = torch.zeros((), dtype=dtype, device=device)
        self.alike = StatsReducer(wanted, 1, like)
        self.pairs = like.new_zeros(examples, 1, keys + queries - 1)
        self.rows: dict[str, list[Tensor]] = {name: [] for name in wanted.ask.rows}

    def add(self, visible: Tensor, rows: slice) -> None:
        ask = self.wanted.ask
        self.seen[:, rows] = visible[:, 0].sum(-1)
        for name, wanted in ask.rows.items():
            self.rows[name].append(
                visible[:, :1, wanted[(wanted >= rows.start) & (wanted < rows.stop)] - rows.start]
            )
        shown = visible[:, :1].to(self.pairs.dtype)
        if ask.max_offset or ask.distance:
            self.pairs[..., self.alike.span(rows)] += self.wanted.by_offset(shown)
        if ask.uniform:
            even = shown / shown.sum(-1, keepdim=True).clamp(min=1)
            self.alike.add(WeightBlock(even, rows, ALL, ALL))

    def sight(self) -> Sight:
        kept = {name: torch.cat(blocks, dim=2) for name, blocks in self.rows.items()}
        sight = Sight(self.seen, self.alike.within(self.pairs)[:, 0], kept, None)
        if not self.wanted.ask.uniform:
            return sight
        return Sight(self.seen, sight.pairs, kept, self.alike.answers(self.layer, sight))


class StatsReducer:
    """StatsResult of one layer, put together from blocks of its weights."""

    def __init__(self, wanted: PreparedRequest, heads: int, like: Tensor) -> None:
        self.wanted, self.heads = wanted, heads
        ask, (examples, queries, keys) = wanted.ask, wanted.sizes
        self._size = examples, heads, queries
        self._like = like
        self.parts: dict[str, Tensor] = {}
        self.rows = {
            name: like.new_zeros(examples, heads, len(of), keys) for name, of in ask.rows.items()
        }
        self.at = {offset: like.new_zeros(self._size) for offset in ask.offsets}
        table = wanted.table(like.dtype)
        self.masses = (
            None if table is None else like.new_empty(examples, table.shape[1], heads, queries)
        )
        self.picked = wanted.picked.room(like, heads)
        self.received = like.new_zeros(examples, heads, keys) if ask.received else None
        around = ask.max_offset or ask.distance
        self.around = like.new_zeros(examples, heads, keys + queries - 1) if around else None

    def _part(self, name: str) -> Tensor:
        """Room for one number of each row."""
        if name not in self.parts:
            self.parts[name] = self._like.new_empty(self._size)
        return self.parts[name]

    def span(self, rows: slice) -> slice:
        """Where the diagonals of these rows stand among those of all."""
        queries, keys = self.wanted.sizes[1:]
        first = queries - rows.stop
        return slice(first, first + rows.stop - rows.start + keys - 1)

    def add(self, block: WeightBlock) -> None:
        ask, weights = self.wanted.ask, block.weights
        rows = block.rows
        table = self.wanted.table(weights.dtype)
        if table is not None and self.masses is not None:
            of = torch.bmm(table[block.examples], weights.flatten(1, 2).transpose(1, 2))
            self.masses[block.examples, :, block.heads, rows] = of.view(
                *of.shape[:2], *weights.shape[1:3]
            )
        self.wanted.picked.take(self.picked, weights, block.here)
        for name, (own, theirs) in self.wanted.equal.dense.items():
            mine = own[block.examples, rows, None]
            equal = (mine == theirs[block.examples, None]) & (mine >= 0)
            self._part(f"label {name}")[block.here] = torch.where(equal[:, None], weights, 0).sum(
                -1
            )
        for name, wanted in ask.rows.items():
            where = torch.nonzero((wanted >= rows.start) & (wanted < rows.stop))[:, 0]
            self.rows[name][block.examples, block.heads, where] = weights[
                :, :, wanted[where] - rows.start
            ]
        if self.received is not None:
            self.received[block.examples, block.heads] += weights.sum(-2)
        for offset, out in self.at.items():
            first, last = max(rows.start, -offset), min(rows.stop, weights.shape[-1] - offset)
            if last > first:
                out[block.examples, block.heads, first:last] = weights.diagonal(
                    rows.start + offset, dim1=2, dim2=3
                )
        if self.around is not None:
            self.around[block.examples, block.heads, self.span(rows)] += self.wanted.by_offset(
                weights
            )
        if block.sink is not None:
            self._part("sink")[block.here] = block.sink
        self._spread(block)

    def _spread(self, block: WeightBlock) -> None:
        """Entropy and largest weight, of the whole rows and of what the first token leaves."""
        ask, weights, scores = self.wanted.ask, block.weights, block.scores
        if scores is None:
            found = _without_first(weights, block.sink) if self.wanted.spread else {}
            if ask.max_weight:
                found["largest"] = weights.amax(-1)
            for name, value in found.items():
                self._part(name)[block.here] = value
            return
        if self.wanted.spread:
            self._part("first")[block.here] = weights[..., 0]
            weights[..., 0] = 0
            # ln w is the score less the row's logsumexp: no logarithm of every weight need be
            # taken.
            self._part("product")[block.here] = torch.linalg.vecdot(weights, scores)
            self._part("top")[block.here] = scores.amax(-1)
            self._part("first score")[block.here] = scores[..., 0]
        if self.wanted.spread or ask.max_weight:
            self._part("largest")[block.here] = weights.amax(-1)
        if self.wanted.spread:
            weights[..., 0] = self.parts["first"][block.here]

    def _spread_of_scores(self) -> None:
        """What `_spread` left to do, for all rows at once. −Σ w ln w is Σ w · logsumexp − Σ w ·
        score."""
        parts, tiny = self.parts, torch.finfo(self._like.dtype).tiny
        assert self.masses is not None
        product, top, first, first_score = (
            parts.pop(name) for name in ("product", "top", "first", "first score")
        )
        others = parts["largest"]
        parts["largest"] = torch.maximum(first, others)
        some = parts["largest"] > 0  # no row of padding
        total = torch.where(some, top - parts["largest"].clamp(min=tiny).log(), 0)
        mass = self.masses[:, self.wanted.place["rest"]]
        entropy = torch.where(some, total * mass - product, 0).clamp(min=0)
        whole = (entropy + first * torch.where(some, total - first_score, 0)).clamp(min=0)
        parts |= _rest(mass, entropy, others) | {"entropy": whole}

    def within(self, sums: Tensor) -> Tensor:
        """Sums along all diagonals, cut or filled with zeros to −reach..reach."""
        reach, (_, queries, keys) = self.wanted.ask.max_offset, self.wanted.sizes
        before, after = reach - (queries - 1), reach - (keys - 1)
        return torch.nn.functional.pad(sums, (before, after))  # what is below 0 is cut

    def answers(self, layer: int, sight: Sight) -> StatsResult:
        if "product" in self.parts:
            self._spread_of_scores()
        wanted, ask, parts = self.wanted, self.wanted.ask, self.parts
        columns = {}
        if self.masses is not None:
            columns = {name: self.masses[:, wanted.place[f"column {name}"]] for name in ask.columns}
        single = wanted.picked.single(self.picked, list(ask.pairs))
        labels = wanted.equal.masses(self.masses, wanted.place, parts, self.picked, wanted.picked)
        offset = distance = None
        diagonals = self._like.new_zeros(self._size[0], self.heads, 1)
        if self.around is not None:
            _, queries, keys = wanted.sizes
            diagonals, around = self.within(self.around), self.around.double()
            far = torch.arange(1 - queries, keys, device=around.device, dtype=around.dtype)
            if ask.distance:
                offset, distance = around @ far, around @ far.abs()
        return StatsResult(
            layer,
            columns,
            {name: labels[name] for name in ask.equal_labels},
            {offset: self.at[offset] for offset in ask.offsets},
            single,
            {name: (own, sight.rows[name]) for name, own in self.rows.items()},
            diagonals,
            sight.pairs,
            offset,
            distance,
            self.received,
            parts.get("entropy"),
            parts.get("largest"),
            WithoutSink(*(parts[f"rest {name}"] for name in ("mass", "entropy", "largest")))
            if ask.without_sink
            else None,
            parts.get("sink"),
            sight.seen,
            sight.uniform,
        )


def compute_statistics(ask: StatsRequest, rows: AttentionRows) -> StatsResult:
    """The answers for all rows of one layer in one block, wherever they come from."""
    weights = rows.weights
    examples, heads, queries, keys = weights.shape
    wanted = PreparedRequest(ask, (examples, queries, keys), weights.device)
    gathered, seeing = (
        StatsReducer(wanted, heads, weights),
        Seeing(wanted, rows.layer, weights.dtype, weights.device),
    )
    gathered.add(WeightBlock(weights, slice(0, queries), ALL, ALL, rows.sink))
    seeing.add(rows.visible, slice(0, queries))
    return gathered.answers(rows.layer, seeing.sight())


def _rest(mass: Tensor, entropy: Tensor, largest: Tensor) -> dict[str, Tensor]:
    """What a row is without its first token, from −Σ w ln w and the largest w of the others as they
    are."""
    some, of = mass > 0, mass.clamp(min=torch.finfo(mass.dtype).tiny)
    return {
        "rest mass": mass,
        # −Σ (w/r) ln (w/r) is −Σ w ln w / r + ln r.
        "rest entropy": torch.where(some, entropy / of + of.log(), 0).clamp(min=0),
        "rest largest": torch.where(some, largest / of, 0),
    }


def _without_first(weights: Tensor, sink: Tensor | None) -> dict[str, Tensor]:
    """The rest of each row, and the entropy of the whole: that of the others and that of the first
    token add up, so that nothing is taken from a larger number, however little is left."""
    first, others = weights[..., 0], weights[..., 1:]
    mass, entropy = others.sum(-1), row_entropy(others)
    largest = others.amax(-1) if others.shape[-1] else torch.zeros_like(mass)
    whole = entropy - torch.xlogy(first, first)
    if sink is not None:
        tokens = (1 - sink).clamp(min=torch.finfo(weights.dtype).tiny)
        whole = whole / tokens + tokens.log()
    return _rest(mass, entropy, largest) | {"entropy": whole}


def row_entropy(weights: Tensor) -> Tensor:
    """Entropy of each row in nats, `[..., row, key]` to `[..., row]`; 0·ln 0 is 0."""
    if weights.device.type != "cpu":
        entropies: Tensor = torch.special.entr(weights).sum(-1)
        return entropies
    # One example at a time stays in the processor's cache. A floor under the logarithm is cheaper
    # than a masked one, and exact: weights below it add less than 1e-36.
    out = weights.new_empty(weights.shape[:-1])
    buffer = weights.new_empty(weights.shape[1:])
    for example, own in enumerate(weights):
        torch.clamp(own, min=1e-38, out=buffer).log_().mul_(own)
        torch.sum(buffer, dim=-1, out=out[example])
    return out.neg_()
