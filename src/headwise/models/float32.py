"""Compute a model in half precision in float32, one layer at a time: no copy of all its weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from headwise.models.forward_call import only_in_this_thread
from headwise.models.headmodel import HeadModel


@contextmanager
def in_float32(model: HeadModel) -> Iterator[HeadModel]:
    """Yield a model that computes in float32; the weights of one in half precision are as before
    after the block.

    A model in float32 is yielded as it is. Of one in half precision, what lies outside the layers is
    converted at once, and each layer only while it runs: a whole copy in float32 would take twice
    the memory of the model on top of the model itself. Models whose weights cannot be exchanged
    (quantised, or on several devices) are copied where that is possible.
    """
    if torch.finfo(model.dtype).bits >= 32:
        yield model
        return
    if getattr(model.module, "is_quantized", False) or not can_convert(model):
        copied = model.in_precision(torch.float32)
        try:
            yield copied
        finally:
            copied.close()
        return
    layer_under_way = _ConvertedTensors()
    outside_layers = _ConvertedTensors()
    with ExitStack() as stack:
        stack.callback(outside_layers.restore)
        stack.callback(layer_under_way.restore)
        entries = set(model.sites.entries)
        outside_layers.convert(_outside(model.module, entries))

        def before_layer(module: nn.Module, args: Any) -> None:
            # The layer before is restored only now: a hook after a layer is not called where the
            # layer is left by an exception.
            layer_under_way.restore()
            layer_under_way.convert(_tensors_of(module))

        for entry in entries:
            hook = entry.register_forward_pre_hook(only_in_this_thread(before_layer))
            stack.callback(hook.remove)
        yield model


def can_convert(model: HeadModel) -> bool:
    """Return whether all weights of a model lie in the memory of one device."""
    devices = {parameter.device for parameter in model.module.parameters()}
    return len(devices) == 1 and not any(device.type == "meta" for device in devices)


class _ConvertedTensors:
    """Weights that are in float32 for a while, and their data in half precision."""

    def __init__(self) -> None:
        self._stored: list[tuple[Tensor, Tensor]] = []

    def convert(self, tensors: list[Tensor]) -> None:
        """Exchange the data of the tensors among these that are in half precision."""
        for tensor in tensors:
            if tensor.is_floating_point() and torch.finfo(tensor.dtype).bits < 32:
                self._stored.append((tensor, tensor.data))
                tensor.data = tensor.data.float()

    def restore(self) -> None:
        """Put the data in half precision back."""
        for tensor, data in self._stored:
            tensor.data = data
        self._stored = []


def _tensors_of(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]


def _outside(module: nn.Module, entries: set[nn.Module]) -> list[Tensor]:
    """Return the weights of a model that belong to none of its layers."""
    inside: set[int] = set()
    for entry in entries:
        inside.update(id(tensor) for tensor in _tensors_of(entry))
    return [tensor for tensor in _tensors_of(module) if id(tensor) not in inside]
