"""Other ways to say how much of each token is mixed into each: rollout, flow, norms, value zeroing
and gradient-weighted attention, a module each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headwise.analyses.attribution.mixing_methods.base import (
    Mixing,
    MixingInput,
    trace_for_mixing,
)
from headwise.analyses.attribution.mixing_methods.chefer import chefer_mixing
from headwise.analyses.attribution.mixing_methods.flow import flow_mixing
from headwise.analyses.attribution.mixing_methods.norms import norm_mixing
from headwise.analyses.attribution.mixing_methods.rollout import rollout_mixing
from headwise.analyses.attribution.mixing_methods.value_zeroing import value_zeroing_mixing
from headwise.core.checks import one_of
from headwise.core.labels import existing_heads
from headwise.models import HeadModel
from headwise.models.float32 import in_float32
from headwise.models.inputs import Input

__all__ = ["MIXING_METHODS", "Mixing", "MixingInput", "MixingMethod", "mixing", "trace_for_mixing"]


@dataclass(frozen=True, slots=True)
class MixingMethod:
    """One method: the function that computes it, its paper, and whether it attributes to the input
    (`deep`) or to what enters the layer."""

    compute: Callable[[MixingInput], Mixing]
    paper: str
    deep: bool


MIXING_METHODS = {
    "rollout": MixingMethod(rollout_mixing, "abnar2020", deep=True),
    "norm": MixingMethod(norm_mixing, "kobayashi2021", deep=False),
    "flow": MixingMethod(flow_mixing, "abnar2020", deep=True),
    "value_zeroing": MixingMethod(value_zeroing_mixing, "mohebbi2023", deep=False),
    "chefer": MixingMethod(chefer_mixing, "chefer2021", deep=True),
}


def mixing(
    model: HeadModel,
    inputs: Input,
    reading: str,
    *,
    heads: Sequence[str | tuple[int, int]] | None = None,
) -> Mixing:
    """Return how much of each token is mixed into each, by another method than hidden token
    attribution; see `docs/attribution.md`.

    Parameters
    ----------
    model : HeadModel
        An open model. One in half precision is computed in float32.
    inputs : str, or what `model.batch` takes
        A text, or several.
    reading : {"rollout", "norm", "flow", "value_zeroing", "chefer"}
        The method.
    heads : sequence of str or tuple, optional
        Only these heads (`L3H5`), by default all; an empty sequence for layers alone. It saves time
        for `flow` and `value_zeroing`.

    Returns
    -------
    Mixing
        `heads[example, layer, head, receiving, source]` and `layers[example, layer, receiving,
        source]`.

    Examples
    --------
    >>> from headwise import HeadModel
    >>> from headwise.testing.models import random_model
    >>> module, tokenizer = random_model()
    >>> with HeadModel.open(module, tokenizer=tokenizer) as model:
    ...     result = mixing(model, "the cat saw the dog", "rollout")
    >>> round(float(result.layers[0, -1, 3].sum()), 6)  # what is in token 3 after the last layer
    1.0
    """
    one_of("reading", reading, tuple(MIXING_METHODS))
    chosen_heads = None
    if heads is not None:
        chosen_heads = existing_heads(heads, model.layers, model.heads)
    with in_float32(model) as precise_model:
        batch = precise_model.batch(inputs)
        return MIXING_METHODS[reading].compute(trace_for_mixing(precise_model, batch, chosen_heads))
