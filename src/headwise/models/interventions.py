"""What can be done to a head while the model runs: uniform attention, no output, its mean, or something given."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headwise.core.errors import ParameterError, unknown

PLACE_NAME = re.compile(r"L(\d+)(?:H(\d+))?")
NAMED = ("uniform", "zero", "mean")


@dataclass(frozen=True, slots=True, eq=False)
class Mean:
    """Replace the head's output at every token by this vector `[d_head]`, for instance its mean over a corpus."""

    vector: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Patch:
    """Replace the head's `weights` (`[query, key]` or `[example, query, key]`) or its `output` (`[token, d_head]` or
    `[example, token, d_head]`); in the residual stream or after a feed-forward part, `output` is as wide as the hidden
    states."""

    weights: Tensor | None = None
    output: Tensor | None = None

    def __post_init__(self) -> None:
        if (self.weights is None) == (self.output is None):
            raise ParameterError("A Patch takes either `weights` or `output`, exactly one of them.")


@dataclass(frozen=True, slots=True, eq=False)
class Scale:
    """Multiply the head's output by this number; gradients reach it."""

    factor: Tensor


Intervention = str | Mean | Patch | Scale
Plan = dict[int, dict[int, Intervention]]  # layer -> head -> what to do


def of_heads(given: Mapping[Any, Intervention] | None) -> dict[Any, Intervention]:
    """What is to be done to heads, without what is for other streams (`(layer, "residual")`, `(layer, "mlp")`)."""
    if given is not None and not isinstance(given, Mapping):
        raise ParameterError(
            f"Interventions are a mapping like {{'L3H5': 'zero'}}; they were given as a {type(given).__name__}."
        )
    return {key: what for key, what in (given or {}).items() if not is_stream(key)}


def is_stream(key: object) -> bool:
    """Whether an intervention is for a stream beside the heads."""
    return isinstance(key, tuple) and len(key) == 2 and isinstance(key[1], str)


def plan_interventions(given: Mapping[Any, Intervention] | None, layers: int, heads: int, d_head: int) -> Plan:
    """Check `{head: intervention}` and `{layer: intervention}` (all heads of a layer) and sort it by layer.

    Heads are names (`L3H5`) or pairs (3, 5), layers names (`L3`) or numbers. A single head's entry wins over its
    layer's.
    """
    plan: Plan = {}
    places = {key: named_place(key) if isinstance(key, str) else key for key in given or {}}
    if len(set(places.values())) < len(places):
        twice = next(key for key, place in places.items() if list(places.values()).count(place) > 1)
        raise ParameterError(f"Two interventions are given for {twice!r}, by name and by number; give one.")
    for key, what in sorted((given or {}).items(), key=lambda item: isinstance(places[item[0]], tuple)):
        _check(what, d_head)
        place = places[key]
        layer, head = place if isinstance(place, tuple) and len(place) == 2 else (place, None)
        if not _is_index(layer) or not (head is None or _is_index(head)):
            raise ParameterError(
                "An intervention is given for a head ('L3H5' or (3, 5)) or a layer ('L3' or 3), counted from 0; it was "
                f"given for {key!r}."
            )
        if not 0 <= layer < layers:
            raise ParameterError(f"There is no layer {layer}: the model has layers 0 to {layers - 1}.")
        if head is not None and not 0 <= head < heads:
            raise ParameterError(f"There is no head {head} in layer {layer}: the model has heads 0 to {heads - 1}.")
        for one in range(heads) if head is None else (head,):
            plan.setdefault(int(layer), {})[int(one)] = what
    return plan


def named_place(name: str) -> Any:
    """(3, 5) for `L3H5`, 3 for `L3`, anything else as it is.

    >>> named_place("L3H5"), named_place("L3"), named_place("third")
    ((3, 5), 3, 'third')
    """
    found = PLACE_NAME.fullmatch(name)
    if found is None:
        return name
    return int(found[1]) if found[2] is None else (int(found[1]), int(found[2]))


