"""Figures of direct logit attribution: every head, and every layer's parts."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from headwise.plots import data, style
from headwise.plots.heatmap import heatmap_panels
from headwise.plots.registry import figure

PAPER = "Elhage et al. 2021, Wang et al. 2022"


@figure(
    "logits",
    name="heads",
    title="What each head adds to the logit of the next token",
    caption="Left: direct contribution to the logit of the true next token, less the mean over the "
    "vocabulary, mean over tokens. Right: the same, less what the head adds to the token that comes "
    "next at this place in another text: what is left is about this text.",
    paper=PAPER,
    needs=("direct",),
)
def heads(dataset: xr.Dataset) -> Figure:
    """Draw heat maps `[layer, head]` of `direct` and `specific`, zero in the neutral colour."""
    panels = {
        f"less the {dataset.attrs['against']}": dataset["direct"],
        "less another text's": dataset["specific"],
    }
    notes = data.source_notes(dataset, "direct")
    return heatmap_panels(
        panels, title="Direct contributions of heads", label="logit", centre=0.0, notes=notes
    )


@figure(
    "logits",
    name="layers",
    title="What each layer adds to the logit of the next token",
    caption="Direct contribution of all heads of a layer, and of its feed-forward part; bars are 95 % "
    "intervals of the feed-forward part over examples. The embedding and the biases are named below.",
    paper=PAPER,
    needs=("direct_other",),
)
def layers(dataset: xr.Dataset) -> Figure:
    """Draw `direct` summed over heads, and `direct_other`, by layer."""
    fig, ax = style.one_panel(style.PAGE, 2.4)
    layer_places = np.arange(dataset.sizes["layer"])
    ax.axhline(0, color=style.GREY, linewidth=0.6)
    attention = dataset["direct"].sum("head").values
    feed_forward = dataset["direct_other"].values
    ax.plot(
        layer_places,
        attention,
        color=style.BLUE,
        marker="o",
        markersize=3,
        label="heads together",
    )
    error = None
    interval = data.interval(dataset, "direct_other", ["layer"])
    if interval is not None:
        low, high = interval
        error = np.abs(np.stack([feed_forward - low, high - feed_forward]))
    ax.errorbar(
        layer_places,
        feed_forward,
        error,
        color=style.VERMILION,
        marker="s",
        markersize=3,
        linewidth=1.0,
        label="feed-forward",
    )
    style.layer_axis(ax, data.numbers(dataset, "layer"))
    ax.set_ylabel("logit")
    whole = (
        f"Logit {float(dataset['logit']):.2f}; embedding "
        f"{float(dataset['direct_embedding']):+.2f}, constant "
        f"{float(dataset['direct_constant']):+.2f}"
    )
    notes = [data.source_text(dataset), whole]
    return style.complete(
        fig, "Direct contributions by layer", notes, ax.get_legend_handles_labels()[0], 2
    )
