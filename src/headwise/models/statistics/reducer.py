"""Compute statistics from blocks of attention weights.

`PreparedRequest` holds what a request needs for every block and is made once per batch.
`StatsReducer` reduces the blocks of one layer, each while it is still in the processor's cache."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from headwise.models.statistics.equal_labels import LabelMatcher, PairWeights
from headwise.models.statistics.request import StatsRequest, StatsResult, WithoutFirst
from headwise.models.view import AttentionRows

ALL = slice(None)
BLOCK_WEIGHTS = 2**19  # weights processed at a time on a CPU, so that they stay in its cache
TABLE_MULTIPLE = 16  # matrix products are fastest with a multiple of this many columns


@dataclass(frozen=True, slots=True, eq=False)
class WeightBlock:
    """Weights of some rows, heads and examples of one layer, `[example, head, row, key]`.

    A block always has all keys. `learned_sink[example, head, row]` is the mass on a learned sink. `scores`
    are the values whose softmax the weights are, where they are known."""

    weights: Tensor
    rows: slice
    examples: slice = field(default_factory=lambda: ALL)
    heads: slice = field(default_factory=lambda: ALL)
    learned_sink: Tensor | None = None
    scores: Tensor | None = None

    @property
    def index(self) -> tuple[slice, slice, slice]:
        """Where the block lies in a tensor `[example, head, row]`."""
        return self.examples, self.heads, self.rows


class PreparedRequest:
    """A request prepared for the blocks of one batch.

    Parameters
    ----------
    request : StatsRequest
        The statistics to compute.
    sizes : (int, int, int)
        Numbers of examples, queries and keys.
    device : torch.device
        Where the weights are.
    """

    def __init__(
        self, request: StatsRequest, sizes: tuple[int, int, int], device: torch.device
    ) -> None:
        self.request = request
        self.sizes = sizes
        n_examples, _, n_keys = sizes
        self.equal_labels = LabelMatcher(request.equal_labels, sizes)
        self.pair_weights: PairWeights | None = None
        pairs = [*request.pairs.values(), *self.equal_labels.sparse.values()]
        if pairs:
            self.pair_weights = PairWeights(pairs, sizes)

        key_sets = _KeySets()
        self.column_index = {name: key_sets.add(keys) for name, keys in request.columns.items()}
        # The entropy of a row is the sum of that of its first token and that of all others.
        self.splits_first_key = request.without_first or request.entropy
        self.later_keys_index = -1
        if self.splits_first_key:
            later_keys = torch.arange(n_keys, device=device) > 0
            self.later_keys_index = key_sets.add(later_keys.expand(n_examples, -1))
        table_rows = key_sets.distinct
        self.label_index: dict[str, int] = {}
        for name, keys_by_label in self.equal_labels.columns.items():
            self.label_index[name] = len(table_rows)
            table_rows += list(keys_by_label.unbind(1))
        self._table: Tensor | None = None
        if table_rows:
            n_padding = -len(table_rows) % TABLE_MULTIPLE
            table_rows += [torch.zeros_like(table_rows[0])] * n_padding
            self._table = torch.stack(table_rows, dim=1)
        self._table_by_dtype: dict[torch.dtype, Tensor] = {}
        self._shifted: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}

    def table(self, dtype: torch.dtype) -> Tensor | None:
        """Return the sets of keys, `[example, set, key]`; None if the request has none."""
        if self._table is not None and dtype not in self._table_by_dtype:
            self._table_by_dtype[dtype] = self._table.to(dtype)
        return self._table_by_dtype.get(dtype)

    def diagonal_sums(self, values: Tensor) -> Tensor:
        """Sum a block along its diagonals: `[example, head, row, key]` to `[example, head, rows +
        keys − 1]`.

        Row r is copied into a buffer, shifted so that equal offsets share a column: one copy and
        one sum, however many offsets. The zeros around the rows are written once. On a CPU few
        examples are done at a time, so that the buffer stays in the cache."""
        n_examples, n_heads, n_rows, n_keys = values.shape
        width = n_rows + n_keys - 1
        at_once = n_examples
        if values.device.type == "cpu":
            at_once = min(n_examples, max(1, BLOCK_WEIGHTS // (n_heads * n_rows * n_keys)))
        shape = (at_once, n_heads, n_rows, n_keys)
        if shape not in self._shifted:
            self._shifted.clear()
            buffer = values.new_zeros(at_once, n_heads, n_rows, width)
            strides = (*buffer.stride()[:2], width - 1, 1)
            self._shifted[shape] = buffer, buffer.as_strided(shape, strides, n_rows - 1)
        buffer, shifted = self._shifted[shape]
        sums = values.new_empty(n_examples, n_heads, width)
        for first in range(0, n_examples, at_once):
            part = values[first : first + at_once]
            n_part = len(part)
            shifted[:n_part].copy_(part)
            torch.sum(buffer[:n_part], dim=-2, out=sums[first : first + n_part])
        return sums

    def within_max_offset(self, sums: Tensor) -> Tensor:
        """Cut sums along all diagonals to −max_offset..max_offset, or fill up with zeros."""
        _, n_queries, n_keys = self.sizes
        n_before = self.request.max_offset - (n_queries - 1)
        n_after = self.request.max_offset - (n_keys - 1)
        return torch.nn.functional.pad(sums, (n_before, n_after))  # negative numbers cut

    def diagonal_slice(self, rows: slice) -> slice:
        """Where the diagonals of these rows lie among those of all rows."""
        _, n_queries, n_keys = self.sizes
        first = n_queries - rows.stop
        return slice(first, first + rows.stop - rows.start + n_keys - 1)


@dataclass(slots=True, eq=False)
class _KeySets:
    """Collects different sets of keys: analyses often request one set under several names."""

    distinct: list[Tensor] = field(default_factory=list)
    _index: dict[bytes, int] = field(default_factory=dict)

    def add(self, keys: Tensor) -> int:
        """Add a set, bool `[example, key]`, unless it is there already; return its index."""
        if keys.device.type != "cpu":  # comparing values on a GPU would wait for it
            self.distinct.append(keys)
            return len(self.distinct) - 1
        content = keys.numpy().tobytes()
        if content not in self._index:
            self._index[content] = len(self.distinct)
            self.distinct.append(keys)
        return self._index[content]


class StatsReducer:
    """Computes the statistics of one layer from blocks of its weights.

    Parameters
    ----------
    prepared : PreparedRequest
        The statistics to compute.
    heads : int
        Number of heads of the layer.
    like : Tensor
        A tensor with the dtype and device of the weights.
    """

    def __init__(self, prepared: PreparedRequest, heads: int, like: Tensor) -> None:
        self.prepared = prepared
        self.heads = heads
        self._like = like
        request = prepared.request
        n_examples, n_queries, n_keys = prepared.sizes
        self._row_shape = (n_examples, heads, n_queries)
        self._row_values: dict[str, Tensor] = {}  # by statistic, [example, head, row]

        self._rows: dict[str, Tensor] = {}
        for name, row_numbers in request.rows.items():
            self._rows[name] = like.new_zeros(n_examples, heads, len(row_numbers), n_keys)
        self._at_offset = {offset: like.new_zeros(self._row_shape) for offset in request.offsets}
        self._masses: Tensor | None = None  # [example, set of keys, head, row]
        table = prepared.table(like.dtype)
        if table is not None:
            self._masses = like.new_empty(n_examples, table.shape[1], heads, n_queries)
        self._pair_weights: Tensor | None = None
        if prepared.pair_weights is not None:
            self._pair_weights = prepared.pair_weights.new_buffer(like, heads)
        self._received: Tensor | None = None
        if request.received:
            self._received = like.new_zeros(n_examples, heads, n_keys)
        self._diagonals: Tensor | None = None
        if request.max_offset or request.distance:
            self._diagonals = like.new_zeros(n_examples, heads, n_keys + n_queries - 1)

    def add(self, block: WeightBlock) -> None:
        """Reduce one block of weights."""
        prepared = self.prepared
        weights = block.weights
        examples, heads, rows = block.index
        table = prepared.table(weights.dtype)
        if table is not None and self._masses is not None:
            masses = torch.bmm(table[examples], weights.flatten(1, 2).transpose(1, 2))
            masses = masses.view(*masses.shape[:2], *weights.shape[1:3])
            self._masses[examples, :, heads, rows] = masses
        if prepared.pair_weights is not None and self._pair_weights is not None:
            prepared.pair_weights.read(self._pair_weights, weights, block.index)
        for name, (query_labels, key_labels) in prepared.equal_labels.dense.items():
            row_labels = query_labels[examples, rows, None]
            is_equal = (row_labels == key_labels[examples, None]) & (row_labels >= 0)
            mass = torch.where(is_equal[:, None], weights, 0).sum(-1)
            self._store(f"label {name}", block, mass)
        for name, row_numbers in prepared.request.rows.items():
            in_block = (row_numbers >= rows.start) & (row_numbers < rows.stop)
            places = torch.nonzero(in_block)[:, 0]
            block_rows = weights[:, :, row_numbers[places] - rows.start]
            self._rows[name][examples, heads, places] = block_rows
        if self._received is not None:
            self._received[examples, heads] += weights.sum(-2)
        for offset, at_offset in self._at_offset.items():
            first = max(rows.start, -offset)
            last = min(rows.stop, weights.shape[-1] - offset)
            if last > first:
                diagonal = weights.diagonal(rows.start + offset, dim1=2, dim2=3)
                at_offset[examples, heads, first:last] = diagonal
        if self._diagonals is not None:
            where = prepared.diagonal_slice(rows)
            self._diagonals[examples, heads, where] += prepared.diagonal_sums(weights)
        if block.learned_sink is not None:
            self._store("learned sink", block, block.learned_sink)
        if block.scores is None:
            self._add_entropy_of_weights(block)
        else:
            self._add_entropy_of_scores(block, block.scores)

    def _store(self, name: str, block: WeightBlock, values: Tensor) -> None:
        """Store one number for each row of a block."""
        if name not in self._row_values:
            self._row_values[name] = self._like.new_empty(self._row_shape)
        self._row_values[name][block.index] = values

    def _add_entropy_of_weights(self, block: WeightBlock) -> None:
        """Compute entropy and largest weight, with and without the first token, from weights."""
        weights = block.weights
        if self.prepared.splits_first_key:
            # The entropies of the first token and of the others are added up, never subtracted
            # from a whole: what is left beside a sink stays exact, however little it is.
            first = weights[..., 0]
            later = weights[..., 1:]
            mass = later.sum(-1)
            later_entropy = row_entropy(later)
            later_max = later.amax(-1) if later.shape[-1] else torch.zeros_like(mass)
            entropy = later_entropy - torch.xlogy(first, first)
            if block.learned_sink is not None:
                token_mass = (1 - block.learned_sink).clamp(min=torch.finfo(weights.dtype).tiny)
                entropy = entropy / token_mass + token_mass.log()
            without_first = _rescale(mass, later_entropy, later_max)
            self._store("mass without first", block, without_first.mass)
            self._store("entropy without first", block, without_first.entropy)
            self._store("max without first", block, without_first.max_weight)
            self._store("entropy", block, entropy)
        if self.prepared.request.max_weight:
            self._store("max", block, weights.amax(-1))

    def _add_entropy_of_scores(self, block: WeightBlock, scores: Tensor) -> None:
        """Store what `_finish_entropy_of_scores` needs of a block.

        ln w is the score less the row's logsumexp, so no logarithm of every weight is taken."""
        weights = block.weights
        splits = self.prepared.splits_first_key
        if splits:
            self._store("first weight", block, weights[..., 0])
            weights[..., 0] = 0  # the sums below are without the first token; put back at the end
            self._store("weighted score", block, torch.linalg.vecdot(weights, scores))
            self._store("max score", block, scores.amax(-1))
            self._store("first score", block, scores[..., 0])
        if splits or self.prepared.request.max_weight:
            self._store("max", block, weights.amax(-1))
        if splits:
            weights[..., 0] = self._row_values["first weight"][block.index]

    def _finish_entropy_of_scores(self) -> None:
        """Compute the entropies of all rows at once: −Σ w ln w = logsumexp · Σ w − Σ w · score."""
        assert self._masses is not None
        values = self._row_values
        weighted_score = values.pop("weighted score")
        max_score = values.pop("max score")
        first_weight = values.pop("first weight")
        first_score = values.pop("first score")
        later_max = values["max"]
        max_weight = torch.maximum(first_weight, later_max)
        values["max"] = max_weight
        is_token = max_weight > 0  # rows of padding hold zeros
        tiny = torch.finfo(self._like.dtype).tiny
        # The largest weight belongs to the largest score: ln w_max = score_max − logsumexp.
        logsumexp = torch.where(is_token, max_score - max_weight.clamp(min=tiny).log(), 0)
        mass = self._masses[:, self.prepared.later_keys_index]
        later_entropy = torch.where(is_token, logsumexp * mass - weighted_score, 0).clamp(min=0)
        first_entropy = first_weight * torch.where(is_token, logsumexp - first_score, 0)
        without_first = _rescale(mass, later_entropy, later_max)
        values["mass without first"] = without_first.mass
        values["entropy without first"] = without_first.entropy
        values["max without first"] = without_first.max_weight
        values["entropy"] = (later_entropy + first_entropy).clamp(min=0)

    def result(self, layer: int, visibility: Visibility) -> StatsResult:
        """Return the statistics, once all blocks of the layer have been added."""
        if "weighted score" in self._row_values:
            self._finish_entropy_of_scores()
        prepared = self.prepared
        request = prepared.request
        values = self._row_values
        columns = {}
        if self._masses is not None:
            for name in request.columns:
                columns[name] = self._masses[:, prepared.column_index[name]]
        rows = {}
        for name, weights in self._rows.items():
            rows[name] = (weights, visibility.rows[name])
        without_first = None
        if request.without_first:
            without_first = WithoutFirst(
                mass=values["mass without first"],
                entropy=values["entropy without first"],
                max_weight=values["max without first"],
            )
        pair_weights = {}
        if prepared.pair_weights is not None and self._pair_weights is not None:
            pair_weights = prepared.pair_weights.by_name(self._pair_weights, list(request.pairs))
        equal_labels = {}
        if request.equal_labels:
            equal_labels = self._equal_label_masses()
        diagonals, offset_sum, distance_sum = self._diagonal_results()
        return StatsResult(
            layer=layer,
            columns=columns,
            equal_labels=equal_labels,
            at_offset=self._at_offset,
            pair_weights=pair_weights,
            rows=rows,
            diagonals=diagonals,
            n_pairs=visibility.n_pairs,
            offset_sum=offset_sum,
            distance_sum=distance_sum,
            received=self._received,
            entropy=values.get("entropy"),
            max_weight=values.get("max"),
            without_first=without_first,
            learned_sink=values.get("learned sink"),
            n_visible=visibility.n_visible,
            uniform=visibility.uniform,
        )

    def _diagonal_results(self) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return the sums along diagonals, and the sums of offsets and distances if requested."""
        if self._diagonals is None:
            return self._like.new_zeros(self._row_shape[0], self.heads, 1), None, None
        diagonals = self.prepared.within_max_offset(self._diagonals)
        if not self.prepared.request.distance:
            return diagonals, None, None
        _, n_queries, n_keys = self.prepared.sizes
        sums = self._diagonals.double()
        offsets = torch.arange(1 - n_queries, n_keys, device=sums.device, dtype=sums.dtype)
        return diagonals, sums @ offsets, sums @ offsets.abs()

    def _equal_label_masses(self) -> dict[str, Tensor]:
        """Return the mass on keys of the query's label, by name, `[example, head, row]`."""
        prepared = self.prepared
        equal_labels = prepared.equal_labels
        # The lists of pairs of equal labels come after those of the request.
        n_requested = len(prepared.request.pairs)
        sparse_names = list(equal_labels.sparse)
        masses: dict[str, Tensor] = {}
        for name in prepared.request.equal_labels:
            if name in equal_labels.dense:
                masses[name] = self._row_values[f"label {name}"]
            elif name in equal_labels.columns:
                assert self._masses is not None
                first = prepared.label_index[name]
                n_labels = equal_labels.columns[name].shape[1]
                mass_by_label = self._masses[:, first : first + n_labels]
                masses[name] = equal_labels.mass_of_own_label(name, mass_by_label)
            else:
                assert prepared.pair_weights is not None
                assert self._pair_weights is not None
                number = n_requested + sparse_names.index(name)
                masses[name] = prepared.pair_weights.sum_by_row(self._pair_weights, number)
        return masses


