"""Differences between models on the same examples, as labelled arrays: by head, and by thirds of the layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from scipy import stats as scipy_stats

from headwise.core.papers import reference
from headwise.experiments.comparison.measures import Measured
from headwise.stats.corrections import correct
from headwise.stats.intervals import mean_interval

THIRDS = ("initial", "middle", "final")


def third_of(layers: int) -> np.ndarray:
    """The third each layer belongs to, 0 to 2: of 12 layers four each; what is left over goes to the first thirds."""
    return np.repeat(np.arange(3), [len(part) for part in np.array_split(np.arange(layers), 3)])


def paired_means(first: np.ndarray, second: np.ndarray) -> dict[str, np.ndarray]:
    """Mean of `second − first` over axis 0 (examples both have a value for), with its 95 % interval and a two-sided paired t-test."""
    difference = second.astype(float) - first.astype(float)
    present = ~np.isnan(difference)
    count = present.sum(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.where(count > 0, np.where(present, difference, 0.0).sum(0) / np.maximum(count, 1), np.nan)
        squares = (np.where(present, difference - mean, 0.0) ** 2).sum(0)
        variance = np.where(count > 1, squares / np.maximum(count - 1, 1), np.nan)
        t = mean / np.sqrt(variance / count)
        p = 2 * scipy_stats.t.sf(np.abs(t), np.maximum(count - 1, 1))
    p = np.where(count < 2, np.nan, np.where(variance == 0, np.where(mean == 0, 1.0, 0.0), p))
    low, high = mean_interval(mean, variance, count)
    return {"": mean, "_n": count, "_low": low, "_high": high, "_p": p}


def change_dataset(cosines: np.ndarray, names: Sequence[str]) -> xr.Dataset:
    """The group `change`: `cosine[layer, head]` of the first two models, and `cosine_to[model, layer, head]` of each model to the first.

    `cosines[model, example, layer, head]` holds the models after the first.
    """
    count = np.full(cosines.shape[2:], cosines.shape[1])
    variables: dict[str, Any] = {}
    dims = ("layer", "head")
    parts: dict[str, list[np.ndarray]] = {}
    for each in cosines.astype(float):
        mean, variance = each.mean(0), each.var(0, ddof=1) if len(each) > 1 else np.full(each.shape[1:], np.nan)
        low, high = mean_interval(mean, variance, count)
        for suffix, value in (("", mean), ("_n", count), ("_low", low), ("_high", high)):
            parts.setdefault(suffix, []).append(value)
    thirds = third_of(cosines.shape[2])
    by_third = np.stack(
        [
            cosines[:, :, thirds == i].mean((2, 3)) if (thirds == i).any() else np.full(cosines.shape[:2], np.nan)
            for i in range(3)
        ],
        -1,
    )
    for suffix, values in parts.items():
        variables[f"cosine{suffix}"] = (dims, values[0])
        variables[f"cosine_to{suffix}"] = (("model", *dims), np.stack(values))
    spread = by_third.var(1, ddof=1) if by_third.shape[1] > 1 else np.full((len(by_third), 3), np.nan)
    number = np.where(np.isnan(by_third.mean(1)), 0, by_third.shape[1])
    low, high = mean_interval(by_third.mean(1), spread, number)
    for suffix, value in (("", by_third.mean(1)), ("_n", number), ("_low", low), ("_high", high)):
        variables[f"cosine_third{suffix}"] = (("model", "third"), value)
    paper = reference("kovaleva2019")
    attrs = {
        "title": "How far the maps of two models are alike",
        "paper": paper.short,
        "section": "§4.3, Fig 5",
        "citation": paper.citation,
        "reference_model": names[0],
        "compared_model": names[1],
        "examples": cosines.shape[1],
    }
    coords = {
        "layer": np.arange(cosines.shape[2]),
        "head": np.arange(cosines.shape[3]),
        "model": list(names[1:]),
        "third": list(THIRDS),
    }
    return xr.Dataset(variables, coords=coords, attrs=attrs)


def difference_dataset(
    analysis: str, measured: Sequence[Measured], names: Sequence[str], correction: str
) -> xr.Dataset:
    """The group `change_<analysis>`: for each variable `x` kept by example, `x[model, ...]` (mean of each model), `x_change[model, ...]` (against the first) with count, interval,
    p-value and corrected p-value, and `x_third_change[model, third, ...]`, the mean over the heads of a third of the layers (Pande et al. 2021, Fig 6)."""
    base = measured[0]
    variables: dict[str, Any] = {}
    # Variables without a head say something of the inputs, not of the model.
    shared = [
        name
        for name in base.values
        if "head" in base.dataset[name].dims and all(name in other.values for other in measured)
    ]
    for name in shared:
        array = base.dataset[name]
        dims = tuple(map(str, array.dims))
        values = np.stack([other.values[name] for other in measured])
        with np.errstate(invalid="ignore"):
            variables[f"{name}_mean"] = (("model_all", *dims), np.stack([_mean(each) for each in values]))
        _differences(variables, name, dims, values, correction)
        if "layer" in dims and dims[0] == "layer":
            thirds = third_of(values.shape[2])
            grouped = np.stack(
                [_mean_over(values, thirds == i, "head" in dims and dims[1] == "head") for i in range(3)], 2
            )
            rest = dims[2:] if len(dims) > 1 and dims[1] == "head" else dims[1:]
            _differences(variables, f"{name}_third", ("third", *rest), grouped, correction)
    coords: dict[str, Any] = {
        str(label): coordinate
        for label, coordinate in base.dataset.coords.items()
        if set(coordinate.dims) <= _all_dims(variables) or not coordinate.dims
    }
    coords |= {"model": list(names[1:]), "model_all": list(names)}
    if any("third" in entry[0] for entry in variables.values()):
        coords["third"] = list(THIRDS)
    attrs = {
        "title": f"Change of {analysis}",
        "reference_model": names[0],
        "correction": correction,
        "analysis": analysis,
    }
    kept = {key: value for key, value in coords.items() if key not in variables}
    return xr.Dataset(variables, coords=kept, attrs=attrs)


def _all_dims(variables: Mapping[str, Any]) -> set[str]:
    return {dim for entry in variables.values() for dim in entry[0]}


def _differences(
    variables: dict[str, Any], name: str, dims: tuple[str, ...], values: np.ndarray, correction: str
) -> None:
    found = [paired_means(values[0], other) for other in values[1:]]
    for suffix in ("", "_n", "_low", "_high", "_p"):
        variables[f"{name}_change{suffix}"] = (("model", *dims), np.stack([each[suffix] for each in found]))
    adjusted = [correct(each["_p"], correction) for each in found]
    variables[f"{name}_change_p_adjusted"] = (("model", *dims), np.stack(adjusted))


def _mean(values: np.ndarray) -> np.ndarray:
    present = ~np.isnan(values)
    count = present.sum(0)
    return np.where(count > 0, np.where(present, values, 0.0).sum(0) / np.maximum(count, 1), np.nan)


def _mean_over(values: np.ndarray, layers: np.ndarray, has_heads: bool) -> np.ndarray:
    """Mean over some layers (and their heads) of `values[model, example, layer, (head), ...]`."""
    part = values[:, :, layers]
    part = part.reshape(*part.shape[:2], -1, *part.shape[4:]) if has_heads else part
    if not part.shape[2]:
        return np.full((*part.shape[:2], *part.shape[3:]), np.nan)
    present = ~np.isnan(part)
    count = present.sum(2)
    return np.where(count > 0, np.where(present, part, 0.0).sum(2) / np.maximum(count, 1), np.nan)
