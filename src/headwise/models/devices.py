"""Where a model's weights lie and in which precision: named by a user, spread over devices, or left
on the disk."""

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


def dtype_of(given: torch.dtype | str | None) -> torch.dtype | None:
    """The precision that a user named; None for the checkpoint's own on a GPU and at least float32
    on a CPU.

    >>> dtype_of("bfloat16"), dtype_of("auto")
    (torch.bfloat16, None)
    """
    if given is None or isinstance(given, torch.dtype):
        return given
    if given not in DTYPES:
        raise ParameterError(unknown("dtype", given, DTYPES))
    return DTYPES[given]


def map_of(given: DeviceMap | None) -> str | dict[str, Any] | None:
    """A device map as transformers takes it: a rule by its name, or devices by the names of
    modules, as a mapping, as JSON or in a .json file.

    >>> map_of('{"": "cpu"}')
    {'': 'cpu'}
    """
    if given is None:
        return None
    if isinstance(given, str) and given not in MAPS:
        text = given
        try:
            if given.endswith(".json"):
                text = Path(given).expanduser().read_text(encoding="utf-8")
            given = json.loads(text)
        except (OSError, ValueError, RecursionError) as error:
            raise ParameterError(
                f"`device_map` must be one of {', '.join(MAPS)}, or devices by module as JSON or a .json file; it is "
                f"{shown(text)}."
            ) from error
    if not isinstance(given, str) and not (isinstance(given, Mapping) and given):
        raise ParameterError(
            f"`device_map` must name a device for each module; it is {shown(given)}."
        )
    if importlib.util.find_spec("accelerate") is None:
        raise ParameterError(
            "`device_map` needs accelerate; install it with: pip install 'headwise[big]'"
        )
    return given if isinstance(given, str) else dict(given)


def home_of(module: nn.Module) -> torch.device:
    """The device that inputs go to and statistics are taken on: where the embeddings are
    computed."""
    embeddings = (
        module.get_input_embeddings() if isinstance(module, transformers.PreTrainedModel) else None
    )
    for part in (embeddings, module):
        device = getattr(getattr(part, "_hf_hook", None), "execution_device", None)
        if device is not None:
            return torch.device(device)
    return next(parameter.device for parameter in module.parameters() if not parameter.is_meta)


def is_spread(module: nn.Module) -> bool:
    """Whether the weights lie on more than one device, or partly outside memory."""
    return len({parameter.device for parameter in module.parameters()}) > 1 or any(
        parameter.is_meta for parameter in module.parameters()
    )


def stored_weights(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every weight by its name, in the order of names, read where it lies: one left on the disk is
    read when it comes, so that one is held at a time."""
    parameters = dict(module.named_parameters())
    for name in sorted(parameters):
        owner, _, own = name.rpartition(".")
        yield name, weight_in(module.get_submodule(owner), own, parameters[name])


def weight_in(module: nn.Module, name: str, parameter: Tensor) -> Tensor:
    """A weight of a module, fetched where accelerate left it outside of memory."""
    if not parameter.is_meta:
        return parameter.detach()
    hook = getattr(module, "_hf_hook", None)
    for one in getattr(hook, "hooks", (hook,)):
        kept = getattr(one, "weights_map", None)
        if kept is not None:
            found: Tensor = kept[name]
            return found.detach()
    return parameter.detach()
