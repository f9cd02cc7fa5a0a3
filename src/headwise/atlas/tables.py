"""Tables of an atlas: every value as a row, and for each measure the heads at its ends."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import cache, partial

import numpy as np
import pandas as pd
import xarray as xr

from headwise.core.labels import head_name

CURVE = 40  # a measure with more labels than this is a curve, which a table of measures cannot show
COLUMNS = ("analysis", "variable", "layer", "head", "item", "value", "n", "low", "high")
BESIDE = {"_n": "n", "_low": "low", "_high": "high"}
ITEM = ["analysis", "variable", "item"]
# The measures that readers look for first, by group.
LEADING_MEASURES: dict[str, tuple[str, ...]] = {
    "surface": ("entropy", "max_weight", "mass", "position"),
    "offsets": ("mean_distance", "mean_offset", "beyond"),
    "patterns": ("proportion",),
    "roles": ("bias", "bias_rest", "skills"),
    "features": ("excess", "attention"),
    "token_pairs": ("excess", "attention"),
    "dependency": ("accuracy",),
    "coreference": ("accuracy",),
    "frames": ("score",),
    "sinks": ("first", "rate", "value_norm_ratio"),
    "opening_token": ("change", "first_with", "first_without"),
    "induction": ("prefix_matching", "duplicate", "copying"),
    "retrieval": ("score",),
    "logits": ("direct", "specific"),
    "circuits": ("ov_copying", "qk_matching", "composes_into", "composes_from"),
    "gradient": ("importance",),
    "attribution": ("spearman", "own", "mean_distance"),
    "probing": ("accuracy", "selectivity"),
    "tree_probe": ("weight",),
    "ablation": ("difference", "importance", "score"),
    "change": ("cosine_to",),
}


def measures(dataset: xr.Dataset) -> list[str]:
    """The variables that are measures of their own, without the `_n`, `_low`, `_high` that stand
    beside them."""
    names = [str(name) for name in dataset.data_vars]
    beside = {f"{name}{suffix}" for name in names for suffix in BESIDE}
    return [name for name in names if name not in beside]


def long_table(datasets: Mapping[str, xr.Dataset]) -> pd.DataFrame:
    """One row for each value: `analysis`, `variable`, `layer`, `head`, the other labels as `item`,
    `value`, `n`, `low`, `high`."""
    parts = []
    for analysis, dataset in datasets.items():
        labels = cache(partial(_labels, dataset))  # many arrays have the same dims
        for name in measures(dataset):
            array = dataset.variables[name]
            if (
                array.dtype.kind in "fiub" and "token" not in array.dims
            ):  # the maps of one input are for drawing
                parts.append(labels(array.dims) | _values(analysis, dataset, name))
    if not parts:
        return pd.DataFrame(columns=list(COLUMNS))
    # One frame of whole columns: a frame for each measure would take thirty times as long.
    columns = {column: np.concatenate([part[column] for part in parts]) for column in COLUMNS}
    for place in ("layer", "head"):
        columns[place] = pd.arrays.IntegerArray(
            np.maximum(columns[place], 0).astype(np.int64), columns[place] < 0
        )
    return pd.DataFrame(columns | {"n": pd.array(columns["n"], dtype="Float64")})


def _values(analysis: str, dataset: xr.Dataset, name: str) -> dict[str, np.ndarray]:
    array = dataset.variables[name]
    columns = {"value": array.values.ravel().astype(float)}
    size = len(columns["value"])
    for suffix, column in BESIDE.items():
        beside = dataset.variables.get(f"{name}{suffix}")
        held = beside is not None and beside.dims == array.dims
        columns[column] = (
            beside.values.ravel() if beside is not None and held else np.full(size, np.nan)
        )
    return columns | {
        "analysis": np.full(size, analysis, object),
        "variable": np.full(size, name, object),
    }


def _labels(dataset: xr.Dataset, dims: tuple[Hashable, ...]) -> dict[str, np.ndarray]:
    """Beside every value of an array of these dims: layer and head (-1 where there is none), and
    the other labels as one text."""
    shape = tuple(dataset.sizes[dim] for dim in dims)

    def spread(labels: np.ndarray, dim: Hashable) -> np.ndarray:
        return np.broadcast_to(
            labels.reshape([-1 if own == dim else 1 for own in dims]), shape
        ).ravel()

    columns = {
        place: spread(dataset[place].values, place)
        if place in dims
        else np.full(int(np.prod(shape)), -1)
        for place in ("layer", "head")
    }
    item = np.full(int(np.prod(shape)), "", object)
    for number, dim in enumerate(dim for dim in dims if dim not in columns):
        text = spread(pd.Series(dataset[dim].values).astype(str).to_numpy(object), dim)
        item = text if number == 0 else item + " " + text
    return columns | {"item": item}


def per_head(datasets: Mapping[str, xr.Dataset]) -> pd.DataFrame:
    """The rows of the long table that speak of one head, without curves."""
    frame = long_table(datasets)
    frame = frame[frame["layer"].notna() & frame["head"].notna()]
    labels = frame.groupby(["analysis", "variable"], sort=False)["item"].transform("nunique")
    return frame[labels <= CURVE]


def extremes(datasets: Mapping[str, xr.Dataset]) -> pd.DataFrame:
    """For each measure and label: mean over heads, lowest and highest head with their values."""
    frame = per_head(datasets)
    frame = frame[frame["value"].notna()].reset_index(drop=True)
    layers, heads = frame["layer"].to_numpy(int), frame["head"].to_numpy(int)
    rows = []
    for key, part in frame.groupby(ITEM, sort=False)["value"]:
        values, places = part.to_numpy(), part.index
        row = dict(zip(ITEM, key, strict=True)) | {"mean": values.mean()}
        for end, at in (("lowest", values.argmin()), ("highest", values.argmax())):
            row |= {
                end: values[at],
                f"{end}_head": head_name(layers[places[at]], heads[places[at]]),
            }
        rows.append(row)
    return pd.DataFrame(rows)
