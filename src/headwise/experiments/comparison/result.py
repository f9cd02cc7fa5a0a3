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
from headwise.experiments.comparison.measures import AnalysisValues
from headwise.stats.accumulators import Moments
from headwise.stats.corrections import correct

THIRDS = ("initial", "middle", "final")
ALPHA = 0.05


def third_of(layers: int) -> np.ndarray:
    """The third each layer belongs to, 0 to 2; what is left over goes to the first thirds.

    >>> third_of(7).tolist()
    [0, 0, 0, 1, 1, 2, 2]
    """
    return np.repeat(np.arange(3), [len(part) for part in np.array_split(np.arange(layers), 3)])


def _moments(values: np.ndarray) -> Moments:
    """Of `values[example, ...]`; NaN is no value."""
    found = Moments(*values.shape[1:])
    found.add(torch.from_numpy(values))
    return found


def _with_interval(moments: Moments) -> dict[str, np.ndarray]:
    """Mean over examples, with count and 95 % interval, by what is put after the variable's
    name."""
    found = moments.summary()
    return {"": found["mean"], "_n": found["n"], "_low": found["low"], "_high": found["high"]}


def paired_means(first: np.ndarray, second: np.ndarray) -> dict[str, np.ndarray]:
    """Mean of `second − first` over axis 0 (examples both have a value for), with its 95 % interval
    and `_p` of a two-sided paired t-test."""
    difference = second.astype(float) - first.astype(float)
    found = _moments(difference)
    one_sided = np.minimum(found.p_above(), _moments(-difference).p_above())
    return {**_with_interval(found), "_p": np.minimum(1.0, 2 * one_sided)}


def by_thirds(values: np.ndarray, over: tuple[int, ...]) -> np.ndarray:
    """`values[model, example, layer, ...]` as `[model, example, third, ...]`: means over the layers
    of a third, and over the axes `over` after them."""
    thirds = third_of(values.shape[2])
    return np.stack([_mean_of(values[:, :, thirds == third], (2, *over)) for third in range(3)], 2)


