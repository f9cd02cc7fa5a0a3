"""Read single weights, and masses on keys of an equal label, without looking at every weight.

Pairs are picked out of a block. Labels with few values become sets of keys; labels with many
values become lists of pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

MAX_LABELS_AS_COLUMNS = 8  # different labels of one example that are added to the sets of keys
DENSE_SHARE = 8  # if more than one in so many pairs is equal, pairs are not picked one by one


class PairWeights:
    """Reads single weights out of blocks.

    Parameters
    ----------
    lists : sequence of Tensor
        Lists of pairs, integers `[3, pair]`: example, row and key.
    sizes : (int, int, int)
        Numbers of examples, queries and keys.
    """

    def __init__(self, lists: Sequence[Tensor], sizes: tuple[int, int, int]) -> None:
        self.n_examples, self.n_queries, self.n_keys = sizes
        self.lengths = [places.shape[1] for places in lists]
        pairs = torch.cat([*lists], dim=1)
        # All lists together, sorted by example and row: the pairs of a block lie side by side.
        self.order = torch.argsort(pairs[0] * self.n_queries + pairs[1], stable=True)
        self.example, self.row, self.key = pairs[:, self.order]
        self.position = torch.argsort(self.order)  # of each pair of the lists, once sorted
        self._places: dict[tuple[int | None, ...], tuple[slice | Tensor, Tensor]] = {}

    def new_buffer(self, like: Tensor, heads: int) -> Tensor:
        """Return an empty tensor for the weights, `[head, pair]`."""
        return like.new_empty(heads, len(self.order))

    def read(self, buffer: Tensor, weights: Tensor, index: tuple[slice, slice, slice]) -> None:
        """Copy the weights of the pairs that lie in a block into the buffer."""
        examples, heads, rows = index
        key = (examples.start, examples.stop, rows.start, rows.stop)
        if key not in self._places:
            first, last, _ = examples.indices(self.n_examples)
            self._places[key] = self._in_block(first, last, rows.start, rows.stop)
        which, flat = self._places[key]
        if not len(flat):
            return
        n_examples, n_heads, n_rows, n_keys = weights.shape
        if n_examples == 1:
            buffer[heads, which] = weights.reshape(n_heads, -1).index_select(1, flat)
            return
        map_size = n_rows * n_keys
        example = flat // map_size
        place = flat % map_size
        head = torch.arange(n_heads, device=flat.device)[:, None]
        buffer[heads, which] = weights.take((example * n_heads + head) * map_size + place)

    def _in_block(
        self, first: int, last: int, start: int, stop: int
    ) -> tuple[slice | Tensor, Tensor]:
        """Return which pairs lie in these examples and rows, and where in a block of one head."""
        in_examples = (self.example >= first) & (self.example < last)
        in_rows = (self.row >= start) & (self.row < stop)
        which = torch.nonzero(in_examples & in_rows)[:, 0]
        block_row = (self.example[which] - first) * (stop - start) + self.row[which] - start
        flat = block_row * self.n_keys + self.key[which]
        if len(which) and int(which[-1] - which[0]) == len(which) - 1:
            return slice(int(which[0]), int(which[-1]) + 1), flat  # contiguous: cheaper to index
        return which, flat

    def by_name(self, buffer: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
        """Return the weights of the first lists, `[pair, head]`, under these names."""
        weights = {}
        for number, name in enumerate(names):
            weights[name] = buffer.index_select(1, self._positions(number)).T
        return weights

    def sum_by_row(self, buffer: Tensor, number: int) -> Tensor:
        """Sum the weights of one list over the pairs of each row, `[example, head, row]`."""
        n_heads = len(buffer)
        positions = self._positions(number)
        rows = self.example[positions] * self.n_queries + self.row[positions]
        sums = buffer.new_zeros(n_heads, self.n_examples * self.n_queries)
        sums.scatter_add_(1, rows.expand(n_heads, -1), buffer.index_select(1, positions))
        return sums.view(n_heads, self.n_examples, self.n_queries).transpose(0, 1)

    def _positions(self, number: int) -> Tensor:
        """Where the pairs of one list lie in the buffer."""
        first = sum(self.lengths[:number])
        return self.position[first : first + self.lengths[number]]


class LabelMatcher:
    """Labels of queries and keys, sorted by the cheapest way to the mass on keys of equal label.

    `columns[name][example, label, key]`: one set of keys for each of few labels;
    `sparse[name][3, pair]`: a list of the pairs; `dense[name]`: every weight is looked at."""

    def __init__(
        self, labels: Mapping[str, tuple[Tensor, Tensor]], sizes: tuple[int, int, int]
    ) -> None:
        self.sparse: dict[str, Tensor] = {}
        self.columns: dict[str, Tensor] = {}
        self.dense: dict[str, tuple[Tensor, Tensor]] = {}
        # For `columns`: which of the sets has the query's label, [example, query]; −1 for none.
        self._set_of_query: dict[str, Tensor] = {}
        n_examples, n_queries, n_keys = sizes
        max_pairs = n_examples * n_queries * n_keys // DENSE_SHARE
        for name, (query_labels, key_labels) in labels.items():
            if query_labels.device.type != "cpu":
                # A GPU without kernels looks at every weight: the other ways would wait for it.
                self.dense[name] = query_labels, key_labels
                continue
            pairs = _equal_pairs(query_labels, key_labels, max_pairs)
            if pairs is not None:
                self.sparse[name] = pairs
                continue
            sets = _label_sets(query_labels, key_labels)
            if sets is None:
                self.dense[name] = query_labels, key_labels
            else:
                self._set_of_query[name], self.columns[name] = sets

    def mass_of_own_label(self, name: str, masses: Tensor) -> Tensor:
        """Return the mass on keys of the query's label, `[example, head, row]`, from the masses on
        the sets of keys, `[example, label, head, row]`."""
        set_of_query = self._set_of_query[name]
        index = set_of_query.clamp(min=0)[:, None, None].expand(-1, 1, masses.shape[2], -1)
        return masses.gather(1, index)[:, 0] * (set_of_query >= 0)[:, None]


def _equal_pairs(query_labels: Tensor, key_labels: Tensor, max_pairs: int) -> Tensor | None:
    """Return example, query and key of all pairs of equal labels, `[3, pair]`; None if there are
    more than `max_pairs`."""
    n_examples, n_queries = query_labels.shape
    n_keys = key_labels.shape[1]
    n_labels = 2
    if query_labels.numel() and key_labels.numel():
        n_labels = int(torch.maximum(query_labels.max(), key_labels.max())) + 2
    # All examples at once: the labels of each are shifted past those of the one before.
    shift = torch.arange(n_examples)[:, None] * n_labels + 1
    queries = (query_labels + shift).flatten()
    keys, key_order = (key_labels + shift).flatten().sort(stable=True)
    first = torch.searchsorted(keys, queries)
    last = torch.searchsorted(keys, queries, right=True)
    n_equal = torch.where(query_labels.flatten() >= 0, last - first, 0)
    if int(n_equal.sum()) > max_pairs:
        return None
    row = torch.repeat_interleave(torch.arange(len(queries)), n_equal)
    row_start = torch.repeat_interleave(n_equal.cumsum(0) - n_equal, n_equal)
    number_in_row = torch.arange(len(row)) - row_start
    key = key_order[first[row] + number_in_row]
    return torch.stack([row // n_queries, row % n_queries, key % n_keys])


def _label_sets(query_labels: Tensor, key_labels: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return which of an example's labels each query has, `[example, query]`, and the keys of each
    label, `[example, label, key]`; None if there are too many labels."""
    n_examples = len(query_labels)
    set_of_query = torch.full_like(query_labels, -1)
    sets = torch.zeros(n_examples, MAX_LABELS_AS_COLUMNS, key_labels.shape[1], dtype=torch.bool)
    n_sets = 1
    for example in range(n_examples):
        of_queries = query_labels[example]
        of_keys = key_labels[example]
        shared = []
        for label in torch.unique(of_queries).tolist():
            if label >= 0 and bool((of_keys == label).any()):
                shared.append(label)
        if len(shared) > MAX_LABELS_AS_COLUMNS:
            return None
        n_sets = max(n_sets, len(shared))
        for number, label in enumerate(shared):
            set_of_query[example, of_queries == label] = number
            sets[example, number] = of_keys == label
    return set_of_query, sets[:, :n_sets]
