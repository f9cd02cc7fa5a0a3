"""Tables of an atlas: every value as a row, and for each measure the heads at its ends."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
import xarray as xr

from headwise.core.labels import head_name

CURVE = 40  # a measure with more labels than this is a curve, which a table of measures cannot show
COLUMNS = ("analysis", "variable", "layer", "head", "item", "value", "n", "low", "high")
BESIDE = {"_n": "n", "_low": "low", "_high": "high"}
ITEM = ["analysis", "variable", "item"]


def measures(dataset: xr.Dataset) -> list[str]:
    """The variables that are measures of their own, without the `_n`, `_low`, `_high` that stand beside them."""
    names = [str(name) for name in dataset.data_vars]
    beside = {f"{name}{suffix}" for name in names for suffix in BESIDE}
    return [name for name in names if name not in beside]


def long_table(datasets: Mapping[str, xr.Dataset]) -> pd.DataFrame:
    """One row for each value: `analysis`, `variable`, `layer`, `head`, the other labels as `item`, `value`, `n`, `low`,
    `high`."""
    tables = [
        _values(analysis, dataset, name)
        for analysis, dataset in datasets.items()
        for name in measures(dataset)
        # the maps of one input are for drawing
        if dataset[name].dtype.kind in "fiub" and "token" not in dataset[name].dims
    ]
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=list(COLUMNS))


def _values(analysis: str, dataset: xr.Dataset, name: str) -> pd.DataFrame:
    array = dataset[name]
    dims = [str(dim) for dim in array.dims]
    if dims:
        frame = pd.MultiIndex.from_product([array[dim].values for dim in dims], names=dims).to_frame(index=False)
    else:
        frame = pd.DataFrame(index=[0])
    frame["value"] = array.values.ravel().astype(float)
    for suffix, column in BESIDE.items():
        beside = dataset.get(f"{name}{suffix}")
        frame[column] = beside.values.ravel() if beside is not None and beside.dims == array.dims else np.nan
    labels = [dim for dim in dims if dim not in ("layer", "head")]
    texts = [frame[label].astype(str) for label in labels]
    frame["item"] = texts[0].str.cat(texts[1:], sep=" ") if texts else ""
    for place in {"layer", "head"} - set(dims):
        frame[place] = pd.NA
    frame["analysis"], frame["variable"] = analysis, name
    return frame[list(COLUMNS)].astype({"layer": "Int64", "head": "Int64", "n": "Float64"})


def per_head(datasets: Mapping[str, xr.Dataset]) -> pd.DataFrame:
    """The rows of the long table that speak of one head, without curves."""
    frame = long_table(datasets)
    frame = frame[frame["layer"].notna() & frame["head"].notna()]
    labels = frame.groupby(["analysis", "variable"], sort=False)["item"].transform("nunique")
    return frame[labels <= CURVE]


def extremes(datasets: Mapping[str, xr.Dataset]) -> pd.DataFrame:
    """For each measure and label: mean over heads, lowest and highest head with their values."""
    frame = per_head(datasets)
    rows = []
    for key, part in frame[frame["value"].notna()].groupby(ITEM, sort=False):
        row = dict(zip(ITEM, key, strict=True)) | {"mean": part["value"].mean()}
        for end, at in (("lowest", part["value"].idxmin()), ("highest", part["value"].idxmax())):
            one = part.loc[at]
            row |= {end: one["value"], f"{end}_head": head_name(int(one["layer"]), int(one["head"]))}
        rows.append(row)
    return pd.DataFrame(rows)
