"""Figures of attention sinks: attention to the first token, by head and by layer."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from headwise.plots import data, style
from headwise.plots.heatmap import heatmap_panels
from headwise.plots.registry import figure
from headwise.plots.scatter import points_by_layer

PAPER = "Gu et al. 2024, Xiao et al. 2023"


@figure(
    "sinks",
    name="heads",
    title="How much each head attends to the first token",
    caption="Mean weight on the first token of the input, from all later tokens; and the share of "
    "tokens that give it more than the threshold. A head that attends to its sink has nothing to look "
    "for there; its other measures say little about it.",
    paper=PAPER,
    needs=("first",),
)
def heads(dataset: xr.Dataset) -> Figure:
    """Heat maps `[layer, head]` of `first` and `rate` on one scale, and of what else there is."""
    panels = {"weight on the first token": dataset["first"]}
    panels[f"rows above {dataset.attrs['threshold']:g}"] = dataset["rate"]
    if "first_other" in dataset:  # atlases made before `opening_token` was an analysis of its own
        panels[str(dataset.attrs["other"])] = dataset["first_other"]
    if "learned" in dataset:
        panels["on the learned sink"] = dataset["learned"]
    notes = data.source_notes(dataset, "first")
    title = "Attention to the first token"
    return heatmap_panels(panels, title=title, label="share", limits=(0.0, 1.0), notes=notes)


@figure(
    "sinks",
    name="values",
    title="What the sink carries: value and hidden-state norms",
    caption="Left: norm of the first token's value over the mean of the others', a point for each head "
    "against its weight on the first token; sinks mostly have small ones, so that attending to them "
    "moves nothing. Right: norm of the first token's hidden state over the median, by layer.",
    paper=PAPER,
    needs=("value_norm_ratio",),
)
def values(dataset: xr.Dataset) -> Figure:
    """`value_norm_ratio` against `first`, and `hidden_norm_ratio` by layer."""
    fig = style.new_figure(style.PAGE, 2.5)
    left, right = fig.subplots(1, 2)
    points_by_layer(left, dataset["first"].values, dataset["value_norm_ratio"].values, 9)
    left.set(xlabel="weight on the first token", ylabel="value norm, times the mean")
    left.set_ylim(bottom=0)
    norms = dataset["hidden_norm_ratio"].values
    right.plot(np.arange(len(norms)), norms, color=style.BLUE, marker="o", markersize=3)
    right.axhline(1, color=style.GREY, linewidth=0.6, linestyle=":")
    style.log_axis(right.yaxis)
    right.set_ylabel("hidden norm, times the median")
    style.layer_axis(right, data.numbers(dataset, "layer"))
    style.panel_labels([left, right], ["values (colour: layer)", "hidden states"])
    return style.complete(
        fig, "What the first token carries", data.source_notes(dataset, "value_norm_ratio")
    )
