"""Interventions beside the heads: what enters a layer (the residual stream), and what its feed-forward part gives."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from headwise.core.errors import ModelError, ParameterError, unknown
from headwise.models.calling import own_thread
from headwise.models.interventions import Intervention, Mean, Patch, is_stream
from headwise.models.sites import Sites, hidden_input

STREAMS = ("residual", "mlp")
Streams = dict[tuple[int, str], Intervention]  # (layer, stream) -> what to do
# Where layers keep their feed-forward part: the path, inside the layer, of the module that gives what is added.
FEED_FORWARD = re.compile(
    r"mlp|feed_forward|feedforward|ffn|ff|block_sparse_moe|moe|output\.dense|fc2|lin2|ffn_output|"
    r"layer\.\d+\.DenseReluDense"
)


def plan_streams(given: Mapping[Any, Intervention] | None, layers: int, width: int) -> Streams:
    """The interventions among these that are for streams, checked."""
    found: Streams = {}
    for (layer, stream), what in ((key, what) for key, what in (given or {}).items() if is_stream(key)):
        if stream not in STREAMS:
            raise ParameterError(unknown("stream", stream, STREAMS))
        if not isinstance(layer, int) or not 0 <= layer < layers:
            raise ParameterError(f"There is no layer {layer!r}: the model has layers 0 to {layers - 1}.")
        if what not in ("zero", "mean") and not (isinstance(what, Mean) or getattr(what, "output", None) is not None):
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
    found: list[nn.Module] = [part for path, part in entry.named_modules() if path and FEED_FORWARD.fullmatch(path)]
    called = [part for part in found if not isinstance(part, nn.ModuleList)]
    if len(called) != 1 or any(isinstance(part, nn.LayerNorm) for part in called[0].children()):
        raise ModelError(f"The feed-forward part of {type(entry).__name__} cannot be told from the rest; patch heads.")
    return called[0]


def stream_hooks(streams: Streams, sites: Sites, real: Tensor, active: Callable[[], bool], stack: ExitStack) -> None:
    """Hooks that change streams for as long as the stack is open, in passes for which `active` says so.

    `(layer, "residual")` changes what enters the layer, `(layer, "mlp")` what its feed-forward part gives.
    """
    places = {layer: site for site in sites.by_module.values() for layer in site.layers}
    changes: dict[tuple[nn.Module, str], dict[int, Intervention]] = {}
    for (layer, stream), what in streams.items():
        entry = places[layer].entry
        if entry is None:
            raise ModelError("The layers of this model are no modules of their own; patch heads.")
        module = entry if stream == "residual" else feed_forward(entry)
        changes.setdefault((module, stream), {})[places[layer].layers.index(layer)] = what
    for (module, stream), by_call in changes.items():
        hook = _Hook(by_call, stream, real, active, sites.tokens_first)
        if stream == "residual":
            before = own_thread(hook.before)
            stack.callback(module.register_forward_pre_hook(before, with_kwargs=True, prepend=True).remove)
        else:
            stack.callback(module.register_forward_hook(own_thread(hook.after)).remove)


class _Hook:
    """Changes a tensor at some of the calls of a module (layers may share one)."""

    def __init__(
        self,
        by_call: Mapping[int, Intervention],
        stream: str,
        real: Tensor,
        active: Callable[[], bool],
        tokens_first: bool,
    ) -> None:
        self.by_call, self.stream, self.real, self.active, self.tokens_first = (
            by_call,
            stream,
            real,
            active,
            tokens_first,
        )
        self.calls = 0

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        what = self._now()
        if what is None:
            return None
        old = hidden_input(args, kwargs)
        new = self._changed(old, what)
        swapped = tuple(new if value is old else value for value in args)
        return swapped, {name: new if value is old else value for name, value in kwargs.items()}

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
            return self._changed(values.view(*self.real.shape, -1), what).view(values.shape)
        inside = values.transpose(0, 1) if self.tokens_first else values
        if what == "zero":
            new = torch.zeros_like(inside)
        elif isinstance(what, Mean):
            new = what.vector.to(inside.device, inside.dtype).expand_as(inside)
        elif isinstance(what, Patch):
            assert what.output is not None
            given = what.output.to(inside.device, inside.dtype)
            if (
                given.shape[-2:] != inside.shape[-2:]
                or given.ndim not in (2, 3)
                or (given.ndim == 3 and len(given) != len(inside))
            ):
                wanted = list(inside.shape)
                raise ParameterError(
                    f"`Patch(output=...)` of the {self.stream} stream must have shape {wanted} or {wanted[1:]} for "
                    f"this batch; it has {list(given.shape)}."
                )
            new = given.expand_as(inside)
        else:
            share = (self.real / self.real.sum(-1, keepdim=True)).to(inside)
            new = (share[:, None] @ inside).expand_as(inside)
        return new.transpose(0, 1) if self.tokens_first else new
