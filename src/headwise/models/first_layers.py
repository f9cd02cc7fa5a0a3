"""A model cut after its first layers, to measure on little what the whole one costs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from headwise.core.errors import ModelError
from headwise.models.headmodel import HeadModel


@contextmanager
def first_layers(model: HeadModel, count: int) -> Iterator[HeadModel]:
    """Yield the model with its first layers only; it is whole again after the block.

    Nothing is copied: the cut model has the weights of the whole one, which must not be used within
    the block.

    Parameters
    ----------
    model : HeadModel
        An encoder or a decoder whose layers lie in one list.
    count : int
        The number of layers, from 1 to one less than the model has.

    Raises
    ------
    ModelError
        If the layers cannot be cut.
    """
    layer_list = _layer_list(model)
    if layer_list is None or model.encoder_part is not None or not 0 < count < model.layers:
        raise ModelError(f"{model.name} cannot be cut after layer {count}.")
    all_layers = layer_list._modules
    n_layers = len(all_layers)
    configs = []
    for config in (model.config, model.config.get_text_config()):
        if getattr(config, "num_hidden_layers", None) == n_layers and config not in configs:
            configs.append(config)
    try:
        layer_list._modules = dict(list(all_layers.items())[:count])
        for config in configs:
            config.num_hidden_layers = count
        try:
            cut = HeadModel.open(model.module, tokenizer=model.tokenizer, stack=model.stack)
        except ModelError:
            raise
        except Exception as error:  # an architecture may depend on its last layers in any way
            raise ModelError(f"{model.name} does not run when it is cut ({error}).") from error
        if model.tokenizer is not None:
            cut = cut.limited(model.encoder.max_length, model.encoder.overlong)
        yield cut
    finally:
        layer_list._modules = all_layers
        for config in configs:
            config.num_hidden_layers = n_layers


def _layer_list(model: HeadModel) -> nn.ModuleList | None:
    """Return the list of layers that each hold one attention module of the model."""
    attention_modules: set[Any] = set(model.sites.by_module)
    for module in model.module.modules():
        if not isinstance(module, nn.ModuleList) or len(module) != model.layers:
            continue
        n_attention = [len(attention_modules & set(layer.modules())) for layer in module]
        if n_attention == [1] * len(module):
            return module
    return None
