"""One pass through a model with derivatives put on what enters its layers, and read off at every
head."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from headwise.core.errors import ModelError
from headwise.models import HeadModel
from headwise.models.forward_call import only_in_this_thread
from headwise.models.sites import LayerCount, hidden_input, hidden_output, replaced
from headwise.models.tap import SESSION, Call, Running, use_session
from headwise.text.encode import Batch


class StopPass(Exception):
    """Raised inside a model once everything asked for was seen: the rest of the pass would be for
    nothing."""


class _UntilStopPass:
    """Ends a `with` block at `StopPass`, and lets go at once of what the model had under way.

    The frames that the exception came through hold the last layer's tangents. Should anything keep
    the exception (a wrapper around a layer that noted it, a cycle that only the garbage collector
    ends), they would pile up from chunk to chunk, beyond what the memory parameter allows."""

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if not isinstance(error, StopPass):
            return False
        traceback.clear_frames(trace)
        error.__traceback__ = None
        return True


class HookedPass(Running):
    """Watches and changes one pass. Methods are for subclasses to fill in; layer and head numbers
    are those of the tap.

    Parameters
    ----------
    model : HeadModel
        Whose pass it is.
    rows : int, default 1
        How many times each example of the batch stands in the pass, one copy after the other (for
        dual numbers, whose tangents are batch rows).
    """

    def __init__(self, model: HeadModel, rows: int = 1) -> None:
        check_supported(model)
        self.model, self.sites, self.rows = model, model.sites, rows
        self._layers = LayerCount(model.sites)

    def on_layer_input(self, layer: int, hidden: Tensor) -> Tensor | None:
        """E[l] as `[example, token, width]`; what is returned takes its place."""
        return None

    def on_head_outputs(self, layer: int, call: Call, output: Tensor) -> None:
        """Each head's output, `[example, head, token, d_head]`."""

    def on_last_output(self, hidden: Tensor) -> None:
        """What leaves the last layer."""

    # --- the session of the tap -------------------------------------------------------------------

    def attend(self, call: Call) -> tuple[Tensor, Tensor | None]:
        layer = self._layers.of_call(call.module)
        return call.plain() if layer is None else self.attend_layer(layer, call)

    def attend_layer(self, layer: int, call: Call) -> tuple[Tensor, Tensor | None]:
        key, value = call.repeated()
        weights, _ = call.weights(key, 0, call.sizes[2])
        output = weights.to(value.dtype) @ value
        self.on_head_outputs(layer, call, output)
        return output.transpose(1, 2).contiguous(), weights

    def run(self, batch: Batch) -> None:
        """Run the model until nothing more is to be seen."""
        ids, real, types = (
            x.repeat(self.rows, 1) for x in (batch.ids, batch.attention_mask, batch.types)
        )
        source = batch.source
        if source is not None:  # what the encoder read, which stays as it is
            copies = {
                name: getattr(source, name).repeat(self.rows, 1)
                for name in ("ids", "attention_mask")
            }
            source = replace(source, **copies)
        with self.running():
            self.model.run(ids, real, types, source=source)

    @contextmanager
    def running(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(self.model.evaluating())
            stack.enter_context(differentiable(self.model.module))
            for entry in self.sites.entries:
                stack.callback(
                    entry.register_forward_pre_hook(
                        only_in_this_thread(self._enter), with_kwargs=True
                    ).remove
                )
                stack.callback(entry.register_forward_hook(only_in_this_thread(self._leave)).remove)
            stack.enter_context(use_session(self))
            stack.enter_context(_UntilStopPass())
            yield

    def _enter(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if SESSION.get() is not self:
            return None
        hidden = hidden_input(args, kwargs)
        layer = self._layers.seen  # its own attention is still to come
        self.on_layer_call(layer, module, args, kwargs)
        given = self.on_layer_input(layer, self._turned(hidden))
        return None if given is None else replaced(args, kwargs, hidden, self._turned(given))

    def on_layer_call(
        self, layer: int, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        """The call of a layer as the model makes it, before anything is put in its place."""

    def _leave(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if SESSION.get() is self and self._layers.seen == self.sites.layers:
            self.on_last_output(self._turned(hidden_output(output)))

    def _turned(self, hidden: Tensor) -> Tensor:
        return hidden.transpose(0, 1) if self.sites.tokens_first else hidden


@contextmanager
def differentiable(module: nn.Module) -> Iterator[None]:
    """For the time of a pass: experts and BLOOM's activation go eagerly: their kernels have no
    forward derivative."""
    experts = "_experts_implementation_internal"
    configs = {
        id(c): c
        for c in (getattr(m, "config", None) for m in module.modules())
        if hasattr(c, experts)
    }
    before = [(config, getattr(config, experts)) for config in configs.values()]
    gelus = [m for m in module.modules() if type(m).__name__ == "BloomGelu"]
    try:
        for config, _ in before:
            setattr(config, experts, "eager")
        for gelu in gelus:
            gelu.forward = partial(nn.functional.gelu, approximate="tanh")
        yield
    finally:
        for config, name in before:
            setattr(config, experts, name)
        for gelu in gelus:
            del gelu.forward


def check_supported(model: HeadModel) -> None:
    """Refuse models whose layers' inputs cannot be reached, or do not stand for tokens of the
    text."""
    if model.stack == "cross":
        raise ModelError(
            "Contributions to cross-attention are not defined here: its tokens are not those it looks at; "
            "open the encoder or the decoder stack."
        )
    if not model.hidden or not model.sites.entries:
        raise ModelError(
            f"The layers of {model.name} pass on no hidden states of the usual shape, "
            "so nothing can be attributed to them."
        )
    if len(set(model.sites.d_heads)) > 1:
        raise ModelError(
            f"The heads of {model.name} have different sizes in different layers; attribution is not served."
        )


@contextmanager
def in_float32(model: HeadModel) -> Iterator[HeadModel]:
    """The model itself; for one in half precision, whose derivatives would drown in rounding, a
    copy in float32, which is closed in the end."""
    single = model if torch.finfo(model.dtype).bits >= 32 else model.in_precision(torch.float32)
    try:
        yield single
    finally:
        if single is not model:
            single.close()


def token_pair_mask(batch: Batch) -> Tensor:
    """Bool `[example, receiving, source]`: neither token is padding."""
    return batch.attention_mask[:, :, None] & batch.attention_mask[:, None, :]


TangentCallback = Callable[[int, Tensor], None]  # layer, tangents [tangent, example, ...]
