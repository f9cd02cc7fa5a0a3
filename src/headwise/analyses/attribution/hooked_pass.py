"""One pass through a model with hooks at the input of each layer and at each head's output, where
derivatives are put in and read off."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any

from torch import Tensor, nn

from headwise.core.errors import ModelError
from headwise.models import HeadModel
from headwise.models.forward_call import only_in_this_thread
from headwise.models.sites import LayerCount, hidden_input, hidden_output, replaced
from headwise.models.tap import SESSION, Call, TapSession, use_session
from headwise.text.encode import Batch

TangentCallback = Callable[[int, Tensor], None]  # layer, tangents [tangent, example, ...]


class StopPass(Exception):
    """Raised inside a model once everything needed was observed: the rest of the pass is skipped."""


class _UntilStopPass:
    """Ends a `with` block at `StopPass`, and frees at once what the model had in memory.

    The frames that the exception passed through hold the last layer's tangents. If anything keeps
    the exception (a wrapper around a layer that recorded it, a reference cycle that only the
    garbage collector ends), they would accumulate from chunk to chunk, beyond what the parameter
    `memory` allows.
    """

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


class HookedPass(TapSession):
    """Observes and changes one pass. Subclasses implement the methods `on_...`; layers and heads
    are numbered as by the tap.

    Parameters
    ----------
    model : HeadModel
        The model that runs.
    rows : int, default 1
        How often each example of the batch is in the pass, one copy after the other (for dual
        numbers, whose tangents are rows of the batch).
    """

    def __init__(self, model: HeadModel, rows: int = 1) -> None:
        check_supported(model)
        self.model = model
        self.sites = model.sites
        self.rows = rows
        self._layers = LayerCount(model.sites)

    # --- hooks for subclasses ---------------------------------------------------------------------

    def on_layer_call(
        self, layer: int, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        """Observe the call of a layer as the model makes it, before any input is replaced."""

    def on_layer_input(self, layer: int, hidden: Tensor) -> Tensor | None:
        """Observe E[l] as `[example, token, width]`; a returned tensor replaces it."""
        return None

    def on_head_outputs(self, layer: int, call: Call, output: Tensor) -> None:
        """Observe each head's output, `[example, head, token, d_head]`."""

    def on_last_output(self, hidden: Tensor) -> None:
        """Observe what leaves the last layer."""

    # --- the session of the tap -------------------------------------------------------------------

    def attend(self, call: Call) -> tuple[Tensor, Tensor | None]:
        layer = self._layers.of_call(call.module)
        if layer is None:
            return call.plain()
        return self.attend_layer(layer, call)

    def attend_layer(self, layer: int, call: Call) -> tuple[Tensor, Tensor | None]:
        key, value = call.repeated()
        weights, _ = call.weights(key, 0, call.sizes[2])
        output = weights.to(value.dtype) @ value
        self.on_head_outputs(layer, call, output)
        return output.transpose(1, 2).contiguous(), weights

    def run(self, batch: Batch) -> None:
        """Run the model on a batch, until `StopPass` or its end."""
        ids = batch.ids.repeat(self.rows, 1)
        attention_mask = batch.attention_mask.repeat(self.rows, 1)
        types = batch.types.repeat(self.rows, 1)
        source = batch.source
        if source is not None:  # the encoder's input, which has no tangents
            source = replace(
                source,
                ids=source.ids.repeat(self.rows, 1),
                attention_mask=source.attention_mask.repeat(self.rows, 1),
            )
        with self.running():
            self.model.run(ids, attention_mask, types, source=source)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Install the hooks for a `with` block, which ends at `StopPass`."""
        with ExitStack() as stack:
            stack.enter_context(self.model.evaluating())
            stack.enter_context(use_differentiable_kernels(self.model.module))
            for entry in self.sites.entries:
                before = entry.register_forward_pre_hook(
                    only_in_this_thread(self._before_layer), with_kwargs=True
                )
                stack.callback(before.remove)
                after = entry.register_forward_hook(only_in_this_thread(self._after_layer))
                stack.callback(after.remove)
            stack.enter_context(use_session(self))
            stack.enter_context(_UntilStopPass())
            yield

    def _before_layer(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if SESSION.get() is not self:
            return None
        hidden = hidden_input(args, kwargs)
        layer = self._layers.seen  # attention calls so far: this layer's is still to come
        self.on_layer_call(layer, module, args, kwargs)
        replacement = self.on_layer_input(layer, self._examples_first(hidden))
        if replacement is None:
            return None
        return replaced(args, kwargs, hidden, self._examples_first(replacement))

    def _after_layer(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if SESSION.get() is self and self._layers.seen == self.sites.layers:
            self.on_last_output(self._examples_first(hidden_output(output)))

    def _examples_first(self, hidden: Tensor) -> Tensor:
        """Exchange examples and tokens where the model has tokens first; its own inverse."""
        return hidden.transpose(0, 1) if self.sites.tokens_first else hidden


@contextmanager
def use_differentiable_kernels(module: nn.Module) -> Iterator[None]:
    """Let experts and BLOOM's activation run eagerly for a `with` block: their fused kernels have
    no forward derivative."""
    attribute = "_experts_implementation_internal"
    configs = {}
    for submodule in module.modules():
        config = getattr(submodule, "config", None)
        if hasattr(config, attribute):
            configs[id(config)] = config
    before = [(config, getattr(config, attribute)) for config in configs.values()]
    gelus = [m for m in module.modules() if type(m).__name__ == "BloomGelu"]
    try:
        for config, _ in before:
            setattr(config, attribute, "eager")
        for gelu in gelus:
            gelu.forward = partial(nn.functional.gelu, approximate="tanh")
        yield
    finally:
        for config, implementation in before:
            setattr(config, attribute, implementation)
        for gelu in gelus:
            del gelu.forward


def check_supported(model: HeadModel) -> None:
    """Raise if the inputs of a model's layers cannot be reached, or do not stand for tokens of the
    text."""
    if model.stack == "cross":
        raise ModelError(
            "Contributions to cross-attention are not defined: its receiving and its source tokens "
            "are of different texts; open the encoder or the decoder stack."
        )
    if not model.hidden or not model.sites.entries:
        raise ModelError(
            f"The layers of {model.name} pass on no hidden states of the usual shape, so nothing "
            "can be attributed to them."
        )
    if len(set(model.sites.d_heads)) > 1:
        raise ModelError(
            f"The heads of {model.name} have different sizes in different layers; attribution does "
            "not support that."
        )


def token_pair_mask(batch: Batch) -> Tensor:
    """Return bool `[example, receiving, source]`: neither token is padding."""
    return batch.attention_mask[:, :, None] & batch.attention_mask[:, None, :]
