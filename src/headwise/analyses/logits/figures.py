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
    caption="Left: direct contribution to the logit of the true next token, less the mean over the vocabulary, mean "
    "over "
    "tokens. Right: the same, less what the head adds to the token that comes next at this place in another text: what "
    "is left is about this text.",
    paper=PAPER,
    needs=("direct",),
)
def heads(dataset: xr.Dataset) -> Figure:
    """Heat maps `[layer, head]` of `direct` and `specific`, zero in the neutral colour."""
    panels = {
        f"less the {dataset.attrs['against']}": dataset["direct"],
        "less another text's": dataset["specific"],
    }
    notes = data.ground(dataset, "direct")
    return heatmap_panels(
        panels, title="Direct contributions of heads", label="logit", centre=0.0, notes=notes
    )


@figure(
    "logits",
    name="layers",
    title="What each layer adds to the logit of the next token",
    caption="Direct contribution of all heads of a layer, and of its feed-forward part; bars are 95 % intervals of the "
    "feed-forward part over examples. The embedding and the biases are named below.",
    paper=PAPER,
    needs=("direct_other",),
)
def layers(dataset: xr.Dataset) -> Figure:
    """`direct` summed over heads, and `direct_other`, by layer."""
    fig, ax = style.one_panel(style.PAGE, 2.4)
    place = np.arange(dataset.sizes["layer"])
    ax.axhline(0, color=style.GREY, linewidth=0.6)
    attention, other = dataset["direct"].sum("head").values, dataset["direct_other"].values
    ax.plot(place, attention, color=style.BLUE, marker="o", markersize=3, label="heads together")
    bounds = data.interval(dataset, "direct_other", ["layer"])
    error = None if bounds is None else np.abs(np.stack([other - bounds[0], bounds[1] - other]))
    ax.errorbar(
        place,
        other,
        error,
        color=style.VERMILION,
        marker="s",
        markersize=3,
        linewidth=1.0,
        label="feed-forward",
    )
    style.layer_axis(ax, data.numbers(dataset, "layer"))
    ax.set_ylabel("logit")
    rest = ", ".join(
        f"{name} {float(dataset[f'direct_{name}']):+.2f}" for name in ("embedding", "constant")
    )
    notes = [data.source_text(dataset), f"Logit {float(dataset['logit']):.2f}; {rest}"]
    return style.complete(
        fig, "Direct contributions by layer", notes, ax.get_legend_handles_labels()[0], 2
    )
