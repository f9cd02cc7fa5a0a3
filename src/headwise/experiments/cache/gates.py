"""Learn which key/value heads need the whole context: a gate between the whole and the short attention
of each, most of which must close."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from headwise.core.errors import ModelError
from headwise.experiments.ablation.gates import GateOptions, HardConcreteGates
from headwise.experiments.ablation.importance import trainable
from headwise.models.short_context import GatedHeads, LongTextModel
from headwise.models.tap import use_session
from headwise.run.job import Progress, no_progress
from headwise.text.encode import Batch


def learn_cache_gates(
    long_model: LongTextModel,
    batches: Sequence[Batch],
    free: np.ndarray,
    n_open: int,
    *,
    steps: int,
    seed: int = 0,
    report: Progress = no_progress,
) -> np.ndarray:
    """Return how open the gate of each key/value head ends, `[layer, key/value head]` (Xiao et al.
    2024, DuoAttention, section 2.2).

    With the gate g the output of a head is `g · whole + (1 - g) · short`. The gates are those of
    `headwise prune` (hard concrete, with a penalty on the expected number of open ones above
    `n_open`); what they must keep is the last hidden state of the intact model: its squared error over
    the tokens that have something cut, relative to that of all heads short, times `n_open`. If what the
    gates contribute adds up, no more than `n_open` of them contribute more than 1 each: in models with
    few heads or many, a penalty of about 1 then meets the budget. The weights of the model stay as
    they are. Each step reads one text, drawn by the seed.

    Parameters
    ----------
    long_model : LongTextModel
        The model, with what short heads see.
    batches : sequence of Batch
        Texts, one each.
    free : array of bool
        `[layer, key/value head]`: which heads have a gate; the others stay whole.
    n_open : int
        How many gates may stay open.
    steps : int
        Steps of Adam.
    seed : int, default 0
        Of the gates' noise and the order of texts.
    report : callable, optional
        Called with the progress: task, finished steps, total.
    """
    model = long_model.model
    gates = CacheGates(free, n_open, steps, seed, model.device)
    random = np.random.default_rng(seed)
    first = long_model.sink + long_model.window
    everything = np.ones_like(free)
    only_fixed = ~free
    intact: dict[int, Tensor] = {}
    all_short: dict[int, Tensor] = {}
    with model.evaluating(), trainable(model.module, False):
        for step in range(steps):
            number = int(random.integers(len(batches)))
            batch = batches[number]
            if number not in intact:
                intact[number] = long_model.hidden(batch, long_model.short(everything))[first:]
                short = long_model.hidden(batch, long_model.short(only_fixed))[first:]
                all_short[number] = (short - intact[number]).float().square().sum()
            with torch.enable_grad():
                session = GatedHeads(
                    model.sites, gates.sample(), long_model.sink, long_model.window
                )
                with use_session(session):
                    output = model.run(batch.ids, batch.attention_mask, batch.types)
                hidden = output.last_hidden_state[0][first:]
                difference = (hidden - intact[number]).float().square().sum()
                # Where nothing is lost with all heads short, there is nothing to learn.
                loss = n_open * difference / all_short[number].clamp(min=1e-12)
                if not loss.requires_grad:
                    raise ModelError(
                        f"No gradient reaches the gates of {model.name}; learn no gates for it."
                    )
                gates.descend(loss)
            report("gates", step + 1, steps)
    openness = gates.openness()
    openness[~free] = 1.0
    return openness


class CacheGates(HardConcreteGates):
    """Gates of key/value heads, some of which have no choice and stay open."""

    def __init__(
        self, free: np.ndarray, n_open: int, steps: int, seed: int, device: torch.device
    ) -> None:
        n_layers, n_heads = free.shape
        # What stays of all heads is the budget of those that have a choice.
        options = GateOptions(remove=free.size - n_open, steps=steps, seed=seed)
        super().__init__(n_layers, n_heads, options, device)
        self.is_free = torch.as_tensor(free, device=device)

    def sample(self) -> Tensor:
        return super().sample().masked_fill(~self.is_free, 1.0)

    def open_probability(self) -> Tensor:
        """Return P(gate > 0) of each gate that has a choice, 0 of the others."""
        return super().open_probability() * self.is_free
