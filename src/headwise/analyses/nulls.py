"""Observers whose claims must vanish on random weights: beside the model they are shown
random-weights models of the same shape on the same inputs. These keep words, places, distances and
annotations; only the training is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import xarray as xr

from headwise.analyses.contract import Observer
from headwise.analyses.summaries import SIGNIFICANCE_LEVEL
from headwise.core.checks import at_least
from headwise.core.labels import FEW
from headwise.stats.intervals import share
from headwise.stats.nulls import chance_bound
from headwise.text.encode import Encoded

RANDOM_HEADS = 144  # so many random heads at least stand beside the model's ...
MOST_MODELS = 4  # ... from at most so many models ...
MOST_PARAMETERS = 500_000_000  # ... where a second model of its size is no burden


class RandomNull(Observer):
    """An observer with a null from random-weights models. Have a field `random_models: int | None =
    None`; write `apply_null`."""

    random_models: int | None

    def check_random_models(self) -> None:
        if self.random_models is not None:
            at_least("random_models", self.random_models, 0)

    def random_count(self, heads: int, parameters: int) -> int:
        """How many random-weights models it wants for a model of so many heads and parameters."""
        if self.random_models is not None:
            return self.random_models
        return 0 if parameters > MOST_PARAMETERS else min(MOST_MODELS, -(-RANDOM_HEADS // heads))

    def applies_to(self, row: Encoded) -> bool:
        """Whether a row has anything that it looks at."""
        return True

    def reduced(self) -> Self:
        """Itself without what is of no use on random weights."""
        return self

    def apply_null(self, dataset: xr.Dataset, random_results: Sequence[xr.Dataset]) -> xr.Dataset:
        """The result with what random-weights models gave beside it, and what is claimed held to
        that."""
        raise NotImplementedError


def random_bound(
    name: str, found: Sequence[xr.Dataset], tests: int, level: float = 0.05, *, tail: str = "normal"
) -> tuple[np.ndarray, np.ndarray]:
    """Of a variable `[layer, head, ...]` of random-weights models: its mean over their heads, and
    the value that no head of another such model passes at this level (`tests`: heads times items).

    `tail` is that of `chance_bound`, or `ratio`: that of a ratio (1 where nothing is preferred),
    whose square root is distributed normally above the median."""
    values = np.concatenate(
        [
            data[name].transpose("layer", "head", ...).values.reshape(-1, *data[name].shape[2:])
            for data in found
        ]
    ).astype(float)
    known = ~np.isnan(values)
    mean = share(np.where(known, values, 0.0).sum(0), known.sum(0))
    if tail == "ratio":
        return mean, chance_bound(np.sqrt(values), tests, level, "normal") ** 2
    return mean, chance_bound(values, tests, level, tail)


def significant_excess(
    found: Mapping[Any, Any],
    margin: float,
    bound: np.ndarray | float = np.nan,
    counted: tuple[str, str] = ("excess_n", "inputs"),
) -> xr.Variable:
    """What a head must have to be called anything: `excess` of the margin or more, above the bound
    from random heads (where there is one), significant after correction, from enough inputs
    (`counted`: in which variable, in words)."""
    excess, (name, each) = found["excess"], counted
    strong = (excess.values >= margin) & ~(excess.values <= bound) & (found[name].values >= FEW)
    about = f"p_adjusted < {SIGNIFICANCE_LEVEL:g}, excess of {margin:g} or more and above random heads, {FEW} {each} or more"
    return xr.Variable(
        excess.dims,
        strong & (found["p_adjusted"].values < SIGNIFICANCE_LEVEL),
        {"long_name": about},
    )


def apply_excess_null(
    dataset: xr.Dataset, found: Sequence[xr.Dataset], margin: float, item: str, tail: str = "normal"
) -> xr.Dataset:
    """A result with `excess[layer, head, item]`, its mean on random weights and its bound from them
    beside it for each item, and `stands_out` held to that."""
    mean, bound = random_bound("excess", found, int((dataset["excess_n"] > 0).sum()), tail=tail)
    made = {
        "stands_out": significant_excess(dataset, margin, bound),
        "random_excess": xr.Variable(item, mean, {"long_name": "mean excess of random heads"}),
        "random_bound": xr.Variable(
            item, bound, {"long_name": "excess that no random head passes"}
        ),
        **above_random_variable(dataset["excess"], bound),
    }
    return dataset.assign(made).assign_attrs(null_attributes(found))


def above_random_variable(
    values: xr.DataArray, bound: np.ndarray | float
) -> dict[str, xr.Variable]:
    """By how much every head passes what random heads reach, as a variable: it stands on the head's
    card too."""
    above = (values - bound).astype(np.float32).variable
    return {
        "above_random": xr.Variable(
            above.dims, above.values, {"long_name": f"{values.name} − random_bound"}
        )
    }


def null_attributes(found: Sequence[xr.Dataset]) -> dict[str, Any]:
    """What a result says of the random-weights models beside it."""
    sharp = [data.attrs["sharpness"] for data in found if "sharpness" in data.attrs]
    return {"random_models": len(found), **({"random_sharpness": float(sharp[0])} if sharp else {})}
