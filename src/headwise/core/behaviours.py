"""What a head does, by number and in a word, read from the groups `surface`, `dependency` and `roles` of a result."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import xarray as xr

from headwise.core.labels import labels_of

POSITIONS = {-1: "previous token", 0: "same token", 1: "next token"}
TYPES = ("cls", "sep", "punct")
NEIGHBOURS, DELIMITERS, BROADLY, OTHER = "neighbours", "delimiters", "broad", "other"
LEAST_SHARE = 0.5  # of its attention: what a head must put on one target to be named after it
LEAST_MARGIN = 0.1  # over the best fixed offset: what a relation's best head must find more
LEVEL = 0.05
BROAD = 0.1  # no weight above this on average: "at most 10 % on any single word"


def behaviour_scores(datasets: Mapping[str, xr.Dataset]) -> xr.DataArray:
    """How much of each behaviour a head shows, `[behaviour, layer, head]`, from what groups there are.

    From `surface`: mean attention to the previous, same and next token, to `[CLS]`, `[SEP]` and punctuation, and
    `broad`, one minus the mean largest weight. From `dependency`: for each relation, by how much the head beats the
    best fixed offset in its better direction, where it does so significantly (else 0). From `roles`: 1 where it has the
    role.
    """
    found: dict[str, xr.DataArray] = {}
    surface = datasets.get("surface")
    if surface is not None:
        found |= {
            name: surface["position"].sel(offset=offset, drop=True)
            for offset, name in POSITIONS.items()
            if offset in surface["offset"]
        }
        found |= {
            f"to {name}": surface["mass"].sel(token_type=name, drop=True)
            for name in TYPES
            if name in surface["token_type"]
        }
        found[BROADLY] = 1 - surface["max_weight"]
    dependency = datasets.get("dependency")
    if dependency is not None:
        better = dependency["accuracy"] - dependency.get("bar", dependency["baseline_possible"])
        margin = better.where((dependency["p_adjusted"] < LEVEL) & (better > 0), 0.0).max("direction")
        for relation in map(str, dependency["relation"].values):
            own = margin.sel(relation=relation, drop=True)
            if relation != "all" and bool((own > 0).any()):
                found[f"relation {relation}"] = own
    roles = datasets.get("roles")
    if roles is not None:
        found |= {
            f"role {name}": roles["has_role"].sel(role=name, drop=True).astype(float)
            for name in labels_of(roles, "role")
        }
    if not found:
        return xr.DataArray(
            np.zeros((0, 0, 0)), dims=("behaviour", "layer", "head"), coords={"behaviour": np.array([], dtype=str)}
        )
    plain = [array.reset_coords(drop=True).transpose("layer", "head") for array in found.values()]
    joined = xr.concat(plain, dim="behaviour", coords="minimal", compat="override")
    return joined.assign_coords(behaviour=list(found))


def head_labels(datasets: Mapping[str, xr.Dataset], layers: int, heads: int) -> np.ndarray:
    """One word for what each head does, `[layer, head]`.

    The relation it is the best head of (by a margin of 0.1, significantly), else the position or token type that gets
    more than half of its attention, else `delimiters` or `neighbours` where `[CLS]`, `[SEP]` and punctuation, or the
    previous, same and next token, do so together (the larger of the two), else `broad` where no token gets more than a
    tenth, else `other`.
    """
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
