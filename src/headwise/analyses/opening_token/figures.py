"""Figures of the opening token: attention to the first token with and without it."""

from __future__ import annotations

import xarray as xr
from matplotlib.figure import Figure

from headwise.plots import data, style
from headwise.plots.heatmap import heatmap_panels
from headwise.plots.registry import figure
from headwise.plots.scatter import points_by_layer

PAPER = "Xiao et al. 2023, Gu et al. 2024"


@figure(
    "opening_token",
    name="heads",
    title="Attention to the first token with the opening token and without",
    caption="Mean weight on the first token of the same inputs, from all later tokens: the opening token, "
    "or without it the first token of the text. The sink of a head that is high in both is whatever "
    "comes first.",
    paper=PAPER,
    needs=("first_with",),
)
def heads(dataset: xr.Dataset) -> Figure:
    """Heat maps `[layer, head]` of `first_with` and `first_without` on one scale."""
    panels = {"with the opening token": dataset["first_with"], "without": dataset["first_without"]}
    notes = data.source_notes(dataset, "first_with")
    return heatmap_panels(
        panels, title="Attention to the first token", label="share", limits=(0.0, 1.0), notes=notes
    )


@figure(
    "opening_token",
    name="change",
    title="Head by head: the first token with and without the opening token",
    caption="A point for each head: weight on the first token without the opening token, against that "
    "with it. On the line nothing changes; below it, a head's sink is the opening token itself.",
    paper=PAPER,
    needs=("change",),
)
def change(dataset: xr.Dataset) -> Figure:
    """`first_without` against `first_with`."""
    fig, ax = style.one_panel(style.COLUMN, 2.9)
    ax.axline((0, 0), slope=1, color=style.GREY, linewidth=0.6, linestyle=":")
    points_by_layer(ax, dataset["first_with"].values, dataset["first_without"].values, 9)
    ax.set(
        xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), xlabel="with the opening token", ylabel="without"
    )
    style.panel_labels([ax], ["weight on the first token (colour: layer)"])
    return style.complete(
        fig, "With and without the opening token", data.source_notes(dataset, "change")
    )
