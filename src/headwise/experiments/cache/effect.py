"""What the loss of the distant context does to a model's predictions, shared out over the key/value
heads."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from headwise.core.errors import ModelError
from headwise.experiments.ablation.importance import trainable
from headwise.models.short_context import GatedHeads, LongTextModel
from headwise.models.tap import use_session
from headwise.text.encode import Batch

POINTS = 2  # gates between whole and short at which gradients are taken


def effects_on_prediction(
    long_model: LongTextModel, batch: Batch, free: np.ndarray, points: int = POINTS
) -> np.ndarray:
    """Return how much of the divergence from the intact model each key/value head causes when all
    heads are made short, in nats per token, `[layer, key/value head]`.

    A gate g between the whole (1) and the short (0) output of a head has a gradient of the
    divergence. Its mean along the way from all gates open to all closed is the head's share of what
    closing all of them costs (integrated gradients, Sundararajan et al. 2017). The shares add up to
    that cost only roughly, since gradients are taken at few points. At the intact model the
    divergence is smallest and its gradient zero; so all points lie between the two ends.

    The divergence is taken rather than the loss because it needs no sample: the next token of the
    text is one draw of many, and hides small effects.

    Parameters
    ----------
    long_model : LongTextModel
        The model, with what short heads see.
    batch : Batch
        One text.
    free : array of bool
        `[layer, key/value head]`: which heads can be short; the others get 0.
    points : int, default 2
        At how many gates the gradient is taken; each is a pass with gradients.
    """
    model = long_model.model
    first = long_model.sink + long_model.window
    is_free = torch.as_tensor(free, device=model.device)
    effects = torch.zeros(free.shape, dtype=torch.float64)
    with model.evaluating(), trainable(model.module, False):
        intact = long_model.hidden(batch, long_model.short(np.ones_like(free)))[first:-1]
        for point in range(points):
            # Midpoints of equal parts of the way.
            openness = (point + 0.5) / points
            gates = torch.full(free.shape, openness, device=model.device)
            gates = gates.masked_fill(~is_free, 1.0).requires_grad_()
            with torch.enable_grad():
                session = GatedHeads(model.sites, gates, long_model.sink, long_model.window)
                with use_session(session):
                    output = model.run(batch.ids, batch.attention_mask, batch.types)
                hidden = output.last_hidden_state[0][first:-1]
                if not hidden.requires_grad:
                    raise ModelError(
                        f"No gradient reaches the heads of {model.name}; rank them by something "
                        "else."
                    )
                hidden.backward(_gradient_of_divergence(long_model, intact, hidden.detach()))
            assert gates.grad is not None
            effects -= gates.grad.double().cpu() / points
    effects[~torch.as_tensor(free)] = 0.0
    return effects.numpy()


def _gradient_of_divergence(long_model: LongTextModel, intact: Tensor, hidden: Tensor) -> Tensor:
    """Return the gradient of the mean divergence from the intact model by what enters the output
    matrix; logits are formed for few tokens at a time."""
    gradient = torch.empty_like(hidden)
    at_once = long_model.logits_at_once(hidden)
    for start in range(0, len(hidden), at_once):
        rows = slice(start, start + at_once)
        with torch.no_grad():
            before = long_model.logits(intact[rows]).log_softmax(-1)
        leaf = hidden[rows].detach().requires_grad_()
        after = long_model.logits(leaf).log_softmax(-1)
        divergence = (before.exp() * (before - after)).sum() / len(hidden)
        (gradient[rows],) = torch.autograd.grad(divergence, leaf)
    return gradient