def _mean_of(values: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    present = ~np.isnan(values)
    count = present.sum(axes)
    return np.where(
        count > 0, np.where(present, values, 0.0).sum(axes) / np.maximum(count, 1), np.nan
    )


def change_dataset(cosines: np.ndarray, names: Sequence[str]) -> xr.Dataset:
    """The group `change`: `cosine[layer, head]` of the first two models, and `cosine_to[model,
    layer, head]` of each model to the first; `cosines[model, example, layer, head]` holds the
    models after the first."""
    variables: dict[str, Any] = {}
    for suffix, values in _with_interval(_moments(np.moveaxis(cosines, 1, 0))).items():
        variables[f"cosine{suffix}"] = (("layer", "head"), values[0])
        variables[f"cosine_to{suffix}"] = (("model", "layer", "head"), values)
    thirds = np.moveaxis(by_thirds(cosines, (3,)), 1, 0)
    for suffix, values in _with_interval(_moments(thirds)).items():
        variables[f"cosine_third{suffix}"] = (("model", "third"), values)
    about = {"title": "How far the maps of two models are alike", "examples": cosines.shape[1]}
    about |= reference("kovaleva2019").attributes("§4.3, Fig 5")
    compared = {"reference_model": names[0], "compared_model": names[1]}
    heads = {"layer": np.arange(cosines.shape[2]), "head": np.arange(cosines.shape[3])}
    return xr.Dataset(
        variables,
        coords={**heads, "model": list(names[1:]), "third": list(THIRDS)},
        attrs={**about, **compared},
    )


def difference_dataset(
    analysis: str, measured: Sequence[AnalysisValues], names: Sequence[str], correction: str
) -> xr.Dataset:
    """The group `change_<analysis>`: for each variable `x` kept by example, `x[model, ...]` (mean
    of each model), `x_change[model, ...]` (against the first) with count, interval, p-value and
    corrected p-value, and `x_third_change[model, third, ...]`, the mean over the heads of a third
    of the layers (Pande et al. 2021, Fig 6)."""
    base = measured[0]
    variables: dict[str, Any] = {}

    def add_differences(name: str, dims: tuple[str, ...], values: np.ndarray) -> None:
        found = [paired_means(values[0], other) for other in values[1:]]
        for each in found:
            each["_p_adjusted"] = correct(each["_p"], correction)
        for suffix in found[0]:
            variables[f"{name}_change{suffix}"] = (
                ("model", *dims),
                np.stack([each[suffix] for each in found]),
            )

    for name in base.values:
        dims = tuple(map(str, base.dataset[name].dims))
        # Variables without a head say something of the inputs, not of the model.
        if "head" not in dims or any(name not in other.values for other in measured):
            continue
        values = np.stack([other.values[name] for other in measured])
        variables[f"{name}_mean"] = (("model_all", *dims), _mean_of(values.astype(float), (1,)))
        add_differences(name, dims, values)
        if dims[0] == "layer":
            heads = dims[1] == "head"
            thirds = by_thirds(values, (3,) if heads else ())
            add_differences(f"{name}_third", ("third", *dims[2 if heads else 1 :]), thirds)
    used = {dim for entry in variables.values() for dim in entry[0]}
    coords: dict[str, Any] = {
        str(name): values
        for name, values in base.dataset.coords.items()
        if set(values.dims) <= used
    }
    coords |= {"model": list(names[1:]), "model_all": list(names)}
    coords |= {"third": list(THIRDS)} if "third" in used else {}
    attrs = {
        "title": f"Change of {analysis}",
        "reference_model": names[0],
        "correction": correction,
    }
    kept = {key: value for key, value in coords.items() if key not in variables}
    return xr.Dataset(variables, coords=kept, attrs={**attrs, "analysis": analysis})


def words_dataset(
    results: Sequence[Mapping[str, AnalysisValues]], names: Sequence[str], layers: int, heads: int
) -> xr.Dataset:
    """The group `change_words`: what each head of each model does, in a word, from what was
    measured of all of them (`does`, `kind`, `attention[model_all, layer, head]`; see
    `headwise.atlas.describe`)."""
    told = [
        describe_heads({name: one.dataset for name, one in own.items()}, layers, heads)
        for own in results
    ]
    shape = (len(names), layers, heads)
    dims = ("model_all", "layer", "head")
    kept = {
        name: (
            dims,
            np.array([frame[name].astype(str).to_numpy() for frame in told], dtype=str).reshape(
                shape
            ),
        )
        for name in ("does", "kind", "attention")
    }
    coords = {"model_all": list(names), "layer": np.arange(layers), "head": np.arange(heads)}
    return xr.Dataset(
        kept, coords, {"title": "What each head does in each model", "reference_model": names[0]}
    )


def role_changes(
    change: xr.Dataset, measured: Sequence[AnalysisValues], analysis: Roles
) -> dict[str, Any]:
    """Variables of the group `change_roles`: who has which role in each model, by the τ of the
    first, and who gains or loses one.

    - `has_role[model_all, layer, head, role]`;
    - `gained`, `lost[model, layer, head, role]`: roles that a head has and had not in the first model, and those it had
      and has no more; `gained_sure`, `lost_sure`: those of them whose bias surely changed that way
      (`bias_change_p_adjusted < 0.05`), since a head at the border of a role crosses it by chance;
    - `gained_count`, `lost_count`, `gained_sure_count`, `lost_sure_count[model, third, role]`: heads in each third of
      the layers; `role_count[model_all, role]`: all heads of a role.

    Parameters
    ----------
    change : Dataset
        The group as far as it is made: `bias_change` and its p-values.
    measured : sequence of AnalysisValues
        What `roles` gave for each model, the first first.
    analysis : Roles
        The analysis, whose rules decide.
    """
    tau = float(measured[0].dataset.attrs["tau"])
    found = []
    for one in measured:
        mean, count = (one.dataset[name].transpose(*DIMS).values for name in ("bias", "bias_n"))
        spread = one.dataset["spread"].transpose(*DIMS).values.astype(float)
        found.append(roles_at_threshold(tau, mean, np.square(spread), count, analysis)[1])
    has = np.stack(found)
    moved = change["bias_change"].transpose("model", *DIMS).values
    sure = change["bias_change_p_adjusted"].transpose("model", *DIMS).values < ALPHA
    gained, lost = has[1:] & ~has[:1], ~has[1:] & has[:1]
    by_head = {
        "gained": (gained, "roles that the head has and had not in the first model"),
        "lost": (lost, "roles that the head had in the first model and has no more"),
        "gained_sure": (gained & sure & (moved > 0), "gained, and the bias surely rose"),
        "lost_sure": (lost & sure & (moved < 0), "lost, and the bias surely fell"),
    }
    thirds = third_of(has.shape[1])
    variables: dict[str, Any] = {
        "has_role": (("model_all", *DIMS), has, {"long_name": f"has the role at τ = {tau:g}"})
    }
    for name, (values, about) in by_head.items():
        variables[name] = (("model", *DIMS), values, {"long_name": about})
        counted = np.stack([values[:, thirds == third].sum((1, 2)) for third in range(3)], 1)
        variables[f"{name}_count"] = (
            ("model", "third", "role"),
            counted,
            {"long_name": f"heads: {about}"},
        )
    variables["role_count"] = (
        ("model_all", "role"),
        has.sum((1, 2)),
        {"long_name": "heads with the role"},
    )
    return variables
