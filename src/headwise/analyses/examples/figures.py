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
    caption="The largest weight each head gives to any token but the first on this corpus, and the mean weight on the "
    "role it serves most (the table names the role and shows the rows).",
    needs=("sharp_weight",),
)
def heads(dataset: xr.Dataset) -> Figure:
    """Heat maps `[layer, head]` of the largest weight and of the mean weight on its role."""
    panels = {"largest weight": dataset["sharp_weight"].isel(rank=0, drop=True)}
    if "role_mean" in dataset:
        panels["mean weight on its role"] = dataset["role_mean"]
    notes = [data.source_text(dataset), f"{dataset.attrs['documents']} documents"]
    return heatmap_panels(
        panels, title="Where heads are most themselves", label="weight", limits=(0, 1), notes=notes
    )


@table_of(
    "examples",
    name="rows",
    title="Rows where each head is most itself",
    note="«query» looks at ⟦key⟧; the first token, where heads rest, is left out; no two rows from one document.",
)
def rows(dataset: xr.Dataset) -> pd.DataFrame:
    """The first row of each head, sharpest and by role."""
    found = []
    for layer, head in np.ndindex(dataset.sizes["layer"], dataset.sizes["head"]):
        own = dataset.isel(layer=layer, head=head, rank=0)
        row = {"head": head_name(layer, head), "weight": float(own["sharp_weight"])}
        row["sharpest row"] = str(own["sharp_text"].values)
        if "role" in dataset:
            row |= {"role": str(own["role"].values), "mean": float(own["role_mean"])}
            row["best row of the role"] = str(own["role_text"].values)
        found.append(row)
    return pd.DataFrame(found)
