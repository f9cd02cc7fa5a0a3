"""Rank heads and layers for a task by probes on its training part alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headwise.core.errors import InputError, ParameterError
from headwise.core.labels import head_name
from headwise.core.store import CheckpointStore
from headwise.models import HeadModel
from headwise.models.vectors import collect_vectors
from headwise.probes import ProbeSettings, fit_probes, fit_regressions
from headwise.run.job import Progress, no_progress
from headwise.text.tasks import Split, Task, sample

EXAMPLES = 2500  # of the training part that are probed
HELD_OUT = 0.2
PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1)


@dataclass(frozen=True, slots=True)
class HeadRanking:
    """Heads from best to worst, the best layer, and their scores on the held-out share of the
    training part."""

    heads: list[str]
    scores: list[float]
    layer: int
    layer_scores: list[float]

    def top(self, count: int) -> list[str]:
        """Return the names of the best heads."""
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
    report: Progress = no_progress,
) -> HeadRanking:
    """Rank all heads and layers of a model by a logistic (or ridge) regression on their vectors at
    the sentence's token.

    Only the training part is used: a sample of it, four fifths to fit and one fifth to rank (Jo &
    Myaeng 2020, §3.3 rank on validation too). With a `store`, vectors have
    checkpoints there."""
    labels = []
    for example in task.train:
        labels.append("" if task.regression else example.label)
    chosen = sample(labels, np.arange(len(task.train)), EXAMPLES, seed)
    order = np.random.default_rng(seed).permutation(len(chosen))
    n_held_out = max(2, round(HELD_OUT * len(chosen)))
    if len(chosen) <= n_held_out:
        raise InputError(
            f"{task.name} has {len(chosen)} training examples, too few to rank heads by; name the "
            "heads.",
            option="heads",
        )
    examples = [task.train[index] for index in chosen]
    vectors = collect_vectors(model, examples, store, report=report, what="vectors")
    ranking_rows = np.sort(order[:n_held_out])
    fitting_rows = np.sort(order[n_held_out:])
    split = Split(fitting_rows, ranking_rows, ranking_rows)
    settings = ProbeSettings(penalties=PENALTIES, device=str(model.device))
    fit = fit_regressions if task.regression else fit_probes
    targets = task.targets(examples)
    head_scores = fit(vectors.heads, targets, split, settings, task.name).validation
    layer_scores = fit(vectors.layers, targets, split, settings, task.name).validation
    ranked = np.argsort(-head_scores, kind="stable")
    return HeadRanking(
        heads=[head_name(*divmod(number, model.heads)) for number in ranked.tolist()],
        scores=head_scores[ranked].tolist(),
        layer=int(np.argmax(layer_scores)),
        layer_scores=layer_scores.tolist(),
    )
