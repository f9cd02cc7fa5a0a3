"""What can be done to a head while the model runs (uniform attention, no output, its mean, or
something given), and to what enters a layer (the residual stream) or leaves its feed-forward
part."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headwise.core.errors import ModelError, ParameterError, unknown
from headwise.core.labels import parse_place
from headwise.models.forward_call import only_in_this_thread
from headwise.models.masks import is_open
from headwise.models.sites import Sites, hidden_input, replaced
from headwise.models.tap import Call

NAMED = ("uniform", "zero", "mean")
STREAMS = ("residual", "mlp")
# Where layers keep their feed-forward part: the path, inside the layer, of the module that gives
# what is added.
FEED_FORWARD = re.compile(
    r"mlp|feed_forward|feedforward|ffn|ff|block_sparse_moe|moe|output\.dense|fc2|lin2|ffn_output|"
    r"layer\.\d+\.DenseReluDense"
)


@dataclass(frozen=True, slots=True, eq=False)
class Mean:
    """Replace the head's output at every token by this vector `[d_head]`, for instance its mean
    over a corpus."""

    vector: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Patch:
    """Replace the head's `weights` (`[query, key]` or `[example, query, key]`) or its `output`
    (`[token, d_head]` or `[example, token, d_head]`); in the residual stream or after a
    feed-forward part, `output` is as wide as the hidden states."""

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
Streams = dict[tuple[int, str], Intervention]  # (layer, stream) -> what to do


def head_interventions(given: Mapping[Any, Intervention] | None) -> dict[Any, Intervention]:
    """What is to be done to heads, without what is for other streams (`(layer, "residual")`,
    `(layer, "mlp")`)."""
    if given is not None and not isinstance(given, Mapping):
        raise ParameterError(
            f"Interventions are a mapping like {{'L3H5': 'zero'}}; they were given as a {type(given).__name__}."
        )
    return {key: what for key, what in (given or {}).items() if not is_stream(key)}


def is_stream(key: object) -> bool:
    """Whether an intervention is for a stream beside the heads."""
    return isinstance(key, tuple) and len(key) == 2 and isinstance(key[1], str)


def plan_interventions(
    given: Mapping[Any, Intervention] | None, layers: int, heads: int, d_head: int
) -> Plan:
    """Check `{head: intervention}` and `{layer: intervention}` (all heads of a layer) and sort it
    by layer.

    Heads are names (`L3H5`) or pairs (3, 5), layers names (`L3`) or numbers. A single head's entry
    wins over its layer's."""
    plan: Plan = {}
    places = {key: parse_place(key) if isinstance(key, str) else key for key in given or {}}
    if len(set(places.values())) < len(places):
        twice = next(key for key, place in places.items() if list(places.values()).count(place) > 1)
        raise ParameterError(
            f"Two interventions are given for {twice!r}, by name and by number; give one."
        )
    for key, what in sorted(
        (given or {}).items(), key=lambda item: isinstance(places[item[0]], tuple)
    ):
        _check(what, d_head)
        place = places[key]
        layer, head = place if isinstance(place, tuple) and len(place) == 2 else (place, None)
        if not _is_index(layer) or not (head is None or _is_index(head)):
            raise ParameterError(
                "An intervention is given for a head ('L3H5' or (3, 5)) or a layer ('L3' or 3), counted from 0; it was "
                f"given for {key!r}."
            )
        if not 0 <= layer < layers:
            raise ParameterError(
                f"There is no layer {layer}: the model has layers 0 to {layers - 1}."
            )
        if head is not None and not 0 <= head < heads:
            raise ParameterError(
                f"There is no head {head} in layer {layer}: the model has heads 0 to {heads - 1}."
            )
        for one in range(heads) if head is None else (head,):
            plan.setdefault(int(layer), {})[int(one)] = what
    return plan


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
            raise ParameterError(
                f"`Scale` takes one number; it has shape {list(what.factor.shape)}."
            )
    elif not isinstance(what, Patch):
        raise ParameterError(
            f"An intervention is one of {', '.join(NAMED)}, a Mean, a Patch or a Scale; it is a {type(what).__name__}."
        )


