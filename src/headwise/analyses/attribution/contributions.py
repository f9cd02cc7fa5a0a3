"""Contributions of tokens to head outputs, by any of the three computations; and one row of one head
alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from headwise.analyses.attribution.forward import SquaredNorms, exact_squared_norms
from headwise.analyses.attribution.hooked_pass import token_pair_mask
from headwise.analyses.attribution.precision import compiled_kernels, matrix_products
from headwise.analyses.attribution.previous_layer import previous_layer_squared_norms
from headwise.analyses.attribution.reverse import (
    jacobian_squared_norms,
    reverse_graph,
    reverse_squared_norms,
)
from headwise.analyses.attribution.sketch import (
    ContributionOptions,
    Contributions,
    normalise_rows,
    sketch,
)
from headwise.core.checks import one_of
from headwise.core.errors import ParameterError
from headwise.core.labels import existing_heads
from headwise.models import HeadModel
from headwise.models.float32 import in_float32
from headwise.models.inputs import Input
from headwise.models.interventions import plan_interventions
from headwise.text.encode import Batch, Encoded
from headwise.text.example import Example

METHODS = ("exact", "sketch", "reverse")
SOURCES = ("previous_layer", "input")
Texts = Example | str | Encoded | Sequence[Example | str | Encoded]


def contributions(
    model: HeadModel,
    batch: Batch | Texts,
    source: str = "input",
    method: str = "exact",
    *,
    layer_output: bool = False,
    options: ContributionOptions | None = None,
) -> Contributions:
    """Return the contributions of tokens to the outputs of all heads of all layers.

    Parameters
    ----------
    model : HeadModel
        An open model. One in half precision is computed in float32.
    batch : Batch, str, Example or a sequence of them
        A batch, a text, or several.
    source : {"input", "previous_layer"}, default "input"
        `input`: from what enters the first layer, with all the mixing in between; `previous_layer`:
        from what enters the head's own layer.
    method : {"exact", "sketch", "reverse"}, default "exact"
        `exact` (forward mode), `sketch` (random tangents, with errors) or `reverse` (plain
        autograd: slow, a reference for the others). Contributions of the previous layer have a closed
        form, which both `exact` and `sketch` use.
    layer_output : bool, default False
        With `source="input"`: also the contributions to what leaves each layer.
    options : ContributionOptions, optional
        Target error, seed, memory and precision.

    Examples
    --------
    >>> from headwise import HeadModel
    >>> from headwise.testing.models import random_model
    >>> module, tokenizer = random_model()
    >>> with HeadModel.open(module, tokenizer=tokenizer) as model:
    ...     result = contributions(model, "the cat saw the dog")
    >>> row = result.heads[0, 1, 0, 3]  # what token 3 receives from each token through L1H0
    >>> round(float(row.sum()), 6)
    1.0
    """
    one_of("source", source, SOURCES)
    one_of("method", method, METHODS)
    options = options or ContributionOptions()
    layer_output = layer_output and source == "input"
    products = options.products
    if products == "half" and source == "previous_layer":
        # A few tangents give all contributions of the layer below: half precision gains nothing.
        products = "tf32"
    with in_float32(model) as precise_model:
        if not isinstance(batch, Batch):
            batch = precise_model.batch(batch)
        on_gpu = precise_model.device.type == "cuda"
        with matrix_products(products), compiled_kernels(options.compiled and on_gpu):
            if method == "sketch" and source == "input":
                return sketch(precise_model, batch, options, layer_output=layer_output)
            squares = _squared_norms(precise_model, batch, source, method, layer_output, options)
    layers = None
    if squares.layers is not None:
        layers = normalise_rows(squares.layers.sqrt())
    return Contributions(normalise_rows(squares.heads.sqrt()), layers, source, method)


def _squared_norms(
    model: HeadModel,
    batch: Batch,
    source: str,
    method: str,
    layer_output: bool,
    options: ContributionOptions,
) -> SquaredNorms:
    if method == "reverse":
        return reverse_squared_norms(model, batch, source=source, layer_output=layer_output)
    if source == "previous_layer":
        return SquaredNorms(previous_layer_squared_norms(model, batch, memory=options.memory))
    return exact_squared_norms(model, batch, layer_output=layer_output, memory=options.memory)


def visible_sources(batch: Batch, causal: bool) -> Tensor:
    """Return bool `[example, receiving, source]`: tokens that can reach a token through the layers
    below: all of an encoder's, those up to it for a decoder."""
    mask = token_pair_mask(batch)
    if causal:
        mask = mask & torch.ones_like(mask[0]).tril()
    return mask


def head_contributions(
    model: HeadModel,
    text: Input,
    head: str | tuple[int, int],
    token: int,
    source: str = "input",
    interventions: Mapping[Any, Any] | None = None,
) -> Tensor:
    """Return how much each token contributes to a head's output at one token: `[source]`, which sums
    to one.

    The numbers of `contributions(..., method="exact")`, for one row of one head: as many gradients
    as a head has dimensions, instead of one tangent for each number of the input.

    Parameters
    ----------
    model : HeadModel
        An open model. One in half precision is computed in float32.
    text : str, or what `HeadModel.batch` takes
        One input.
    head : str or tuple
        `L3H5`, or (3, 5).
    token : int
        The receiving token, counted from 0.
    source : {"input", "previous_layer"}, default "input"
        From what enters the first layer, or the head's own.
    interventions : mapping, optional
        `{"L3H5": "zero"}`: heads that are disabled. For a head whose own output is replaced, the
        contributions to its original output are returned.

    Examples
    --------
    >>> from headwise import HeadModel
    >>> from headwise.testing.models import random_model
    >>> module, tokenizer = random_model()
    >>> with HeadModel.open(module, tokenizer=tokenizer) as model:
    ...     row = head_contributions(model, "the cat saw the dog", "L1H0", 3)
    >>> round(float(row.sum()), 6)
    1.0
    """
    one_of("source", source, SOURCES)
    ((layer, number),) = existing_heads([head], model.layers, model.heads)
    plan = plan_interventions(interventions, model.layers, model.heads, model.d_head)
    with in_float32(model) as precise_model:
        batch = precise_model.one_input(text)
        length = int(batch.lengths[0])
        if not 0 <= token < length:
            raise ParameterError(
                f"`token` must be one of the {length} tokens of the text, from 0; it is {token}."
            )
        graph = reverse_graph(precise_model, batch, source, plan, layer)
        leaf = graph.leaf_inputs[layer if source == "previous_layer" else 0]
        output = graph.outputs[layer][:, number, token]
        squares = jacobian_squared_norms(output, leaf)[0, :length]
        return normalise_rows(squares.sqrt())
