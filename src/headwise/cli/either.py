"""A command's model, as an argument or as `--model`: both ways for every command that reads one model."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

from headwise.cli import common
from headwise.core.errors import ParameterError

OTHER = "model_too"


def model_either_way(command: Callable[..., None]) -> Callable[..., None]:
    """The same command, which also takes its model the way that it does not declare itself.

    A command declares `model` as `common.Model` (the argument) or `common.ModelOption` (the option); the other one is
    added behind it. Commands that take a list of arguments of their own keep the option alone.
    """
    hints = get_type_hints(command, include_extras=True)
    added = common.ModelOption if hints["model"] == common.Model else common.Model
    signature = inspect.signature(command)
    parameters = []
    for own in signature.parameters.values():
        parameters.append(own.replace(annotation=hints[own.name]))
        if own.name == "model":
            parameters.append(own.replace(name=OTHER, annotation=added))

    @functools.wraps(command)
    def either(**given: Any) -> None:
        other = given.pop(OTHER)
        if other is not None and given["model"] is not None and other != given["model"]:
            named = (given["model"], other) if added is common.ModelOption else (other, given["model"])
            raise ParameterError(
                f"Two models are named, the argument '{named[0]}' and --model '{named[1]}'; give one of them."
            )
        given["model"] = other if given["model"] is None else given["model"]
        command(**given)

    either.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    either.__annotations__ = hints | {OTHER: added}
    return either
