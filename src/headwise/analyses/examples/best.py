"""The best few of a stream, for many cells at once, no two from one document: a bounded state that merges."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

EMPTY = -np.inf
COLUMNS = ("example", "document", "query", "key")


class Best:
    """For each cell the `keep` highest values, with where each was found.

    `values[cell, keep]` and `places[cell, keep, 4]` (example, document, query, key); places without a find have the
    value −inf. Equal values go to the earlier example, so that the order of merging does not matter.
    """

    def __init__(self, cells: int, keep: int) -> None:
        self.keep = keep
        self.values = np.full((cells, keep), EMPTY)
        self.places = np.full((cells, keep, len(COLUMNS)), -1, dtype=np.int64)

    def add(self, values: np.ndarray, places: np.ndarray) -> None:
        """Take in finds, `values[cell, find]` and `places[cell, find, 4]`."""
        values = np.concatenate([self.values, np.asarray(values, dtype=float)], axis=1)
        places = np.concatenate([self.places, places], axis=1)
        order = np.lexsort((places[..., 3], places[..., 2], places[..., 0], -values), axis=1)
        values, places = np.take_along_axis(values, order, 1), np.take_along_axis(places, order[..., None], 1)
        cells = np.arange(len(values))
        for rank in range(self.keep):
            at = values.argmax(1)
            self.values[:, rank], self.places[:, rank] = values[cells, at], places[cells, at]
            taken = (places[..., 1] == self.places[:, rank, 1][:, None]) & (self.values[:, rank, None] > EMPTY)
            values = np.where(taken, EMPTY, values)
        self.places[self.values == EMPTY] = -1

    def merge(self, other: Best) -> None:
        """Take in what another has found."""
        self.add(other.values, other.places)

    def arrays(self) -> dict[str, np.ndarray]:
        return {"values": self.values, "places": self.places}

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        self.values, self.places = np.array(arrays["values"]), np.array(arrays["places"])
