"""Figures of relations from weights: every head on every relation, and the successor heads."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from headwise.core.labels import SIGNIFICANCE_LEVEL, head_name
from headwise.plots import data, style
from headwise.plots.heatmap import heatmap_panels
from headwise.plots.registry import figure

PAPER = "Gould et al. 2023; Elhelo & Geva 2024"
MAX_HEADS = 16  # heads in the table of the best


@figure(
    "successors",
    name="heads",
    title="Heads that turn a word into another by a relation",
    caption="Share of pairs whose target the head's OV circuit ranks first among the words of the "
    "relation, from the embedding after the first MLP. No text was read.",
    paper=PAPER,
    needs=("share",),
)
def heads(dataset: xr.Dataset) -> Figure:
    """Draw a heat map `[layer, head]` of `share` for each relation."""
    panels = data.panels(dataset.sel(stream="after_mlp"), "share", "relation")
    return heatmap_panels(
        panels,
        title="Relations from weights",
        label="share of pairs",
        limits=(0.0, 1.0),
        notes=[data.source_text(dataset)],
    )


@figure(
    "successors",
    name="best",
    title="The best heads on every relation",
    caption="Share of pairs that are right, of the heads that have at least one relation (corrected p "
    "< 0.05), from the embedding after the first MLP; a dot marks a significant share. Below the "
    "names: chance.",
    paper=PAPER,
    needs=("share", "p_adjusted"),
)
def best(dataset: xr.Dataset) -> Figure:
    """Draw `share[head, relation]` of the significant heads as a grid."""
    is_computed = dataset["share_n"].values > 0
    dataset = dataset.isel(relation=np.flatnonzero(is_computed))
    after_mlp = dataset.sel(stream="after_mlp")
    dims = ("layer", "head", "relation")
    share = data.values(after_mlp, "share", dims)
    is_significant = data.values(after_mlp, "p_adjusted", dims) < SIGNIFICANCE_LEVEL
    highest = np.where(is_significant, share, 0.0).max(-1)
    # Where none is significant, the highest heads show what there is.
    if not is_significant.any():
        highest = share.max(-1)
    order = np.argsort(-highest.ravel(), kind="stable")[:MAX_HEADS]
    order = order[highest.ravel()[order] > 0]
    if not len(order):
        order = np.array([0])
    layer, head = np.unravel_index(order, highest.shape)
    grid = share[layer, head]
    marks = is_significant[layer, head]

    fig, ax = style.one_panel(style.PAGE, 1.3 + 0.2 * len(grid))
    image = ax.imshow(grid, vmin=0, vmax=1, cmap=style.SEQUENTIAL, aspect="auto")
    for row, column in np.argwhere(marks).tolist():
        colour = "black" if grid[row, column] > 0.6 else "white"
        ax.plot(column, row, marker="o", markersize=3, color=colour)
    names = [head_name(*place) for place in zip(layer.tolist(), head.tolist(), strict=True)]
    ax.set_yticks(range(len(names)), names)
    relations = []
    for name, chance in zip(
        data.labels(dataset, "relation"), dataset["chance"].values, strict=True
    ):
        relations.append(f"{name} ({chance:.2f})")
    ax.set_xticks(range(len(relations)), relations, rotation=40, ha="right")
    fig.colorbar(image, ax=ax, label="share of pairs")
    return style.complete(fig, "Relations of the best heads", [data.source_text(dataset)])
