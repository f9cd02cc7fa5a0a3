"""What the tap shows of one layer on one batch."""

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
    """A block of query rows of one layer: usually all of them; several blocks for long inputs, so
    that memory stays linear in length.

    `weights[example, head, row, key]` is float32 or better, after softmax and any intervention, and
    exactly zero outside `visible`; padding rows (queries that are no token) hold no meaning:
    `visible` is False all along them. `visible[example, 1, row, key]` is V(i), the same for all
    heads. `sink[example, head, row]` is the mass on a learned sink (rows sum to one minus it), None
    where the model has none. `gradient`, where asked for, is d loss / d weights, of the same shape.
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
    """One layer once its attention is done, with what was asked for.

    `outputs[example, head, token, d_head]`: each head's output before the output projection;
    `hidden[example, token, width]`: what enters the layer, before any norm inside it (E[l]).
    `query`, `key`, `value` as the attention function got them (after norms and rotary embedding,
    key and value before group repetition)."""

    layer: int
    outputs: Tensor | None = None
    hidden: Tensor | None = None
    query: Tensor | None = None
    key: Tensor | None = None
    value: Tensor | None = None


class Watcher(Protocol):
    """Whoever wants to see a forward pass. Both methods are called inside it, layer by layer, under
    no_grad unless gradients were asked for. A subclass writes those it needs."""

    needs: frozenset[str]

    def on_rows(self, rows: AttentionRows) -> None:
        """Called for each block of query rows, in order (only where `needs` has `attention`)."""
        return

    def on_layer(self, layer: Layer) -> None:
        """Called once for each layer, after its last block of rows."""
        return


@runtime_checkable
class StatsWatcher(Protocol):
    """A watcher that also says what it wants of the weights without seeing them (see `statistics/request.py`)."""

    request: StatsRequest | None

    def on_statistics(self, result: StatsResult) -> None:
        """Called once for each layer, before `layer`."""


def check_needs(needs: frozenset[str], name: str, d_heads: Sequence[int], hidden: int) -> None:
    """Refuse what a pass over the model of this name cannot show.

    Parameters
    ----------
    needs : frozenset of str
        What a watcher asks for.
    name : str
        The model's.
    d_heads : sequence of int
        The size of a head's output in each layer.
    hidden : int
        The width of the hidden states; 0 where layers pass on none.
    """
    for need in sorted(needs):
        if need not in TAPS:
            raise ParameterError(unknown("tap", need, TAPS))
    if "attention_gradient" in needs:
        raise ParameterError(
            "Gradients need a loss: use HeadModel.gradients for `attention_gradient`."
        )
    if "outputs" in needs and len(set(d_heads)) > 1:
        raise ModelError(
            f"The heads of {name} have different sizes in different layers ({', '.join(map(str, d_heads))}); their "
            "outputs are not served."
        )
    if "hidden" in needs and not hidden:
        raise ModelError(
            f"The layers of {name} pass on no hidden states of the usual shape; they are not served."
        )
