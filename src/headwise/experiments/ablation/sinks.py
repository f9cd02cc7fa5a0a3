"""How much each head rests: the share of its attention that goes to the first token."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headwise.core.store import Store
from headwise.core.workers import current, whole
from headwise.experiments.ablation.subjects import Subject
from headwise.experiments.work import Report, silent
from headwise.models.view import Rows, Watcher
from headwise.stats.intervals import mean_interval


class _First(Watcher):
    """Adds up the weights on the first token of all later rows, by example, layer and head."""

    needs = frozenset({"attention"})

    def __init__(self) -> None:
        self.sums: dict[int, Tensor] = {}

    def rows(self, rows: Rows) -> None:
        later = rows.weights[:, :, max(0, 1 - rows.start) :, 0].double().sum(-1)
        self.sums[rows.layer] = self.sums[rows.layer] + later if rows.layer in self.sums else later


def sink_share(subject: Subject, *, store: Store | None = None, report: Report = silent) -> dict[str, np.ndarray]:
    """Mean `A[i, 0]` over `i > 0` of an input, then over inputs: `mean`, `low`, `high` (95 %) `[layer, head]` and `n`.

    Inputs of one token have none. With a `store`, finished batches are kept there.
    """
    found: list[np.ndarray] = []
    units = [(f"sink-{number:06d}", number) for number in range(len(subject.batches))]
    for piece in whole(current().pieces(store, partial(_batch, subject), units)):
        found.append(piece.arrays["share"])
        report("first token", len(found), len(units))
    values = np.concatenate(found)
    values = values[np.isfinite(values).all((1, 2))]
    size = values.shape[1:]
    mean = values.mean(0) if len(values) else np.full(size, np.nan)
    variance = values.var(0, ddof=1) if len(values) > 1 else np.full(size, np.nan)
    n = np.full(size, len(values))
    low, high = mean_interval(mean, variance, n)
    return {"mean": mean, "low": np.clip(low, 0, 1), "high": np.clip(high, 0, 1), "n": n}


def _batch(subject: Subject, number: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """`share[example, layer, head]` of one batch, as a piece; NaN for inputs of one token."""
    watcher, batch = _First(), subject.batches[number]
    session = subject.session(batch, watcher=watcher)
    with subject.evaluating(), torch.no_grad(), session.running():
        subject.model.run(batch.ids, batch.real, batch.types, source=batch.source)
    rows = (batch.lengths - 1).double()[:, None, None]
    sums = torch.stack([watcher.sums[layer] for layer in range(subject.model.layers)], 1)
    return {"share": torch.where(rows > 0, sums / rows.clamp(min=1), torch.nan).cpu().numpy()}, {}
