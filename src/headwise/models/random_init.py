"""The same architecture with random weights, as a baseline: what a method finds there comes from the
architecture and the inputs."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from headwise.core.errors import ModelError
from headwise.models.headmodel import HeadModel


def with_random_weights(model: HeadModel, seed: int = 0) -> HeadModel:
    """Return the same architecture, tokenizer and limits with weights as its class initialises
    them, by seed."""
    config = copy.deepcopy(model.config)
    # Some classes are built by this name, and know only those of transformers.
    config._attn_implementation = "eager"
    with torch.random.fork_rng(devices=[]), _default_dtype(model.dtype):
        torch.manual_seed(seed)
        try:
            module: nn.Module = type(model.module)(config)
        except (TypeError, ValueError, KeyError) as error:
            raise ModelError(
                f"{type(model.module).__name__} cannot be made anew from its config ({error}); "
                "run without the random-weights baseline."
            ) from error
    module = module.to(device=model.device, dtype=model.dtype).eval()
    random_model = HeadModel.open(module, tokenizer=model.tokenizer, stack=model.stack)
    if model.tokenizer is None:
        return random_model
    return random_model.limited(model.encoder.max_length, model.encoder.overlong)


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Make new weights in a type: in float32 those of a large model in half precision would take
    twice its memory beside it."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def random_but_embeddings(model: HeadModel, seed: int = 0) -> HeadModel:
    """Return the same architecture with its trained embeddings and random weights elsewhere.

    Every embedding table stays trained, and everything below a module named "embed..."."""
    random_model = with_random_weights(model, seed)
    trained = dict(model.module.named_modules())
    with torch.no_grad():
        for path, module in random_model.module.named_modules():
            if isinstance(module, nn.Embedding) or "embed" in path.rpartition(".")[2].lower():
                module.load_state_dict(copy.deepcopy(trained[path].state_dict()))
    return random_model
