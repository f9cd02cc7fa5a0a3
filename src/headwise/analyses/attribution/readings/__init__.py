"""Other readings of mixing than hidden token attribution: a module each, one table of all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headwise.analyses.attribution.passage import in_single
from headwise.analyses.attribution.readings.base import Mixing, Seen, traced
from headwise.analyses.attribution.readings.chefer import read_chefer
from headwise.analyses.attribution.readings.flow import read_flow
from headwise.analyses.attribution.readings.norms import read_norm_weighted
from headwise.analyses.attribution.readings.rollout import read_rollout
from headwise.analyses.attribution.readings.value_zeroing import read_value_zeroing
from headwise.core.checks import one_of
from headwise.core.labels import existing_heads
from headwise.models import HeadModel
from headwise.models.inputs import Input

__all__ = ["READINGS", "Mixing", "Reading", "Seen", "mixing", "traced"]


@dataclass(frozen=True, slots=True)
class Reading:
    """One way to read mixing: what computes it, the paper it is from, and whether it goes back to
    the input (`deep`) or stays within the layer."""

    read: Callable[[Seen], Mixing]
    paper: str
    deep: bool


READINGS = {
    "rollout": Reading(read_rollout, "abnar2020", True),
    "norm": Reading(read_norm_weighted, "kobayashi2021", False),
    "flow": Reading(read_flow, "abnar2020", True),
    "value_zeroing": Reading(read_value_zeroing, "mohebbi2023", False),
    "chefer": Reading(read_chefer, "chefer2021", True),
}


def mixing(
    model: HeadModel,
    inputs: Input,
    reading: str,
    *,
    heads: Sequence[str | tuple[int, int]] | None = None,
) -> Mixing:
    """How much of each token is in each, by another reading than hidden token attribution; see
    `docs/attribution.md`.

    Parameters
    ----------
    model : HeadModel
        An opened model. One in half precision is computed in float32.
    inputs : str, or what `model.batch` takes
        A text, or several.
    reading : {"rollout", "norm", "flow", "value_zeroing", "chefer"}
        Which one.
    heads : sequence of str or tuple, optional
        Only these heads (`L3H5`), by default all; none for layers alone. It saves time for `flow`
        and `value_zeroing`.

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
    ...     found = mixing(model, "the cat saw the dog", "rollout")
    >>> round(float(found.layers[0, -1, 3].sum()), 6)  # what is in token 3 after the last layer
    1.0
    """
    one_of("reading", reading, tuple(READINGS))
    chosen = None if heads is None else existing_heads(heads, model.layers, model.heads)
    with in_single(model) as single:
        return READINGS[reading].read(traced(single, single.batch(inputs), chosen))
