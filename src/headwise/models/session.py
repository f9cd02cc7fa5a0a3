"""A watched forward pass: forms the weights of each layer, block by block, shows them, and applies
interventions; or shows them with the gradient of a loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from headwise.core.errors import ParameterError
from headwise.models.forward_call import only_in_this_thread
from headwise.models.interventions import Plan, Streams, on_outputs, on_weights, stream_hooks
from headwise.models.masks import RowMask, is_open
from headwise.models.sites import LayerCount, Sites, hidden_input, hidden_output
from headwise.models.statistics.cpu_attention import CpuAttention, ScratchBuffer, serves
from headwise.models.statistics.fused import Seen, fused_answers, scores_of, sight_of
from headwise.models.statistics.reducer import (
    ALL,
    PreparedRequest,
    Seeing,
    Sight,
    StatsReducer,
    WeightBlock,
)
from headwise.models.streamed import Streaming, Watch, with_gradient
from headwise.models.tap import SESSION, Call, FormedCall, Running, differentiated, use_session
from headwise.models.view import AttentionRows, Layer, StatsWatcher, Watcher
from headwise.stats.gpu import has_kernels
from headwise.text.encode import Batch

if TYPE_CHECKING:
    from headwise.models.headmodel import HeadModel, Interventions

BLOCK_BYTES = 512 * 2**20
HELD_BYTES = 2**30  # of the weights of all layers that are held for a way back


class Session(Running):
    """What one forward pass of one model is watched with.

    Parameters
    ----------
    sites
        The attention modules of the watched stack.
    attention_mask
        Bool `[example, token]`: which tokens are no padding (padding is on the right).
    watcher
        Who wants to see; None where only interventions are asked for.
    plan
        Interventions by layer and head.
    block_rows
        How many query rows are formed at a time; None: all at once, unless the weights of a layer
        take more than `block_bytes`.
    keep
        Keep each block's weights with their gradient history (`kept`), for gradients.
    streams
        Interventions in the residual stream and after feed-forward parts.
    keys
        The same as `real` of the tokens that are looked at, where those are others
        (cross-attention).

    Set `stream` to have each block shown with its gradient on the way back, instead of being kept.
    """

    def __init__(
        self,
        sites: Sites,
        attention_mask: Tensor,
        watcher: Watcher | None = None,
        plan: Plan | None = None,
        *,
        block_rows: int | None = None,
        block_bytes: int = BLOCK_BYTES,
        keep: bool = False,
        streams: Streams | None = None,
        keys: Tensor | None = None,
    ) -> None:
        self.streams, self.keys = streams or {}, attention_mask if keys is None else keys
        self.stream: Watch | None = None
        self.anchor = torch.zeros(
            (), device=attention_mask.device, requires_grad=True
        )  # see `Streamed`
        self.sites, self.attention_mask, self.watcher, self.plan = (
            sites,
            attention_mask,
            watcher,
            plan or {},
        )
        self.block_rows, self.block_bytes, self.keep = block_rows, block_bytes, keep
        self.needs: frozenset[str] = frozenset() if watcher is None else watcher.needs
        self.lengths: list[int] = attention_mask.sum(-1).tolist()
        wanted = getattr(
            watcher, "padding", False
        )  # who asks for them gets the rows of padding as they are
        self.padded = (
            bool(self.lengths) and min(self.lengths) < attention_mask.shape[-1] and not wanted
        )
        self.kept: list[AttentionRows] = []
        self.final: Tensor | None = (
            None  # what leaves the last layer, where hidden states were asked for
        )
        self.layer_count = LayerCount(sites)
        self._entering: dict[nn.Module, Tensor] = {}  # as they are, until the layer is left
        self._left: Tensor | None = None
        self._visible: dict[int, tuple[Tensor | None, Tensor]] = {}
        self.asking: StatsWatcher | None = (
            watcher if isinstance(watcher, StatsWatcher) and watcher.request is not None else None
        )
        self._sights: dict[tuple[int, bool], tuple[object, Sight]] = {}  # by the mask
        self._wanted: dict[tuple[int, int, int], PreparedRequest] = {}
        self._room = ScratchBuffer()
        self._seen: dict[tuple[bool, int], Seen] = {}
        self._lengths: Tensor | None = None

    @contextmanager
    def running(self) -> Iterator[Session]:
        """Make this the session of the current context, with hooks on the layers where hidden
        states are asked for."""
        with ExitStack() as stack:
            if "hidden" in self.needs:
                for entry in self.sites.entries:
                    stack.callback(
                        entry.register_forward_pre_hook(
                            only_in_this_thread(self._enter), with_kwargs=True
                        ).remove
                    )
                    stack.callback(
                        entry.register_forward_hook(only_in_this_thread(self._leave)).remove
                    )
            if self.streams:
                stream_hooks(
                    self.streams,
                    self.sites,
                    self.attention_mask,
                    lambda: SESSION.get() is self,
                    stack,
                )
            stack.enter_context(use_session(self))
            yield self
            self.final = self.final if self._left is None else self._hidden(self._left)

    # A watcher may run the model again, in a session of its own: hooks act only for the session of
    # their context.
    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if SESSION.get() is self:
            self._entering[module] = hidden_input(args, kwargs)

    def _leave(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if SESSION.get() is self:
            self._entering.pop(
                module, None
            )  # copies of all layers would not fit beside a large model
            if self.sites.of(module) is None:
                self._left = hidden_output(output)

    def _hidden(self, values: Tensor) -> Tensor:
        values = values.to(self.attention_mask.device)
        return at_least_single(values.transpose(0, 1) if self.sites.tokens_first else values)

    def by_rows(self, batch_size: int, queries: int, keys: int) -> bool:
        """Whether the rows of this input are formed in blocks, or not at all."""
        fused = self.asking is not None and self.attention_mask.is_cuda and has_kernels()
        return fused or self._rows_at_once(batch_size, queries, keys) < queries

    def _rows_at_once(self, batch_size: int, queries: int, keys: int) -> int:
        if self.block_rows is not None:
            return self.block_rows
        return max(1, self.block_bytes // (batch_size * self.sites.heads * keys * 4))

    def visible(self, call: Call, start: int, stop: int) -> Tensor:
        """V(i) for a block of rows: open in the mask, and neither query nor key is padding."""
        key = id(call.mask)
        whole = (
            stop - start == call.sizes[2]
            and not call.causal
            and not isinstance(call.mask, RowMask)
            and not isinstance(call, FormedCall)
        )
        if whole and key in self._visible:
            return self._visible[key][1]
        shown = self.attention_mask[:, None, start:stop, None] & self.keys[:, None, None, :]
        mask = call.rows_mask(start, stop)
        if (
            mask is not None
        ):  # a module that forms its weights itself has the mask of every head: they are alike
            shown = shown & is_open(mask).any(1, keepdim=True)
        if whole:
            self._visible[key] = (
                call.mask,
                shown,
            )  # the mask is kept too, so that its id stays its own
        return shown

    def attend(self, call: Call) -> tuple[Tensor, Tensor | None]:
        layer = self.layer_count.of_call(call.module)
        if layer is None:
            return call.plain()
        device, home = call.value.device, self.attention_mask.device
        if device == home:
            return self._attend(call, layer)
        # Of a model on several devices, queries, keys and values come to where the batch is, and
        # all statistics are taken there: they are small, and the devices work one after the other
        # anyway.
        here = call.on(home)
        output, weights = self._attend(here, layer)
        self._visible.pop(id(here.mask), None)  # every such layer has a mask of its own
        self._sights.pop(_sight_key(here), None)
        return output.to(device), None if weights is None else weights.to(device)

    def _attend(self, call: Call, layer: int) -> tuple[Tensor, Tensor | None]:
        plan = self.plan.get(layer, {})
        on_map = any(
            what == "uniform" or getattr(what, "weights", None) is not None
            for what in plan.values()
        )
        if (
            self.asking is not None
            and "attention" not in self.needs
            and not self.keep
            and not on_map
        ):
            output = self._fused(call, layer)
            if output is not None:
                return self._finish(layer, output, call, plan), None
        examples, heads, queries, keys, _, _ = call.sizes
        at_once = self._rows_at_once(examples, queries, keys)
        key, value = call.repeated()
        if self.stream is not None and not plan and not isinstance(call, FormedCall):
            streaming = Streaming(call, layer, at_once, self.visible, self.stream)
            return streaming.run(self.anchor).transpose(1, 2).contiguous(), None
        shown = "attention" in self.needs and self.watcher is not None
        watched = shown or self.keep or self.asking is not None
        form = watched or not call.can_fuse or on_map
        blocks = None
        if watched and not self.keep and not on_map and serves(call):
            output = value.new_empty(examples, queries, heads, value.shape[-1])
            blocks = CpuAttention(call, key, value, output, self.lengths, self.padded, self._room)
        outputs, weights = [], None
        gathered, sight, seeing = self._gathering(call, layer)
        for start in range(0, queries, at_once):
            stop = min(start + at_once, queries)
            if not form:
                outputs.append(call.fused(key, value, start, stop))
                continue
            visible = (
                self.visible(call, start, stop) if shown or self.keep or seeing or plan else None
            )
            if visible is not None and seeing is not None:
                seeing.add(visible, slice(start, stop))
            if blocks is not None:
                weights = (
                    gathered_type(call).new_empty(examples, heads, stop - start, keys)
                    if shown
                    else None
                )
                blocks.rows(start, stop, weights, gathered)
                if (
                    shown
                    and visible is not None
                    and weights is not None
                    and self.watcher is not None
                ):
                    self.watcher.on_rows(AttentionRows(layer, start, stop, weights, visible))
                continue
            weights, sink = call.weights(key, start, stop)
            if plan and visible is not None:
                weights, sink = on_weights(plan, weights, visible, sink, start)
            if self.keep:
                weights = weights if weights.requires_grad else weights.detach().requires_grad_()
            outputs.append(weights.to(value.dtype) @ value)
            if self.keep and visible is not None:
                self.kept.append(AttentionRows(layer, start, stop, weights, visible, sink))
            elif watched:
                weights = self._without_padding(weights, start)
                sink = None if sink is None else self._without_padding(sink, start)
                if shown and visible is not None and self.watcher is not None:
                    self.watcher.on_rows(AttentionRows(layer, start, stop, weights, visible, sink))
                if gathered is not None:
                    gathered.add(WeightBlock(weights, slice(start, stop), ALL, ALL, sink))
        if gathered is not None and self.asking is not None:
            self.asking.on_statistics(
                gathered.answers(layer, self._keep_sight(call, sight, seeing))
            )
        if blocks is not None:
            return self._finish(
                layer, blocks.output.transpose(1, 2), call, plan
            ), weights if at_once >= queries else None
        output = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)
        return self._finish(layer, output, call, plan), weights if len(outputs) == 1 else None

    def _gathering(
        self, call: Call, layer: int
    ) -> tuple[StatsReducer | None, Sight | None, Seeing | None]:
        """What puts the answers of a layer together, what is known of who sees whom, or what puts
        that together."""
        if self.asking is None or self.asking.request is None:
            return None, None, None
        examples, heads, queries, keys, _, _ = call.sizes
        sizes, like = (examples, queries, keys), gathered_type(call)
        if sizes not in self._wanted:
            self._wanted[sizes] = PreparedRequest(self.asking.request, sizes, like.device)
        wanted = self._wanted[sizes]
        # A module that forms its weights itself says anew who sees whom.
        known = None if isinstance(call, FormedCall) else self._sights.get(_sight_key(call))
        seeing = Seeing(wanted, layer, like.dtype, like.device) if known is None else None
        return StatsReducer(wanted, heads, like), None if known is None else known[1], seeing

    def _keep_sight(self, call: Call, sight: Sight | None, seeing: Seeing | None) -> Sight:
        if sight is None:
            assert seeing is not None
            sight = seeing.sight()
            if not isinstance(call, FormedCall):
                self._sights[_sight_key(call)] = (
                    call.mask,
                    sight,
                )  # the mask too: its id stays its own
        return sight

    def _fused(self, call: Call, layer: int) -> Tensor | None:
        """The head outputs, with the answers computed on the way; None where the kernels do not
        serve this call."""
        asking = self.asking
        if self._lengths is None:
            self._lengths = torch.tensor(
                self.lengths, device=self.attention_mask.device, dtype=torch.int32
            )
        scores = scores_of(call, self._lengths)
        if scores is None or asking is None or asking.request is None:
            return None
        sight = scores.causal, scores.window
        if sight not in self._seen:
            self._seen[sight] = sight_of(asking.request, scores, layer)
        output, answers = fused_answers(
            asking.request, scores, call.value, layer, self._seen[sight]
        )
        asking.on_statistics(answers)
        return output

    def _finish(self, layer: int, output: Tensor, call: Call, plan: Mapping[int, Any]) -> Tensor:
        if plan:
            output = on_outputs(plan, output, self.attention_mask)
        if self.watcher is not None:
            self._show(layer, output, call)
        return output.transpose(1, 2).contiguous()

    def _show(self, layer: int, output: Tensor, call: Call) -> None:
        assert self.watcher is not None
        site = self.sites.of(call.module)
        entered = (
            self._entering.get(site.entry) if site is not None and site.entry is not None else None
        )
        hidden = None if entered is None else self._hidden(entered)
        outputs = at_least_single(output) if "outputs" in self.needs else None
        query, key = (None, None) if isinstance(call, FormedCall) else (call.query, call.key)
        self.watcher.on_layer(Layer(layer, outputs, hidden, query, key, call.value))

    def _without_padding(self, values: Tensor, start: int) -> Tensor:
        """Zero the rows of queries that are padding. Only those are touched: batches are sorted by
        length, so they are few."""
        if not self.padded:
            return values
        if differentiated():
            values = values.clone()
        for example, length in enumerate(self.lengths):
            if length < start + values.shape[2]:
                values[example, :, max(0, length - start) :] = 0
        return values


def _sight_key(call: Call) -> tuple[int, bool]:
    return id(call.mask), call.causal


def gathered_type(call: Call) -> Tensor:
    """A tensor of the type that the weights of a call have, where they are."""
    return call.value.new_empty(0, dtype=torch.promote_types(call.query.dtype, torch.float32))


def at_least_single(values: Tensor) -> Tensor:
    """Float32 or better: statistics are never taken in half precision."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def stream_gradients(
    model: HeadModel,
    batch: Batch,
    loss: Callable[[Any, Batch], Tensor],
    watch: Watch,
    *,
    interventions: Interventions | None = None,
    block_rows: int | None = None,
    at_most: int | None = HELD_BYTES,
) -> None:
    """Show attention weights with d loss / d weights to `watch`, block by block; see
    `HeadModel.gradients`.

    Where the weights of all layers take more than `at_most` bytes (None: however much they take),
    they are not held: a block is formed twice, and shown on the way back, last layer first. Memory
    then grows with the length of an input, not with its square."""
    session = model._session(batch, None, interventions, block_rows, BLOCK_BYTES, keep=True)
    size = model.layers * model.heads * len(batch) * batch.ids.shape[1] ** 2 * 4
    if at_most is not None and size > at_most:
        session.stream = watch
        session.block_bytes = min(
            BLOCK_BYTES, at_most // 4
        )  # a block, its gradient, and what lies between them
    with torch.enable_grad():
        losses = loss(model._forward(session, batch, logits=True), batch)
        if losses.shape != (len(batch),):
            given = f"it gave shape {list(losses.shape)}"
            raise ParameterError(
                f"`loss` must give one number for each of the {len(batch)} examples; {given}."
            )
        asked = [rows.weights for rows in session.kept]
        found = torch.autograd.grad(losses.sum(), [*asked, session.anchor], allow_unused=True)
    for rows, gradient in zip(session.kept, found[:-1], strict=True):
        watch(with_gradient(rows, gradient))
