"""What is measured of every head beside disabling it: first-order importance (Michel et al. 2019),
and how much it rests on the first token."""

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

Values = Callable[
    [ScoredModel, Batch], np.ndarray
]  # of a batch: one for each example and head, `[example, layer, head]`


def head_importance(subject: ScoredModel, *, job: Job | None = None) -> dict[str, np.ndarray]:
    """`I[l, h] = mean over examples of | Σ_t O[l,h,t] · d loss / d O[l,h,t] |`, with `O` the head's
    output (Michel et al. 2019, §4.1).

    Gives `mean`, `low`, `high` (95 % interval over examples) `[layer, head]` and `n`. With a
    `job`, finished batches are its checkpoints."""
    return _over_examples("importance", partial(_piece, subject, _importance), subject, job)


def sink_share(subject: ScoredModel, *, job: Job | None = None) -> dict[str, np.ndarray]:
    """Mean `A[i, 0]` over `i > 0` of an input, then over inputs: `mean`, `low`, `high` (95 %)
    `[layer, head]` and `n`.

    Inputs of one token have none. With a `job`, finished batches are its checkpoints.
    """
    found = _over_examples("first token", partial(_piece, subject, _sink_share), subject, job)
    return found | {end: np.clip(found[end], 0, 1) for end in ("low", "high")}


def _over_examples(
    what: str,
    function: Callable[[int], Any],
    subject: ScoredModel,
    job: Job | None,
) -> dict[str, np.ndarray]:
    """The mean over all examples of what is measured batch by batch."""
    moments = Moments(subject.model.layers, subject.model.heads)
    job = job or Job()
    numbers = range(len(subject.batches))
    for arrays in job.each(what.replace(" ", "-"), function, numbers, what):
        (values,) = (
            arrays.values()
        )  # whatever it is called: pieces of earlier versions have another name for it
        moments.add(torch.from_numpy(values))
    return moments.summary()


def _piece(
    subject: ScoredModel, values: Values, number: int
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    with subject.evaluating():
        return {"values": values(subject, subject.batches[number])}, {}


# --- first-order importance -----------------------------------------------------------------------


def examples_within(batch: Batch, tokens: int) -> int:
    """Return how many examples of a batch fit into so many tokens, padding included; at least 1."""
    return max(1, tokens // batch.ids.shape[1])


def _importance(subject: ScoredModel, batch: Batch) -> np.ndarray:
    step = examples_within(batch, GRADIENT_TOKENS)
    found = []
    for first in range(0, len(batch), step):
        part = (
            batch
            if step >= len(batch)
            else batch.select(range(first, min(first + step, len(batch))))
        )
        watcher = HeadOutputCollector()
        session = subject.session(part, watcher=watcher)
        with trainable(subject.model.module):
            with torch.enable_grad(), session.running():
                losses = subject.losses(subject.run(part, session), part)
            outputs = [watcher.outputs[layer] for layer in range(subject.model.layers)]
            # A layer above the one a classifier reads has no part in the loss.
            gradients = torch.autograd.grad(losses.sum(), outputs, allow_unused=True)
        each = [
            torch.zeros(out.shape[:2], device=out.device)
            if grad is None
            else (out * grad).sum((-1, -2)).abs()
            for out, grad in zip(outputs, gradients, strict=True)
        ]
        found.append(torch.stack(each, 1).detach().double().cpu())
    return torch.cat(found).numpy()


@contextmanager
def trainable(module: nn.Module, yes: bool = True) -> Iterator[None]:
    """Every parameter takes gradients (or none does) for a `with` block."""
    changed = [p for p in module.parameters() if p.requires_grad is not yes]
    for parameter in changed:
        parameter.requires_grad_(yes)
    try:
        yield
    finally:
        for parameter in changed:
            parameter.requires_grad_(not yes)


# --- the first token ------------------------------------------------------------------------------


class _First(Watcher):
    """Adds up the weights on the first token of all later rows, by example, layer and head."""

    needs = frozenset({"attention"})

    def __init__(self) -> None:
        self.sums: dict[int, Tensor] = {}

    def on_rows(self, rows: AttentionRows) -> None:
        later = rows.weights[:, :, max(0, 1 - rows.start) :, 0].double().sum(-1)
        self.sums[rows.layer] = self.sums[rows.layer] + later if rows.layer in self.sums else later


def _sink_share(subject: ScoredModel, batch: Batch) -> np.ndarray:
    """NaN for inputs of one token."""
    watcher = _First()
    session = subject.session(batch, watcher=watcher)
    with torch.no_grad(), session.running():
        subject.model.run(batch.ids, batch.attention_mask, batch.types, source=batch.source)
    rows = (batch.lengths - 1).double()[:, None, None]
    sums = torch.stack([watcher.sums[layer] for layer in range(subject.model.layers)], 1)
    return torch.where(rows > 0, sums / rows.clamp(min=1), torch.nan).cpu().numpy()
