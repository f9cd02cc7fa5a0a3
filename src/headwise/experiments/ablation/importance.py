"""First-order importance of heads (Michel et al. 2019): how much the loss would change, to first order, if a head's output were scaled away."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from headwise.experiments.ablation.subjects import HeadOutputs, Subject, TaskSubject
from headwise.models.session import Session
from headwise.stats.intervals import mean_interval

GRADIENT_TOKENS = 1024  # tokens run at once where gradients are kept


def head_importance(subject: Subject, report: Callable[[str, int, int], None] | None = None) -> dict[str, np.ndarray]:
    """`I[l, h] = mean over examples of | Σ_t O[l,h,t] · d loss / d O[l,h,t] |`, with `O` the head's output (Michel et al. 2019, §4.1).

    Gives `mean`, `low`, `high` (95 % interval over examples) `[layer, head]` and `n`.
    """
    model = subject.model
    found: list[torch.Tensor] = []
    done = 0
    trained = [p for p in model.module.parameters() if not p.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(True)
    try:
        for batch in subject.batches:
            at_once = max(1, GRADIENT_TOKENS // batch.ids.shape[1]) if isinstance(subject, TaskSubject) else len(batch)
            for first in range(0, len(batch), at_once):
                part = batch if at_once >= len(batch) else batch.select(range(first, min(first + at_once, len(batch))))
                watcher = HeadOutputs()
                session = Session(model.sites, part.real, watcher)
                with torch.enable_grad(), model.evaluating(), session.running():
                    losses = subject.losses(subject.run(part, session), part)
                outputs = [watcher.outputs[layer] for layer in range(model.layers)]
                # A layer above the one a classifier reads has no part in the loss.
                gradients = torch.autograd.grad(losses.sum(), outputs, allow_unused=True)
                each = [
                    torch.zeros(out.shape[:2], device=out.device) if grad is None else (out * grad).sum((-1, -2)).abs()
                    for out, grad in zip(outputs, gradients, strict=True)
                ]
                found.append(torch.stack(each, 1).detach().double().cpu())  # example, layer, head
                done += len(part)
                if report is not None:
                    report("importance", done, subject.examples)
    finally:
        for parameter in trained:
            parameter.requires_grad_(False)
    values = torch.cat(found).numpy()
    n = np.full(values.shape[1:], len(values))
    mean, variance = values.mean(0), values.var(0, ddof=1) if len(values) > 1 else np.full(values.shape[1:], np.nan)
    low, high = mean_interval(mean, variance, n)
    return {"mean": mean, "low": low, "high": high, "n": n}
