"""Plain, slow and independent ways to the same numbers: eager attention, one sentence at a time, no
padding, no tap."""

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
    """The module (of a HeadModel too) with transformers' own eager attention and in eval mode,
    within the context."""
    module = model.module if isinstance(model, HeadModel) else model
    before = module.config._attn_implementation
    training = module.training
    module.set_attn_implementation("eager")
    module.eval()
    try:
        yield module
    finally:
        module.set_attn_implementation(before)
        module.train(training)


def model_inputs(module: Any, row: Encoded) -> dict[str, torch.Tensor]:
    """One row as a batch of one, with the token types where the model takes them as segments."""
    device = next(module.parameters()).device
    inputs = {"input_ids": torch.as_tensor(row.ids, device=device)[None]}
    if getattr(module.config, "type_vocab_size", 0) > 1:
        inputs["token_type_ids"] = torch.as_tensor(row.types, device=device)[None]
    return inputs


def eager_maps(model: Any, rows: Sequence[Encoded]) -> list[np.ndarray]:
    """The attention [layer, head, query, key] of each row, float64, through transformers' eager
    path, unpadded."""
    return _by_layer(model, rows, "attentions")


def eager_hidden(model: Any, rows: Sequence[Encoded]) -> list[np.ndarray]:
    """What enters each layer, and last what leaves the model: float64 [layer + 1, token, width] of
    each row."""
    return _by_layer(model, rows, "hidden_states")


def _by_layer(model: Any, rows: Sequence[Encoded], kept: str) -> list[np.ndarray]:
    """What the model keeps of every layer where it is told to, of each row alone."""
    found = []
    with eager(model) as module, torch.no_grad():
        for row in rows:
            output = module(**model_inputs(module, row), **{f"output_{kept}": True})
            found.append(torch.stack([layer[0].double() for layer in output[kept]]).cpu().numpy())
    return found
