"""Interventions on heads while a model runs (uniform attention, zero or mean output, a patch), on the
residual stream, and on the outputs of feed-forward parts."""

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
# The path, inside a layer, of the module whose output the feed-forward part adds to the stream.
FEED_FORWARD = re.compile(
    r"mlp|feed_forward|feedforward|ffn|ff|block_sparse_moe|moe|output\.dense|fc2|lin2|ffn_output|"
    r"layer\.\d+\.DenseReluDense"
)


@dataclass(frozen=True, slots=True, eq=False)
class Mean:
    """Replace the head's output at every token by this vector `[d_head]`, for instance its mean
    over a corpus (mean ablation)."""

    vector: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Patch:
    """Replace the head's `weights` or its `output`, exactly one of them.

    Parameters
    ----------
    weights : Tensor, optional
        `[query, key]` or `[example, query, key]`.
    output : Tensor, optional
        `[token, d_head]` or `[example, token, d_head]`; in the residual stream or after a
        feed-forward part, as wide as the hidden states.
    """

    weights: Tensor | None = None
    output: Tensor | None = None

    def __post_init__(self) -> None:
        if (self.weights is None) == (self.output is None):
            raise ParameterError("A Patch takes either `weights` or `output`, exactly one of them.")


@dataclass(frozen=True, slots=True, eq=False)
class Scale:
    """Multiply the head's output by this number; gradients flow to it."""

    factor: Tensor


Intervention = str | Mean | Patch | Scale
InterventionPlan = dict[int, dict[int, Intervention]]  # layer -> head -> intervention
Streams = dict[tuple[int, str], Intervention]  # (layer, stream) -> intervention


def head_interventions(
    interventions: Mapping[Any, Intervention] | None,
) -> dict[Any, Intervention]:
    """Return the interventions on heads and layers, without those on streams (`(layer,
    "residual")`, `(layer, "mlp")`)."""
    if interventions is not None and not isinstance(interventions, Mapping):
        raise ParameterError(
            "Interventions are a mapping like {'L3H5': 'zero'}; they were given as a "
            f"{type(interventions).__name__}."
        )
    on_heads = {}
    for key, intervention in (interventions or {}).items():
        if not is_stream(key):
            on_heads[key] = intervention
    return on_heads


def is_stream(key: object) -> bool:
    """Return whether the key of an intervention names a stream, like `(3, "residual")`."""
    return isinstance(key, tuple) and len(key) == 2 and isinstance(key[1], str)


def plan_interventions(
    interventions: Mapping[Any, Intervention] | None, layers: int, heads: int, d_head: int
) -> InterventionPlan:
    """Check interventions on heads and layers (all heads of a layer) and sort them by layer.

    Heads are names (`L3H5`) or pairs (3, 5), layers names (`L3`) or numbers. The entry of a single
    head wins over that of its layer.

    Parameters
    ----------
    interventions : mapping, optional
        By head or layer.
    layers, heads, d_head : int
        Sizes of the model.
    """
    by_place: dict[Any, Intervention] = {}
    key_of_place: dict[Any, Any] = {}
    for key, intervention in (interventions or {}).items():
        place = parse_place(key) if isinstance(key, str) else key
        if place in by_place:
            raise ParameterError(
                f"Two interventions are given for {key_of_place[place]!r}, by name and by number; "
                "give one."
            )
        by_place[place] = intervention
        key_of_place[place] = key
    plan: InterventionPlan = {}
    # Layers first, so that single heads overwrite them.
    for place in sorted(by_place, key=lambda place: isinstance(place, tuple)):
        intervention = by_place[place]
        _check(intervention, d_head)
        layer, head = _check_place(place, key_of_place[place], layers, heads)
        affected = range(heads) if head is None else (head,)
        for number in affected:
            plan.setdefault(layer, {})[number] = intervention
    return plan


