"""Tables of an atlas: one row for every value, or the extreme heads of each measure."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import cache, partial

import numpy as np
import pandas as pd
import xarray as xr

from headwise.core.labels import head_name

CURVE = 40  # labels; a measure with more is a curve, which does not fit into a table of measures
COLUMNS = ("analysis", "variable", "layer", "head", "item", "value", "n", "low", "high")
# Variables that belong to another one, by suffix, and their columns.
COMPANIONS = {"_n": "n", "_low": "low", "_high": "high"}
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
    "function_vectors": ("gain",),
    "logits": ("direct", "specific"),
    "copy_suppression": ("suppression", "suppression_spreads", "attention"),
    "successors": ("share",),
    "circuits": ("ov_copying", "qk_matching", "composes_into", "composes_from"),
    "gradient": ("importance",),
    "attribution": ("spearman", "own", "mean_distance"),
    "probing": ("accuracy", "selectivity"),
    "tree_probe": ("weight",),
    "ablation": ("difference", "importance", "score"),
    "change": ("cosine_to",),
    "cache": ("head_distant", "head_output_error"),
}


def measures(dataset: xr.Dataset) -> list[str]:
    """Return the variables that are measures of their own, without `_n`, `_low`, `_high` of others."""
    names = [str(name) for name in dataset.data_vars]
    companions = set()
    for name in names:
        for suffix in COMPANIONS:
            companions.add(f"{name}{suffix}")
    return [name for name in names if name not in companions]


def long_table(datasets: Mapping[str, xr.Dataset]) -> pd.DataFrame:
    """Return one row for each value.

    The columns are `analysis`, `variable`, `layer`, `head`, the other labels as `item`, `value`,
    `n`, `low`, `high`."""
    parts = []
    for analysis, dataset in datasets.items():
        labels = cache(partial(_labels, dataset))  # many arrays have the same dims
        for name in measures(dataset):
            array = dataset.variables[name]
            is_map = "token" in array.dims  # of one input, for drawing
            if array.dtype.kind in "fiub" and not is_map:
                parts.append(labels(array.dims) | _values(analysis, dataset, name))
    if not parts:
        return pd.DataFrame(columns=list(COLUMNS))
    # One frame of whole columns: a frame for each measure would take thirty times as long.
    columns = {column: np.concatenate([part[column] for part in parts]) for column in COLUMNS}
    for column in ("layer", "head"):
        is_missing = columns[column] < 0
        numbers = np.maximum(columns[column], 0).astype(np.int64)
        columns[column] = pd.arrays.IntegerArray(numbers, is_missing)
    columns["n"] = pd.array(columns["n"], dtype="Float64")
    return pd.DataFrame(columns)


def _values(analysis: str, dataset: xr.Dataset, name: str) -> dict[str, np.ndarray]:
    """Return the columns of one measure that hold its name, values, counts and intervals."""
    array = dataset.variables[name]
    size = array.size
    columns = {
        "value": array.values.ravel().astype(float),
        "analysis": np.full(size, analysis, object),
        "variable": np.full(size, name, object),
    }
    for suffix, column in COMPANIONS.items():
        companion = dataset.variables.get(f"{name}{suffix}")
        if companion is not None and companion.dims == array.dims:
            columns[column] = companion.values.ravel()
        else:
            columns[column] = np.full(size, np.nan)
    return columns


def _labels(dataset: xr.Dataset, dims: tuple[Hashable, ...]) -> dict[str, np.ndarray]:
    """Return the columns `layer`, `head` (-1 where there is none) and `item` for these dims."""
    shape = tuple(dataset.sizes[dim] for dim in dims)
    size = int(np.prod(shape))

    def spread(labels: np.ndarray, dim: Hashable) -> np.ndarray:
        """Repeat the labels of one dim for every value of the array."""
        along_dim = [1] * len(dims)
        along_dim[dims.index(dim)] = -1
        return np.broadcast_to(labels.reshape(along_dim), shape).ravel()

    columns: dict[str, np.ndarray] = {}
    for place in ("layer", "head"):
        if place in dims:
            columns[place] = spread(dataset[place].values, place)
        else:
            columns[place] = np.full(size, -1)
    item_dims = [dim for dim in dims if dim not in columns]
    item = np.full(size, "", object)
    for number, dim in enumerate(item_dims):
        texts = spread(pd.Series(dataset[dim].values).astype(str).to_numpy(object), dim)
        item = texts if number == 0 else item + " " + texts
    return {**columns, "item": item}


def per_head(datasets: Mapping[str, xr.Dataset]) -> pd.DataFrame:
    """Return the rows of the long table that belong to one head, without curves."""
    frame = long_table(datasets)
    frame = frame[frame["layer"].notna() & frame["head"].notna()]
    n_labels = frame.groupby(["analysis", "variable"], sort=False)["item"].transform("nunique")
    return frame[n_labels <= CURVE]


def extremes(datasets: Mapping[str, xr.Dataset]) -> pd.DataFrame:
    """Return for each measure and label its mean over heads, and its lowest and highest head."""
    frame = per_head(datasets)
    frame = frame[frame["value"].notna()].reset_index(drop=True)
    layers = frame["layer"].to_numpy(int)
    heads = frame["head"].to_numpy(int)
    rows = []
    for key, column in frame.groupby(ITEM, sort=False)["value"]:
        values = column.to_numpy()
        row = dict(zip(ITEM, key, strict=True)) | {"mean": values.mean()}
        for name, position in (("lowest", values.argmin()), ("highest", values.argmax())):
            row_number = column.index[position]
            row[name] = values[position]
            row[f"{name}_head"] = head_name(layers[row_number], heads[row_number])
        rows.append(row)
    return pd.DataFrame(rows)
