"""Observers whose claims must vanish on random weights.

Beside the model they observe random-weights models of the same shape on the same inputs. These keep
words, positions, distances and annotations; only the training is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import xarray as xr

from headwise.analyses.contract import Observer
from headwise.core.checks import at_least
from headwise.core.labels import FEW, SIGNIFICANCE_LEVEL
from headwise.stats.accumulators import Moments
from headwise.stats.intervals import share
from headwise.stats.nulls import chance_bound
from headwise.stats.tests import z_test
from headwise.text.encode import Encoded

# By default, as many random models as give this many heads ...
MIN_RANDOM_HEADS = 144
# ... but at most this many ...
MAX_RANDOM_MODELS = 4
# ... and none for models so large that a second one is a burden.
MAX_PARAMETERS = 500_000_000
# Adjacent layers have a bound of their own if they have so many random heads.
MIN_GROUP_HEADS = 36


def excess_p_values(excess: Moments, rounding: float) -> np.ndarray:
    """Return p-values of one-tailed z-tests of a mean excess above zero.

    Parameters
    ----------
    excess : Moments
        Of the excess in each example.
    rounding : float
        An excess as small as this, in all examples, counts as zero.
    """
    count = excess.count.numpy()
    mean = np.where(count > 0, excess.mean.numpy(), np.nan)
    variance = excess.variance()
    is_rounding = (np.abs(mean) <= rounding) & (np.sqrt(variance) <= rounding)
    mean = np.where(is_rounding, 0.0, mean)
    variance = np.where(is_rounding, 0.0, variance)
    return z_test(mean, variance, count, 0.0).p_value


class RandomNull(Observer):
    """An observer with a null distribution from random-weights models.

    Have a field `random_models: int | None = None`; write `apply_null`."""

    random_models: int | None

    def check_random_models(self) -> None:
        """Reject a negative number of random models."""
        if self.random_models is not None:
            at_least("random_models", self.random_models, 0)

    def random_count(self, heads: int, parameters: int) -> int:
        """Return how many random-weights models a model with so many heads and parameters needs."""
        if self.random_models is not None:
            return self.random_models
        if parameters > MAX_PARAMETERS:
            return 0
        enough_models = -(-MIN_RANDOM_HEADS // heads)  # rounded up
        return min(MAX_RANDOM_MODELS, enough_models)

    def applies_to(self, row: Encoded) -> bool:
        """Return whether a row has anything it observes."""
        return True

    def reduced(self) -> Self:
        """Return the analysis without what is of no use on random weights."""
        return self

    def apply_null(self, dataset: xr.Dataset, random_results: Sequence[xr.Dataset]) -> xr.Dataset:
        """Return the result, with its claims restricted to what no random head reaches.

        Parameters
        ----------
        dataset : Dataset
            The model's result.
        random_results : sequence of Dataset
            The results of random-weights models.
        """
        raise NotImplementedError


def random_bound(
    name: str,
    random_results: Sequence[xr.Dataset],
    tests: int,
    level: float = 0.05,
    *,
    tail: str = "normal",
) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean of a variable over random heads, and the value that none of them exceeds.

    Parameters
    ----------
    name : str
        A variable `[layer, head, ...]`.
    random_results : sequence of Dataset
        The results of random-weights models.
    tests : int
        Heads times items: the level is corrected for as many tests.
    level : float, default 0.05
        The probability that any head of another random model exceeds the bound.
    tail : str, default "normal"
        That of `chance_bound`, or `ratio`: that of a ratio (1 without preference), whose square
        root is distributed normally above the median.
    """
    of_models = []
    for dataset in random_results:
        of_models.append(dataset[name].transpose("layer", "head", ...).values.astype(float))
    by_layer = np.stack(of_models, axis=1)  # [layer, model, head, ...]
    by_layer = by_layer.reshape(len(by_layer), -1, *by_layer.shape[3:])
    random_values = by_layer.reshape(-1, *by_layer.shape[2:])
    is_known = ~np.isnan(random_values)
    mean = share(np.where(is_known, random_values, 0.0).sum(0), is_known.sum(0))
    bounds = [_bound(random_values, tests, level, tail)]
    # Layers differ in sharpness, and a sharp layer's heads reach further by chance than those of
    # all layers taken together: the bound is the largest over groups of adjacent layers.
    n_layers_together = -(-MIN_GROUP_HEADS // max(by_layer.shape[1], 1))  # rounded up
    for start in range(0, len(by_layer) - n_layers_together + 1, n_layers_together):
        # The last group takes the layers that are left over.
        is_last = start + 2 * n_layers_together > len(by_layer)
        group = by_layer[start : None if is_last else start + n_layers_together]
        bounds.append(_bound(group.reshape(-1, *group.shape[2:]), tests, level, tail))
    return mean, np.asarray(np.fmax.reduce(bounds))


def _bound(values: np.ndarray, tests: int, level: float, tail: str) -> np.ndarray:
    if tail == "ratio":
        return chance_bound(np.sqrt(values), tests, level, "normal") ** 2
    return chance_bound(values, tests, level, tail)


def significant_excess(
    variables: Mapping[Any, Any],
    margin: float,
    bound: np.ndarray | float = np.nan,
    counted: tuple[str, str] = ("excess_n", "inputs"),
) -> xr.Variable:
    """Return which heads have a significant excess, bool like `excess`.

    It is at least the margin, above the bound of random heads (if there is one), significant after
    correction, and from enough inputs.

    Parameters
    ----------
    variables : mapping of str to variable
        With `excess`, `p_adjusted` and the count.
    margin : float
        The lowest excess.
    bound : ndarray or float, optional
        What no random head exceeds.
    counted : (str, str)
        The variable that counts inputs, and what it counts in words.
    """
    count_name, counted_things = counted
    excess = variables["excess"]
    is_large = (excess.values >= margin) & ~(excess.values <= bound)
    is_counted = variables[count_name].values >= FEW
    is_significant = variables["p_adjusted"].values < SIGNIFICANCE_LEVEL
    long_name = (
        f"p_adjusted < {SIGNIFICANCE_LEVEL:g}, excess of {margin:g} or more and above random heads, "
        f"{FEW} {counted_things} or more"
    )
    return xr.Variable(
        excess.dims, is_large & is_counted & is_significant, {"long_name": long_name}
    )


def apply_excess_null(
    dataset: xr.Dataset,
    random_results: Sequence[xr.Dataset],
    margin: float,
    item: str,
    tail: str = "normal",
) -> xr.Dataset:
    """Return a result with `excess[layer, head, item]`, with its mean and bound on random weights
    for each item added, and `stands_out` restricted to what exceeds the bound."""
    n_tests = int((dataset["excess_n"] > 0).sum())
    mean, bound = random_bound("excess", random_results, n_tests, tail=tail)
    variables = {
        "stands_out": significant_excess(dataset, margin, bound),
        "random_excess": xr.Variable(item, mean, {"long_name": "mean excess of random heads"}),
        "random_bound": xr.Variable(
            item, bound, {"long_name": "excess that no random head passes"}
        ),
        **above_random_variable(dataset["excess"], bound),
    }
    return dataset.assign(variables).assign_attrs(null_attributes(random_results))


def above_random_variable(
    values: xr.DataArray, bound: np.ndarray | float
) -> dict[str, xr.Variable]:
    """Return by how much every head exceeds what random heads reach, as the variable
    `above_random`."""
    above = (values - bound).astype(np.float32).variable
    long_name = f"{values.name} − random_bound"
    return {"above_random": xr.Variable(above.dims, above.values, {"long_name": long_name})}


def null_attributes(random_results: Sequence[xr.Dataset]) -> dict[str, Any]:
    """Return the attributes of a result that describe the random-weights models."""
    attributes: dict[str, Any] = {"random_models": len(random_results)}
    for dataset in random_results:
        if "sharpness" in dataset.attrs:  # the same for all of them, one factor for each layer
            factors = np.atleast_1d(dataset.attrs["sharpness"]).astype(float)
            attributes["random_sharpness"] = float(np.exp(np.log(factors).mean()))
            by_layer = ", ".join(f"{factor:.3g}" for factor in factors)
            attributes["random_sharpness_by_layer"] = by_layer
            break
    return attributes
