"""What is known of the classifier's mistakes: on heads of models it was trained on, and on models it never saw."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from headwise.stats.bootstrap import resamples

ERRORS = "errors.json"


@dataclass(frozen=True, slots=True, eq=False)
class ErrorModel:
    """Labelled maps by true and by said pattern, `tables[head, true, said]`.

    Maps of one head resemble each other, so doubt about the mistakes is drawn by head. `unit[head]` is what the
    mistakes must carry over to: other heads (each its own unit, the default), or other models.
    """

    tables: np.ndarray
    origin: str = ""
    unit: np.ndarray | None = None

    @property
    def counts(self) -> np.ndarray:
        """Over all heads, `[true, said]`."""
        return np.asarray(self.tables.sum(0))

    def redrawn(self, repeats: int, generator: np.random.Generator) -> np.ndarray:
        """The counts as other labelled heads would have given them, `[repeat, true, said]`."""
        drawn_heads = resamples(len(self.tables), repeats, generator)
        return np.asarray(np.einsum("rh,htd->rtd", drawn_heads, self.tables))

    def halves(self, repeats: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """The counts of one half of the units and of the other, drawn again and again, `[repeat, true, said]` each.

        None where there is one unit only.
        """
        names = np.arange(len(self.tables)) if self.unit is None else self.unit
        _, place = np.unique(names, return_inverse=True)
        units = int(place.max()) + 1
        order = np.argsort(generator.random((repeats if units > 1 else 0, units)), axis=1)
        first = (order < units // 2)[:, place].astype(float)
        one = np.einsum("rh,htd->rtd", first, self.tables)
        return one, self.counts - one


@cache
def _shipped() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((resources.files("headwise.analyses.patterns") / ERRORS).read_text("utf-8"))
    return found


def seen_in_training(name: str, layers: int, heads: int) -> bool:
    """Whether maps of this model were among those the shipped classifier was trained on.

    >>> seen_in_training("wiki-bert", 12, 12), seen_in_training("bert-base-uncased", 12, 12)
    (True, False)
    """
    size = _shipped()["trained_on"].get(name.rstrip("/").rpartition("/")[2])
    return bool(size == [layers, heads])


def shipped_errors(seen: bool, causal: bool) -> ErrorModel:
    """The mistakes of the shipped classifier on such a model."""
    found = _shipped()["seen" if seen else "unseen"]["causal" if causal else "encoder"]
    return ErrorModel(np.array(found["tables"]), found["origin"], np.array(found["unit"]) if "unit" in found else None)
