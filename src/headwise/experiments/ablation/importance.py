"""Measures of every head beside disabling it: first-order importance (Michel et al. 2019), and the
share of its attention that goes to the first token."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headwise.experiments.ablation.scored_models import (
    GRADIENT_TOKENS,
    HeadOutputCollector,
    ScoredModel,
)
from headwise.models.view import AttentionRows, Watcher
from headwise.run.job import Job
from headwise.stats.accumulators import Moments
from headwise.text.encode import Batch

# A measure of one batch: a value for each example and head, `[example, layer, head]`.
BatchMeasure = Callable[[ScoredModel, Batch], np.ndarray]


def head_importance(scored: ScoredModel, *, job: Job | None = None) -> dict[str, np.ndarray]:
    """Return first-order importance: `I[l, h] = mean over examples of | Σ_t O[l,h,t] · d loss / d
    O[l,h,t] |`, with `O` the head's output (Michel et al. 2019, §4.1).

    The result has `mean`, `low`, `high` (95 % interval over examples) `[layer, head]` and `n`. In a
    `job` that has begun, finished batches have checkpoints."""
    return _mean_over_examples("importance", "importance", _importance, scored, job)


def sink_share(scored: ScoredModel, *, job: Job | None = None) -> dict[str, np.ndarray]:
    """Return the share of attention on the first token: mean `A[i, 0]` over `i > 0` of an input,
    then over inputs.

    The result has `mean`, `low`, `high` (95 %) `[layer, head]` and `n`. Inputs of one token have no
    share. In a `job` that has begun, finished batches have checkpoints."""
    summary = _mean_over_examples("first-token", "first token", _sink_share, scored, job)
    summary["low"] = np.clip(summary["low"], 0, 1)
    summary["high"] = np.clip(summary["high"], 0, 1)
    return summary


def _mean_over_examples(
    name: str,
    what: str,
    measure: BatchMeasure,
    scored: ScoredModel,
    job: Job | None,
) -> dict[str, np.ndarray]:
    """Return the mean over all examples of what is measured batch by batch."""
    moments = Moments(scored.model.layers, scored.model.heads)
    measure_batch = partial(_measure_batch, scored, measure)
    numbers = range(len(scored.batches))
    for arrays in (job or Job()).each(name, measure_batch, numbers, what):
        # Whatever it is called: checkpoints of earlier versions have another name for it.
        (values,) = arrays.values()
        moments.add(torch.from_numpy(values))
    return moments.summary()


def _measure_batch(
    scored: ScoredModel, measure: BatchMeasure, number: int
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    with scored.evaluating():
        return {"values": measure(scored, scored.batches[number])}, {}


# --- first-order importance -----------------------------------------------------------------------


def examples_within(batch: Batch, tokens: int) -> int:
    """Return how many examples of a batch fit into so many tokens, padding included; at least 1."""
    return max(1, tokens // batch.ids.shape[1])


def _importance(scored: ScoredModel, batch: Batch) -> np.ndarray:
    n_at_once = examples_within(batch, GRADIENT_TOKENS)
    parts = []
    for first in range(0, len(batch), n_at_once):
        part = batch
        if n_at_once < len(batch):
            part = batch.select(range(first, min(first + n_at_once, len(batch))))
        watcher = HeadOutputCollector()
        session = scored.session(part, watcher=watcher)
        with trainable(scored.model.module):
            with torch.enable_grad(), session.running():
                losses = scored.losses(scored.run(part, session), part)
            outputs = [watcher.outputs[layer] for layer in range(scored.model.layers)]
            gradients = torch.autograd.grad(losses.sum(), outputs, allow_unused=True)
        importances = []
        for output, gradient in zip(outputs, gradients, strict=True):
            if gradient is None:
                # A layer above the one a classifier reads has no part in the loss.
                importances.append(torch.zeros(output.shape[:2], device=output.device))
            else:
                importances.append((output * gradient).sum((-1, -2)).abs())
        parts.append(torch.stack(importances, 1).detach().double().cpu())
    return torch.cat(parts).numpy()


@contextmanager
def trainable(module: nn.Module, yes: bool = True) -> Iterator[None]:
    """Let every parameter take gradients (or none) for a `with` block."""
    changed = [p for p in module.parameters() if p.requires_grad is not yes]
    for parameter in changed:
        parameter.requires_grad_(yes)
    try:
        yield
    finally:
        for parameter in changed:
            parameter.requires_grad_(not yes)


# --- the first token ------------------------------------------------------------------------------


class SinkShareWatcher(Watcher):
    """Adds up the weights on the first token of all later rows, by example, layer and head."""

    needs = frozenset({"attention"})

    def __init__(self) -> None:
        self.sums: dict[int, Tensor] = {}

    def on_rows(self, rows: AttentionRows) -> None:
        later_rows = rows.weights[:, :, max(0, 1 - rows.start) :, 0]
        on_first = later_rows.double().sum(-1)
        if rows.layer in self.sums:
            on_first = self.sums[rows.layer] + on_first
        self.sums[rows.layer] = on_first


def _sink_share(scored: ScoredModel, batch: Batch) -> np.ndarray:
    """Return the share of one batch, `[example, layer, head]`; NaN for inputs of one token."""
    watcher = SinkShareWatcher()
    session = scored.session(batch, watcher=watcher)
    with torch.no_grad(), session.running():
        scored.model.run(batch.ids, batch.attention_mask, batch.types, source=batch.source)
    n_rows = (batch.lengths - 1).double()[:, None, None]
    sums = torch.stack([watcher.sums[layer] for layer in range(scored.model.layers)], 1)
    return torch.where(n_rows > 0, sums / n_rows.clamp(min=1), torch.nan).cpu().numpy()
