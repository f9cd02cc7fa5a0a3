"""Slow, independent computations of the same numbers: eager attention, one sentence at a time, no
padding, no hooks of headwise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from headwise.models import HeadModel
from headwise.text.encode import Encoded


@contextmanager
def eager(model: Any) -> Iterator[Any]:
    """Give the module (of a HeadModel too) transformers' eager attention and eval mode within the
    context."""
    module = model.module if isinstance(model, HeadModel) else model
    implementation = module.config._attn_implementation
    training = module.training
    module.set_attn_implementation("eager")
    module.eval()
    try:
        yield module
    finally:
        module.set_attn_implementation(implementation)
        module.train(training)


def model_inputs(module: Any, row: Encoded) -> dict[str, torch.Tensor]:
    """Return one row as a batch of one, with its segments where the model takes them."""
    device = next(module.parameters()).device
    inputs = {"input_ids": torch.as_tensor(row.ids, device=device)[None]}
    if getattr(module.config, "type_vocab_size", 0) > 1:
        inputs["token_type_ids"] = torch.as_tensor(row.types, device=device)[None]
    return inputs


def eager_maps(model: Any, rows: Sequence[Encoded]) -> list[np.ndarray]:
    """Return the attention of each row, float64 `[layer, head, query, key]`, by transformers' eager
    attention without padding."""
    return _by_layer(model, rows, "attentions")


def eager_hidden(model: Any, rows: Sequence[Encoded]) -> list[np.ndarray]:
    """Return the hidden states of each row, float64 `[layer + 1, token, hidden]`: what enters each
    layer, and last what leaves the model."""
    return _by_layer(model, rows, "hidden_states")


def _by_layer(model: Any, rows: Sequence[Encoded], name: str) -> list[np.ndarray]:
    """Return an output that the model has for every layer (`attentions`, `hidden_states`), for each
    row alone."""
    arrays = []
    with eager(model) as module, torch.no_grad():
        for row in rows:
            output = module(**model_inputs(module, row), **{f"output_{name}": True})
            layers = [layer[0].double() for layer in output[name]]
            arrays.append(torch.stack(layers).cpu().numpy())
    return arrays
