"""What replaces the output of a disabled head: uniform attention, zero, a mean, or its output on
another input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headwise.core.errors import InputError, ParameterError, unknown
from headwise.experiments.ablation.options import ABLATION_METHODS, AUTO
from headwise.experiments.ablation.scored_models import HeadOutputCollector, ScoredModel
from headwise.models import HeadModel
from headwise.models.interventions import (
    Intervention,
    InterventionPlan,
    Mean,
    Patch,
    plan_interventions,
)
from headwise.text.encode import Batch


def resolve_method(how: str, model: HeadModel) -> str:
    """Return the ablation method, where `auto` stands for `zero` in causal models and for
    `uniform` (the paper's) in others.

    Many heads of a causal model put their attention on the first token, where they add next to
    nothing. Uniform attention makes them active: it measures the noise they then add, not what they
    did."""
    if how not in (AUTO, *ABLATION_METHODS):
        raise ParameterError(unknown("ablation method", how, (AUTO, *ABLATION_METHODS)))
    if how != AUTO:
        return how
    return "zero" if model.causal else "uniform"


class AblationPlanner:
    """Makes the interventions that disable heads on a batch.

    Parameters
    ----------
    scored : ScoredModel
        The model, and the inputs that means and other inputs are taken from.
    how : str
        One of `ABLATION_METHODS`.
    seed : int, default 0
        For the inputs that `resample` draws.
    """

    def __init__(self, scored: ScoredModel, how: str, seed: int = 0) -> None:
        if how == "resample" and scored.examples < 2:
            raise InputError(
                "Resample ablation takes a head's output from another input; give at least two "
                "examples."
            )
        self.scored = scored
        self.how = how
        self.seed = seed
        self._means: Tensor | None = None
        # Of one batch: the outputs of every layer on other inputs.
        self._resampled: tuple[Batch, list[Tensor]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return what is sent to a worker: the means too, so that no worker has to run the model
        over everything for them."""
        means = self._corpus_means() if self.how == "corpus_mean" else None
        return {**vars(self), "_means": means, "_resampled": None}

    def plan(self, heads: Sequence[tuple[int, int]], batch: Batch) -> InterventionPlan:
        """Return the interventions on these heads for this batch."""
        model = self.scored.model
        interventions = {head: self._intervention(head, batch) for head in heads}
        return plan_interventions(interventions, model.layers, model.heads, model.d_head)

    def _intervention(self, place: tuple[int, int], batch: Batch) -> Intervention:
        layer, head = place
        if self.how == "corpus_mean":
            return Mean(self._corpus_means()[layer, head])
        if self.how == "resample":
            if self._resampled is None or self._resampled[0] is not batch:
                self._resampled = (batch, self._outputs_on_other_inputs(batch))
            outputs = self._resampled[1]
            return Patch(output=outputs[layer][:, head])
        return self.how

    def _corpus_means(self) -> Tensor:
        if self._means is None:
            self._means = corpus_means(self.scored)
        return self._means

    def _outputs_on_other_inputs(self, batch: Batch) -> list[Tensor]:
        """Return the outputs of every layer on other inputs, `[example, head, token, d_head]`,
        position by position.

        Inputs are drawn from the same batch, where they are of similar length; one that is shorter
        starts over."""
        source = batch
        n_examples = len(batch)
        if n_examples == 1:
            source = self._another_batch(batch)
        random = np.random.default_rng([self.seed, *batch.index[:1]])
        if source is batch:
            order = random.permutation(n_examples)
            drawn = np.empty(n_examples, dtype=np.int64)
            drawn[order] = np.roll(order, 1)  # no example gets its own output
        else:
            drawn = random.integers(len(source), size=n_examples)
        chosen = torch.from_numpy(drawn).to(batch.device)
        width = batch.ids.shape[1]
        positions = torch.arange(width, device=batch.device)[None]
        positions = positions % source.lengths[chosen][:, None]
        outputs = []
        for output in head_outputs(self.scored, source):
            index = positions[:, None, :, None].expand(-1, output.shape[1], -1, output.shape[3])
            outputs.append(output[chosen].gather(2, index))
        return outputs

    def _another_batch(self, batch: Batch) -> Batch:
        """Return the last batch with other examples."""
        for other in reversed(self.scored.batches):
            if other.index != batch.index:
                return other
        raise InputError("Resample ablation needs a second batch of examples.")


def head_outputs(scored: ScoredModel, batch: Batch) -> list[Tensor]:
    """Return what every head of the intact model gives on a batch: `[example, head, token, d_head]`
    of each layer."""
    watcher = HeadOutputCollector()
    session = scored.session(batch, watcher=watcher)
    with torch.no_grad(), session.running():
        scored.run(batch, session)
    return [watcher.outputs[layer] for layer in range(scored.model.layers)]


def corpus_means(scored: ScoredModel) -> Tensor:
    """Return the mean output of every head over all tokens of all inputs, `[layer, head,
    d_head]`."""
    total: Tensor | None = None
    n_tokens = 0
    for batch in scored.batches:
        mask = batch.attention_mask[:, None, :, None]
        sums_by_layer = []
        for output in head_outputs(scored, batch):
            sums_by_layer.append((output.double() * mask).sum((0, 2)))
        sums = torch.stack(sums_by_layer)
        total = sums if total is None else total + sums
        n_tokens += int(batch.attention_mask.sum())
    assert total is not None
    return total / n_tokens
