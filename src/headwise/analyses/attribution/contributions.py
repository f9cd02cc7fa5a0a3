"""One way to ask for contributions, whichever of the three computations gives them; one row of one
head by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from headwise.analyses.attribution.forward import SquaredNorms, exact_squared_norms
from headwise.analyses.attribution.hooked_pass import in_float32, token_pair_mask
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
    normalised,
    sketch,
)
from headwise.core.checks import one_of
from headwise.core.errors import ParameterError
from headwise.core.labels import existing_heads
from headwise.models import HeadModel
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
    """Contributions of tokens to the outputs of all heads of all layers.

    Parameters
    ----------
    model : HeadModel
        An opened model. One in half precision is computed in float32.
    batch : Batch, str, Example or a sequence of them
        A batch, a text, or several.
    source : {"input", "previous_layer"}, default "input"
        `input`: from what enters the first layer, with all the mixing in between; `previous_layer`:
        from what enters the head's own layer.
    method : {"exact", "sketch", "reverse"}, default "exact"
        `exact` (forward mode), `sketch` (random tangents, with errors) or `reverse` (plain
        autograd: slow, to check the others by). Contributions of the previous layer have a closed
        form, which both `exact` and `sketch` use.
    layer_output : bool, default False
        With `source="input"`: also the contributions to what leaves each layer.
    options : ContributionOptions, optional
        Wanted error, seed, memory and what a GPU may do.

    Examples
    --------
    >>> from headwise import HeadModel
    >>> from headwise.testing.models import random_model
    >>> module, tokenizer = random_model()
    >>> with HeadModel.open(module, tokenizer=tokenizer) as model:
    ...     found = contributions(model, "the cat saw the dog")
    >>> row = found.heads[0, 1, 0, 3]  # what token 3 receives from each token through L1H0
    >>> round(float(row.sum()), 6)
    1.0
    """
    one_of("source", source, SOURCES)
    one_of("method", method, METHODS)
    options = options or ContributionOptions()
    want_layers = layer_output and source == "input"
    with in_float32(model) as single:
        batch = batch if isinstance(batch, Batch) else single.batch(batch)
        # Few tangents give all contributions of the layer below: no need for half precision.
        products = (
            "tf32"
            if options.products == "half" and source == "previous_layer"
            else options.products
        )
        with (
            matrix_products(products),
            compiled_kernels(options.compiled and single.device.type == "cuda"),
        ):
            if method == "sketch" and source == "input":
                return sketch(single, batch, options, layer_output=want_layers)
            if method == "reverse":
                squares = reverse_squared_norms(
                    single, batch, source=source, layer_output=want_layers
                )
            elif source == "previous_layer":
                squares = SquaredNorms(
                    previous_layer_squared_norms(single, batch, memory=options.memory)
                )
            else:
                squares = exact_squared_norms(
                    single, batch, layer_output=want_layers, memory=options.memory
                )
    layers = None if squares.layers is None else normalised(squares.layers.sqrt())
    return Contributions(normalised(squares.heads.sqrt()), layers, source, method)


def visible_sources(batch: Batch, causal: bool) -> Tensor:
    """Bool `[example, receiving, source]`: tokens that can reach a token through the layers below.

    All of an encoder's, those up to it for a decoder.
    """
    pairs = token_pair_mask(batch)
    return pairs & torch.ones_like(pairs[0]).tril() if causal else pairs


def head_contributions(
    model: HeadModel,
    text: Input,
    head: str | tuple[int, int],
    token: int,
    source: str = "input",
    interventions: Mapping[Any, Any] | None = None,
) -> Tensor:
    """How much each token contributes to a head's output at one token: `[source]`, which sums to
    one.

    The numbers of `contributions(..., method="exact")`, for one row of one head: as many gradients
    as a head has dimensions, instead of one tangent for each number of the input.

    Parameters
    ----------
    model : HeadModel
        An opened model. One in half precision is computed in float32.
    text : str, or what `HeadModel.batch` takes
        One input.
    head : str or tuple
        `L3H5`, or (3, 5).
    token : int
        The receiving token, counted from 0.
    source : {"input", "previous_layer"}, default "input"
        From what enters the first layer, or the head's own.
    interventions : mapping, optional
        `{"L3H5": "zero"}`: heads that are disabled meanwhile. Of a head whose own output is
        replaced, what it would have given is told.

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
    with in_float32(model) as single:
        batch = single.one_input(text)
        length = int(batch.lengths[0])
        if not 0 <= token < length:
            raise ParameterError(
                f"`token` must be one of the {length} tokens of the text, from 0; it is {token}."
            )
        graph = reverse_graph(single, batch, source, plan, layer)
        leaf = graph.leaf_inputs[layer if source == "previous_layer" else 0]
        return normalised(
            jacobian_squared_norms(graph.outputs[layer][:, number, token], leaf)[0, :length].sqrt()
        )
