"""From the margins of scores by example to labelled arrays with intervals and tests, and to tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from headwise.analyses.papers import reference
from headwise.core.labels import head_name
from headwise.stats.corrections import holm
from headwise.stats.units import mean_over_units

ROWS = ("firing", "other")
SIDES = ("query", "key")
MIN_UNITS = 8  # fewer examples, or documents, are not tested
ROUNDING = 1e-6  # of the largest score
OTHERS = "all others"


@dataclass(frozen=True, slots=True, eq=False)
class CorpusMargins:
    """Mean margins of each example, rows where the role fires first: `query` and `key` `[example,
    rows, component]`, `score[example, rows]`, NaN where an example has no such row; `count[example,
    rows]` of rows. `units` has the document of each example where all have one."""

    query: np.ndarray
    key: np.ndarray
    score: np.ndarray
    count: np.ndarray
    units: Sequence[int] | None = None


def margins_dataset(
    margins: CorpusMargins, components: Sequence[str], head: tuple[int, int]
) -> xr.Dataset:
    """Return means over examples, differences and tests; see `why`."""
    variables: dict[str, Any] = {}
    units = margins.units
    differences = []
    p = np.full((len(SIDES), len(components)), np.nan)
    n_units = 0
    for place, side in enumerate(SIDES):
        values: np.ndarray = getattr(margins, side)
        variables |= _mean_over_examples(f"{side}_margin", values, units, ("rows", "component"))
        # Within examples: an example without one of the two kinds of rows does not count.
        difference = values[:, 0] - values[:, 1]
        differences.append(difference[~np.isnan(difference).any(1)])
        variables |= _mean_over_examples(f"{side}_difference", difference, units, ("component",))
        above = mean_over_units(difference, units)
        below = mean_over_units(-difference, units)
        n_units = int(above.n_units.max(initial=0))
        if n_units >= MIN_UNITS:
            p[place] = 2 * np.minimum(above.p_above(), below.p_above())
    variables |= _mean_over_examples("mean_score", margins.score, units, ("rows",))
    p = np.minimum(p, 1.0)
    # A component that adds nothing but rounding anywhere is not tested.
    scale = np.nanmax(np.abs(margins.score), initial=0.0)
    for place, difference in enumerate(differences):
        is_rounding = (np.abs(difference) <= ROUNDING * scale).all(0)
        p[place, is_rounding] = np.nan
    adjusted = holm(p.ravel()).reshape(p.shape)
    for place, side in enumerate(SIDES):
        variables[f"{side}_difference_p"] = ("component", p[place])
        variables[f"{side}_difference_p_adjusted"] = ("component", adjusted[place])
    n_firing, n_other = margins.count.sum(0)
    attributes = {
        "title": "Why: the scores of a head by the components that wrote query and key",
        "paper": reference("elhage2021").short,
        "citation": reference("elhage2021").citation,
        "head": head_name(*head),
        "examples": len(margins.count),
        "firing_rows": int(n_firing),
        "other_rows": int(n_other),
        "note": "",
    }
    if n_units < MIN_UNITS:
        what = "examples" if units is None else "documents"
        attributes["note"] = (
            f"{n_units} {what} have rows where the role fires and rows where it does not; with "
            f"fewer than {MIN_UNITS} nothing is tested."
        )
    coords = {"rows": list(ROWS), "component": list(components)}
    return xr.Dataset(variables, coords, attributes)


def _mean_over_examples(
    name: str, values: np.ndarray, units: Sequence[int] | None, dims: tuple[str, ...]
) -> dict[str, Any]:
    """Return the mean over the examples that have a value, with its count and 95 % interval."""
    count = (~np.isnan(values)).sum(0)
    mean = mean_over_units(values, units)
    low, high = mean.interval()
    return {
        name: (dims, mean.value),
        f"{name}_n": (dims, count),
        f"{name}_low": (dims, low),
        f"{name}_high": (dims, high),
    }


def largest_pairs(dataset: xr.Dataset, count: int) -> list[tuple[str, str, float]]:
    """Return the pairs of components with the largest parts of a score (either sign), and what all
    others add, so that the list adds up to the score."""
    table = dataset["score"].values
    order = np.argsort(-np.abs(table), axis=None, kind="stable")[:count]
    names = dataset["query_component"].values
    pairs = []
    for place in order:
        row, column = np.unravel_index(place, table.shape)
        pairs.append((str(names[row]), str(names[column]), float(table[row, column])))
    left = float(table.sum()) - sum(part for _, _, part in pairs)
    if table.size > count:
        pairs.append((OTHERS, "", left))
    return pairs


def largest_margins(values: np.ndarray, names: Sequence[str], count: int) -> list[str]:
    """Return the names of the components with the largest margins, either sign."""
    order = np.argsort(-np.abs(np.nan_to_num(values)), kind="stable")[:count]
    return [str(names[place]) for place in order]
