"""Attention rollout: averaged heads with residuals, multiplied down to the input (Abnar & Zuidema
2020)."""

from __future__ import annotations

import torch
from torch import Tensor

from headwise.analyses.attribution.mixing_methods.base import Mixing, MixingInput
from headwise.analyses.attribution.sketch import normalised


def averaged(attention: Tensor) -> Tensor:
    """`Â = (mean over heads of A + I) / 2`, rows divided by their sum: `[example, layer, receiving,
    source]`."""
    weights = attention.double()
    eye = torch.eye(weights.shape[-1], dtype=torch.float64, device=weights.device)
    return normalised(weights.mean(2) / 2 + eye / 2)


def rollout(attention: Tensor, real: Tensor) -> Tensor:
    """Attention trace_for_mixing back to the input: `[example, layer, head, receiving, source]` from weights
    of the same shape.

    Abnar & Zuidema's rollout of the layers below, `R[l] = Â[l-1] ⋯ Â[0]`, as the head sees it:
    `A[l,h] · R[l]`. In the first layer that is attention."""
    return _rolled(attention, real)[0]


def _rolled(attention: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """As heads see it, and the rollout itself after each layer: `R[l+1] = Â[l] ⋯ Â[0]`."""
    weights, steps = attention.double(), averaged(attention)
    so_far = torch.eye(weights.shape[-1], dtype=torch.float64, device=weights.device).expand(
        len(weights), -1, -1
    )
    heads, layers = [], []
    for layer, step in zip(weights.unbind(1), steps.unbind(1), strict=True):
        heads.append(layer @ so_far[:, None])
        so_far = step @ so_far
        layers.append(so_far)
    pairs = (real[:, :, None] & real[:, None, :])[:, None]
    return normalised(torch.stack(heads, dim=1) * pairs[:, None]), normalised(
        torch.stack(layers, dim=1) * pairs
    )


def rollout_mixing(seen: MixingInput) -> Mixing:
    """The reading `rollout`."""
    return Mixing(*_rolled(seen.attention, seen.batch.attention_mask))
