"""What a reading of mixing is given, and what it gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from headwise.analyses.attribution.hooked_pass import token_pair_mask
from headwise.analyses.attribution.sketch import normalised
from headwise.core.errors import ModelError
from headwise.models import HeadModel
from headwise.text.encode import Batch


@dataclass(frozen=True, slots=True, eq=False)
class MixingInput:
    """A model, a batch, and what a plain pass shows of it: `attention[example, layer, head,
    receiving, source]` in float64 and `visible[example, layer, 1, receiving, source]`. `heads`:
    only these are asked for; None: all."""

    model: HeadModel
    batch: Batch
    attention: Tensor
    visible: Tensor
    heads: Sequence[tuple[int, int]] | None = None

    def wanted(self) -> list[tuple[int, int]]:
        """The heads asked for."""
        every = [
            (layer, head) for layer in range(self.model.layers) for head in range(self.model.heads)
        ]
        return every if self.heads is None else list(self.heads)


@dataclass(frozen=True, slots=True, eq=False)
class Mixing:
    """How much of each token is in each, by one reading: rows sum to one (or are zero), padding is
    zero.

    `heads[example, layer, head, receiving, source]` as a head takes it in; of heads that were not
    asked for nothing is meant. `layers[example, layer, receiving, source]`: what leaves a layer.
    None where the reading does not say; `note` says why, or how the numbers are meant."""

    heads: Tensor | None
    layers: Tensor | None
    note: str = ""


def shares(raw: Tensor, seen: MixingInput) -> Tensor:
    """Rows divided by their sum, without padding; `raw[example, layer, (head,) receiving,
    source]`."""
    pairs = token_pair_mask(seen.batch)[:, None]
    return normalised(raw.double() * (pairs[:, None] if raw.ndim == 5 else pairs))


def trace_for_mixing(
    model: HeadModel, batch: Batch, heads: Sequence[tuple[int, int]] | None = None
) -> MixingInput:
    """One plain pass, for readings to start from."""
    if model.stack == "cross":
        raise ModelError(
            "Mixing in cross-attention is not defined here: its tokens are not those it looks at; "
            "open the encoder or the decoder stack."
        )
    trace = model.trace(batch, {"attention"})
    assert trace.attention is not None
    assert trace.visible is not None
    return MixingInput(model, batch, trace.attention.double(), trace.visible, heads)