def _check_place(place: Any, key: Any, layers: int, heads: int) -> tuple[int, int | None]:
    """Return layer and head (None: all heads) of an intervention; reject those that do not
    exist."""
    layer, head = place, None
    if isinstance(place, tuple) and len(place) == 2:
        layer, head = place
    if not _is_index(layer) or not (head is None or _is_index(head)):
        raise ParameterError(
            "An intervention is given for a head ('L3H5' or (3, 5)) or a layer ('L3' or 3), "
            f"counted from 0; it was given for {key!r}."
        )
    if not 0 <= layer < layers:
        raise ParameterError(f"There is no layer {layer}: the model has layers 0 to {layers - 1}.")
    if head is not None and not 0 <= head < heads:
        raise ParameterError(
            f"There is no head {head} in layer {layer}: the model has heads 0 to {heads - 1}."
        )
    return layer, head


def _is_index(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check(intervention: Any, d_head: int) -> None:
    if isinstance(intervention, Mean):
        shape = list(intervention.vector.shape)
        if shape != [d_head]:
            raise ParameterError(
                f"`Mean` takes a vector of the head's size, [{d_head}]; it has shape {shape}."
            )
    elif isinstance(intervention, str):
        if intervention not in NAMED:
            raise ParameterError(unknown("intervention", intervention, NAMED))
    elif isinstance(intervention, Scale):
        if intervention.factor.ndim:
            shape = list(intervention.factor.shape)
            raise ParameterError(f"`Scale` takes one number; it has shape {shape}.")
    elif not isinstance(intervention, Patch):
        raise ParameterError(
            f"An intervention is one of {', '.join(NAMED)}, a Mean, a Patch or a Scale; it is a "
            f"{type(intervention).__name__}."
        )


def changes_weights(intervention: Intervention) -> bool:
    """Return whether an intervention replaces attention weights."""
    if isinstance(intervention, Patch):
        return intervention.weights is not None
    return intervention == "uniform"


def on_weights(
    plan: Mapping[int, Intervention],
    weights: Tensor,
    visible: Tensor,
    sink: Tensor | None,
    start: int,
) -> tuple[Tensor, Tensor | None]:
    """Apply the interventions that replace weights to a block of rows.

    Parameters
    ----------
    plan : mapping
        Interventions by head.
    weights : Tensor
        `[example, head, row, key]`. They are copied, so that gradients flow.
    visible : Tensor
        V(i), bool `[example, 1, row, key]`.
    sink : Tensor, optional
        Mass on a learned sink, `[example, head, row]`.
    start : int
        The first row of the block.
    """
    changed = {head: what for head, what in plan.items() if changes_weights(what)}
    if not changed:
        return weights, sink
    weights = weights.clone()
    if sink is not None:
        sink = sink.clone()
    for head, intervention in changed.items():
        if isinstance(intervention, Patch):
            weights[:, head] = _patched_weights(intervention, weights, start)
            sink_mass: Tensor | int = 1 - weights[:, head].sum(-1)
        else:
            is_visible = visible[:, 0].to(weights.dtype)
            weights[:, head] = is_visible / is_visible.sum(-1, keepdim=True).clamp(min=1)
            sink_mass = 0
        if sink is not None:
            sink[:, head] = sink_mass
    return weights, sink


def _patched_weights(patch: Patch, weights: Tensor, start: int) -> Tensor:
    """Return the weights of a patch for a block of rows; reject those of another shape."""
    assert patch.weights is not None
    patched = patch.weights.to(weights.device, weights.dtype)
    n_examples, _, n_rows, n_keys = weights.shape
    stop = start + n_rows
    fits = (
        patched.ndim in (2, 3)
        and patched.shape[-1] == n_keys
        and patched.shape[-2] >= stop
        and (patched.ndim == 2 or len(patched) == n_examples)
    )
    if not fits:
        raise _misfit("weights", patched, [n_examples, stop, n_keys])
    return patched[..., start:stop, :]


def on_outputs(plan: Mapping[int, Intervention], outputs: Tensor, attention_mask: Tensor) -> Tensor:
    """Apply the interventions that replace outputs to head outputs `[example, head, token,
    d_head]`."""
    changes = {head: what for head, what in plan.items() if not changes_weights(what)}
    if not changes:
        return outputs
    changed = outputs.clone()
    for head, intervention in changes.items():
        output = outputs[:, head]
        if isinstance(intervention, Scale):
            output = output * intervention.factor.to(output.device, output.dtype)
        else:
            output = _replacement(intervention, output, attention_mask)
        changed[:, head] = output
    return changed


def _replacement(
    intervention: Intervention, values: Tensor, attention_mask: Tensor, where: str = ""
) -> Tensor:
    """Return what replaces values `[example, token, size]` of a head or stream."""
    if isinstance(intervention, Mean):
        return intervention.vector.to(values.device, values.dtype).expand_as(values)
    if isinstance(intervention, Patch):
        return _patched_output(intervention, values, where).expand_as(values)
    if intervention == "zero":
        return torch.zeros_like(values)
    return _mean_over_tokens(values, attention_mask).expand_as(values)


def _patched_output(patch: Patch, like: Tensor, where: str = "") -> Tensor:
    """Return the output of a patch for `like[example, token, size]`: one for each example, or one
    for all."""
    assert patch.output is not None
    patched = patch.output.to(like.device, like.dtype)
    shape = list(like.shape)
    if list(patched.shape) not in (shape, shape[1:]):
        raise _misfit("output", patched, shape, where)
    return patched


def _misfit(name: str, patched: Tensor, shape: list[int], where: str = "") -> ParameterError:
    return ParameterError(
        f"`Patch({name}=...)`{where} must have shape {shape} or {shape[1:]} for this batch; it has "
        f"{list(patched.shape)}."
    )


def _mean_over_tokens(values: Tensor, attention_mask: Tensor) -> Tensor:
    """Return the mean over tokens without padding, `[example, token, size]` to `[example, 1,
    size]`."""
    dtype = torch.promote_types(values.dtype, torch.float32)
    share = attention_mask / attention_mask.sum(-1, keepdim=True)
    share = share.to(values.device, dtype)
    return (share[:, None] @ values.to(dtype)).to(values.dtype)


def attend_by_plan(call: Call, plan: Mapping[int, Intervention]) -> tuple[Tensor, Tensor, Tensor]:
    """Compute a call of examples without padding, with the interventions on its layer.

    Returns the heads' outputs before and after they are replaced, `[example, head, token, d_head]`,
    and the weights."""
    n_queries = call.sizes[2]
    key, value = call.repeated()
    weights, sink = call.weights(key, 0, n_queries)
    visible = torch.ones_like(weights[:, :1], dtype=torch.bool)
    mask = call.rows_mask(0, n_queries)
    if mask is not None:
        visible = visible & is_open(mask).any(1, keepdim=True)
    weights, _ = on_weights(plan, weights, visible, sink, 0)
    output = weights.to(value.dtype) @ value
    all_tokens = torch.ones(len(output), n_queries, dtype=torch.bool, device=output.device)
    return output, on_outputs(plan, output, all_tokens), weights


# --- streams --------------------------------------------------------------------------------------


def plan_streams(
    interventions: Mapping[Any, Intervention] | None, layers: int, width: int
) -> Streams:
    """Check the interventions on streams and return them.

    Parameters
    ----------
    interventions : mapping, optional
        Interventions on heads and streams.
    layers, width : int
        Number of layers, width of the hidden states.
    """
    streams: Streams = {}
    for key, intervention in (interventions or {}).items():
        if not is_stream(key):
            continue
        layer, stream = key
        if stream not in STREAMS:
            raise ParameterError(unknown("stream", stream, STREAMS))
        if not isinstance(layer, int) or not 0 <= layer < layers:
            raise ParameterError(
                f"There is no layer {layer!r}: the model has layers 0 to {layers - 1}."
            )
        has_output = getattr(intervention, "output", None) is not None
        is_named = isinstance(intervention, str) and intervention in ("zero", "mean")
        if not is_named and not isinstance(intervention, Mean) and not has_output:
            raise ParameterError(
                f"The {stream} stream takes zero, mean, a Mean or a Patch with `output`; not "
                f"{intervention!r}."
            )
        if isinstance(intervention, Mean) and tuple(intervention.vector.shape) != (width,):
            raise ParameterError(
                f"`Mean` of the {stream} stream takes a vector of the hidden states' size, "
                f"[{width}]; it has shape {list(intervention.vector.shape)}."
            )
        streams[layer, stream] = intervention
    return streams


def feed_forward(entry: nn.Module) -> nn.Module:
    """Return the feed-forward part of a layer: the module whose output is added to the stream."""
    parts: list[nn.Module] = []
    for path, part in entry.named_modules():
        if path and FEED_FORWARD.fullmatch(path) and not isinstance(part, nn.ModuleList):
            parts.append(part)
    if len(parts) != 1 or any(isinstance(part, nn.LayerNorm) for part in parts[0].children()):
        raise ModelError(
            f"The feed-forward part of {type(entry).__name__} cannot be told from the rest; "
            "patch heads."
        )
    return parts[0]


def stream_hooks(
    streams: Streams,
    sites: Sites,
    attention_mask: Tensor,
    is_active: Callable[[], bool],
    stack: ExitStack,
) -> None:
    """Set hooks that change streams until the stack is closed.

    `(layer, "residual")` changes what enters the layer, `(layer, "mlp")` the output of its
    feed-forward part.

    Parameters
    ----------
    streams : Streams
        The interventions.
    sites : Sites
        The attention modules of the model.
    attention_mask : Tensor
        Bool `[example, token]`.
    is_active : callable
        Returns whether the hooks act in the current pass.
    stack : ExitStack
        Removes the hooks when it is closed.
    """
    site_of_layer = {layer: site for site in sites.by_module.values() for layer in site.layers}
    # Layers may share a module: its interventions are known by the number of the call.
    by_module: dict[tuple[nn.Module, str], dict[int, Intervention]] = {}
    for (layer, stream), intervention in streams.items():
        site = site_of_layer[layer]
        if site.entry is None:
            raise ModelError("The layers of this model are not modules of their own; patch heads.")
        module = site.entry if stream == "residual" else feed_forward(site.entry)
        number = site.layers.index(layer)
        by_module.setdefault((module, stream), {})[number] = intervention
    for (module, stream), by_call in by_module.items():
        hook = _StreamHook(by_call, stream, attention_mask, is_active, sites.tokens_first)
        if stream == "residual":
            before = only_in_this_thread(hook.before)
            handle = module.register_forward_pre_hook(before, with_kwargs=True, prepend=True)
        else:
            handle = module.register_forward_hook(only_in_this_thread(hook.after))
        stack.callback(handle.remove)


@dataclass(slots=True, eq=False)
class _StreamHook:
    """Changes the input or output of a module in some of its calls."""

    by_call: Mapping[int, Intervention]
    stream: str
    attention_mask: Tensor
    is_active: Callable[[], bool]
    tokens_first: bool
    calls: int = 0

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        intervention = self._of_this_call()
        if intervention is None:
            return None
        hidden = hidden_input(args, kwargs)
        return replaced(args, kwargs, hidden, self._change(hidden, intervention))

    def after(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        intervention = self._of_this_call()
        if intervention is None:
            return None
        if isinstance(output, Tensor):
            return self._change(output, intervention)
        return (self._change(output[0], intervention), *output[1:])

    def _of_this_call(self) -> Intervention | None:
        if not self.is_active():
            return None
        self.calls += 1
        return self.by_call.get(self.calls - 1)

    def _change(self, values: Tensor, intervention: Intervention) -> Tensor:
        if values.ndim == 2:  # some models flatten examples and tokens before the feed-forward part
            unflattened = values.view(*self.attention_mask.shape, -1)
            return self._change(unflattened, intervention).reshape(values.shape)
        if self.tokens_first:
            values = values.transpose(0, 1)
        where = f" of the {self.stream} stream"
        changed = _replacement(intervention, values, self.attention_mask, where)
        if self.tokens_first:
            changed = changed.transpose(0, 1)
        # Some models write into what they get, or need it in one piece of memory.
        return changed.contiguous()
