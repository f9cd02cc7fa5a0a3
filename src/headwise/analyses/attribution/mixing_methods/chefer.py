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
from headwise.text.encode import Batch

MEMORY = 256 * 2**20  # bytes of logits, attention and gradients in flight


def chefer_mixing(traced: MixingInput) -> Mixing:
    """Return the method `chefer`: `R ← R + Ā R` from the first layer on, with `Ā = mean over heads
    of relu(∇A ⊙ A)`.

    A language model has a target for each token: the logit of the token it predicts there (its own
    prediction, the highest). Row j is row j of the R of that target, so that gradients of other
    tokens' predictions are not in it; that takes one gradient for each token. A classifier has one
    target, its predicted class, for all rows. By head: `relu(∇A ⊙ A)` of that head alone in the
    last step.
    """
    model = traced.model
    per_token = _predicts_tokens(model, traced.batch)
    heads = torch.zeros_like(traced.attention)
    layers = torch.zeros_like(traced.attention[:, :, 0])
    for example, row in enumerate(traced.batch.rows):
        n = len(row)
        token_groups = _token_groups(model, n) if per_token else [list(range(n))]
        for tokens in token_groups:
            single = traced.batch.select([example])
            relevance = _relevance(model, single, tokens, per_token)
            for layer, (by_head, by_layer) in enumerate(relevance):
                heads[example, layer, :, tokens, :n] = by_head.transpose(0, 1)
                layers[example, layer, tokens, :n] = by_layer
    target = "what is predicted at the receiving token" if per_token else "the predicted class"
    return Mixing(shares(heads, traced), shares(layers, traced), f"relevance to {target}")


def _predicts_tokens(model: HeadModel, batch: Batch) -> bool:
    """Return whether the model has a prediction for each token, or one for the input."""
    try:
        logits = logits_of(model.forward(batch.select([0]), logits=True))
    except (AttributeError, ModelError) as error:
        raise ModelError(
            f"{model.name} has no logits, so there is no prediction whose gradient could weight "
            "attention; use a checkpoint with a language-modelling or classification head."
        ) from error
    return logits.ndim == 3


def _token_groups(model: HeadModel, n: int) -> list[list[int]]:
    """Return groups of tokens whose targets are differentiated together."""
    n_vocabulary = getattr(model.module.get_input_embeddings(), "num_embeddings", 0)
    values_per_token = n * (3 * n_vocabulary + 4 * model.layers * model.heads * n)
    size = max(1, MEMORY // (4 * values_per_token))
    return [list(range(start, min(start + size, n))) for start in range(0, n, size)]


def _relevance(
    model: HeadModel, single: Batch, tokens: list[int], per_token: bool
) -> list[tuple[Tensor, Tensor]]:
    """Return, for each layer, the rows of these tokens: by head `[token, head, source]`, and of R
    after the layer `[token, source]`."""
    n = len(single.rows[0])
    # One copy of the input for each target: gradients of different targets must not add up.
    copies = single.select([0] * (len(tokens) if per_token else 1))
    copy_numbers = torch.arange(len(copies), device=model.device)
    token_numbers = torch.tensor(tokens, device=model.device)

    def target(output: Any, _: Batch) -> Tensor:
        logits = logits_of(output)
        if per_token:
            logits = logits[copy_numbers, token_numbers.to(logits.device)]
        return logits.float().amax(-1)

    weighted_blocks: dict[int, list[Tensor]] = {layer: [] for layer in range(model.layers)}
    for rows in model.gradients(copies, target):
        if rows.gradient is not None:
            weighted = rows.weights.double() * rows.gradient.double()
            weighted_blocks[rows.layer].append(weighted.relu())

    identity = torch.eye(n, dtype=torch.float64, device=model.device)
    below = identity.expand(len(copies), -1, -1)  # R, [copy, receiving, source]
    target_rows = (copy_numbers if per_token else 0, token_numbers)
    relevance = []
    for layer in range(model.layers):
        weighted = torch.cat(weighted_blocks[layer], dim=2)[:, :, :n, :n]
        by_head = (weighted @ below[:, None]).transpose(1, 2)[target_rows]
        below = below + weighted.mean(1) @ below
        relevance.append((by_head, below[target_rows]))
    return relevance
