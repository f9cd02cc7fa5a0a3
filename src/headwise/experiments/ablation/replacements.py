"""What stands in for a disabled head: uniform attention, nothing, a mean, or what it gave on
another input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headwise.core.errors import InputError, ParameterError, unknown
from headwise.experiments.ablation.scored_models import HeadOutputCollector, ScoredModel
from headwise.models import HeadModel
from headwise.models.interventions import Intervention, Mean, Patch, Plan, plan_interventions
from headwise.text.encode import Batch

AUTO = "auto"
ABLATION_METHODS = ("uniform", "zero", "mean", "corpus_mean", "resample")


def resolve_method(how: str, model: HeadModel) -> str:
    """The way that `auto` stands for: `zero` in causal models, `uniform` (the paper's) in others.

    Many heads of a causal model rest on its first token, where they add next to nothing. Uniform
    attention wakes them: it measures the noise they then make, not what they did."""
    if how not in (AUTO, *ABLATION_METHODS):
        raise ParameterError(unknown("way to disable a head", how, (AUTO, *ABLATION_METHODS)))
    return ("zero" if model.causal else "uniform") if how == AUTO else how


class AblationPlanner:
    """Makes the interventions that disable heads on a batch.

    Parameters
    ----------
    subject : ScoredModel
        The model, and the inputs that means and other inputs are taken from.
    how : str
        One of `ABLATION_METHODS`.
    seed : int, default 0
        For the inputs that `resample` draws.
    """

    def __init__(self, subject: ScoredModel, how: str, seed: int = 0) -> None:
        if how == "resample" and subject.examples < 2:
            raise InputError(
                "Resampling takes a head's output from another input; give at least two examples."
            )
        self.subject, self.how, self.seed = subject, how, seed
        self._means: Tensor | None = None
        self._drawn: tuple[Batch, list[Tensor]] | None = (
            None  # of one batch: outputs of other inputs, by layer
        )

    def __getstate__(self) -> dict[str, Any]:
        """What travels to a worker: the means too, so that each need not run the model over
        everything for them."""
        return {
            **vars(self),
            "_means": self._corpus_means() if self.how == "corpus_mean" else None,
            "_drawn": None,
        }

    def plan(self, heads: Sequence[tuple[int, int]], batch: Batch) -> Plan:
        """What is done to these heads on this batch."""
        model = self.subject.model
        given = {place: self._intervention(place, batch) for place in heads}
        return plan_interventions(given, model.layers, model.heads, model.d_head)

    def _intervention(self, place: tuple[int, int], batch: Batch) -> Intervention:
        layer, head = place
        if self.how == "corpus_mean":
            return Mean(self._corpus_means()[layer, head])
        if self.how == "resample":
            if self._drawn is None or self._drawn[0] is not batch:
                self._drawn = batch, self._others(batch)
            return Patch(output=self._drawn[1][layer][:, head])
        return self.how

    def _corpus_means(self) -> Tensor:
        if self._means is None:
            self._means = corpus_means(self.subject)
        return self._means

    def _others(self, batch: Batch) -> list[Tensor]:
        """The outputs of every layer on other inputs, `[example, head, token, d_head]`, place for
        place; an input that is shorter starts over. Inputs are drawn from the same batch, where
        they are of like length."""
        source, number = batch, len(batch)
        if number == 1:
            everything = self.subject.batches
            source = next(b for b in (*everything[::-1], *everything) if b.index != batch.index)
        random = np.random.default_rng([self.seed, *batch.index[:1]])
        if source is batch:
            order = random.permutation(number)
            drawn = np.empty(number, dtype=np.int64)
            drawn[order] = np.roll(order, 1)  # nobody keeps its own
        else:
            drawn = random.integers(len(source), size=number)
        chosen = torch.from_numpy(drawn).to(batch.device)
        width = batch.ids.shape[1]
        places = torch.arange(width, device=batch.device)[None] % source.lengths[chosen][:, None]
        found = []
        for output in head_outputs(self.subject, source):
            index = places[:, None, :, None].expand(-1, output.shape[1], -1, output.shape[3])
            found.append(output[chosen].gather(2, index))
        return found


def head_outputs(subject: ScoredModel, batch: Batch) -> list[Tensor]:
    """What every head gives on a batch, undisturbed: `[example, head, token, d_head]` of each
    layer."""
    watcher = HeadOutputCollector()
    session = subject.session(batch, watcher=watcher)
    with torch.no_grad(), session.running():
        subject.run(batch, session)
    return [watcher.outputs[layer] for layer in range(subject.model.layers)]


def corpus_means(subject: ScoredModel) -> Tensor:
    """The mean output of every head over all tokens of all inputs, `[layer, head, d_head]`."""
    total, count = None, 0
    for batch in subject.batches:
        real = batch.attention_mask[:, None, :, None]
        sums = torch.stack(
            [(output.double() * real).sum((0, 2)) for output in head_outputs(subject, batch)]
        )
        total = sums if total is None else total + sums
        count += int(batch.attention_mask.sum())
    assert total is not None
    return total / count
