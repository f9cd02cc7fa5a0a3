"""Figures and tables of examples: how sharp each head gets, and its rows as text."""

from __future__ import annotations

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.figure import Figure

from headwise.core.labels import head_name
from headwise.plots import data
from headwise.plots.heatmap import heatmap_panels
from headwise.plots.registry import figure, table_of


@figure(
    "examples",
    name="heads",
    title="How sharp each head gets",
    caption="The largest weight each head gives to any token but the first on this corpus, and the "
    "mean weight on the role it serves most (the table names the role and shows the rows).",
    needs=("sharp_weight",),
)
def heads(dataset: xr.Dataset) -> Figure:
    """Draw heat maps `[layer, head]` of the largest weight and of the mean weight on its role."""
    panels = {"largest weight": dataset["sharp_weight"].isel(rank=0, drop=True)}
    if "role_mean" in dataset:
        panels["mean weight on its role"] = dataset["role_mean"]
    notes = [data.source_text(dataset), f"{dataset.attrs['documents']} documents"]
    return heatmap_panels(
        panels, title="The strongest rows of heads", label="weight", limits=(0, 1), notes=notes
    )


@table_of(
    "examples",
    name="rows",
    title="Strongest examples of each head",
    note="«query» looks at ⟦key⟧; the first token, the sink of many heads, is left out; "
    "no two rows from one document.",
)
def rows(dataset: xr.Dataset) -> pd.DataFrame:
    """Return the first row of each head, sharpest and by role."""
    records = []
    for layer, head in np.ndindex(dataset.sizes["layer"], dataset.sizes["head"]):
        first = dataset.isel(layer=layer, head=head, rank=0)
        record = {
            "head": head_name(layer, head),
            "weight": float(first["sharp_weight"]),
            "sharpest row": str(first["sharp_text"].values),
        }
        if "role" in dataset:
            record["role"] = str(first["role"].values)
            record["mean"] = float(first["role_mean"])
            record["best row of the role"] = str(first["role_text"].values)
        records.append(record)
    return pd.DataFrame(records)
