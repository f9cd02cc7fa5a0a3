"""Sums over many cells of which a shard fills few: saved as places and values."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from headwise.stats.accumulators import Sums


class SparseSums(Sums):
    """Plain sums whose saved form holds only the cells that are not zero."""

    def arrays(self) -> dict[str, np.ndarray]:
        flat = self.total.numpy().ravel()
        place = np.flatnonzero(flat)
        return {"place": place.astype(np.int32 if flat.size < 2**31 else np.int64), "value": flat[place]}

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        flat = np.zeros(self.total.numel())
        flat[arrays["place"]] = arrays["value"]
        self.total = torch.from_numpy(flat).reshape(self.total.shape)
