"""How the attention of one layer is computed in a watched pass.

`choose_strategy` picks one for each call:

- `FusedStatistics`: a GPU kernel computes outputs and statistics; no weights are formed.
- `BlockedCpu`: weights are formed in blocks that fit the CPU's cache and reduced at once.
- `FullRows`: weights of whole rows are formed, changed by interventions, shown and reduced.
- `WithGradient`: weights are kept with their history, for a backward pass.
- `Streaming`: weights are formed, dropped, and formed again in the backward pass.
- `OutputsOnly`: nobody looks at weights; torch's fused attention computes the outputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headwise.models.gradients import StreamedAttention, StreamedCall
from headwise.models.interventions import changes_weights, on_weights
from headwise.models.statistics.cpu_attention import CpuAttention, can_attend_on_cpu
from headwise.models.statistics.fused import attend_with_statistics, prepare_for_kernels, scores_of
from headwise.models.statistics.reducer import (
    PreparedRequest,
    StatsReducer,
    Visibility,
    VisibilityBuilder,
    WeightBlock,
)
from headwise.models.tap import Call, FormedCall, differentiated
from headwise.models.view import AttentionRows

if TYPE_CHECKING:
    from headwise.models.session import Session
    from headwise.models.statistics.launch import Scores


@dataclass(slots=True, eq=False)
class Strategy(ABC):
    """Computes the attention of one call of one layer."""

    session: Session
    call: Call
    layer: int

    @abstractmethod
    def attend(self) -> tuple[Tensor, Tensor | None]:
        """Return the head outputs `[example, head, token, d]`, and the weights if they were formed
        in one block. Weights and statistics are shown to the session's watcher."""

    def blocks(self) -> Iterator[tuple[int, int]]:
        """Yield first and last row (exclusive) of each block of query rows."""
        n_examples, _, n_queries, n_keys, _, _ = self.call.sizes
        rows_at_once = self.session.rows_at_once(n_examples, n_queries, n_keys)
        for start in range(0, n_queries, rows_at_once):
            yield start, min(start + rows_at_once, n_queries)


def choose_strategy(session: Session, call: Call, layer: int) -> Strategy:
    """Choose how a call is computed, from what the session needs and what the call allows."""
    plan = session.plan.get(layer, {})
    shows_weights = "attention" in session.needs
    needs_statistics = session.stats_watcher is not None
    weights_change = any(changes_weights(intervention) for intervention in plan.values())

    if session.keep:
        if session.stream_to is not None and not plan and not isinstance(call, FormedCall):
            return Streaming(session, call, layer)
        return WithGradient(session, call, layer)
    only_statistics = needs_statistics and not shows_weights and not weights_change
    if only_statistics and session.attention_mask.is_cuda:
        scores = scores_of(call, session.lengths_on_device)
        if scores is not None:  # None where the kernels cannot compute this call
            return FusedStatistics(session, call, layer, scores)
    is_watched = shows_weights or needs_statistics
    if is_watched and not weights_change and can_attend_on_cpu(call):
        return BlockedCpu(session, call, layer)
    if is_watched or weights_change or not call.can_fuse:
        return FullRows(session, call, layer)
    return OutputsOnly(session, call, layer)


@dataclass(slots=True, eq=False)
class FusedStatistics(Strategy):
    """The GPU kernel computes outputs and statistics in one pass; weights are never formed."""

    scores: Scores

    def attend(self) -> tuple[Tensor, Tensor | None]:
        watcher = self.session.stats_watcher
        assert watcher is not None
        assert watcher.request is not None
        kernel_requests = self.session.kernel_requests
        pattern = (self.scores.causal, self.scores.window)
        if pattern not in kernel_requests:
            kernel_requests[pattern] = prepare_for_kernels(watcher.request, self.scores, self.layer)
        output, result = attend_with_statistics(
            kernel_requests[pattern], self.scores, self.call.value, self.layer
        )
        assert output is not None
        watcher.on_statistics(result)
        return output, None


class BlockedCpu(Strategy):
    """Weights are formed in blocks that fit the CPU's cache; each is reduced at once."""

    def attend(self) -> tuple[Tensor, Tensor | None]:
        session = self.session
        call = self.call
        n_examples, n_heads, n_queries, n_keys, _, size = call.sizes
        shows_weights = "attention" in session.needs
        statistics = LayerStatistics.start(session, call, self.layer)
        reducer = None if statistics is None else statistics.reducer
        key, value = call.repeated()
        attention = CpuAttention(
            call=call,
            key=key,
            value=value,
            output=value.new_empty(n_examples, n_queries, n_heads, size),
            lengths=session.lengths,
            padded=session.clears_padding,
            scratch=session.scratch,
        )
        weights: Tensor | None = None
        for start, stop in self.blocks():
            if shows_weights:
                weights = _empty_weights(call, n_examples, n_heads, stop - start, n_keys)
            if statistics is not None:
                statistics.add_visible(start, stop)
            attention.attend(start, stop, weights, reducer)
            if weights is not None and session.watcher is not None:
                visible = session.visible(call, start, stop)
                session.watcher.on_rows(AttentionRows(self.layer, start, stop, weights, visible))
        if statistics is not None:
            statistics.show()
        has_one_block = weights is not None and weights.shape[2] == n_queries
        return attention.output.transpose(1, 2), weights if has_one_block else None


