"""From differences of logits under patches to labelled arrays: shares of totals, intervals, tests,
correlations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import xarray as xr

from headwise.analyses.contract import MIN_EXAMPLES
from headwise.analyses.papers import reference
from headwise.core.labels import head_name, mean_variables
from headwise.models import HeadModel
from headwise.stats.accumulators import Ratios
from headwise.stats.corrections import holm
from headwise.stats.correlation import correlation
from headwise.stats.tests import mean_above

HEADS = ("layer", "head")


def patching_dataset(
    found: Mapping[str, np.ndarray], model: HeadModel, attrs: dict[str, Any]
) -> xr.Dataset:
    """All variables and attributes of a patching; see `patch`."""
    clean, corrupted = found["clean"], found["corrupted"]
    gap = clean - corrupted
    variables: dict[str, Any] = {}
    for name in ("recovered", "lost", "estimate", "ablated", "recovered_at", "estimate_at"):
        if name not in found:
            continue
        values = found[name]
        dims = HEADS if values.ndim == 3 else (*HEADS, "offset")
        variables |= _shares(name, values, gap, dims)
        if values.ndim == 3:
            p = two_sided_p(values)
            variables |= {f"{name}_p": (HEADS, p), f"{name}_p_adjusted": (HEADS, holm(p))}
    attrs |= {
        "title": "Patching: what a head carries from one input into another",
        "paper": reference("wang2022").short,
        "citation": reference("wang2022").citation,
        "clean": float(clean.mean()),
        "corrupted": float(corrupted.mean()),
        "clean_right": float((clean > 0).mean()),
        "corrupted_right": float((corrupted < 0).mean()),
    }
    if "recovered" in found:
        exact, first = (variables[name].values.ravel() for name in ("recovered", "estimate"))
        for method in ("pearson", "spearman"):
            r = correlation(exact, first, method)
            attrs |= {
                method: float(r.r),
                f"{method}_low": float(r.low),
                f"{method}_high": float(r.high),
            }
    coords: dict[str, Any] = {"layer": np.arange(model.layers), "head": np.arange(model.heads)}
    if model.kv_groups != tuple(range(model.heads)):
        coords["kv_group"] = ("head", np.array(model.kv_groups))
    if "estimate_at" in found:
        coords["offset"] = -np.arange(found["estimate_at"].shape[-1])
    return xr.Dataset(variables, coords, attrs)


def two_sided_p(values: np.ndarray) -> np.ndarray:
    """Return two-sided p-values of a mean of zero over pairs, `[layer, head]` of `[pair, layer,
    head]`.

    NaN for heads that were not measured, and for all heads where there are too few pairs to test.
    """
    if len(values) < MIN_EXAMPLES:
        return np.full(values.shape[1:], np.nan)
    p = np.minimum(1.0, 2 * np.minimum(mean_above(values), mean_above(-values)))
    return np.where(np.isnan(values).any(0), np.nan, p)


def _shares(
    name: str, values: np.ndarray, gap: np.ndarray, dims: tuple[str, ...]
) -> dict[str, xr.Variable]:
    """Totals over pairs as shares of the total gap; pairs without such a position are left out."""
    ratios = Ratios(*values.shape[1:])
    present = ~np.isnan(values)
    # The sign of a total gap that goes the wrong way is kept: then no share is meant, and the
    # summary says so.
    sign = 1.0 if gap.sum() >= 0 else -1.0
    weight = np.broadcast_to(sign * gap.reshape(-1, *(1,) * (values.ndim - 1)), values.shape)
    # A ratio of totals takes weights above zero only; a pair whose own gap goes the other way still
    # counts in both.
    total = np.where(present, weight, 0.0)
    ratios.parts["y"] += torch.as_tensor(np.where(present, sign * values, 0.0).sum(0))
    ratios.parts["yy"] += torch.as_tensor(np.where(present, values**2, 0.0).sum(0))
    ratios.parts["yw"] += torch.as_tensor(np.where(present, sign * values * total, 0.0).sum(0))
    ratios.parts["w"] += torch.as_tensor(total.sum(0))
    ratios.parts["ww"] += torch.as_tensor((total**2).sum(0))
    ratios.parts["count"] += torch.as_tensor(present.sum(0).astype(float))
    return mean_variables(name, dims, ratios, units="share of the difference of logits")


def carriers(found: Mapping[str, np.ndarray], count: int) -> list[tuple[int, int]]:
    """The heads that bring back most, exactly or, without that, to first order: (layer, head), the
    first first."""
    values = found[_first(found)].sum(0)
    values = values * np.sign((found["clean"] - found["corrupted"]).sum() or 1.0)
    return [
        divmod(int(i), values.shape[1])
        for i in np.argsort(-values, axis=None, kind="stable")[:count]
    ]


def ablated_heads(dataset: xr.Dataset) -> list[str]:
    """The heads that were zeroed, in the order of what they bring back, with the share lost and
    corrected p."""
    return _ranked(dataset, "ablated")


def best_heads(dataset: xr.Dataset, count: int = 5) -> list[str]:
    """The heads that bring back most, with share and corrected p."""
    return _ranked(dataset, _first(dataset))[:count]


def _first(found: Mapping[Any, Any]) -> str:
    """What heads are ranked by: what they bring back exactly, or, without that, to first order."""
    return "recovered" if "recovered" in found else "estimate"


def _ranked(dataset: xr.Dataset, name: str) -> list[str]:
    values, p = dataset[name].values, dataset[f"{name}_p_adjusted"].values
    order = np.argsort(-dataset[_first(dataset)].values, axis=None, kind="stable")
    lines = []
    for number in order:
        place = divmod(int(number), values.shape[1])
        if np.isfinite(values[place]):
            line = f"{head_name(*place)} {values[place]:+.2f}"
            if np.isfinite(p[place]):
                line += f" (p {p[place]:.2g})"
            lines.append(line)
    return lines
