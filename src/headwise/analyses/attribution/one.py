"""Contributions to one head's output at one token: what a click asks for, exact and without the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from headwise.analyses.attribution.contributions import SOURCES
from headwise.analyses.attribution.passage import in_single
from headwise.analyses.attribution.reverse import block_squares, reverse_graph
from headwise.analyses.attribution.sketch import normalised
from headwise.core.checks import one_of
from headwise.core.errors import ParameterError
from headwise.core.labels import existing_heads
from headwise.models import HeadModel
from headwise.models.asked import one_input
from headwise.models.inputs import Input
from headwise.models.interventions import plan_interventions


def head_contributions(
    model: HeadModel,
    text: Input,
    head: str | tuple[int, int],
    token: int,
    source: str = "input",
    interventions: Mapping[Any, Any] | None = None,
) -> Tensor:
    """How much each token contributes to a head's output at one token: `[source]`, which sums to one.

    The numbers of `contributions(..., method="exact")`, for one row of one head: as many gradients as a head has
    dimensions, instead of one tangent for each number of the input.

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
        `{"L3H5": "zero"}`: heads that are disabled meanwhile. Of a head whose own output is replaced, what it would
        have given is told.

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
    with in_single(model) as single:
        batch = one_input(single, text)
        length = int(batch.lengths[0])
        if not 0 <= token < length:
            raise ParameterError(f"`token` must be one of the {length} tokens of the text, from 0; it is {token}.")
        graph = reverse_graph(single, batch, source, plan, layer)
        leaf = graph.leaves_in[layer if source == "previous_layer" else 0]
        return normalised(block_squares(graph.outputs[layer][:, number, token], leaf)[0, :length].sqrt())