class FullRows(Strategy):
    """Weights of whole rows are formed, changed by interventions, shown and reduced."""

    def attend(self) -> tuple[Tensor, Tensor | None]:
        session = self.session
        call = self.call
        plan = session.plan.get(self.layer, {})
        shows_weights = "attention" in session.needs
        statistics = LayerStatistics.start(session, call, self.layer)
        key, value = call.repeated()
        outputs = []
        weights: Tensor | None = None
        for start, stop in self.blocks():
            weights, sink = call.weights(key, start, stop)
            if plan:
                visible = session.visible(call, start, stop)
                weights, sink = on_weights(plan, weights, visible, sink, start)
            outputs.append(weights.to(value.dtype) @ value)
            if not shows_weights and statistics is None:
                continue
            weights = self._clear_padding(weights, start)
            if sink is not None:
                sink = self._clear_padding(sink, start)
            if shows_weights and session.watcher is not None:
                visible = session.visible(call, start, stop)
                rows = AttentionRows(self.layer, start, stop, weights, visible, sink)
                session.watcher.on_rows(rows)
            if statistics is not None:
                statistics.add_visible(start, stop)
                statistics.reducer.add(WeightBlock(weights, slice(start, stop), learned_sink=sink))
        if statistics is not None:
            statistics.show()
        return _join_blocks(outputs), weights if len(outputs) == 1 else None

    def _clear_padding(self, values: Tensor, start: int) -> Tensor:
        """Set the rows of padding to zero. Batches are sorted by length, so these rows are few."""
        if not self.session.clears_padding:
            return values
        if differentiated():
            values = values.clone()
        for example, length in enumerate(self.session.lengths):
            if length < start + values.shape[2]:
                values[example, :, max(0, length - start) :] = 0
        return values


class WithGradient(Strategy):
    """Weights are kept with their history until the backward pass."""

    def attend(self) -> tuple[Tensor, Tensor | None]:
        session = self.session
        call = self.call
        plan = session.plan.get(self.layer, {})
        key, value = call.repeated()
        outputs = []
        weights: Tensor | None = None
        for start, stop in self.blocks():
            visible = session.visible(call, start, stop)
            weights, sink = call.weights(key, start, stop)
            if plan:
                weights, sink = on_weights(plan, weights, visible, sink, start)
            if not weights.requires_grad:
                weights = weights.detach().requires_grad_()
            outputs.append(weights.to(value.dtype) @ value)
            session.kept.append(AttentionRows(self.layer, start, stop, weights, visible, sink))
        return _join_blocks(outputs), weights if len(outputs) == 1 else None


class Streaming(Strategy):
    """Weights are formed, dropped, and formed again in the backward pass."""

    def attend(self) -> tuple[Tensor, Tensor | None]:
        session = self.session
        call = self.call
        assert session.stream_to is not None
        n_examples, _, n_queries, n_keys, _, _ = call.sizes
        streamed = StreamedCall(
            call=call,
            layer=self.layer,
            rows_at_once=session.rows_at_once(n_examples, n_queries, n_keys),
            visible=session.visible,
            on_rows=session.stream_to,
        )
        output: Tensor = StreamedAttention.apply(  # type: ignore[no-untyped-call]
            session.anchor, call.query, call.key, call.value, streamed
        )
        return output, None


class OutputsOnly(Strategy):
    """Torch's fused attention computes the outputs; weights are never formed."""

    def attend(self) -> tuple[Tensor, Tensor | None]:
        key, value = self.call.repeated()
        outputs = [self.call.fused(key, value, start, stop) for start, stop in self.blocks()]
        return _join_blocks(outputs), None


class LayerStatistics:
    """Collects the requested statistics of one layer and shows them to the watcher.

    Layers with the same mask share their `Visibility`: the first one builds it."""

    def __init__(self, session: Session, call: Call, layer: int, prepared: PreparedRequest) -> None:
        like = _empty_weights(call, 0)
        self.session = session
        self.call = call
        self.layer = layer
        self.reducer = StatsReducer(prepared, call.sizes[1], like)
        self._mask_key = (id(call.mask), call.causal)
        self._visibility: Visibility | None = None
        self._builder: VisibilityBuilder | None = None
        # A module that forms its weights itself brings its own visibility with each call.
        if not isinstance(call, FormedCall) and self._mask_key in session.visibilities:
            self._visibility = session.visibilities[self._mask_key][1]
        else:
            self._builder = VisibilityBuilder(prepared, layer, like.dtype, like.device)

    @classmethod
    def start(cls, session: Session, call: Call, layer: int) -> LayerStatistics | None:
        """Return the statistics of a layer to be collected; None if none are requested."""
        watcher = session.stats_watcher
        if watcher is None or watcher.request is None:
            return None
        n_examples, _, n_queries, n_keys, _, _ = call.sizes
        sizes = (n_examples, n_queries, n_keys)
        if sizes not in session.prepared_requests:
            prepared = PreparedRequest(watcher.request, sizes, call.value.device)
            session.prepared_requests[sizes] = prepared
        return cls(session, call, layer, session.prepared_requests[sizes])

    def add_visible(self, start: int, stop: int) -> None:
        """Add a block of rows to the visibility, unless an earlier layer has built it."""
        if self._builder is not None:
            visible = self.session.visible(self.call, start, stop)
            self._builder.add(visible, slice(start, stop))

    def show(self) -> None:
        """Show the statistics to the watcher, once all rows have been added."""
        if self._builder is not None:
            self._visibility = self._builder.build()
            if not isinstance(self.call, FormedCall):
                self.session.visibilities[self._mask_key] = (self.call.mask, self._visibility)
        watcher = self.session.stats_watcher
        assert watcher is not None
        assert self._visibility is not None
        watcher.on_statistics(self.reducer.result(self.layer, self._visibility))


def _empty_weights(call: Call, *shape: int) -> Tensor:
    """Return an empty tensor with the dtype and device that the weights of a call have."""
    dtype = torch.promote_types(call.query.dtype, torch.float32)
    return call.value.new_empty(*shape, dtype=dtype)


def _join_blocks(outputs: list[Tensor]) -> Tensor:
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)
