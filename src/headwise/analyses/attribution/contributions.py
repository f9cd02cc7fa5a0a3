"""One way to ask for contributions, whichever of the three computations gives them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headwise.analyses.attribution.forward import DEFAULT_MEMORY, Squares, exact_squares
from headwise.analyses.attribution.local import local_squares
from headwise.analyses.attribution.passage import in_single
from headwise.analyses.attribution.precision import compiled_kernels, matrix_products
from headwise.analyses.attribution.reverse import reverse_squares
from headwise.analyses.attribution.sketch import normalised, sketch
from headwise.core.errors import ParameterError, unknown
from headwise.text.encode import Batch

if TYPE_CHECKING:
    from headwise.models import HeadModel

METHODS = ("exact", "sketch", "reverse")
SOURCES = ("previous_layer", "input")


@dataclass(frozen=True, slots=True, eq=False)
class Contributions:
    """How much of each token is in each head's output (Pascual et al. 2021, §4), receiving token first, as in attention.

    `heads[example, layer, head, receiving, source]` = `‖∂O[l,h,j]/∂x_i‖ / Σ_k ‖∂O[l,h,j]/∂x_k‖` with x = E[0] (`input`)
    or E[l] (`previous_layer`): rows sum to one, padding is zero. `layers[example, layer, receiving, source]`, where
    asked for: the same of what leaves each layer, `E[l+1]`, from the input. For a sketch: `error`, `low`, `high`
    (standard error and 95 % interval of each share), `tangents[example]` per token, and `total_variation[example]`, the
    foretold median error of a row.
    """

    heads: Tensor
    layers: Tensor | None
    source: str
    method: str
    error: Tensor | None = None
    low: Tensor | None = None
    high: Tensor | None = None
    tangents: Tensor | None = None
    total_variation: Tensor | None = None


def contributions(
    model: HeadModel,
    batch: Batch | str | Sequence[Any],
    source: str = "input",
    method: str = "exact",
    *,
    layer_output: bool = False,
    error: float = 0.05,
    tangents: int | None = None,
    seed: int = 0,
    memory: float = DEFAULT_MEMORY,
    tf32: bool = False,
    compiled: bool = False,
) -> Contributions:
    """Contributions of tokens to the outputs of all heads of all layers.

    Parameters
    ----------
    model, batch
        An opened model; a batch, a text, or several.
    source
        `input`: from what enters the first layer, with all the mixing in between; `previous_layer`: from what enters
        the head's own layer.
    method
        `exact` (forward mode), `sketch` (random tangents, with errors) or `reverse` (plain autograd: slow, to check the
        others by). Contributions of the previous layer have a closed form, which both `exact` and `sketch` use.
    layer_output
        With `source="input"`: also the contributions to what leaves each layer.
    error, tangents, seed
        For `sketch`: the wanted median total variation of a row, or the number of tangents per token; and the seed.
    memory
        MiB that the tangents under way may take; longer inputs are split into more parts, not refused.
    tf32
        Let a GPU multiply tangents in tf32; the model's own values stay in IEEE float32.
    compiled
        Let torch compile layer norms on a GPU: a tenth faster, after some seconds at the first sentence. Elsewhere it
        changes nothing.

    A model in half precision is computed in float32.

    Examples
    --------
    >>> found = contributions(model, "the cat sat on the mat")
    >>> found.heads[0, 7, 9]  # receiving token by source token, of L7H9
    """
    check_options(source, method, error, tangents, memory)
    single = in_single(model)
    batch = batch if isinstance(batch, Batch) else single.batch(batch)
    want_layers = layer_output and source == "input"
    try:
        with matrix_products(tf32), compiled_kernels(compiled and single.device.type == "cuda"):
            if method == "sketch" and source == "input":
                found = sketch(
                    single, batch, error=error, tangents=tangents, seed=seed, layer_output=want_layers, memory=memory
                )
                return Contributions(
                    found.shares,
                    found.layers,
                    source,
                    method,
                    found.errors,
                    found.low,
                    found.high,
                    found.tangents,
                    found.total_variation,
                )
            if method == "reverse":
                squares = reverse_squares(single, batch, source=source, layer_output=want_layers)
            elif source == "previous_layer":
                squares = Squares(local_squares(single, batch, memory=memory))
            else:
                squares = exact_squares(single, batch, layer_output=want_layers, memory=memory)
    finally:
        if single is not model:
            single.close()
    layers = None if squares.layers is None else normalised(squares.layers.sqrt())
    return Contributions(normalised(squares.heads.sqrt()), layers, source, method)


def check_options(source: str, method: str, error: float, tangents: int | None, memory: float) -> None:
    """One sentence for whatever cannot be."""
    if source not in SOURCES:
        raise ParameterError(unknown("source", source, SOURCES))
    if method not in METHODS:
        raise ParameterError(unknown("method", method, METHODS))
    if not 0 < error < 1:
        raise ParameterError(f"`error` must lie between 0 and 1; it is {error!r}.")
    if tangents is not None and tangents < 2:
        raise ParameterError(f"`tangents` must be at least 2, or errors cannot be estimated; it is {tangents!r}.")
    if not memory > 0:
        raise ParameterError(f"`memory` must be a positive number of MiB; it is {memory!r}.")


def visible_sources(batch: Batch, causal: bool) -> Tensor:
    """Bool `[example, receiving, source]`: tokens that can reach a token through the layers below: all of an encoder's, those up to it for a decoder."""
    pairs = batch.real[:, :, None] & batch.real[:, None, :]
    return pairs & torch.ones_like(pairs[0]).tril() if causal else pairs
