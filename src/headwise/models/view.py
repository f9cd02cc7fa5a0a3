"""What a watcher sees of one layer on one batch, and the watcher that keeps all of it (`Trace`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch
from torch import Tensor

from headwise.core.display import NotebookDisplay
from headwise.core.errors import ModelError, ParameterError, unknown
from headwise.text.encode import Batch, Encoded

if TYPE_CHECKING:
    from headwise.models.statistics import StatsRequest, StatsResult

TAPS = ("attention", "outputs", "hidden", "attention_gradient")


@dataclass(frozen=True, slots=True, eq=False)
class AttentionRows:
    """A block of query rows of one layer.

    Usually a layer is one block; long inputs have several, so that memory stays linear in length.

    Attributes
    ----------
    layer, start, stop
        The layer and its rows `start..stop`.
    weights
        `[example, head, row, key]`, float32 or better, after softmax and any intervention, and
        exactly zero outside `visible`. Rows of padding have no meaning.
    visible
        V(i), bool `[example, 1, row, key]`, the same for all heads; False in rows of padding.
    sink
        Mass on a learned sink, `[example, head, row]` (rows sum to one minus it); None if the model
        has none.
    gradient
        d loss / d weights in the shape of the weights, if requested.
    """

    layer: int
    start: int
    stop: int
    weights: Tensor
    visible: Tensor
    sink: Tensor | None = None
    gradient: Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """One layer once its attention is computed.

    Attributes
    ----------
    layer
        Its number.
    outputs
        Each head's output before the output projection, `[example, head, token, d_head]`, if
        needed.
    hidden
        What enters the layer, before any norm inside it (E[l]), `[example, token, width]`, if
        needed.
    query, key, value
        As the attention function got them: after norms and rotary embedding, key and value before
        group repetition.
    """

    layer: int
    outputs: Tensor | None = None
    hidden: Tensor | None = None
    query: Tensor | None = None
    key: Tensor | None = None
    value: Tensor | None = None


class Watcher(Protocol):
    """Sees a forward pass, layer by layer.

    The methods are called during the pass, under no_grad unless gradients were requested. A
    subclass writes those it needs."""

    needs: frozenset[str]

    def on_rows(self, rows: AttentionRows) -> None:
        """Get the next block of query rows (only if `needs` has `attention`)."""
        return

    def on_layer(self, layer: Layer) -> None:
        """Get a layer, after its last block of rows."""
        return


@runtime_checkable
class StatsWatcher(Protocol):
    """A watcher that requests statistics of the weights without seeing them."""

    request: StatsRequest | None

    def on_statistics(self, result: StatsResult) -> None:
        """Get the statistics of a layer, before `on_layer`."""


def check_needs(needs: frozenset[str], name: str, d_heads: Sequence[int], hidden: int) -> None:
    """Reject needs that a pass over a model cannot meet.

    Parameters
    ----------
    needs : frozenset of str
        What a watcher needs.
    name : str
        The model's name.
    d_heads : sequence of int
        The size of a head's output in each layer.
    hidden : int
        The width of the hidden states; 0 if layers pass on none.
    """
    for need in sorted(needs):
        if need not in TAPS:
            raise ParameterError(unknown("tap", need, TAPS))
    if "attention_gradient" in needs:
        raise ParameterError(
            "Gradients need a loss: use HeadModel.gradients for `attention_gradient`."
        )
    if "outputs" in needs and len(set(d_heads)) > 1:
        sizes = ", ".join(map(str, d_heads))
        raise ModelError(
            f"The heads of {name} have different sizes in different layers ({sizes}); their "
            "outputs are not supported."
        )
    if "hidden" in needs and not hidden:
        raise ModelError(
            f"The layers of {name} pass on no hidden states of the usual shape; they are not "
            "supported."
        )


# --- all layers of one batch, for small inputs, drawings, tests and analyses of whole examples ---


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
        for declared in fields(self):
            values = getattr(self, declared.name)
            if isinstance(values, Tensor):
                shapes.append(f"{declared.name}={list(values.shape)}")
        return f"Trace({', '.join(shapes)})"


@dataclass(slots=True, eq=False)
class TraceWatcher:
    """Collects everything it sees; `trace` stacks it."""

    needs: frozenset[str]
    blocks: dict[int, list[AttentionRows]] = field(default_factory=dict)
    layers: list[Layer] = field(default_factory=list)

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
