"""Single weights and keys of an equal label, found without a look at every weight: pairs are picked
out of a block, labels of few kinds are sets of keys, labels of many kinds are pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

FEW_LABELS = 8  # kinds in one example that are added to the sets of keys
DENSE = 8  # one in so many pairs of tokens is equal: then they are not picked one by one


class Picked:
    """Single weights, lists of them `[3, pair]` (example, row, key) one behind the other, by
    example and row."""

    def __init__(self, lists: Sequence[Tensor], sizes: tuple[int, int, int]) -> None:
        self.examples, self.queries, self.keys = sizes
        self.lengths = [places.shape[1] for places in lists]
        together = torch.cat([*lists], dim=1) if lists else torch.empty(3, 0, dtype=torch.int64)
        self.order = torch.argsort(together[0] * self.queries + together[1], stable=True)
        self.example, self.row, self.key = together[:, self.order]
        self.back = torch.argsort(self.order)  # where each pair of the lists stands now
        self._here: dict[tuple[int | None, ...], tuple[slice | Tensor, Tensor]] = {}

    def room(self, like: Tensor, heads: int) -> Tensor:
        """Room for the weights, `[head, pair]`."""
        return like.new_empty(heads, len(self.order))

    def take(self, out: Tensor, weights: Tensor, here: tuple[slice, slice, slice]) -> None:
        """Pick what a block has of them."""
        if not len(self.order):
            return
        examples, heads, rows = here
        key = examples.start, examples.stop, rows.start, rows.stop
        if key not in self._here:
            self._here[key] = self._within(
                *examples.indices(self.examples)[:2], rows.start, rows.stop
            )
        which, flat = self._here[key]
        if not len(flat):
            return
        several, many, height, width = weights.shape
        if several == 1:
            out[heads, which] = weights.reshape(many, -1).index_select(1, flat)
            return
        example, place = flat // (height * width), flat % (height * width)
        apart = torch.arange(many, device=flat.device)[:, None]
        out[heads, which] = weights.take((example * many + apart) * (height * width) + place)

    def _within(
        self, first: int, last: int, start: int, stop: int
    ) -> tuple[slice | Tensor, Tensor]:
        """Which pairs these rows of these examples hold, and where in a block of them (without
        heads)."""
        inside = (
            (self.example >= first)
            & (self.example < last)
            & (self.row >= start)
            & (self.row < stop)
        )
        which = torch.nonzero(inside)[:, 0]
        rows = (self.example[which] - first) * (stop - start) + self.row[which] - start
        flat = rows * self.keys + self.key[which]
        if len(which) and int(which[-1] - which[0]) == len(which) - 1:
            return slice(int(which[0]), int(which[-1]) + 1), flat
        return which, flat

    def single(self, picked: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
        """The first lists by name, `[pair, head]`."""
        return {name: self._list(picked, number).T for number, name in enumerate(names)}

    def _list(self, picked: Tensor, number: int) -> Tensor:
        first = sum(self.lengths[:number])
        return picked.index_select(1, self.back[first : first + self.lengths[number]])

    def by_row(self, picked: Tensor, number: int) -> Tensor:
        """The sums of one list over the pairs of each row, `[example, head, row]`."""
        first = sum(self.lengths[:number])
        places = self.back[first : first + self.lengths[number]]
        rows = self.example[places] * self.queries + self.row[places]
        out = picked.new_zeros(len(picked), self.examples * self.queries)
        out.scatter_add_(1, rows.expand(len(picked), -1), picked.index_select(1, places))
        return out.view(len(picked), self.examples, self.queries).transpose(0, 1)


class Equal:
    """Labels `[example, token]` of queries and keys, sorted by the cheapest way to the mass on keys
    of the own one: `columns`, one set of keys for each of few labels; `sparse`, pairs; `dense`,
    every weight is looked at."""

    def __init__(
        self, labels: Mapping[str, tuple[Tensor, Tensor]], sizes: tuple[int, int, int]
    ) -> None:
        self.sparse: dict[str, Tensor] = {}
        self.columns: dict[str, Tensor] = {}  # [example, label, key]
        self.dense: dict[str, tuple[Tensor, Tensor]] = {}
        self._number: dict[
            str, Tensor
        ] = {}  # [example, query]: which of them is the query's, −1 for none
        examples, queries, keys = sizes
        for name, (own, theirs) in labels.items():
            # On a GPU that has no kernels every weight is looked at, which needs no answer from it
            # beforehand.
            pairs = (
                _pairs(own, theirs, examples * queries * keys // DENSE)
                if own.device.type == "cpu"
                else None
            )
            if pairs is not None:
                self.sparse[name] = pairs
                continue
            few = _few(own, theirs) if own.device.type == "cpu" else None
            if few is None:
                self.dense[name] = own, theirs
            else:
                self._number[name], self.columns[name] = few

    def masses(
        self, masses: Tensor | None, place: Mapping[str, int], parts: Mapping[str, Tensor], weights: Tensor,
        picked: Picked,
    ) -> dict[str, Tensor]:  # fmt: skip
        """By label, `[example, head, row]`: from the masses on sets, from what every weight gave,
        and from pairs."""
        found = {name: parts[f"label {name}"] for name in self.dense}
        for name, own in self._number.items():
            assert masses is not None
            first = place[f"label {name}"]
            sets = masses[:, first : first + self.columns[name].shape[1]]
            mine = own.clamp(min=0)[:, None, None].expand(-1, 1, sets.shape[2], -1)
            found[name] = sets.gather(1, mine)[:, 0] * (own >= 0)[:, None]
        behind = len(picked.lengths) - len(self.sparse)
        return found | {
            name: picked.by_row(weights, behind + number) for number, name in enumerate(self.sparse)
        }


def _pairs(own: Tensor, theirs: Tensor, at_most: int) -> Tensor | None:
    """Example, query and key of all pairs of equal labels, `[3, pair]`; None where there are more
    than `at_most`."""
    # All examples at once: the labels of each are moved past those of the one before.
    most = int(torch.maximum(own.max(), theirs.max())) + 2 if own.numel() and theirs.numel() else 2
    past = torch.arange(len(own))[:, None] * most + 1
    mine, (other, place) = (own + past).flatten(), (theirs + past).flatten().sort(stable=True)
    first, last = torch.searchsorted(other, mine), torch.searchsorted(other, mine, right=True)
    count = torch.where(own.flatten() >= 0, last - first, 0)
    if int(count.sum()) > at_most:
        return None
    row = torch.repeat_interleave(torch.arange(len(mine)), count)
    within = torch.arange(len(row)) - torch.repeat_interleave(count.cumsum(0) - count, count)
    key = place[first[row] + within]
    return torch.stack([row // own.shape[1], row % own.shape[1], key % theirs.shape[1]])


def _few(own: Tensor, theirs: Tensor) -> tuple[Tensor, Tensor] | None:
    """Which of an example's labels each query has, `[example, query]`, and the keys of each,
    `[example, label, key]`; None where there are many labels."""
    number = torch.full_like(own, -1)
    sets = torch.zeros(len(own), FEW_LABELS, theirs.shape[1], dtype=torch.bool)
    most = 0
    for example, (mine, other) in enumerate(zip(own, theirs, strict=True)):
        shared = [
            label for label in mine.unique().tolist() if label >= 0 and bool((other == label).any())
        ]
        if len(shared) > FEW_LABELS:
            return None
        most = max(most, len(shared))
        for place, label in enumerate(shared):
            number[example, mine == label] = place
            sets[example, place] = other == label
    return number, sets[:, : max(most, 1)]
