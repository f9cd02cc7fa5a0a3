"""Differences between models on the same examples, as labelled arrays: by head, by thirds of the
layers, and the roles that heads gain and lose (Pande et al. 2021 look at their bias alone)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import xarray as xr

from headwise.analyses.papers import reference
from headwise.analyses.roles.analysis import Roles
from headwise.analyses.roles.significance import DIMS, roles_at_threshold
from headwise.atlas.describe import describe_heads
from headwise.core.labels import SIGNIFICANCE_LEVEL
from headwise.experiments.comparison.measures import AnalysisValues
from headwise.stats.accumulators import Moments
from headwise.stats.corrections import correct

THIRDS = ("initial", "middle", "final")


def third_of(layers: int) -> np.ndarray:
    """Return the third each layer belongs to, 0 to 2; what is left over goes to the first thirds.

    >>> third_of(7).tolist()
    [0, 0, 0, 1, 1, 2, 2]
    """
    sizes = [len(part) for part in np.array_split(np.arange(layers), 3)]
    return np.repeat(np.arange(3), sizes)


def _moments(values: np.ndarray, units: Sequence[int] | None) -> Moments:
    """Return the moments of `values[example, ...]` over the units (documents) of the examples; NaN
    is no value."""
    moments = Moments(*values.shape[1:])
    moments.batch_units = units
    moments.add(torch.from_numpy(values))
    return moments


def _with_interval(moments: Moments) -> dict[str, np.ndarray]:
    """Return the mean over examples, with count and 95 % interval, by the suffix of the
    variable."""
    summary = moments.summary()
    return {
        "": summary["mean"],
        "_n": summary["n"],
        "_low": summary["low"],
        "_high": summary["high"],
    }


def paired_means(
    first: np.ndarray, second: np.ndarray, units: Sequence[int] | None = None
) -> dict[str, np.ndarray]:
    """Return the mean of `second − first` over axis 0 (examples both have a value for), with its
    95 % interval and `_p` of a two-sided paired t-test over units (documents; default: each example
    is one)."""
    difference = second.astype(float) - first.astype(float)
    moments = _moments(difference, units)
    one_sided = np.minimum(moments.p_above(), _moments(-difference, units).p_above())
    return {**_with_interval(moments), "_p": np.minimum(1.0, 2 * one_sided)}


def by_thirds(values: np.ndarray, over: tuple[int, ...]) -> np.ndarray:
    """Return `values[model, example, layer, ...]` as `[model, example, third, ...]`: means over the
    layers of a third, and over the axes `over` after them."""
    thirds = third_of(values.shape[2])
    means = []
    for third in range(3):
        means.append(_mean_over(values[:, :, thirds == third], (2, *over)))
    return np.stack(means, 2)


def _mean_over(values: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """Return the mean over axes of what is not NaN; NaN where nothing is."""
    present = ~np.isnan(values)
    count = present.sum(axes)
    total = np.where(present, values, 0.0).sum(axes)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def change_dataset(
    cosines: np.ndarray, names: Sequence[str], units: Sequence[int] | None = None
) -> xr.Dataset:
    """Return the group `change`: `cosine[layer, head]` of the first two models, and
    `cosine_to[model, layer, head]` of each model to the first.

    `cosines[model, example, layer, head]` holds the models after the first; intervals are over the
    units (documents) of the examples."""
    variables: dict[str, Any] = {}
    for suffix, values in _with_interval(_moments(np.moveaxis(cosines, 1, 0), units)).items():
        variables[f"cosine{suffix}"] = (("layer", "head"), values[0])
        variables[f"cosine_to{suffix}"] = (("model", "layer", "head"), values)
    thirds = np.moveaxis(by_thirds(cosines, (3,)), 1, 0)
    for suffix, values in _with_interval(_moments(thirds, units)).items():
        variables[f"cosine_third{suffix}"] = (("model", "third"), values)
    coords = {
        "layer": np.arange(cosines.shape[2]),
        "head": np.arange(cosines.shape[3]),
        "model": list(names[1:]),
        "third": list(THIRDS),
    }
    attributes = {
        "title": "How far the maps of two models are alike",
        "examples": cosines.shape[1],
        **reference("kovaleva2019").attributes("§4.3, Fig 5"),
        "reference_model": names[0],
        "compared_model": names[1],
    }
    return xr.Dataset(variables, coords=coords, attrs=attributes)


def difference_dataset(
    analysis: str,
    measured: Sequence[AnalysisValues],
    names: Sequence[str],
    correction: str,
    units: Sequence[int] | None = None,
) -> xr.Dataset:
    """Return the group `change_<analysis>`.

    For each variable `x` that has values by example: `x_mean[model_all, ...]` (mean of each model),
    `x_change[model, ...]` (against the first) with count, interval, p-value and corrected p-value,
    and `x_third_change[model, third, ...]`, the mean over the heads of a third of the layers (Pande
    et al. 2021, Fig 6). Intervals and tests are over the units (documents) of the examples."""
    first = measured[0]
    variables: dict[str, Any] = {}
    for name in first.values:
        dims = tuple(map(str, first.dataset[name].dims))
        everywhere = all(name in model.values for model in measured)
        # Variables without a head say something of the inputs, not of the model.
        if "head" not in dims or not everywhere:
            continue
        values = np.stack([model.values[name] for model in measured])
        means = _mean_over(values.astype(float), (1,))
        variables[f"{name}_mean"] = (("model_all", *dims), means)
        variables |= _difference_variables(name, dims, values, correction, units)
        if dims[0] == "layer":
            if dims[1] == "head":
                thirds = by_thirds(values, (3,))
                third_dims = ("third", *dims[2:])
            else:
                thirds = by_thirds(values, ())
                third_dims = ("third", *dims[1:])
            variables |= _difference_variables(
                f"{name}_third", third_dims, thirds, correction, units
            )

    used_dims = set()
    for dims_of_variable, _ in variables.values():
        used_dims.update(dims_of_variable)
    coords: dict[str, Any] = {}
    for coord_name, coord in first.dataset.coords.items():
        if set(coord.dims) <= used_dims:
            coords[str(coord_name)] = coord
    coords["model"] = list(names[1:])
    coords["model_all"] = list(names)
    if "third" in used_dims:
        coords["third"] = list(THIRDS)
    for name in variables:
        coords.pop(name, None)
    attributes = {
        "title": f"Change of {analysis}",
        "reference_model": names[0],
        "correction": correction,
        "analysis": analysis,
    }
    return xr.Dataset(variables, coords=coords, attrs=attributes)


def _difference_variables(
    name: str,
    dims: tuple[str, ...],
    values: np.ndarray,
    correction: str,
    units: Sequence[int] | None,
) -> dict[str, Any]:
    """Return `<name>_change[model, ...]` with its tests, from `values[model, example, ...]`."""
    by_model = []
    for model_values in values[1:]:
        difference = paired_means(values[0], model_values, units)
        difference["_p_adjusted"] = correct(difference["_p"], correction)
        by_model.append(difference)
    variables = {}
    for suffix in by_model[0]:
        stacked = np.stack([difference[suffix] for difference in by_model])
        variables[f"{name}_change{suffix}"] = (("model", *dims), stacked)
    return variables


def words_dataset(
    results: Sequence[Mapping[str, AnalysisValues]], names: Sequence[str], layers: int, heads: int
) -> xr.Dataset:
    """Return the group `change_words`: the label of each head of each model.

    `does`, `kind`, `attention[model_all, layer, head]` come from what was measured of all models;
    see `headwise.atlas.describe`."""
    tables = []
    for result in results:
        datasets = {name: values.dataset for name, values in result.items()}
        tables.append(describe_heads(datasets, layers, heads))
    shape = (len(names), layers, heads)
    variables = {}
    for name in ("does", "kind", "attention"):
        labels = [table[name].astype(str).to_numpy() for table in tables]
        array = np.array(labels, dtype=str).reshape(shape)
        variables[name] = (("model_all", "layer", "head"), array)
    coords = {"model_all": list(names), "layer": np.arange(layers), "head": np.arange(heads)}
    attributes = {"title": "What each head does in each model", "reference_model": names[0]}
    return xr.Dataset(variables, coords, attributes)


def role_changes(
    change: xr.Dataset, measured: Sequence[AnalysisValues], analysis: Roles
) -> dict[str, Any]:
    """Return variables of the group `change_roles`: which heads have which role in each model, by
    the τ of the first, and which gain or lose one.

    - `has_role[model_all, layer, head, role]`;
    - `gained`, `lost[model, layer, head, role]`: roles that a head has and did not have in the
      first model, and those it had and has no more; `gained_sure`, `lost_sure`: those of them whose
      bias changed significantly that way (`bias_change_p_adjusted < 0.05`), since a head at the
      border of a role crosses it by chance;
    - `gained_count`, `lost_count`, `gained_sure_count`, `lost_sure_count[model, third, role]`:
      heads in each third of the layers; `role_count[model_all, role]`: all heads of a role.

    Parameters
    ----------
    change : Dataset
        The group so far: `bias_change` and its p-values.
    measured : sequence of AnalysisValues
        The result of `roles` for each model.
    analysis : Roles
        The analysis, whose rules decide.
    """
    tau = float(measured[0].dataset.attrs["tau"])
    has_role_by_model = []
    for model in measured:
        mean = model.dataset["bias"].transpose(*DIMS).values
        count = model.dataset["bias_n"].transpose(*DIMS).values
        spread = model.dataset["spread"].transpose(*DIMS).values.astype(float)
        _, has_role = roles_at_threshold(tau, mean, np.square(spread), count, analysis)
        has_role_by_model.append(has_role)
    has = np.stack(has_role_by_model)
    bias_change = change["bias_change"].transpose("model", *DIMS).values
    p_adjusted = change["bias_change_p_adjusted"].transpose("model", *DIMS).values
    significant = p_adjusted < SIGNIFICANCE_LEVEL
    gained = has[1:] & ~has[:1]
    lost = ~has[1:] & has[:1]
    by_head = {
        "gained": (gained, "roles that the head has and did not have in the first model"),
        "lost": (lost, "roles that the head had in the first model and has no more"),
        "gained_sure": (
            gained & significant & (bias_change > 0),
            "gained, and the bias rose significantly",
        ),
        "lost_sure": (
            lost & significant & (bias_change < 0),
            "lost, and the bias fell significantly",
        ),
    }
    thirds = third_of(has.shape[1])
    has_attributes = {"long_name": f"has the role at τ = {tau:g}"}
    variables: dict[str, Any] = {"has_role": (("model_all", *DIMS), has, has_attributes)}
    for name, (values, about) in by_head.items():
        variables[name] = (("model", *DIMS), values, {"long_name": about})
        counts = [values[:, thirds == third].sum((1, 2)) for third in range(3)]
        variables[f"{name}_count"] = (
            ("model", "third", "role"),
            np.stack(counts, 1),
            {"long_name": f"heads: {about}"},
        )
    variables["role_count"] = (
        ("model_all", "role"),
        has.sum((1, 2)),
        {"long_name": "heads with the role"},
    )
    return variables