def _rescale(mass: Tensor, entropy: Tensor, max_weight: Tensor) -> WithoutFirst:
    """Return the statistics of weights scaled to sum to one, from their sum, −Σ w ln w and largest
    weight as they are."""
    has_mass = mass > 0
    divisor = mass.clamp(min=torch.finfo(mass.dtype).tiny)
    # −Σ (w/m) ln (w/m) = −Σ w ln w / m + ln m
    rescaled_entropy = torch.where(has_mass, entropy / divisor + divisor.log(), 0).clamp(min=0)
    return WithoutFirst(mass, rescaled_entropy, torch.where(has_mass, max_weight / divisor, 0))


def row_entropy(weights: Tensor) -> Tensor:
    """Return the entropy of each row in nats, `[..., row, key]` to `[..., row]`; 0·ln 0 is 0."""
    if weights.device.type != "cpu":
        entropies: Tensor = torch.special.entr(weights).sum(-1)
        return entropies
    # One example at a time stays in the processor's cache. A floor under the logarithm is cheaper
    # than a masked one, and exact: weights below it add less than 1e-36.
    entropies = weights.new_empty(weights.shape[:-1])
    buffer = weights.new_empty(weights.shape[1:])
    for example, example_weights in enumerate(weights):
        torch.clamp(example_weights, min=1e-38, out=buffer).log_().mul_(example_weights)
        torch.sum(buffer, dim=-1, out=entropies[example])
    return entropies.neg_()


# --- visibility: which keys each query may attend to, for all layers alike ----------------------


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