def changes_weights(what: Intervention) -> bool:
    """Return whether an intervention replaces attention weights (not outputs)."""
    return what == "uniform" or (isinstance(what, Patch) and what.weights is not None)


def on_weights(
    plan: Mapping[int, Intervention],
    weights: Tensor,
    visible: Tensor,
    sink: Tensor | None,
    start: int,
) -> tuple[Tensor, Tensor | None]:
    """Weights (and sink mass) of a block of rows after the interventions that replace weights; new
    tensors, so gradients flow."""
    heads = [head for head, what in plan.items() if changes_weights(what)]
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
                raise _misfit("weights", given, [len(weights), stop, weights.shape[-1]])
            weights[:, head] = given[..., start:stop, :]
        else:
            seen = visible[:, 0].to(weights.dtype)
            weights[:, head] = seen / seen.sum(-1, keepdim=True).clamp(min=1)
        if sink is not None:
            sink[:, head] = 0 if not isinstance(what, Patch) else 1 - weights[:, head].sum(-1)
    return weights, sink


def on_outputs(plan: Mapping[int, Intervention], outputs: Tensor, attention_mask: Tensor) -> Tensor:
    """Head outputs `[example, head, token, d_head]` after the interventions that replace
    outputs."""
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
            changed[:, head] = _output_of(what, outputs[:, head])
        elif what == "zero":
            changed[:, head] = 0
        else:
            changed[:, head] = _mean_of_tokens(outputs[:, head], attention_mask).expand_as(
                outputs[:, head]
            )
    return changed


def _output_of(patch: Patch, like: Tensor, where: str = "") -> Tensor:
    """What a patch puts in the place of `like[example, token, size]`: one for each example, or one
    for all."""
    assert patch.output is not None
    given, wanted = patch.output.to(like.device, like.dtype), list(like.shape)
    if list(given.shape) not in (wanted, wanted[1:]):
        raise _misfit("output", given, wanted, where)
    return given


def _misfit(what: str, given: Tensor, wanted: list[int], where: str = "") -> ParameterError:
    return ParameterError(
        f"`Patch({what}=...)`{where} must have shape {wanted} or {wanted[1:]} for this batch; it has "
        f"{list(given.shape)}."
    )


def _mean_of_tokens(values: Tensor, attention_mask: Tensor) -> Tensor:
    """The mean over the tokens that are no padding, `[example, token, size]` to `[example, 1,
    size]`."""
    share = (attention_mask / attention_mask.sum(-1, keepdim=True)).to(
        values.device, torch.promote_types(values.dtype, torch.float32)
    )
    return (share[:, None] @ values.to(share.dtype)).to(values.dtype)


def attend_by_plan(call: Call, plan: Mapping[int, Intervention]) -> tuple[Tensor, Tensor, Tensor]:
    """A call of examples without padding, by the plan of its layer: the heads' outputs before and
    after they are replaced, `[example, head, token, d_head]`, and the weights."""
    queries = call.sizes[2]
    key, value = call.repeated()
    weights, sink = call.weights(key, 0, queries)
    mask = call.rows_mask(0, queries)
    seen = torch.ones_like(weights[:, :1], dtype=torch.bool)
    if mask is not None:
        seen = seen & is_open(mask).any(1, keepdim=True)
    weights, _ = on_weights(plan, weights, seen, sink, 0)
    output = weights.to(value.dtype) @ value
    attention_mask = torch.ones(len(output), queries, dtype=torch.bool, device=output.device)
    return output, on_outputs(plan, output, attention_mask), weights


# --- beside the heads -----------------------------------------------------------------------------


