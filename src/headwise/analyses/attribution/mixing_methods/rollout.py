"""Attention rollout: averaged heads with residuals, multiplied down to the input (Abnar & Zuidema
2020)."""

from __future__ import annotations

import torch
from torch import Tensor

from headwise.analyses.attribution.mixing_methods.base import Mixing, MixingInput
from headwise.analyses.attribution.sketch import normalise_rows


def rollout_mixing(traced: MixingInput) -> Mixing:
    """Return the method `rollout`, of heads and of layers."""
    heads, layers = _rollout(traced.attention, traced.batch.attention_mask)
    return Mixing(heads, layers)


def rollout(attention: Tensor, attention_mask: Tensor) -> Tensor:
    """Trace attention back to the input.

    Abnar & Zuidema's rollout of the layers below, `R[l] = Â[l-1] ⋯ Â[0]`, as the head sees it:
    `A[l,h] · R[l]`. In the first layer that is attention itself.

    Parameters
    ----------
    attention : Tensor
        `[example, layer, head, receiving, source]`.
    attention_mask : Tensor
        Bool `[example, token]`: False for padding.

    Returns
    -------
    Tensor
        Of the shape of `attention`.
    """
    heads, _ = _rollout(attention, attention_mask)
    return heads


def mean_attention_with_residual(attention: Tensor) -> Tensor:
    """Return `Â = (mean over heads of A + I) / 2`, rows divided by their sum: `[example, layer,
    receiving, source]`."""
    weights = attention.double()
    identity = torch.eye(weights.shape[-1], dtype=torch.float64, device=weights.device)
    return normalise_rows(weights.mean(2) / 2 + identity / 2)


def _rollout(attention: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rollout as heads see it, and after each layer: `R[l+1] = Â[l] ⋯ Â[0]`."""
    weights = attention.double()
    steps = mean_attention_with_residual(attention)
    identity = torch.eye(weights.shape[-1], dtype=torch.float64, device=weights.device)
    below = identity.expand(len(weights), -1, -1)
    heads = []
    layers = []
    for layer_weights, step in zip(weights.unbind(1), steps.unbind(1), strict=True):
        heads.append(layer_weights @ below[:, None])
        below = step @ below
        layers.append(below)
    mask = (attention_mask[:, :, None] & attention_mask[:, None, :])[:, None]
    head_rows = normalise_rows(torch.stack(heads, dim=1) * mask[:, None])
    layer_rows = normalise_rows(torch.stack(layers, dim=1) * mask)
    return head_rows, layer_rows
