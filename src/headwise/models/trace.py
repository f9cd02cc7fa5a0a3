"""Everything the tap shows of one batch, stacked: for small inputs, drawings, tests, and analyses
that look at whole examples."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from headwise.core.display import NotebookDisplay
from headwise.models.view import AttentionRows, Layer
from headwise.text.encode import Batch, Encoded


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Trace(NotebookDisplay):
    """All layers of one batch; None for what was not asked for.

    `attention[example, layer, head, query, key]`, `visible[example, layer, 1, query, key]`,
    `sink[example, layer, head, query]`, `outputs[example, layer, head, token, d_head]`,
    `hidden[example, layer + 1, token, width]` (E[0] to E[L]: the last is what leaves the last
    layer). `rows` are the inputs, `tokens` what they say. In a notebook a trace shows its maps."""

    attention: Tensor | None = None
    visible: Tensor | None = None
    sink: Tensor | None = None
    outputs: Tensor | None = None
    hidden: Tensor | None = None
    rows: tuple[Encoded, ...] | None = None

    @property
    def tokens(self) -> list[list[str]]:
        """What the tokens of each input say, without padding."""
        return [row.tokens for row in self.rows or ()]

    def __repr__(self) -> str:
        has = (
            (field.name, getattr(self, field.name))
            for field in fields(self)
            if field.name != "rows"
        )
        return f"Trace({', '.join(f'{name}={list(values.shape)}' for name, values in has if values is not None)})"


class TraceWatcher:
    """Keeps what it sees; `trace` stacks it."""

    def __init__(self, needs: frozenset[str]) -> None:
        self.needs = needs
        self.blocks: dict[int, list[AttentionRows]] = {}
        self.layers: list[Layer] = []

    def on_rows(self, rows: AttentionRows) -> None:
        self.blocks.setdefault(rows.layer, []).append(rows)

    def on_layer(self, layer: Layer) -> None:
        self.layers.append(layer)

    def trace(self, final: Tensor | None = None, batch: Batch | None = None) -> Trace:
        blocks = [self.blocks[layer] for layer in sorted(self.blocks)]
        layers = sorted(self.layers, key=lambda layer: layer.layer)
        return Trace(
            attention=_stack([[b.weights for b in layer] for layer in blocks]),
            visible=_stack([[b.visible for b in layer] for layer in blocks]),
            sink=_stack([[b.sink for b in layer if b.sink is not None] for layer in blocks]),
            outputs=_stack([[x.outputs] for x in layers if x.outputs is not None]),
            hidden=_stack(
                [
                    *([x.hidden] for x in layers if x.hidden is not None),
                    *([[final]] if final is not None else []),
                ]
            ),
            rows=None if batch is None else batch.rows,
        )


def _stack(layers: list[list[Tensor]]) -> Tensor | None:
    layers = [blocks for blocks in layers if blocks]
    return (
        torch.stack(
            [blocks[0] if len(blocks) == 1 else torch.cat(blocks, dim=2) for blocks in layers],
            dim=1,
        )
        if layers
        else None
    )
