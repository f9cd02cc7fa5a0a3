"""One row of scores for each example, or for a sample of them that no order of merging changes."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from headwise.stats.units import Accumulator

MAX_WAITING = 2**24  # numbers that may lie on a GPU until they are read


def _lot(index: int) -> int:
    """Return a random number for an example by its index alone (the mixing of splitmix64)."""
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
        # A heap of (minus the lot, example): its top is the sampled example with the largest lot.
        self._sampled: list[tuple[int, int]] = []
        self._smallest_rejected: int | None = None  # lot
        # Values on a GPU that were not fetched yet: (indices, values, where, units).
        self._waiting: list[tuple[list[int], Tensor, tuple[int | slice, ...], list[int]]] = []

    def _keeps(self, index: int) -> bool:
        """Return whether an example is in the sample; a new one replaces the one with the largest
        lot."""
        if self.at_most is None or index in self._rows:
            return True
        lot = _lot(index)
        if self._smallest_rejected is not None and lot >= self._smallest_rejected:
            return False
        heapq.heappush(self._sampled, (-lot, index))
        if len(self._sampled) > self.at_most:
            minus_lot, rejected = heapq.heappop(self._sampled)
            self._smallest_rejected = -minus_lot
            self._rows.pop(rejected, None)
            self._units.pop(rejected, None)
            return rejected != index
        return True

    def add(
        self, indices: Sequence[int], values: Tensor, where: tuple[int | slice, ...] = ()
    ) -> None:
        """Set the rows of these examples; values on a GPU stay there until they are read, or there
        are many."""
        units = list(self._units_of(values) or ())
        values = values.detach().to(self.dtype)
        if not values.is_cuda:
            self._set(indices, values, where, units)
            return
        self._waiting.append((list(indices), values, where, units))
        n_waiting = sum(waiting_values.numel() for _, waiting_values, _, _ in self._waiting)
        if n_waiting > MAX_WAITING:
            self._fetch()

    def _fetch(self) -> None:
        """Copy what waits on a GPU."""
        waiting = self._waiting
        self._waiting = []
        for indices, values, where, units in waiting:
            self._set(indices, values.cpu(), where, units)

    def _set(
        self,
        indices: Sequence[int],
        values: Tensor,
        where: tuple[int | slice, ...],
        units: Sequence[int],
    ) -> None:
        for index, value in zip(indices, values, strict=True):
            if not self._keeps(index):
                continue
            row = self._rows.get(index)
            if row is None:
                row = self._rows[index] = torch.full(self.shape, torch.nan, dtype=self.dtype)
            row[where] = value
        # `units` is empty where examples belong to no document.
        for index, unit in zip(indices, units, strict=False):
            if index in self._rows:
                self._units[index] = unit

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
        self._rows = {}
        self._units = {}
        self._sampled = []
        self._smallest_rejected = None
        self._waiting = []
        indices = arrays["index"].tolist()
        units = arrays["units"].tolist()
        for index, unit, row in zip(indices, units, arrays["values"], strict=True):
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
        indices = sorted(self._rows)
        if len(self._units) != len(indices):
            return np.array(indices, dtype=np.int64)
        return np.array([self._units[index] for index in indices], dtype=np.int64)

    @property
    def values(self) -> np.ndarray:
        """The rows [example, ...], in corpus order."""
        self._fetch()
        if not self._rows:
            return np.zeros((0, *self.shape), dtype=np.float32)
        return torch.stack([self._rows[i] for i in sorted(self._rows)]).numpy()
