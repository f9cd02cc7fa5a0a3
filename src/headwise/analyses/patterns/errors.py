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

    Maps of one head resemble each other, so doubt about the mistakes is drawn by head. Where only the totals are known
    (one table), they are drawn as if there were fewer by the design effect, which was measured by head.
    """

    tables: np.ndarray
    design_effect: float = 1.0
    origin: str = ""

    @property
    def counts(self) -> np.ndarray:
        """Over all heads, `[true, said]`."""
        return np.asarray(self.tables.sum(0))

    def redrawn(self, repeats: int, generator: np.random.Generator) -> np.ndarray:
        """The counts as other labelled heads would have given them, `[repeat, true, said]`."""
        if len(self.tables) > 1:
            drawn_heads = resamples(len(self.tables), repeats, generator)
            return np.asarray(np.einsum("rh,htd->rtd", drawn_heads, self.tables))
        drawn = []
        for row in self.counts.astype(float):
            total = row.sum()
            fewer = max(round(total / self.design_effect), 1) if total else 0
            drawn.append(generator.multinomial(fewer, row / max(total, 1), size=repeats) * (total / max(fewer, 1)))
        return np.stack(drawn, axis=1)


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
    return ErrorModel(np.array(found["tables"]), found.get("design_effect", 1.0), found["origin"])
