"""Input and output of the mixing methods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from headwise.analyses.attribution.hooked_pass import token_pair_mask
from headwise.analyses.attribution.sketch import normalise_rows
from headwise.core.errors import ModelError
from headwise.models import HeadModel
from headwise.text.encode import Batch


@dataclass(frozen=True, slots=True, eq=False)
class MixingInput:
    """A model, a batch, and its attention in one plain pass.

    Attributes
    ----------
    model : HeadModel
        In float32 or better.
    batch : Batch
        The inputs.
    attention : Tensor
        `[example, layer, head, receiving, source]` in float64.
    visible : Tensor
        Bool `[example, layer, 1, receiving, source]`.
    heads : sequence of tuple, optional
        Only these heads are requested; None: all.
    """

    model: HeadModel
    batch: Batch
    attention: Tensor
    visible: Tensor
    heads: Sequence[tuple[int, int]] | None = None

    def requested_heads(self) -> list[tuple[int, int]]:
        """Return the requested heads as (layer, head)."""
        if self.heads is not None:
            return list(self.heads)
        every_head = []
        for layer in range(self.model.layers):
            for head in range(self.model.heads):
                every_head.append((layer, head))
        return every_head


@dataclass(frozen=True, slots=True, eq=False)
class Mixing:
    """How much of each token is mixed into each, by one method: rows sum to one (or are zero),
    padding is zero.

    Attributes
    ----------
    heads : Tensor, optional
        `[example, layer, head, receiving, source]`: as a head takes it in; values of heads that
        were not requested are undefined.
    layers : Tensor, optional
        `[example, layer, receiving, source]`: what leaves a layer.
    note : str
        Why one of them is None, or how the values are defined.
    """

    heads: Tensor | None
    layers: Tensor | None
    note: str = ""


def shares(raw: Tensor, traced: MixingInput) -> Tensor:
    """Divide rows by their sum, padding excluded; `raw[example, layer, (head,) receiving,
    source]`."""
    mask = token_pair_mask(traced.batch)[:, None]
    if raw.ndim == 5:
        mask = mask[:, None]
    return normalise_rows(raw.double() * mask)


def trace_for_mixing(
    model: HeadModel, batch: Batch, heads: Sequence[tuple[int, int]] | None = None
) -> MixingInput:
    """Run one plain pass, from whose attention the methods start."""
    if model.stack == "cross":
        raise ModelError(
            "Mixing in cross-attention is not defined: its receiving and its source tokens are of "
            "different texts; open the encoder or the decoder stack."
        )
    trace = model.trace(batch, {"attention"})
    assert trace.attention is not None
    assert trace.visible is not None
    return MixingInput(model, batch, trace.attention.double(), trace.visible, heads)
