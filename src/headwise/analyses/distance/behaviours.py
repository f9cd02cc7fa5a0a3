"""What families of heads do: the behaviours other analyses found, by head and averaged over the families that `distance` found (Clark et al. 2019, §6)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

POSITIONS = {-1: "previous token", 0: "same token", 1: "next token"}
TYPES = ("cls", "sep", "punct")
NEIGHBOURS, DELIMITERS, BROADLY, OTHER = "neighbours", "delimiters", "broad", "other"
LEAST_SHARE = 0.5  # of its attention: what a head must put on one target to be named after it
LEAST_MARGIN = 0.1  # over the best fixed offset: what a relation's best head must find more
LEVEL = 0.05
BROAD = 0.1  # no weight above this on average: "at most 10 % on any single word"


def behaviour_scores(datasets: Mapping[str, xr.Dataset]) -> xr.DataArray:
    """How much of each behaviour a head shows, `[behaviour, layer, head]`, from what there is of `surface`, `dependency` and `roles`.

    From `surface`: mean attention to the previous, same and next token, to `[CLS]`, `[SEP]` and punctuation, and `broad`, one minus the mean largest weight. From
    `dependency`: for each relation, by how much the head beats the best fixed offset in its better direction, where it does so significantly (else 0).
    From `roles`: 1 where the head has the role.
    """
    found: dict[str, xr.DataArray] = {}
    surface = datasets.get("surface")
    if surface is not None:
        found |= {
            name: surface["position"].sel(offset=offset, drop=True)
            for offset, name in POSITIONS.items()
            if offset in surface["offset"]
        }
        types = labels_of(surface, "token_type")
        found |= {
            f"to {name}": surface["token_type"].isel(token_type=types.index(name), drop=True)
            for name in TYPES
            if name in types
        }
        found[BROADLY] = 1 - surface["max_weight"]
    dependency = datasets.get("dependency")
    if dependency is not None:
        better = dependency["accuracy"] - dependency["baseline_possible"]
        margin = better.where((dependency["p_adjusted"] < LEVEL) & (better > 0), 0.0).max("direction")
        for relation in map(str, dependency["relation"].values):
            own = margin.sel(relation=relation, drop=True)
            if relation != "all" and bool((own > 0).any()):
                found[f"relation {relation}"] = own
    roles = datasets.get("roles")
    if roles is not None:
        found |= {
            f"role {name}": roles["has_role"].isel(role=i, drop=True).astype(float)
            for i, name in enumerate(labels_of(roles, "role"))
        }
    if not found:
        return xr.DataArray(
            np.zeros((0, 0, 0)), dims=("behaviour", "layer", "head"), coords={"behaviour": np.array([], dtype=str)}
        )
    plain = [array.reset_coords(drop=True).transpose("layer", "head") for array in found.values()]
    return xr.concat(plain, dim=xr.IndexVariable("behaviour", list(found)), coords="minimal", compat="override")


def head_labels(datasets: Mapping[str, xr.Dataset], layers: int, heads: int) -> np.ndarray:
    """One word for what each head does, `[layer, head]`: the relation it is the best head of (by a margin of 0.1, significantly), else the position or token
    type that gets more than half of its attention, else `delimiters` or `neighbours` where `[CLS]`, `[SEP]` and punctuation, or the previous, same and next
    token, do so together (the larger of the two), else `broad` where no token gets more than a tenth, else `other`."""
    labels = np.full((layers, heads), OTHER, dtype=object)
    surface = datasets.get("surface")
    if surface is not None:
        scores = behaviour_scores({"surface": surface})
        values = scores.values
        labels[np.nan_to_num(values[-1]) > 1 - BROAD] = BROADLY
        targets, names = np.nan_to_num(values[:-1]), scores["behaviour"].values[:-1]
        near = targets[[name in POSITIONS.values() for name in names]].sum(0)
        resting = targets[[name not in POSITIONS.values() for name in names]].sum(0)
        labels[(near > LEAST_SHARE) & (near >= resting)] = NEIGHBOURS
        labels[(resting > LEAST_SHARE) & (resting > near)] = DELIMITERS
        sharp = targets.max(0) > LEAST_SHARE
        labels[sharp] = names[targets.argmax(0)][sharp]
    dependency = datasets.get("dependency")
    if dependency is not None:
        order = np.argsort(
            np.nan_to_num(dependency["best_margin"].values, nan=-1.0), kind="stable"
        )  # the largest margin is written last
        for place in order:
            at = dependency.isel(relation=int(place))
            name = str(at["relation"].values)
            certain = float(at["best_p_adjusted"]) < LEVEL and float(at["best_margin"]) >= LEAST_MARGIN
            if name != "all" and certain:
                labels[int(at["best_layer"]), int(at["best_head"])] = name
    return labels.astype(str)


def with_behaviours(datasets: Mapping[str, xr.Dataset]) -> dict[str, xr.Dataset]:
    """The same datasets; `distance` gets `behaviour[head_a]`, one word for each head, and `family_behaviour[family, behaviour_name]`, the mean of
    each behaviour over the heads of a family, with `family_size[family]`, where there is something to take them from."""
    out = dict(datasets)
    distance = datasets.get("distance")
    if distance is None or "cluster" not in distance:
        return out
    scores = behaviour_scores(datasets)
    if not scores.size:
        return out
    layers, heads = scores.sizes["layer"], scores.sizes["head"]
    if layers * heads != distance.sizes["head_a"]:
        return out
    family = distance["cluster"].values
    members = np.eye(int(family.max()) + 1)[family]  # [head, family]
    flat = scores.values.reshape(len(scores), -1)
    present = np.isfinite(flat).astype(float)
    with np.errstate(divide="ignore", invalid="ignore"):
        means = (np.where(present > 0, flat, 0.0) @ members) / (present @ members)
    labels: dict[str, Any] = {
        "behaviour": (
            "head_a",
            head_labels(datasets, layers, heads).ravel(),
            {"long_name": "what the head does, in a word"},
        ),
        "family_behaviour": (("family", "behaviour_name"), means.T, {"long_name": "mean over the heads of a family"}),
        "family_size": ("family", members.sum(0).astype(np.int64), {"long_name": "heads of the family"}),
    }
    out["distance"] = distance.assign(labels).assign_coords(
        family=np.arange(members.shape[1]), behaviour_name=scores["behaviour"].values
    )
    return out


def labels_of(dataset: xr.Dataset, dim: str) -> list[str]:
    """The labels of a dimension, which live in `DIM_name` where a variable has the dimension's own name."""
    source = dataset[f"{dim}_name"] if f"{dim}_name" in dataset.coords else dataset[dim]
    return [str(label) for label in source.values]
