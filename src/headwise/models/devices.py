"""Where a model's weights lie and in which precision: named by a user, spread over devices, or left
on disk."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from headwise.core.checks import shown
from headwise.core.errors import ParameterError, unknown

DTYPES = {
    "auto": None,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
MAPS = ("auto", "balanced", "balanced_low_0", "sequential")
DeviceMap = str | Mapping[str, Any]


def as_dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """Return the dtype that a user named; None for the default (the checkpoint's own on a GPU, at
    least float32 on a CPU).

    >>> as_dtype("bfloat16"), as_dtype("auto")
    (torch.bfloat16, None)
    """
    if dtype is None or isinstance(dtype, torch.dtype):
        return dtype
    if dtype not in DTYPES:
        raise ParameterError(unknown("dtype", dtype, DTYPES))
    return DTYPES[dtype]


def as_device_map(device_map: DeviceMap | None) -> str | dict[str, Any] | None:
    """Return a device map as transformers takes it: the name of a rule, or devices by module.

    Devices by module may be a mapping, JSON, or a .json file.

    >>> as_device_map('{"": "cpu"}')
    {'': 'cpu'}
    """
    if device_map is None:
        return None
    if isinstance(device_map, str) and device_map not in MAPS:
        text = device_map
        try:
            if device_map.endswith(".json"):
                text = Path(device_map).expanduser().read_text(encoding="utf-8")
            device_map = json.loads(text)
        except (OSError, ValueError, RecursionError) as error:
            raise ParameterError(
                f"`device_map` must be one of {', '.join(MAPS)}, or devices by module as JSON or a "
                f".json file; it is {shown(text)}."
            ) from error
    if not isinstance(device_map, str) and not (isinstance(device_map, Mapping) and device_map):
        raise ParameterError(
            f"`device_map` must name a device for each module; it is {shown(device_map)}."
        )
    if importlib.util.find_spec("accelerate") is None:
        raise ParameterError(
            "`device_map` needs accelerate; install it with: pip install 'headwise[big]'"
        )
    return device_map if isinstance(device_map, str) else dict(device_map)


def input_device(module: nn.Module) -> torch.device:
    """Return the device of the embeddings: inputs go there, and statistics are taken there."""
    embeddings = None
    if isinstance(module, transformers.PreTrainedModel):
        embeddings = module.get_input_embeddings()
    for part in (embeddings, module):
        hook = getattr(part, "_hf_hook", None)
        device = getattr(hook, "execution_device", None)
        if device is not None:
            return torch.device(device)
    return next(parameter.device for parameter in module.parameters() if not parameter.is_meta)


def is_spread(module: nn.Module) -> bool:
    """Return whether the weights lie on more than one device, or partly outside memory."""
    devices = set()
    for parameter in module.parameters():
        if parameter.is_meta:
            return True
        devices.add(parameter.device)
    return len(devices) > 1


def stored_weights(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield every weight with its name, in the order of names.

    Weights on disk are read one by one, so that only one is in memory at a time."""
    parameters = dict(module.named_parameters())
    for path in sorted(parameters):
        owner, _, name = path.rpartition(".")
        yield path, weight_in(module.get_submodule(owner), name, parameters[path])


def weight_in(module: nn.Module, name: str, parameter: Tensor) -> Tensor:
    """Return a weight of a module, fetched if accelerate left it outside of memory."""
    if not parameter.is_meta:
        return parameter.detach()
    hook = getattr(module, "_hf_hook", None)
    # accelerate may chain several hooks in one.
    for part in getattr(hook, "hooks", (hook,)):
        weights_map = getattr(part, "weights_map", None)
        if weights_map is not None:
            weight: Tensor = weights_map[name]
            return weight.detach()
    return parameter.detach()
