"""Which heads and which layer know a task best, by probes on its training part alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headwise.core.errors import InputError, ParameterError
from headwise.core.labels import head_name
from headwise.core.store import CheckpointStore
from headwise.experiments.work import Report, silent
from headwise.models import HeadModel
from headwise.models.vectors import collect_vectors
from headwise.probes import ProbeSettings, fit_probes, fit_regressions
from headwise.text.tasks import Split, Task, sample

EXAMPLES = 2500  # of the training part that are probed
HELD_OUT = 0.2
PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1)


@dataclass(frozen=True, slots=True)
class Ranking:
    """Heads from best to worst, the best layer, and their scores on the held-out share of the
    training part."""

    heads: list[str]
    scores: list[float]
    layer: int
    layer_scores: list[float]

    def top(self, count: int) -> list[str]:
        """The best heads."""
        if not 1 <= count <= len(self.heads):
            raise ParameterError(
                f"`top` must be from 1 to {len(self.heads)}, the number of heads; it is {count}."
            )
        return self.heads[:count]


def rank_heads(
    model: HeadModel,
    task: Task,
    *,
    seed: int = 0,
    store: CheckpointStore | None = None,
    report: Report = silent,
) -> Ranking:
    """Rank all heads and layers of a model by a logistic (or ridge) regression on their vectors at
    the sentence's token.

    Only the training part is used: a sample of it, four fifths to fit and one fifth to rank (Jo &
    Myaeng 2020, §3.3 rank on validation too). With a `store`, vectors are kept there as they are
    made."""
    labels = ["" if task.regression else example.label for example in task.train]
    chosen = sample(labels, np.arange(len(task.train)), EXAMPLES, seed)
    order = np.random.default_rng(seed).permutation(len(chosen))
    held_out = max(2, round(HELD_OUT * len(chosen)))
    if len(chosen) <= held_out:
        raise InputError(
            f"{task.name} has {len(chosen)} training examples, too few to rank heads by; name them with --heads."
        )
    picked = [task.train[i] for i in chosen]
    vectors = collect_vectors(model, picked, store, report=report, what="vectors")
    rank_rows, fit_rows = np.sort(order[:held_out]), np.sort(order[held_out:])
    split = Split(fit_rows, rank_rows, rank_rows)
    settings = ProbeSettings(penalties=PENALTIES, device=str(model.device))
    fit = fit_regressions if task.regression else fit_probes
    targets = task.targets(picked)
    by_head, by_layer = (
        fit(own, targets, split, settings, task.name).validation
        for own in (vectors.heads, vectors.layers)
    )
    order = np.argsort(-by_head, kind="stable")
    names = [head_name(*divmod(place, model.heads)) for place in order.tolist()]
    return Ranking(names, by_head[order].tolist(), int(np.argmax(by_layer)), by_layer.tolist())
