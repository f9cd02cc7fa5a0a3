"""One row of scores for each example, or for a sample of them that no order of merging changes."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from headwise.stats.units import Accumulator

WAITING = 2**24  # numbers that may lie on a GPU until they are read


def _lot(index: int) -> int:
    """A number drawn for an example by its place alone (the mixing steps of splitmix64)."""
    value = (index + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return value ^ (value >> 31)


class Records(Accumulator):
    """One row of scores for each example, for paired tests, bootstrap and distributions.

    Kept in the shard's file and sorted by example at the end.

    Rows are filled layer by layer: `add(indices, values, where)` sets `values[example, ...]` in the
    part `where` of the rows of these examples.

    With `at_most` only so many examples are kept, a sample that depends on their places in the
    corpus alone: memory does not grow with the corpus, and no order of merging changes the
    sample."""

    def __init__(
        self, *shape: int, dtype: torch.dtype = torch.float32, at_most: int | None = None
    ) -> None:
        self.shape = shape
        self.dtype = dtype
        self.at_most = at_most
        self._rows: dict[int, Tensor] = {}
        self._units: dict[int, int] = {}  # of examples that belong to a document
        self._drawn: list[
            tuple[int, int]
        ] = []  # a heap of (minus its lot, example): of those kept, the largest lot
        self._barred: int | None = None  # the smallest lot that was left out
        self._waiting: list[
            tuple[list[int], Tensor, tuple[int | slice, ...], list[int]]
        ] = []  # on a GPU

    def _keeps(self, index: int) -> bool:
        """Whether an example is in the sample; one that is new puts out the one with the largest
        lot."""
        if self.at_most is None or index in self._rows:
            return True
        lot = _lot(index)
        if self._barred is not None and lot >= self._barred:
            return False
        heapq.heappush(self._drawn, (-lot, index))
        if len(self._drawn) > self.at_most:
            worst, out = heapq.heappop(self._drawn)
            self._barred = -worst
            self._rows.pop(out, None)
            self._units.pop(out, None)
            return out != index
        return True

    def add(
        self, indices: Sequence[int], values: Tensor, where: tuple[int | slice, ...] = ()
    ) -> None:
        """Set the rows of these examples; what a GPU gives stays there until it is read, or there
        is much of it."""
        units = list(self._units_of(values) or ())
        values = values.detach().to(self.dtype)
        if not values.is_cuda:
            self._set(indices, values, where, units)
            return
        self._waiting.append((list(indices), values, where, units))
        if sum(held.numel() for _, held, _, _ in self._waiting) > WAITING:
            self._fetch()

    def _fetch(self) -> None:
        waiting, self._waiting = self._waiting, []
        for indices, values, where, units in waiting:
            self._set(indices, values.cpu(), where, units)

    def _set(
        self,
        indices: Sequence[int],
        values: Tensor,
        where: tuple[int | slice, ...],
        of_units: Sequence[int],
    ) -> None:
        for index, value in zip(indices, values, strict=True):
            if not self._keeps(index):
                continue
            row = self._rows.get(index)
            if row is None:
                row = self._rows[index] = torch.full(self.shape, torch.nan, dtype=self.dtype)
            row[where] = value
        units = zip(indices, of_units, strict=False)
        self._units.update((index, unit) for index, unit in units if index in self._rows)

    def merge(self, other: Records) -> None:
        self._fetch()
        other._fetch()
        for index, row in other._rows.items():
            if not self._keeps(index):
                continue
            if index in other._units:
                self._units[index] = other._units[index]
            own = self._rows.get(index)
            self._rows[index] = row if own is None else torch.where(own.isnan(), row, own)

    def arrays(self) -> dict[str, np.ndarray]:
        self._fetch()
        return {"index": self.index, "values": self.values, "units": self.units}

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        self._rows, self._units, self._drawn, self._barred, self._waiting = {}, {}, [], None, []
        columns = (arrays["index"].tolist(), arrays["units"].tolist(), arrays["values"])
        for index, unit, row in zip(*columns, strict=True):
            if self._keeps(index):
                self._rows[index] = torch.from_numpy(np.array(row))
                if unit != index:
                    self._units[index] = unit

    @property
    def index(self) -> np.ndarray:
        """The examples that have a row, in corpus order."""
        self._fetch()
        return np.array(sorted(self._rows), dtype=np.int64)

    @property
    def units(self) -> np.ndarray:
        """The unit of each row: its document, or the example itself where some row has none."""
        self._fetch()
        index = sorted(self._rows)
        known = len(self._units) == len(index)
        return np.array([self._units[i] if known else i for i in index], dtype=np.int64)

    @property
    def values(self) -> np.ndarray:
        """The rows [example, ...], in corpus order."""
        self._fetch()
        if not self._rows:
            return np.zeros((0, *self.shape), dtype=np.float32)
        return torch.stack([self._rows[i] for i in sorted(self._rows)]).numpy()
