"""First-order importance of heads (Michel et al. 2019): how much the loss would change, to first order, if a head's
output were scaled away."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from headwise.core.store import Store
from headwise.core.workers import current, whole
from headwise.experiments.ablation.subjects import HeadOutputs, Subject
from headwise.experiments.work import Report, silent
from headwise.stats.intervals import mean_interval
from headwise.text.encode import Batch

GRADIENT_TOKENS = 1024  # tokens run at once where gradients are kept


def head_importance(subject: Subject, *, store: Store | None = None, report: Report = silent) -> dict[str, np.ndarray]:
    """`I[l, h] = mean over examples of | Σ_t O[l,h,t] · d loss / d O[l,h,t] |`, with `O` the head's output (Michel et
    al. 2019, §4.1).

    Gives `mean`, `low`, `high` (95 % interval over examples) `[layer, head]` and `n`. With a `store`, finished batches
    are kept there.
    """
    found: list[np.ndarray] = []
    units = [(f"importance-{number:06d}", number) for number in range(len(subject.batches))]
    for piece in whole(current().pieces(store, partial(_batch, subject), units)):
        found.append(piece.arrays["importance"])
        report("importance", len(found), len(units))
    values = np.concatenate(found)
    n = np.full(values.shape[1:], len(values))
    mean, variance = values.mean(0), values.var(0, ddof=1) if len(values) > 1 else np.full(values.shape[1:], np.nan)
    low, high = mean_interval(mean, variance, n)
    return {"mean": mean, "low": low, "high": high, "n": n}


def _batch(subject: Subject, number: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """`importance[example, layer, head]` of one batch, as a piece."""
    with subject.evaluating(), trainable(subject.model.module):
        return {"importance": _importance(subject, subject.batches[number])}, {}


def _importance(subject: Subject, batch: Batch) -> np.ndarray:
    at_once = max(1, GRADIENT_TOKENS // batch.ids.shape[1]) if subject.divisible else len(batch)
    found = []
    for first in range(0, len(batch), at_once):
        part = batch if at_once >= len(batch) else batch.select(range(first, min(first + at_once, len(batch))))
        watcher = HeadOutputs()
        session = subject.session(part, watcher=watcher)
        with torch.enable_grad(), session.running():
            losses = subject.losses(subject.run(part, session), part)
        outputs = [watcher.outputs[layer] for layer in range(subject.model.layers)]
        # A layer above the one a classifier reads has no part in the loss.
        gradients = torch.autograd.grad(losses.sum(), outputs, allow_unused=True)
        each = [
            torch.zeros(out.shape[:2], device=out.device) if grad is None else (out * grad).sum((-1, -2)).abs()
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