def _is_index(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check(what: Any, d_head: int) -> None:
    if isinstance(what, Mean):
        if tuple(what.vector.shape) != (d_head,):
            raise ParameterError(
                f"`Mean` takes a vector of the head's size, [{d_head}]; it has shape {list(what.vector.shape)}."
            )
    elif isinstance(what, str):
        if what not in NAMED:
            raise ParameterError(unknown("intervention", what, NAMED))
    elif isinstance(what, Scale):
        if what.factor.ndim:
            raise ParameterError(f"`Scale` takes one number; it has shape {list(what.factor.shape)}.")
    elif not isinstance(what, Patch):
        raise ParameterError(
            f"An intervention is one of {', '.join(NAMED)}, a Mean, a Patch or a Scale; it is a {type(what).__name__}."
        )


def on_weights(
    plan: Mapping[int, Intervention], weights: Tensor, visible: Tensor, sink: Tensor | None, start: int
) -> tuple[Tensor, Tensor | None]:
    """Weights (and sink mass) of a block of rows after the interventions that replace weights; new tensors, so
    gradients flow."""
    heads = [
        head
        for head, what in plan.items()
        if what == "uniform" or (isinstance(what, Patch) and what.weights is not None)
    ]
    if not heads:
        return weights, sink
    weights = weights.clone()
    sink = None if sink is None else sink.clone()
    stop = start + weights.shape[2]
    for head in heads:
        what = plan[head]
        if isinstance(what, Patch):
            assert what.weights is not None
            given = what.weights.to(weights.device, weights.dtype)
            if (
                given.ndim not in (2, 3)
                or given.shape[-1] != weights.shape[-1]
                or given.shape[-2] < stop
                or (given.ndim == 3 and len(given) != len(weights))
            ):
                raise ParameterError(
                    _misfit("weights", given, [weights.shape[0], visible.shape[2] + start, weights.shape[-1]])
                )
            weights[:, head] = given[..., start:stop, :]
        else:
            seen = visible[:, 0].to(weights.dtype)
            weights[:, head] = seen / seen.sum(-1, keepdim=True).clamp(min=1)
        if sink is not None:
            sink[:, head] = 0 if not isinstance(what, Patch) else 1 - weights[:, head].sum(-1)
    return weights, sink


def on_outputs(plan: Mapping[int, Intervention], outputs: Tensor, real: Tensor) -> Tensor:
    """Head outputs `[example, head, token, d_head]` after the interventions that replace outputs."""
    chosen = {
        head: what
        for head, what in plan.items()
        if what != "uniform" and not (isinstance(what, Patch) and what.output is None)
    }
    if not chosen:
        return outputs
    changed = outputs.clone()
    for head, what in chosen.items():
        if isinstance(what, Scale):
            changed[:, head] = outputs[:, head] * what.factor.to(outputs.device, outputs.dtype)
        elif isinstance(what, Mean):
            changed[:, head] = what.vector.to(outputs.device, outputs.dtype)
        elif isinstance(what, Patch):
            assert what.output is not None
            given = what.output.to(outputs.device, outputs.dtype)
            if (
                given.ndim not in (2, 3)
                or given.shape[-2:] != outputs.shape[-2:]
                or (given.ndim == 3 and len(given) != len(outputs))
            ):
                raise ParameterError(_misfit("output", given, [outputs.shape[0], *outputs.shape[-2:]]))
            changed[:, head] = given
        elif what == "zero":
            changed[:, head] = 0
        else:
            share = (real / real.sum(-1, keepdim=True)).to(torch.promote_types(outputs.dtype, torch.float32))
            mean = (share[:, None] @ outputs[:, head].to(share.dtype)).to(outputs.dtype)
            changed[:, head] = mean.expand_as(outputs[:, head])
    return changed


def _misfit(what: str, given: Tensor, wanted: list[int]) -> str:
    return f"`Patch({what}=...)` must have shape {wanted} or {wanted[1:]} for this batch; it has {list(given.shape)}."
