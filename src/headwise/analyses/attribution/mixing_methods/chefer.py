"""Gradient-weighted attention, rolled out: the relevance of tokens to what the model predicts
(Chefer et al. 2021)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headwise.analyses.attribution.mixing_methods.base import Mixing, MixingInput, shares
from headwise.analyses.gradient.analysis import logits_of
from headwise.core.errors import ModelError
from headwise.models import HeadModel
from headwise.models.view import AttentionRows
from headwise.text.encode import Batch

MEMORY = 256 * 2**20  # bytes of logits in flight


def chefer_mixing(seen: MixingInput) -> Mixing:
    """The reading `chefer`: `R ← R + Ā R` from the first layer on, `Ā = mean over heads of relu(∇A
    ⊙ A)`.

    A language model has a target for each token: the logit of the token it predicts there (its own
    prediction, the highest). Row j is row j of the R of that target, so gradients of other tokens'
    predictions are not in it; that takes one gradient for each token. A classifier has one target,
    its predicted class, for all rows. By head: `relu(∇A ⊙ A)` of that head alone in the last step.
    """
    model, batch = seen.model, seen.batch
    per_token = _predicts_tokens(model, batch)
    heads, layers = torch.zeros_like(seen.attention), torch.zeros_like(seen.attention[:, :, 0])
    for e, row in enumerate(batch.rows):
        n = len(row)
        for tokens in _chunks(model, n) if per_token else [list(range(n))]:
            for layer, by_head, relevance in _relevance(
                model, batch.select([e]), tokens, per_token
            ):
                heads[e, layer, :, tokens, :n] = by_head.transpose(0, 1)
                layers[e, layer, tokens, :n] = relevance
    target = "what is predicted at the receiving token" if per_token else "the predicted class"
    return Mixing(shares(heads, seen), shares(layers, seen), f"relevance to {target}")


def _predicts_tokens(model: HeadModel, batch: Batch) -> bool:
    """Whether the model has a prediction for each token, or one for the input."""
    try:
        scores = logits_of(model.forward(batch.select([0]), logits=True))
    except (AttributeError, ModelError) as error:
        raise ModelError(
            f"{model.name} gives no scores, so there is no prediction whose gradient could weigh attention; "
            "give a checkpoint with a head."
        ) from error
    return scores.ndim == 3


def _chunks(model: HeadModel, n: int) -> list[list[int]]:
    """Tokens whose targets are differentiated at once."""
    vocabulary = getattr(model.module.get_input_embeddings(), "num_embeddings", 0)
    size = max(1, MEMORY // (4 * n * (3 * vocabulary + 4 * model.layers * model.heads * n)))
    return [list(range(start, min(start + size, n))) for start in range(0, n, size)]


def _relevance(
    model: HeadModel, one: Batch, tokens: list[int], per_token: bool
) -> list[tuple[int, Tensor, Tensor]]:
    """For each layer: rows of these tokens, by head `[token, head, source]` and of R after the
    layer `[token, source]`."""
    n = len(one.rows[0])
    copies = one.select([0] * (len(tokens) if per_token else 1))
    place = torch.arange(len(copies), device=model.device)

    def target(output: Any, _: Batch) -> Tensor:
        scores = logits_of(output)
        if per_token:
            scores = scores[place, torch.tensor(tokens, device=scores.device)]
        return scores.float().amax(-1)

    found: dict[int, list[AttentionRows]] = {}
    for rows in model.gradients(copies, target):
        found.setdefault(rows.layer, []).append(rows)
    so_far = torch.eye(n, dtype=torch.float64, device=model.device).expand(len(copies), -1, -1)
    at = (place if per_token else 0, torch.tensor(tokens, device=model.device))
    relevance = []
    for layer in range(model.layers):
        blocks = found[layer]
        parts = [
            (rows.weights.double() * rows.gradient.double()).relu()
            for rows in blocks
            if rows.gradient is not None
        ]
        weighted = torch.cat(parts, dim=2)[:, :, :n, :n]
        by_head = (weighted @ so_far[:, None]).transpose(1, 2)[at]
        so_far = so_far + weighted.mean(1) @ so_far
        relevance.append((layer, by_head, so_far[at]))
    return relevance
