"""Attention, outputs and hidden states of one batch, stacked: for small inputs, drawings, tests, and
analyses of whole examples."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from headwise.core.display import NotebookDisplay
from headwise.models.view import AttentionRows, Layer
from headwise.text.encode import Batch, Encoded


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Trace(NotebookDisplay):
    """All layers of one batch; None for what was not requested.

    `attention[example, layer, head, query, key]`, `visible[example, layer, 1, query, key]`,
    `sink[example, layer, head, query]`, `outputs[example, layer, head, token, d_head]`,
    `hidden[example, layer + 1, token, width]` (E[0] to E[L]: the last is what leaves the last
    layer). `rows` are the inputs, `tokens` their texts. In a notebook a trace shows its maps."""

    attention: Tensor | None = None
    visible: Tensor | None = None
    sink: Tensor | None = None
    outputs: Tensor | None = None
    hidden: Tensor | None = None
    rows: tuple[Encoded, ...] | None = None

    @property
    def tokens(self) -> list[list[str]]:
        """The texts of each input's tokens, without padding."""
        return [row.tokens for row in self.rows or ()]

    def __repr__(self) -> str:
        shapes = []
        for field in fields(self):
            values = getattr(self, field.name)
            if isinstance(values, Tensor):
                shapes.append(f"{field.name}={list(values.shape)}")
        return f"Trace({', '.join(shapes)})"


class TraceWatcher:
    """Collects everything it sees; `trace` stacks it."""

    def __init__(self, needs: frozenset[str]) -> None:
        self.needs = needs
        self.blocks: dict[int, list[AttentionRows]] = {}
        self.layers: list[Layer] = []

    def on_rows(self, rows: AttentionRows) -> None:
        self.blocks.setdefault(rows.layer, []).append(rows)

    def on_layer(self, layer: Layer) -> None:
        self.layers.append(layer)

    def trace(self, final: Tensor | None = None, batch: Batch | None = None) -> Trace:
        """Return what was seen, stacked.

        Parameters
        ----------
        final : Tensor, optional
            What leaves the last layer.
        batch : Batch, optional
            The inputs.
        """
        weights, visible, sinks = [], [], []
        for number in sorted(self.blocks):
            blocks = self.blocks[number]
            weights.append([block.weights for block in blocks])
            visible.append([block.visible for block in blocks])
            sinks.append([block.sink for block in blocks if block.sink is not None])
        outputs, hidden = [], []
        for layer in sorted(self.layers, key=lambda layer: layer.layer):
            if layer.outputs is not None:
                outputs.append([layer.outputs])
            if layer.hidden is not None:
                hidden.append([layer.hidden])
        if final is not None:
            hidden.append([final])
        return Trace(
            attention=_stack(weights),
            visible=_stack(visible),
            sink=_stack(sinks),
            outputs=_stack(outputs),
            hidden=_stack(hidden),
            rows=None if batch is None else batch.rows,
        )


def _stack(layers: list[list[Tensor]]) -> Tensor | None:
    """Join the blocks of each layer and stack the layers; None if there are none."""
    joined = []
    for blocks in layers:
        if len(blocks) == 1:
            joined.append(blocks[0])
        elif blocks:
            joined.append(torch.cat(blocks, dim=2))
    return torch.stack(joined, dim=1) if joined else None
