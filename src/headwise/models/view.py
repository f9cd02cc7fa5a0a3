"""What a watcher sees of one layer on one batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from torch import Tensor

from headwise.core.errors import ModelError, ParameterError, unknown

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
