"""From differences of logits under patches to labelled arrays: shares of totals, intervals, tests,
correlations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import xarray as xr

from headwise.analyses.contract import MIN_EXAMPLES
from headwise.analyses.papers import reference
from headwise.core.labels import head_name, mean_variables
from headwise.models import HeadModel
from headwise.stats.accumulators import Moments
from headwise.stats.corrections import holm
from headwise.stats.correlation import correlation
from headwise.stats.units import mean_over_units, ratio_parts

HEADS = ("layer", "head")
BY_HEAD = ("recovered", "lost", "estimate", "ablated")
BY_POSITION = ("recovered_at", "estimate_at")


def patching_dataset(
    arrays: Mapping[str, np.ndarray],
    model: HeadModel,
    attributes: dict[str, Any],
    units: Sequence[int] | None = None,
) -> xr.Dataset:
    """Return all variables and attributes of a patching; see `patch`.

    Parameters
    ----------
    arrays : mapping
        `clean`, `corrupted` `[pair]`; changes of d by head `[pair, layer, head]` and by position
        `[pair, layer, head, offset]`.
    model : HeadModel
        The model.
    attributes : dict
        Counts and notes; attributes of the result are added.
    units : sequence of int, optional
        The unit of each pair (its noun, its two people); default: each pair is one.
    """
    clean = arrays["clean"]
    corrupted = arrays["corrupted"]
    gap = clean - corrupted
    variables: dict[str, Any] = {}
    for name in BY_HEAD:
        if name in arrays:
            variables |= _share_variables(name, arrays[name], gap, units, HEADS)
            p = two_sided_p(arrays[name], units)
            variables[f"{name}_p"] = (HEADS, p)
            variables[f"{name}_p_adjusted"] = (HEADS, holm(p))
    for name in BY_POSITION:
        if name in arrays:
            variables |= _share_variables(name, arrays[name], gap, units, (*HEADS, "offset"))
    attributes |= {
        "title": "Patching: what a head carries from one input into another",
        "paper": reference("wang2022").short,
        "citation": reference("wang2022").citation,
        "clean": float(clean.mean()),
        "corrupted": float(corrupted.mean()),
        "clean_right": float((clean > 0).mean()),
        "corrupted_right": float((corrupted < 0).mean()),
    }
    if "recovered" in arrays:
        exact = variables["recovered"].values.ravel()
        estimate = variables["estimate"].values.ravel()
        for method in ("pearson", "spearman"):
            agreement = correlation(exact, estimate, method)
            attributes[method] = float(agreement.r)
            attributes[f"{method}_low"] = float(agreement.low)
            attributes[f"{method}_high"] = float(agreement.high)
    coords: dict[str, Any] = {"layer": np.arange(model.layers), "head": np.arange(model.heads)}
    if model.kv_groups != tuple(range(model.heads)):
        coords["kv_group"] = ("head", np.array(model.kv_groups))
    if "estimate_at" in arrays:
        coords["offset"] = -np.arange(arrays["estimate_at"].shape[-1])
    return xr.Dataset(variables, coords, attributes)


def two_sided_p(values: np.ndarray, units: Sequence[int] | None = None) -> np.ndarray:
    """Return two-sided p-values of a mean of zero over units of pairs, `[layer, head]` of `[pair,
    layer, head]`.

    NaN for heads that were not measured, and for all heads where there are too few pairs to test.
    """
    if len(values) < MIN_EXAMPLES:
        return np.full(values.shape[1:], np.nan)
    above = mean_over_units(values, units).p_above()
    below = mean_over_units(-values, units).p_above()
    one_sided = np.minimum(above, below)
    p = np.minimum(1.0, 2 * one_sided)
    return np.where(np.isnan(values).any(0), np.nan, p)


def _share_variables(
    name: str,
    values: np.ndarray,
    gap: np.ndarray,
    units: Sequence[int] | None,
    dims: tuple[str, ...],
) -> dict[str, xr.Variable]:
    shares = patching_shares(values, gap, units)
    return mean_variables(name, dims, shares, units="share of the difference of logits")


def patching_shares(
    values: np.ndarray, gap: np.ndarray, units: Sequence[int] | None = None
) -> Moments:
    """Return totals of `values[pair, ...]` as shares of the total of `gap[pair]`; pairs whose value
    is NaN (they have no such position) are left out.

    A pair whose own gap goes the other way counts in both totals. The sign of a total gap that goes
    the wrong way is kept: then a share means nothing, and the summary says so. `units` has the unit
    of each pair; intervals are over units."""
    moments = Moments(*values.shape[1:])
    moments.batch_units = units
    gap_column = gap.reshape(-1, *(1,) * (values.ndim - 1))
    moments.add(torch.as_tensor(ratio_parts(values, gap_column)))
    return moments


def strongest_heads(arrays: Mapping[str, np.ndarray], count: int) -> list[tuple[int, int]]:
    """Return the heads that bring back most as (layer, head), the strongest first."""
    totals = arrays[_ranking_variable(arrays)].sum(0)
    # Where the total gap goes the wrong way, most is brought back by the lowest total.
    totals = totals * np.sign((arrays["clean"] - arrays["corrupted"]).sum() or 1.0)
    order = np.argsort(-totals, axis=None, kind="stable")[:count]
    return [divmod(int(number), totals.shape[1]) for number in order]


def describe_ablated_heads(dataset: xr.Dataset) -> list[str]:
    """Return the heads that were zeroed, in the order of what they bring back, each with the share
    lost and the corrected p-value."""
    return _describe_heads(dataset, "ablated")


def describe_best_heads(dataset: xr.Dataset, count: int = 5) -> list[str]:
    """Return the heads that bring back most, each with its share and corrected p-value."""
    return _describe_heads(dataset, _ranking_variable(dataset))[:count]


def _ranking_variable(names: Mapping[Any, Any]) -> str:
    """Return what heads are ranked by: the exact share where it is known, else the estimate."""
    return "recovered" if "recovered" in names else "estimate"


def _describe_heads(dataset: xr.Dataset, name: str) -> list[str]:
    values = dataset[name].values
    p = dataset[f"{name}_p_adjusted"].values
    order = np.argsort(-dataset[_ranking_variable(dataset)].values, axis=None, kind="stable")
    lines = []
    for number in order:
        place = divmod(int(number), values.shape[1])
        if np.isfinite(values[place]):
            line = f"{head_name(*place)} {values[place]:+.2f}"
            if np.isfinite(p[place]):
                line += f" (p {p[place]:.2g})"
            lines.append(line)
    return lines