def plan_streams(given: Mapping[Any, Intervention] | None, layers: int, width: int) -> Streams:
    """The interventions among these that are for streams, checked."""
    found: Streams = {}
    for (layer, stream), what in (
        (key, what) for key, what in (given or {}).items() if is_stream(key)
    ):
        if stream not in STREAMS:
            raise ParameterError(unknown("stream", stream, STREAMS))
        if not isinstance(layer, int) or not 0 <= layer < layers:
            raise ParameterError(
                f"There is no layer {layer!r}: the model has layers 0 to {layers - 1}."
            )
        if what not in ("zero", "mean") and not (
            isinstance(what, Mean) or getattr(what, "output", None) is not None
        ):
            raise ParameterError(
                f"The {stream} stream takes zero, mean, a Mean or a Patch with `output`; not {what!r}."
            )
        if isinstance(what, Mean) and tuple(what.vector.shape) != (width,):
            raise ParameterError(
                f"`Mean` of the {stream} stream takes a vector of the hidden states' size, [{width}]; it has shape "
                f"{list(what.vector.shape)}."
            )
        found[layer, stream] = what
    return found


def feed_forward(entry: nn.Module) -> nn.Module:
    """The feed-forward part of a layer: the module whose output is added to the stream."""
    found: list[nn.Module] = [
        part for path, part in entry.named_modules() if path and FEED_FORWARD.fullmatch(path)
    ]
    called = [part for part in found if not isinstance(part, nn.ModuleList)]
    if len(called) != 1 or any(isinstance(part, nn.LayerNorm) for part in called[0].children()):
        raise ModelError(
            f"The feed-forward part of {type(entry).__name__} cannot be told from the rest; patch heads."
        )
    return called[0]


def stream_hooks(
    streams: Streams,
    sites: Sites,
    attention_mask: Tensor,
    active: Callable[[], bool],
    stack: ExitStack,
) -> None:
    """Hooks that change streams for as long as the stack is open, in passes for which `active` says
    so.

    `(layer, "residual")` changes what enters the layer, `(layer, "mlp")` what its feed-forward part
    gives."""
    places = {layer: site for site in sites.by_module.values() for layer in site.layers}
    changes: dict[tuple[nn.Module, str], dict[int, Intervention]] = {}
    for (layer, stream), what in streams.items():
        entry = places[layer].entry
        if entry is None:
            raise ModelError("The layers of this model are no modules of their own; patch heads.")
        module = entry if stream == "residual" else feed_forward(entry)
        changes.setdefault((module, stream), {})[places[layer].layers.index(layer)] = what
    for (module, stream), by_call in changes.items():
        hook = _Hook(by_call, stream, attention_mask, active, sites.tokens_first)
        if stream == "residual":
            before = only_in_this_thread(hook.before)
            stack.callback(
                module.register_forward_pre_hook(before, with_kwargs=True, prepend=True).remove
            )
        else:
            stack.callback(module.register_forward_hook(only_in_this_thread(hook.after)).remove)


@dataclass(slots=True, eq=False)
class _Hook:
    """Changes a tensor at some of the calls of a module (layers may share one)."""

    by_call: Mapping[int, Intervention]
    stream: str
    attention_mask: Tensor
    active: Callable[[], bool]
    tokens_first: bool
    calls: int = 0

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        what = self._now()
        if what is None:
            return None
        old = hidden_input(args, kwargs)
        return replaced(args, kwargs, old, self._changed(old, what))

    def after(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        what = self._now()
        if what is None:
            return None
        if isinstance(output, Tensor):
            return self._changed(output, what)
        return (self._changed(output[0], what), *output[1:])

    def _now(self) -> Intervention | None:
        if not self.active():
            return None
        self.calls += 1
        return self.by_call.get(self.calls - 1)

    def _changed(self, values: Tensor, what: Intervention) -> Tensor:
        if values.ndim == 2:  # some flatten examples and tokens before their feed-forward part
            return self._changed(values.view(*self.attention_mask.shape, -1), what).reshape(
                values.shape
            )
        inside = values.transpose(0, 1) if self.tokens_first else values
        if what == "zero":
            new = torch.zeros_like(inside)
        elif isinstance(what, Mean):
            new = what.vector.to(inside.device, inside.dtype).expand_as(inside)
        elif isinstance(what, Patch):
            new = _output_of(what, inside, f" of the {self.stream} stream").expand_as(inside)
        else:
            new = _mean_of_tokens(inside, self.attention_mask).expand_as(inside)
        # Some models write into what they are given, or take it as one piece.
        return (new.transpose(0, 1) if self.tokens_first else new).contiguous()
