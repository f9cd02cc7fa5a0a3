"""Attention whose weights are never held whole while gradients are taken: formed in blocks of rows,
forgotten, and formed once more on the way back."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from headwise.models.tap import Call
from headwise.models.view import AttentionRows

Watch = Callable[[AttentionRows], None]


class Streamed(torch.autograd.Function):
    """The product of attention weights and values, by blocks of rows.

    On the way back every block is shown with its gradient, then dropped: memory is that of one
    block, whatever the length. The anchor is a number that needs a gradient, so that the way back
    leads here even where nothing before the first layer needs one."""

    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, query: Tensor, key: Tensor, value: Tensor, work: Streaming
    ) -> Tensor:
        ctx.save_for_backward(query, key, value)
        ctx.work = work
        call = work.with_tensors(query, key, value)
        keys, values = call.repeated()
        return torch.cat(
            [_output(call, keys, values, start, stop)[1] for start, stop in work.blocks()], dim=2
        )

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = given
        work: Streaming = ctx.work
        with torch.enable_grad():
            leaves = [tensor.detach().requires_grad_() for tensor in ctx.saved_tensors]
            call = work.with_tensors(*leaves)
            totals = [torch.zeros_like(leaf) for leaf in leaves]
            for start, stop in work.blocks():
                keys, values = call.repeated()
                weights, output, sink = _output(call, keys, values, start, stop)
                own = gradient[:, :, start:stop]
                found = torch.autograd.grad(output, [weights, *leaves], own, allow_unused=True)
                rows = AttentionRows(
                    work.layer, start, stop, weights, work.visible(work.call, start, stop), sink
                )
                work.watch(with_gradient(rows, found[0]))
                for total, part in zip(totals, found[1:], strict=True):
                    if part is not None:
                        total += part
        needed = [
            total if asked else None
            for total, asked in zip(totals, ctx.needs_input_grad[1:4], strict=True)
        ]
        return gradient.new_zeros(()), *needed, None


def _output(
    call: Call, key: Tensor, value: Tensor, start: int, stop: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    weights, sink = call.weights(key, start, stop)
    return weights, weights.to(value.dtype) @ value, sink


class Streaming:
    """One call of one layer whose weights are streamed: which blocks, what they see, and whom they
    are shown to."""

    def __init__(
        self,
        call: Call,
        layer: int,
        at_once: int,
        visible: Callable[[Call, int, int], Tensor],
        watch: Watch,
    ) -> None:
        self.call, self.layer, self.at_once, self.visible, self.watch = (
            call,
            layer,
            at_once,
            visible,
            watch,
        )

    def blocks(self) -> list[tuple[int, int]]:
        """Rows from and to."""
        queries = self.call.sizes[2]
        return [
            (start, min(start + self.at_once, queries)) for start in range(0, queries, self.at_once)
        ]

    def with_tensors(self, query: Tensor, key: Tensor, value: Tensor) -> Call:
        """The same call on other tensors."""
        call = copy.copy(self.call)
        call.query, call.key, call.value = query, key, value
        return call

    def run(self, anchor: Tensor) -> Tensor:
        """The heads' outputs, with their way back."""
        call = self.call
        output: Tensor = Streamed.apply(anchor, call.query, call.key, call.value, self)  # type: ignore[no-untyped-call]
        return output


def with_gradient(rows: AttentionRows, gradient: Tensor | None) -> AttentionRows:
    """A block with the gradient of its weights, without their history, zero outside V(i)."""
    weights, shown = rows.weights.detach(), rows.visible
    gradient = torch.zeros_like(weights) if gradient is None else gradient
    sink = None if rows.sink is None else rows.sink.detach() * shown.any(-1)
    return replace(rows, weights=weights * shown, sink=sink, gradient=gradient * shown)
