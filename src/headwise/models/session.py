"""A forward pass that is watched or changed: computes the attention of every layer, shows it to a
watcher, and applies interventions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from headwise.models.interventions import InterventionPlan, Streams, on_outputs, stream_hooks
from headwise.models.masks import RowMask, is_open
from headwise.models.sites import LayerCount, Sites, hidden_input, hidden_output
from headwise.models.statistics.cpu_attention import ScratchBuffer
from headwise.models.statistics.fused import KernelRequest
from headwise.models.statistics.reducer import PreparedRequest, Visibility
from headwise.models.strategies import choose_strategy
from headwise.models.tap import SESSION, Call, FormedCall, TapSession, use_session
from headwise.models.view import AttentionRows, Layer, StatsWatcher, Watcher
from headwise.stats.gpu import has_kernels

BLOCK_BYTES = 512 * 2**20


class Session(TapSession):
    """One watched forward pass of one model.

    How the attention of a layer is computed is chosen for each call by `choose_strategy` (see
    `strategies.py`).

    Parameters
    ----------
    sites : Sites
        The attention modules of the watched stack.
    attention_mask : Tensor
        Bool `[example, token]`: True for tokens, False for padding (on the right).
    watcher : Watcher, optional
        Sees the layers; None for interventions alone.
    plan : InterventionPlan, optional
        Interventions by layer and head.
    block_rows : int, optional
        Number of query rows formed at a time; by default all, unless the weights of a layer take
        more than `block_bytes`.
    block_bytes : int, default 512 MiB
        See `block_rows`.
    keep : bool, default False
        Keep each block's weights with their gradient history in `kept`.
    streams : Streams, optional
        Interventions in the residual stream and after feed-forward parts.
    keys : Tensor, optional
        The attention mask of the keys, if they are other tokens (cross-attention).

    Attributes
    ----------
    kept : list of AttentionRows
        The blocks, with `keep`.
    stream_to : callable, optional
        Set it to show each block with its gradient in the backward pass instead of keeping it.
    final : Tensor, optional
        What leaves the last layer, if the watcher needs hidden states.
    """

    def __init__(
        self,
        sites: Sites,
        attention_mask: Tensor,
        watcher: Watcher | None = None,
        plan: InterventionPlan | None = None,
        *,
        block_rows: int | None = None,
        block_bytes: int = BLOCK_BYTES,
        keep: bool = False,
        streams: Streams | None = None,
        keys: Tensor | None = None,
    ) -> None:
        self.sites = sites
        self.attention_mask = attention_mask
        self.key_mask = attention_mask if keys is None else keys
        self.watcher = watcher
        self.needs: frozenset[str] = frozenset() if watcher is None else watcher.needs
        self.stats_watcher: StatsWatcher | None = None
        if isinstance(watcher, StatsWatcher) and watcher.request is not None:
            self.stats_watcher = watcher
        self.plan = plan or {}
        self.streams = streams or {}
        self.block_rows = block_rows
        self.block_bytes = block_bytes
        self.keep = keep
        self.kept: list[AttentionRows] = []
        self.stream_to: Callable[[AttentionRows], None] | None = None
        # Makes the backward pass reach `StreamedAttention`.
        self.anchor = torch.zeros((), device=attention_mask.device, requires_grad=True)
        self.final: Tensor | None = None
        self.layer_count = LayerCount(sites)

        self.lengths: list[int] = attention_mask.sum(-1).tolist()
        has_padding = bool(self.lengths) and min(self.lengths) < attention_mask.shape[-1]
        # A watcher with `padding` gets the rows of padding as the model computes them.
        self.clears_padding = has_padding and not getattr(watcher, "padding", False)

        # Shared by the layers of the pass. Masks are known by their id, and stored beside the
        # values so that no other mask can get the same id.
        self.visibilities: dict[tuple[int, bool], tuple[object, Visibility]] = {}
        self.prepared_requests: dict[tuple[int, int, int], PreparedRequest] = {}
        self.kernel_requests: dict[tuple[bool, int], KernelRequest] = {}
        self.scratch = ScratchBuffer()
        self._visible: dict[int, tuple[Tensor | None, Tensor]] = {}
        self._entering: dict[nn.Module, Tensor] = {}  # hidden states, until the layer is left
        self._leaving: Tensor | None = None

    @cached_property
    def lengths_on_device(self) -> Tensor:
        """Number of tokens of each example, int32 `[example]`, for the GPU kernels."""
        return torch.tensor(self.lengths, device=self.attention_mask.device, dtype=torch.int32)

    @contextmanager
    def running(self) -> Iterator[Session]:
        """Make this the session of the current context, with hooks on the layers if hidden states
        are needed."""
        with ExitStack() as stack:
            if "hidden" in self.needs:
                for entry in self.sites.entries:
                    handle = entry.register_forward_pre_hook(self._on_enter, with_kwargs=True)
                    stack.callback(handle.remove)
                    stack.callback(entry.register_forward_hook(self._on_leave).remove)
            if self.streams:
                stream_hooks(self.streams, self.sites, self.attention_mask, self._is_active, stack)
            stack.enter_context(use_session(self))
            yield self
            if self._leaving is not None:
                self.final = self._as_hidden(self._leaving)

    def _is_active(self) -> bool:
        # A module has one list of hooks for all: other threads call them too, and a watcher may run
        # the model again, in a session of its own. Hooks act only for the session of their context.
        return SESSION.get() is self

    def _on_enter(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None
    ) -> None:
        # torch sets and removes a hook with keywords in two steps: between them, other threads call
        # it without keywords.
        if self._is_active():
            self._entering[module] = hidden_input(args, kwargs or {})

    def _on_leave(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if self._is_active():
            # Hidden states of all layers at once would not fit beside a large model.
            self._entering.pop(module, None)
            if self.sites.by_module.get(module) is None:
                self._leaving = hidden_output(output)

    def _as_hidden(self, values: Tensor) -> Tensor:
        values = values.to(self.attention_mask.device)
        if self.sites.tokens_first:
            values = values.transpose(0, 1)
        return at_least_float32(values)

    def by_rows(self, batch_size: int, queries: int, keys: int) -> bool:
        """Return whether the mask of this input is built in blocks of rows, or not at all."""
        if self.stats_watcher is not None and self.attention_mask.is_cuda and has_kernels():
            return True
        return self.rows_at_once(batch_size, queries, keys) < queries

    def rows_at_once(self, batch_size: int, queries: int, keys: int) -> int:
        """Return how many query rows are formed at a time."""
        if self.block_rows is not None:
            return self.block_rows
        row_bytes = batch_size * self.sites.heads * keys * 4
        return max(1, self.block_bytes // row_bytes)

    def visible(self, call: Call, start: int, stop: int) -> Tensor:
        """Return V(i) for a block of rows, bool `[example, 1, row, key]`: the mask is open, and
        neither query nor key is padding."""
        is_whole_mask = (
            stop - start == call.sizes[2]
            and not call.causal
            and not isinstance(call.mask, RowMask)
            and not isinstance(call, FormedCall)
        )
        mask_id = id(call.mask)
        if is_whole_mask and mask_id in self._visible:
            return self._visible[mask_id][1]
        query_mask = self.attention_mask[:, None, start:stop, None]
        visible = query_mask & self.key_mask[:, None, None, :]
        mask = call.rows_mask(start, stop)
        if mask is not None:
            # A module that forms its weights itself has a mask for every head: they are alike.
            visible = visible & is_open(mask).any(1, keepdim=True)
        if is_whole_mask:
            self._visible[mask_id] = (call.mask, visible)
        return visible

    def attend(self, call: Call) -> tuple[Tensor, Tensor | None]:
        """Compute one attention call of the model: its output, and its weights if formed whole."""
        layer = self.layer_count.of_call(call.module)
        if layer is None:
            return call.plain()
        device = call.value.device
        home = self.attention_mask.device
        if device == home:
            return self._attend(call, layer)
        # In a model on several devices, queries, keys and values move to the device of the batch,
        # where all statistics are taken: they are small, and the devices work one after the other
        # anyway.
        local_call = call.on(home)
        output, weights = self._attend(local_call, layer)
        # Every such layer has a mask of its own: forget what was stored for it.
        self._visible.pop(id(local_call.mask), None)
        self.visibilities.pop((id(local_call.mask), local_call.causal), None)
        if weights is not None:
            weights = weights.to(device)
        return output.to(device), weights

    def _attend(self, call: Call, layer: int) -> tuple[Tensor, Tensor | None]:
        strategy = choose_strategy(self, call, layer)
        output, weights = strategy.attend()
        plan = self.plan.get(layer)
        if plan:
            output = on_outputs(plan, output, self.attention_mask)
        if self.watcher is not None:
            self._show_layer(self.watcher, layer, output, call)
        return output.transpose(1, 2).contiguous(), weights

    def _show_layer(self, watcher: Watcher, layer: int, output: Tensor, call: Call) -> None:
        site = self.sites.by_module.get(call.module)
        hidden = None
        if site is not None and site.entry is not None and site.entry in self._entering:
            hidden = self._as_hidden(self._entering[site.entry])
        query = key = None
        if not isinstance(call, FormedCall):
            query = call.query
            key = call.key
        outputs = at_least_float32(output) if "outputs" in self.needs else None
        watcher.on_layer(Layer(layer, outputs, hidden, query, key, call.value))


def at_least_float32(values: Tensor) -> Tensor:
    """Return values in float32 or better: statistics are never taken in half precision."""
    return values.to(torch.promote_types(values.dtype, torch.float32))
